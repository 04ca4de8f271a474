/* shrink.c - deadwood-shrink: a smaller model in one command, with its row and its controls.
 *
 *     deadwood shrink mini.gguf -f experiments/texts/calib/english-1.txt --rate 0.3 -o small.gguf
 *
 * It computes nothing itself.  It writes a grid, OUT.shrink/shrink.grid, and runs `deadwood sweep` on it, which
 * remembers what is done, checks that inputs are the same, and judges the rows.  Then it copies the shrunk model to
 * OUT and runs `deadwood table` on the rows.  The grid, for --rate 0.3 --mixture Q4_K_M:
 *
 *   stats        : collect -m M -f TEXTS --gram down --gradients -o $out.h5
 *   plan         : rank -m M -s $stats --metric obs-gradient --rate 0.3 --as Q4_K_M -o $out.tsv
 *   cut          : cut -m M -p $plan --repair lsq -s $stats -o $out.gguf
 *   of_cut       : collect -m $cut -f TEXTS -o $out.h5
 *   small        : requant -m $cut --mixture Q4_K_M -s $of_cut -o $out.gguf
 *   random_*     : plan to small once more with --metric random --seed 1: the first control, of one seed
 *   rounded      : requant -m M --mixture NEAREST -s $stats -o $out.gguf: the second, uncut, nearest in bytes
 *   base, *_row  : score of the whole model, of small, and of the controls
 *
 * With --heal-minutes 10 the cut models learn, and with a mixture a third control, the uncut model:
 *
 *   small        : heal -m $cut -T M -f TEXTS --minutes 10 --as Q4_K_M -s $of_cut -o $out.gguf
 *   learned      : heal -m M -T M -f TEXTS --minutes 10 --as NEAREST -s $stats -o $out.gguf
 *
 * The metric, and --as, which makes widths multiples of the mixture's blocks: shrink_choices.h.
 *
 * Texts.  Rows are of texts that made nothing: those of --eval, or else every fifth of -f.  With --evaluations every
 * sixth of the others is held out, too, to judge allocations. */
#include "experiments/shrink_choices.h"
#include "experiments/shrink_costs.h"
#include "experiments/sweep/sweep.h"
#include "kit/blas.h"
#include "kit/hash_cache.h"
#include "kit/lineage.h"
#include "kit/memory.h"
#include "kit/talk.h"
#include "kit/tsv.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct {
    opt_list model, texts, eval;
    const char *out, *mixture, *output_type, *metric;
    opt_range windows, eval_windows;
    double rate;
    size_t bytes;
    double heal_minutes;
    int n_ctx, evaluations;
    bool clean, dry_run;
} o;

static const opt_row rows[] = {
    {NULL, 0, OPT_TEXTS, OPT_REQUIRED | OPT_INPUT, &o.model, NULL, "MODEL",
     "the model (GGUF), of 16 or 32 bits for --mixture", .min = 1, .max = 1},
    {"text", 'f', OPT_TEXTS, OPT_REQUIRED | OPT_INPUT, &o.texts, NULL, "TEXT", "calibration texts"},
    {"out", 'o', OPT_PATH, OPT_REQUIRED | OPT_NO_BYTE, &o.out, NULL, "FILE",
     "the smaller model; the folder FILE.shrink has all steps and rows", .holds = KIT_GGUF},
    {"rate", 0, OPT_REAL, 0, &o.rate, NULL, "R", "fraction of the neurons that goes", .min = 0.001, .max = 0.99},
    {"bytes", 0, OPT_BYTES, 0, &o.bytes, NULL, "SIZE", "or: the size of FILE, at most", .min = 1, .max = 1e15},
    {"mixture", 0, OPT_CHOICE, 0, &o.mixture, NULL, "NAME",
     "the types after the cut, as upstream llama.cpp names them; default: the model's own", OPT_CHOICES(kit_mixtures)},
    {"output-type", 0, OPT_CHOICE, 0, &o.output_type, NULL, "TYPE",
     "of --mixture: type of the matrix that gives the logits (in tied models the embeddings), also of the uncut "
     "controls; default: the mixture's, Q6_K or Q8_0",
     OPT_CHOICES(dw_encodable_names)},
    {"metric", 0, OPT_CHOICE, 0, &o.metric, NULL, "NAME",
     "what makes a neuron worth keeping; default: obs-gradient, or obs where the model has fewer than 16 bits or the "
     "backward pass would take long",
     OPT_CHOICES_HELP(shrink_metrics, shrink_metric)},
    {"evaluations", 0, OPT_INT, 0, &o.evaluations, "0", "N",
     "let widths differ by layer, found by N evaluations of every sixth text; 0: one rate for all", .min = 0,
     .max = 1000000},
    {"heal-minutes", 0, OPT_REAL, 0, &o.heal_minutes, "0", "M",
     "let the cut model, and its controls, learn from the whole one for at most M minutes, on the whole of the "
     "calibration texts",
     .min = 0, .max = 1e6},
    {"eval", 0, OPT_TEXTS, OPT_INPUT, &o.eval, NULL, "TEXT",
     "texts for the rows; default: every fifth text of -f; these are then not used for calibration"},
    {"ctx", 'c', OPT_INT, 0, &o.n_ctx, "512", "N", "tokens of a window", .min = 8, .max = 1 << 20},
    {"windows", 0, OPT_RANGE, 0, &o.windows, NULL, "A-B", "only windows A to B of every -f; 20 is 1-20"},
    {"eval-windows", 0, OPT_RANGE, 0, &o.eval_windows, NULL, "A-B", "only windows A to B of every --eval"},
    {"clean", 0, OPT_FLAG, OPT_NO_BYTE, &o.clean, NULL, NULL,
     "when FILE is there, remove models and statistics from FILE.shrink; rows, plans and logs stay"},
    {"dry-run", 0, OPT_FLAG, OPT_NO_BYTE, &o.dry_run, NULL, NULL,
     "print the commands and what they would cost; write nothing but the grid"},
    OPT_COMMON,
    {0}};

static const opt_program program = {
    .name = "shrink",
    .summary = "a smaller model in one command: collect, rank, cut, heal, requant, score, with controls",
    .usage = "MODEL -f TEXT.. --rate R|--bytes SIZE -o OUT [--mixture NAME [--output-type TYPE]] [--evaluations N] "
             "[--heal-minutes M] [--eval TEXT..]",
    .about =
        "Cuts the neurons that the others can best replace (collect --gram --gradients, rank --metric obs-gradient), "
        "repairs what stays (cut --repair lsq), and with --mixture requantizes it with statistics of the cut model.  "
        "Then it scores the result beside the whole model and two controls: random neurons (of one seed, so the row "
        "does not tell how much seeds differ) with the same repair and types, and the uncut model in the mixture that "
        "is nearest in bytes.  The table goes to standard output.\n"
        "\n"
        "With --heal-minutes M the cut model learns to predict what the whole model predicts (heal), for at most M "
        "minutes.  The control of random neurons learns as long.  With --mixture the weights are rounded in every "
        "step, requant is not needed, and a third control is the uncut model that learns to be rounded.\n"
        "\n"
        "Everything is done by other programs.  Their commands are printed first, with an estimate of minutes, memory "
        "and disk, and can be run by hand.  OUT.shrink/shrink.grid holds them as a grid for deadwood sweep, and "
        "OUT.shrink/log what they said.  A step that is finished is not run again: killed at any moment, the same "
        "command goes on, and other arguments use the steps that are the same.  OUT.shrink may be removed when OUT is "
        "there; --clean removes what is large in it.  After --clean the same command makes nothing while OUT is there, "
        "and makes it again when it is gone.\n"
        "\n"
        "With --rate and a mixture whose types have blocks of 256, widths are multiples of 256 unless the rate would "
        "be missed by more than 0.0625: down of another width gets larger types, which take more bytes.\n"
        "\n"
        "With --evaluations N, widths differ by layer: neurons move between layers while the divergence from the "
        "whole model falls, on texts that the statistics leave out (rank --allocate evolve).  The control of random "
        "neurons keeps one rate for all layers, which with --bytes may be another: compare its size.",
    .example = "deadwood shrink mini.gguf -f experiments/texts/calib/*.txt --rate 0.3 -o small.gguf\n"
               "deadwood shrink mini.gguf -f experiments/texts/calib/*.txt --bytes 8MB --mixture Q4_K_M -o small.gguf",
    .rows = rows};

typedef enum text_use { CALIBRATES, JUDGES, SCORES } text_use;

typedef struct shrink {
    const char *path; // of the model
    dw_model *model;
    const char *metric;
    shrink_widths widths; // of --rate
    calib_texts texts, eval;
    text_use *use;                // of each text of -f
    opt_list calib, held, scored; // the paths of -f by their use
    shrink_work work;
    char *dir, *grid, *rows; // OUT.shrink, and files in it
    char *result, *made;     // the name of the shrunk model, and its path in OUT.shrink
    char result_sha256[65];  // by its row
} shrink;

/* The type of the first matrix of fewer than 16 bits; NULL: none has. */
static const char *narrow_type(const dw_model *m) {
    const dw_gguf *g = dw_model_gguf(m);
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        const bool is_wide = t->type->id == DW_F32 || t->type->id == DW_F16 || t->type->id == DW_BF16;
        if (kit_is_matrix(t) && !is_wide) return t->type->name;
    }
    return NULL;
}

/* ---- which texts are for what ----------------------------------------------------------------------------------- */

/* Moves every `each`-th text of -f that has `least` windows to another list, or the last of them if they are fewer. */
static int move_texts(shrink *s, text_use to, int each, int least, dw_err *err) {
    size_t n_seen = 0, n_moved = 0, last = 0;
    for (size_t i = 0; i < s->texts.n_text; i++) {
        if (s->use[i] != CALIBRATES || s->texts.text[i].n_windows < least) continue;
        last = i;
        if (++n_seen % (size_t)each) continue;
        s->use[i] = to;
        n_moved++;
    }
    if (!n_moved && n_seen) s->use[last] = to;
    if (n_seen) return 0;
    return dw_fail(err, "no text of -f has %d windows of %d tokens, which %s; give longer texts, a smaller -c%s", least,
                   o.n_ctx, to == SCORES ? "rows need" : "--evaluations needs", to == SCORES ? ", or --eval TEXT" : "");
}

/* The texts of one use, and how many tokens are read of them. */
static int list_texts(const shrink *s, text_use use, opt_list *list, double *n_tokens, dw_err *err) {
    list->item = dw_alloc(s->texts.n_text, sizeof *list->item, "texts", err);
    for (size_t i = 0; list->item && i < s->texts.n_text; i++) {
        if (s->use[i] != use) continue;
        list->item[list->n++] = o.texts.item[i];
        *n_tokens += (double)calib_n_windows(&s->texts.text[i]) * o.n_ctx;
    }
    return list->item ? 0 : -1;
}

static int divide_texts(shrink *s, dw_err *err) {
    shrink_work *w = &s->work;
    s->use = dw_alloc(s->texts.n_text, sizeof *s->use, "texts", err);
    if (!s->use || (!o.eval.n && move_texts(s, SCORES, 5, 2, err))) return -1;
    if (o.evaluations && move_texts(s, JUDGES, 6, 1, err)) return -1;
    if (list_texts(s, CALIBRATES, &s->calib, &w->calib_tokens, err) ||
        list_texts(s, JUDGES, &s->held, &w->held_tokens, err) ||
        list_texts(s, SCORES, &s->scored, &w->eval_tokens, err))
        return -1;
    if (o.eval.n) w->eval_tokens = (double)calib_n_tokens(&s->eval);
    if (s->calib.n) return 0;
    return dw_fail(err, "%zu text%s for -f %s too few: %s texts of their own; give more texts%s", o.texts.n,
                   plural((double)o.texts.n), o.texts.n == 1 ? "is" : "are",
                   o.eval.n        ? "--evaluations needs"
                   : o.evaluations ? "rows and --evaluations need"
                                   : "rows need",
                   o.eval.n ? "" : ", or --eval TEXT");
}

/* Score needs two windows, and a text that made nothing. */
static int check_eval(const shrink *s, dw_err *err) {
    for (size_t i = 0; i < s->eval.n_text; i++) {
        const calib_text *e = &s->eval.text[i];
        if (e->n_windows < 2)
            return dw_fail(err, "--eval '%s' has fewer than two windows of %d tokens; give a longer text, a smaller -c",
                           e->name, o.n_ctx);
        for (size_t k = 0; k < s->texts.n_text; k++)
            if (!strcmp(e->sha256, s->texts.text[k].sha256))
                return dw_fail(err, "'%s' is among the texts of -f and of --eval; rows need other texts", e->name);
    }
    return 0;
}

static int read_texts(shrink *s, dw_err *err) {
    const calib_request texts = {.paths = &o.texts, .windows = o.windows, .n_ctx = o.n_ctx};
    const calib_request eval = {.paths = &o.eval, .windows = o.eval_windows, .n_ctx = o.n_ctx};
    if (calib_read(&s->texts, s->model, &texts, err)) return -1;
    if (o.eval.n && (calib_read(&s->eval, s->model, &eval, err) || check_eval(s, err))) return -1;
    if (divide_texts(s, err)) return -1;
    const char *best = shrink_choose_metric(s->model, narrow_type(s->model) != NULL, s->work.calib_tokens);
    s->metric = o.metric ? o.metric : best;
    s->work.by_gradient = !strcmp(s->metric, "obs-gradient");
    return 0;
}

/* ---- what rank needs ---------------------------------------------------------------------------------------------- */

enum { MAX_WORDS = 24 };

/* Runs deadwood-NAME and reads what it writes; its exit status, or -1.  free(*said). */
static int ask_program(const char *name, const char *const *argv, char **said, dw_err *err) {
    char *path = programs_path(name, err);
    if (!path) return err->text[0] ? -1 : dw_fail(err, "there is no program deadwood-%s", name);
    const int status = children_ask(path, (char *const *)argv, said, err);
    free(path);
    if (children_signal()) children_end_by(children_signal());
    return status;
}

static const char *last_line(char *text) {
    size_t n = strlen(text);
    while (n && text[n - 1] == '\n') text[--n] = 0;
    const char *before = strrchr(text, '\n');
    return before ? before + 1 : text;
}

/* The --bytes that the narrowest plan needs, but for texts in its lineage. */
static int ask_least_bytes(const shrink *s, double *bytes, dw_err *err) {
    char *model = dw_format(err, "--model=%s", s->path), *said = NULL;
    const char *argv[MAX_WORDS] = {"rank", model, "--least-bytes"};
    size_t n = 3;
    if (s->work.mixture) argv[n++] = "--as", argv[n++] = s->work.mixture->name;
    if (o.output_type) argv[n++] = "--output-type", argv[n++] = o.output_type;
    if (o.evaluations) argv[n++] = "--allocate", argv[n++] = "standardized"; // widths may differ by layer
    const int status = model ? ask_program("rank", argv, &said, err) : -1;
    const char *last = said ? last_line(said) : ""; // after warnings
    char *end = NULL;
    if (!status) *bytes = strtod(last, &end);
    const int rc = end && end > last && !*end ? 0 : -1;
    if (rc && status >= 0) dw_fail(err, "%s", *last ? last : "deadwood-rank says nothing");
    free(model);
    free(said);
    return rc;
}

/* What rank counts for the texts in a cut file's lineage, at most: those of the statistics and of --evaluations. */
static double plan_lineage_bytes(const shrink *s) {
    double bytes = 0;
    for (size_t i = 0; i < s->texts.n_text; i++) {
        if (s->use[i] == SCORES) continue;
        const size_t n_read = (size_t)calib_n_windows(&s->texts.text[i]) * (size_t)o.n_ctx;
        bytes += 256 + (double)strlen(o.texts.item[i]);
        bytes += s->use[i] == JUDGES ? (double)n_read / 2 : (double)lineage_blocks_bytes(n_read);
    }
    return bytes;
}

/* ---- the model -------------------------------------------------------------------------------------------------- */

/* The most that the lineage of FILE grows by: mostly hashes of what cut and requant read of texts, and of all that heal
 * reads (kit/lineage.h), where a token has at least one byte. */
static double lineage_bytes(const shrink *s) {
    const double steps = 8192;
    double bytes = steps;
    for (size_t i = 0; i < s->texts.n_text; i++) {
        const size_t n_read = (size_t)calib_n_windows(&s->texts.text[i]) * (size_t)o.n_ctx;
        struct stat st;
        if (s->use[i] != CALIBRATES) continue;
        bytes += (double)lineage_blocks_bytes(n_read) * (s->work.mixture ? 2 : 1);
        if (o.heal_minutes > 0 && !stat(o.texts.item[i], &st))
            bytes += (double)lineage_blocks_bytes((size_t)st.st_size);
    }
    return bytes;
}

/* What the model has beside its tensors, such as the vocabulary. */
static double keys_bytes(const shrink *s) {
    return (double)dw_gguf_file_bytes(dw_model_gguf(s->model)) - shrink_bytes(&s->work, NULL, 1);
}

/* Refuses --bytes that need no cut.  With a mixture FILE is another file, whose lineage grows. */
static int check_cut_is_needed(const shrink *s, const char *types, dw_err *err) {
    const size_t own = dw_gguf_file_bytes(dw_model_gguf(s->model));
    const kit_mixture *mixture = s->work.mixture;
    if (!mixture && o.bytes >= own)
        return dw_fail(err, "--bytes %zu: '%s' has %zu without a cut; use it as it is, or give fewer bytes", o.bytes,
                       s->path, own);
    if (!mixture || s->work.kept < 1) return 0;
    return dw_fail(err, "--bytes %zu: the model has %.0f as %s without a cut (requant makes it); give fewer bytes",
                   o.bytes, shrink_bytes(&s->work, mixture, 1) + keys_bytes(s), types);
}

/* Whether rank can make a plan; types: of --mixture, in words. */
static int check_bytes(const shrink *s, const char *types, dw_err *err) {
    const shrink_work *w = &s->work;
    double needed = 0;
    if (ask_least_bytes(s, &needed, err)) return -1;
    needed = ceil(needed + plan_lineage_bytes(s) + lineage_bytes(s));
    if ((double)o.bytes >= needed) return 0;
    return dw_fail(err,
                   "--bytes %zu is too little: %.0f are needed, and the model has %.0f%s%s without its neurons; give "
                   "more bytes%s",
                   o.bytes, needed, shrink_bytes(w, w->mixture, 0) + keys_bytes(s), w->mixture ? " as " : "", types,
                   w->mixture ? "" : ", or smaller types (--mixture)");
}

/* The share of neurons that is kept, and what the result will be near to in bytes. */
static int choose_size(shrink *s, dw_err *err) {
    shrink_work *w = &s->work;
    const dw_gguf *g = dw_model_gguf(s->model);
    char types[KIT_TYPES_WORDS];
    kit_types_words(types, w->mixture ? w->mixture->name : "", o.output_type);
    if (!o.bytes) s->widths = shrink_choose_widths(s->model, w->mixture, o.rate, o.evaluations > 0);
    if (!o.bytes && shrink_check_rate(s->model, &s->widths, o.rate, err)) return -1;
    w->kept = o.bytes ? shrink_kept(w, (double)o.bytes - keys_bytes(s) - lineage_bytes(s)) : 1 - s->widths.reached;
    if (o.bytes && (check_cut_is_needed(s, types, err) || check_bytes(s, types, err))) return -1;
    if (!o.bytes && (1 - o.rate) * dw_model_hparams(s->model)->n_ff_max < 32)
        return dw_fail(err, "--rate %g leaves fewer than 32 of %d neurons of a layer; give a lower rate", o.rate,
                       dw_model_hparams(s->model)->n_ff_max);
    const double wanted = shrink_bytes(w, w->mixture, w->kept);
    if (!narrow_type(s->model)) w->control = shrink_nearest(w, wanted);
    return dw_gguf_n_tensors(g) ? 0 : dw_fail(err, "'%s' has no tensors", s->path);
}

static int open_model(shrink *s, dw_err *err) {
    if (!(s->model = dw_model_open(s->path, err)) || dw_model_need_whole_ffn(s->model, err) ||
        dw_model_need_ungated(s->model, "shrink", err))
        return -1;
    s->work.model = s->model;
    s->work.mixture = o.mixture ? kit_mixture_find(o.mixture) : NULL;
    s->work.output = o.output_type ? dw_qtype_by_name(o.output_type) : NULL;
    if (s->work.mixture && narrow_type(s->model))
        return dw_fail(err, "'%s' is %s already, and --mixture would round it twice; give the model in 16 bits",
                       s->path, narrow_type(s->model));
    if (o.heal_minutes > 0 && narrow_type(s->model))
        return dw_fail(err, "'%s' is %s, and --heal-minutes needs 16 or 32 bits; give the model in 16 bits", s->path,
                       narrow_type(s->model));
    return 0;
}

/* ---- the grid --------------------------------------------------------------------------------------------------- */

/* " --output-type Q4_K" of a program that rounds; "": it has the mixture's. */
static const char *output_words(void) {
    static char words[64];
    snprintf(words, sizeof words, "%s%s", o.output_type ? " --output-type " : "", o.output_type ? o.output_type : "");
    return words;
}

/* A word of a grid that stands for itself: in '..', and ' in "..".  free(). */
static char *grid_word_of(const char *text, dw_err *err) {
    char *word = dw_format(err, "'%s", *text == '-' ? "./" : "");
    if (strpbrk(text, "\n\r")) dw_fail(err, "a name with a line end cannot stand in a grid; rename the file");
    for (const char *at = text; word && *at && !strpbrk(text, "\n\r"); at++)
        if (*at == '\'' ? dw_append(&word, err, "'\"'\"'") : dw_append(&word, err, "%c", *at)) return NULL;
    if (!word || err->text[0] || dw_append(&word, err, "'")) {
        free(word);
        return NULL;
    }
    return word;
}

typedef struct words { // of the grid
    char *model, *calib, *held, *eval;
    char *lesson; // whole texts, for heal
} words;

/* " -f 'A' 'B' -c 512 --windows 1-4" */
static char *text_words(const opt_list *texts, opt_range windows, dw_err *err) {
    char *to = dw_strdup(" -f", err);
    for (size_t i = 0; i < texts->n && to; i++) {
        char *word = grid_word_of(texts->item[i], err);
        if (word) dw_append(&to, err, " %s", word);
        free(word);
    }
    dw_append(&to, err, " -c %d", o.n_ctx);
    if (windows.last) dw_append(&to, err, " --windows %d-%d", windows.first, windows.last);
    return to;
}

/* Whether widths are multiples of the mixture's blocks.  The control has one width for all layers, which may miss a
 * rate that widths which differ reach; then the rate matters more. */
static bool widths_fit(const shrink *s, bool is_control) {
    if (o.bytes || !is_control) return o.bytes ? s->work.mixture != NULL : s->widths.fit;
    const shrink_widths uniform = shrink_choose_widths(s->model, s->work.mixture, o.rate, false);
    return uniform.fit && fabs(uniform.reached - s->widths.reached) <= 0.01;
}

static void put_rank(char **to, const shrink *s, const words *w, const char *metric, dw_err *err) {
    const bool is_random = !strcmp(metric, "random");
    // random neurons need no statistics, but their cut names the same texts, which --bytes counts
    dw_append(to, err, "rank -m %s -s $stats%s --metric %s", w->model, is_random ? " --seed 1" : "", metric);
    if (o.bytes)
        dw_append(to, err, " --bytes %.0f", (double)o.bytes - lineage_bytes(s)); // rank does not know what heal adds
    else
        dw_append(to, err, " --rate %.6g", o.rate);
    if (widths_fit(s, is_random))
        dw_append(to, err, " --as %s%s", s->work.mixture->name, o.bytes ? output_words() : "");
    if (o.evaluations && !is_random)
        dw_append(to, err, " --allocate evolve --start sensitivity --evaluations %d%s", o.evaluations, w->held);
    dw_append(to, err, " -o $out.tsv\n");
}

/* Windows that heal holds out: eight, or as many as equal shares of the texts have beside one window to learn from. */
static int n_held_out(const shrink *s) {
    for (int n = 8, room = 0; n > 1; n--, room = 0) {
        const int share = (n + (int)s->calib.n - 1) / (int)s->calib.n;
        for (size_t i = 0; i < s->texts.n_text; i++) {
            const int has = s->texts.text[i].n_windows - 1;
            if (s->use[i] == CALIBRATES) room += share < has ? share : has;
        }
        if (room >= n) return n;
    }
    return 1;
}

typedef struct lesson { // of a cut model, or of the whole one
    const char *model, *stats;  // words of the grid; stats: importances of the model
    const kit_mixture *mixture; // which it is rounded to; NULL: none
} lesson;

static void put_heal(char **to, const shrink *s, const words *w, const lesson *l, dw_err *err) {
    dw_append(to, err, "heal -m %s -T %s%s --held-out %d --minutes %.6g", l->model, w->model, w->lesson, n_held_out(s),
              o.heal_minutes);
    if (l->mixture) dw_append(to, err, " --as %s%s -s %s", l->mixture->name, output_words(), l->stats);
    dw_append(to, err, " -o $out.gguf\n");
}

/* A cut model and its row; the steps' names begin with `prefix`, and the last model is "small". */
static void put_cut(char **to, const shrink *s, const words *w, const char *prefix, dw_err *err) {
    const kit_mixture *mixture = s->work.mixture;
    const bool heals = o.heal_minutes > 0;
    const char *cut = mixture || heals ? "cut" : "small";
    char cut_step[32], of_cut[32];
    snprintf(cut_step, sizeof cut_step, "$%scut", prefix);
    snprintf(of_cut, sizeof of_cut, "$%sof_cut", prefix);
    dw_append(to, err, "%splan : ", prefix);
    put_rank(to, s, w, *prefix ? "random" : s->metric, err);
    dw_append(to, err, "%s%s : cut -m %s -p $%splan --repair lsq -s $stats -o $out.gguf\n", prefix, cut, w->model,
              prefix);
    if (mixture) dw_append(to, err, "%s : collect -m %s%s -o $out.h5\n", of_cut + 1, cut_step, w->calib);
    if (mixture || heals) dw_append(to, err, "%ssmall : ", prefix);
    if (heals)
        put_heal(to, s, w, &(lesson){cut_step, of_cut, mixture}, err);
    else if (mixture)
        dw_append(to, err, "requant -m %s --mixture %s%s -s %s -o $out.gguf\n", cut_step, mixture->name, output_words(),
                  of_cut);
    dw_append(to, err, "%ssmall_row : score -m $%ssmall --base $base%s --no-speed -o $rows\n", prefix, prefix, w->eval);
}

/* The uncut model in the mixture nearest in bytes; and once more, learning to be rounded, where rounded cuts learn. */
static void put_rounded(char **to, const shrink *s, const words *w, dw_err *err) {
    const kit_mixture *control = s->work.control;
    dw_append(to, err, "rounded : requant -m %s --mixture %s%s -s $stats -o $out.gguf\n", w->model, control->name,
              output_words());
    dw_append(to, err, "rounded_row : score -m $rounded --base $base%s --no-speed -o $rows\n", w->eval);
    if (o.heal_minutes <= 0 || !s->work.mixture) return;
    dw_append(to, err, "learned : ");
    put_heal(to, s, w, &(lesson){w->model, "$stats", control}, err);
    dw_append(to, err, "learned_row : score -m $learned --base $base%s --no-speed -o $rows\n", w->eval);
}

static char *grid_of(const shrink *s, const words *w, dw_err *err) {
    char *to = dw_strdup("# deadwood grid 1\n#\n# deadwood shrink wrote this, and runs it by deadwood sweep.\n\n", err);
    dw_append(&to, err, "stats : collect -m %s%s --gram down%s -o $out.h5\n", w->model, w->calib,
              s->work.by_gradient ? " --gradients" : "");
    dw_append(&to, err, "base : score -m %s%s --no-speed --store $out.base\n", w->model, w->eval);
    dw_append(&to, err, "base_row : score -m %s --base $base%s --no-speed -o $rows\n", w->model, w->eval);
    put_cut(&to, s, w, "", err);
    put_cut(&to, s, w, "random_", err);
    if (s->work.control) put_rounded(&to, s, w, err);
    if (!err->text[0]) return to;
    free(to);
    return NULL;
}

static char *make_grid(const shrink *s, dw_err *err) {
    const words w = {grid_word_of(s->path, err), text_words(&s->calib, o.windows, err),
                     text_words(&s->held, o.windows, err),
                     o.eval.n ? text_words(&o.eval, o.eval_windows, err) : text_words(&s->scored, o.windows, err),
                     text_words(&s->calib, (opt_range){0}, err)};
    char *text = w.model && w.calib && w.held && w.eval && w.lesson && !err->text[0] ? grid_of(s, &w, err) : NULL;
    free(w.model);
    free(w.calib);
    free(w.held);
    free(w.eval);
    free(w.lesson);
    return text;
}

/* A folder of other arguments stays of use: sweep takes the steps that are the same, whatever the others were. */
static void tell_other_arguments(const shrink *s, const char *text) {
    size_t n;
    char *before = dw_file_exists(s->grid) ? dw_read_file(s->grid, 1 << 24, &n, NULL) : NULL;
    if (before && strcmp(before, text))
        say("'%s' was made with other arguments: the steps that are the same are not run again, the others are; "
            "what only the other arguments need stays there until you remove it",
            s->dir);
    free(before);
}

/* Writes the grid; the same command writes the same bytes. */
static int write_grid(const shrink *s, dw_err *err) {
    char *text = make_grid(s, err);
    if (text) tell_other_arguments(s, text);
    if (text && mkdir(s->dir, 0777) && errno != EEXIST)
        dw_fail(err, "cannot make the folder '%s': %s", s->dir, strerror(errno));
    dw_out *out = text && !err->text[0] ? dw_out_open_kept(s->grid, err) : NULL;
    const int rc = out && !dw_out_write(out, text, strlen(text), err) ? dw_out_commit(out, err) : -1;
    dw_out_free(out);
    free(text);
    return rc;
}

/* ---- other programs --------------------------------------------------------------------------------------------- */

/* Runs deadwood-NAME to its end; its exit status, or -1.  A signal that ended it ends this process, too. */
static int run_program(const char *name, const char *const *word, int out, dw_err *err) {
    const char *argv[MAX_WORDS + 2] = {name};
    for (size_t i = 0; i < MAX_WORDS && word[i]; i++) argv[i + 1] = word[i];
    char *path = programs_path(name, err);
    if (!path && !err->text[0]) dw_fail(err, "there is no program deadwood-%s beside this one or on PATH", name);
    if (!path) return -1;
    const pid_t pid = children_start_here(path, (char *const *)argv, out, err);
    child_end end = {0};
    int rc = pid < 0 ? -1 : 1;
    while (rc == 1) rc = children_wait(&end, 3600);
    free(path);
    if (rc) return err->text[0] ? -1 : dw_fail(err, "deadwood-%s ended, and how is not known", name);
    const int sig = children_signal() ? children_signal() : WIFSIGNALED(end.status) ? WTERMSIG(end.status) : 0;
    if (sig) children_end_by(sig);
    return WIFEXITED(end.status) ? WEXITSTATUS(end.status) : dw_fail(err, "deadwood-%s was killed", name);
}

typedef struct sweep_words { // of deadwood sweep
    const char *word[MAX_WORDS + 2];
    char threads[16];
} sweep_words;

/* --keep there: --clean has removed models on purpose. */
static void sweep_arguments(sweep_words *w, const shrink *s, const char *last) {
    snprintf(w->threads, sizeof w->threads, "%d", tool.threads);
    const char *const word[] = {"sweep",      s->grid, "-o",     s->dir,  "-j", "1",        "--keep", "there",
                                "--controls", "none",  "--base", "exact", "-t", w->threads, last};
    memset(w->word, 0, sizeof w->word);
    memcpy(w->word, word, sizeof word);
}

/* Other lines that sweep writes are its table, after #, and warnings. */
static bool is_command(const char *line) { return !strncmp(line, "deadwood ", 9); }

/* Prints the commands; sweep has made them safe for terminals. */
static void print_commands(char *said, FILE *to) {
    size_t n = 0;
    for (const char *line = said; *line; line += strcspn(line, "\n"), line += *line == '\n') n += is_command(line);
    if (n)
        say("%zu step%s to run, by %s:", n, n == 1 ? " is" : "s are", n == 1 ? "this command" : "these commands");
    else
        say("every step is done");
    for (char *rest = said, *line; (line = strsep(&rest, "\n"));)
        if (is_command(line)) fprintf(to, "%s\n", line);
}

/* Shows the commands that sweep will run, by its dry run. */
static int show_commands(const shrink *s, FILE *to, dw_err *err) {
    sweep_words w;
    char *said = NULL;
    sweep_arguments(&w, s, "--dry-run");
    const int status = ask_program("sweep", w.word, &said, err);
    if (status == 0) print_commands(said, to);
    if (status > 0) dw_fail(err, "%.*s", (int)strcspn(said, "\n"), said);
    free(said);
    return status ? -1 : 0;
}

static int run_sweep(const shrink *s, dw_err *err) {
    sweep_words w;
    sweep_arguments(&w, s, tool.quiet ? "-q" : NULL);
    return run_program("sweep", w.word + 1, 2, err);
}

/* ---- the result ------------------------------------------------------------------------------------------------- */

static int set_result(shrink *s, const char *model, const char *sha256, dw_err *err) {
    free(s->result);
    free(s->made);
    s->result = dw_strdup(model, err);
    s->made = dw_format(err, "%s/%s", s->dir, model);
    snprintf(s->result_sha256, sizeof s->result_sha256, "%s", sha256 ? sha256 : "");
    return s->result && s->made ? 0 : -1;
}

/* The shrunk model by its row, or why there is none. */
static int find_row(shrink *s, const tsv_table *t, dw_err *err) {
    for (size_t i = 0; i < t->n_rows; i++) {
        const char *model = tsv_cell(t, i, "model"), *verdict = tsv_cell(t, i, "verdict");
        const char *note = tsv_cell(t, i, "note");
        if (!model || strncmp(model, "small-", 6)) continue;
        if (!verdict || strcmp(verdict, "failed")) return set_result(s, model, tsv_cell(t, i, "model_sha256"), err);
        return dw_fail(err, "%s", note ? note : "a step failed");
    }
    return dw_fail(err, "a step failed; '%s.shrink/log' says why", o.out);
}

static int find_result(shrink *s, dw_err *err) {
    tsv_table t;
    if (tsv_read(&t, s->rows, err)) return -1;
    const int rc = find_row(s, &t, err);
    tsv_release(&t);
    return rc;
}

/* Whether the shrunk model is in OUT.shrink, or OUT is the same: --clean removes the former. */
static bool has_result(const shrink *s) {
    char sha256[65];
    if (dw_file_exists(s->made)) return true;
    return dw_file_exists(o.out) && !kit_sha256_file(o.out, sha256, NULL) && !strcmp(sha256, s->result_sha256);
}

/* Removes the rows of shrunk models, so that sweep makes the model again.  Rows of other arguments are among them; they
 * cost one score each. */
static int forget_rows(const shrink *s, dw_err *err) {
    DIR *d = opendir(s->dir);
    if (!d) return dw_fail(err, "cannot read the folder '%s': %s", s->dir, strerror(errno));
    int rc = 0;
    for (struct dirent *e; !rc && (e = readdir(d));)
        if (!strncmp(e->d_name, "small_row-", 10) && unlinkat(dirfd(d), e->d_name, 0))
            rc = dw_fail(err, "cannot remove '%s/%s': %s", s->dir, e->d_name, strerror(errno));
    closedir(d);
    return rc;
}

static int copy_file(const char *from, const char *to, dw_err *err) {
    dw_map map;
    if (dw_map_file(&map, from, err)) return -1;
    dw_out *out = dw_out_open_kept(to, err); // has_result may have read it
    dw_out_pieces whole = {&(dw_out_piece){map.data, map.size}, 1};
    int rc = out ? dw_out_write(out, map.data, map.size, err) : -1;
    if (!rc) rc = dw_out_commit_checked(out, dw_out_holds, &whole, err);
    dw_out_free(out);
    dw_unmap(&map);
    return rc;
}

static void warn_of_size(void) {
    const size_t bytes = dw_file_bytes(o.out);
    if (o.bytes && bytes > o.bytes)
        warn("'%s' has %zu bytes, %zu more than --bytes; give fewer", o.out, bytes, bytes - o.bytes);
}

/* "cut-8c5e0f12ab.gguf": a file that sweep has named, and that is a model, a checkpoint of heal, statistics or stored
 * predictions. */
static bool is_large_step(const char *name) {
    static const char *const endings[] = {".gguf", ".gguf.checkpoint", ".h5", ".h5.gram", ".base"};
    const char *dash = strrchr(name, '-');
    if (!dash || dash == name || strspn(dash + 1, "0123456789abcdef") != 10) return false;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (!strcmp(dash + 11, endings[i])) return true;
    return false;
}

static void clean_folder(const shrink *s) {
    DIR *d = opendir(s->dir);
    double bytes = 0;
    struct stat st;
    for (struct dirent *e; d && (e = readdir(d));) {
        if (!is_large_step(e->d_name) || fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW)) continue;
        if (S_ISREG(st.st_mode) && !unlinkat(dirfd(d), e->d_name, 0)) bytes += (double)st.st_size;
    }
    if (d) closedir(d);
    if (bytes > 0) say("%s of models and statistics are removed from '%s'", show_bytes(bytes).text, s->dir);
}

/* ---- in order --------------------------------------------------------------------------------------------------- */

/* What was chosen for the user, and what more could be asked for. */
static void tell_choices(const shrink *s) {
    const shrink_widths *w = &s->widths;
    const char *mixture = s->work.mixture ? s->work.mixture->name : "";
    if (!o.bytes && fabs(w->reached - o.rate) > 0.0005)
        say("widths are multiples of %d%s%s: rate %.4f instead of %g", w->unit, w->fit ? ", the blocks of " : "",
            w->fit ? mixture : "", w->reached, o.rate);
    if (!o.bytes && w->block > 32 && !w->fit)
        say("widths that are multiples of %d, the blocks of %s, are too far from rate %g: down gets larger types",
            w->block, mixture, o.rate);
    if (!o.metric && !s->work.by_gradient && !narrow_type(s->model))
        say("metric obs, because a backward pass over so many tokens of this model takes long; --metric obs-gradient "
            "takes it");
}

static int tell(shrink *s, dw_err *err) {
    shrink_costs c = {0};
    int32_t *token = dw_alloc((size_t)o.n_ctx, sizeof *token, "a window", err);
    const double disk = kit_free_disk(s->dir);
    tell_choices(s);
    if (o.n_ctx > dw_model_hparams(s->model)->n_ctx_train)
        warn("'%s' was trained on %d positions, windows have %d (-c)", s->path, dw_model_hparams(s->model)->n_ctx_train,
             o.n_ctx);
    s->work.n_threads = tool.threads ? tool.threads : dw_cpu_count();
    s->work.heal_minutes = o.heal_minutes;
    s->work.evaluations = o.evaluations;
    s->work.n_ctx = o.n_ctx;
    s->work.step = s->widths.fit || (o.bytes && s->work.mixture) ? 256 : 32;
    if (token) calib_window(&s->texts, &s->texts.text[0], 0, token);
    const int rc = token ? shrink_estimate(&c, &s->work, token, o.n_ctx < 128 ? o.n_ctx : 128, err) : -1;
    free(token);
    if (rc) return -1;
    say("all steps together: about %.*f minutes on %d thread%s, %s of memory, %s of disk in '%s' (%s free); finished "
        "steps are not run again",
        c.minutes < 10, c.minutes, s->work.n_threads, plural(s->work.n_threads), show_bytes(c.memory).text,
        show_bytes(c.disk).text, s->dir, isnan(disk) ? "an unknown number" : show_bytes(disk).text);
    if (disk < c.disk) warn("the disk may be too small");
    const double memory = kit_free_memory();
    if (memory < c.memory) warn("the memory may be too small: %s are free", show_bytes(memory).text);
    if (!o.evaluations && c.evolve_minutes < 8 * 60)
        say("--evaluations %d would take about %.*f minutes more, and lets widths differ by layer (what that brings: "
            "results/repair.md)",
            SHRINK_EVALUATIONS, c.evolve_minutes < 10, c.evolve_minutes);
    if (!s->work.control) say("no control in fewer bits: the model is %s already", narrow_type(s->model));
    return 0;
}

static int prepare(shrink *s, dw_err *err) {
    s->path = o.model.item[0];
    s->dir = dw_format(err, "%s.shrink", o.out);
    s->grid = dw_format(err, "%s.shrink/shrink.grid", o.out);
    s->rows = dw_format(err, "%s.shrink/rows.tsv", o.out);
    if (!s->dir || !s->grid || !s->rows) return -1;
    const bool ok = !open_model(s, err) && !read_texts(s, err) && !choose_size(s, err) && !write_grid(s, err);
    return ok && !tell(s, err) ? 0 : -1;
}

static void release(shrink *s) {
    calib_release(&s->texts);
    calib_release(&s->eval);
    dw_model_close(s->model);
    free(s->use);
    free(s->calib.item);
    free(s->held.item);
    free(s->scored.item);
    free(s->dir);
    free(s->grid);
    free(s->rows);
    free(s->result);
    free(s->made);
}

/* Runs the steps that are missing and finds the result; the exit status, or -1. */
static int run_steps(shrink *s, dw_err *err) {
    if (!tool.quiet && show_commands(s, stderr, err)) return -1;
    const int status = run_sweep(s, err);
    return status < 0 || find_result(s, err) ? -1 : status;
}

static int make(shrink *s, dw_err *err) {
    if (o.dry_run) return show_commands(s, stdout, err);
    int status = run_steps(s, err);
    if (status == 0 && !has_result(s)) {
        say("%s was removed from '%s' (--clean), and '%s' is not that model: it is made again", s->result, s->dir,
            o.out);
        status = forget_rows(s, err) ? -1 : run_steps(s, err);
    }
    if (status < 0) return -1;
    if (!has_result(s)) return dw_fail(err, "a step failed; '%s/log' says why", s->dir);
    const bool is_cleaned = !dw_file_exists(s->made);
    if (!is_cleaned && copy_file(s->made, o.out, err)) return -1;
    const int table = run_program("table", (const char *[]){s->rows, NULL}, 1, err);
    warn_of_size();
    if (is_cleaned)
        say("'%s' is there: it is %s of this table; the steps that made it were removed from '%s' (--clean)", o.out,
            s->result, s->dir);
    else
        say("'%s' is %s of this table; '%s' has the rows and everything that made them", o.out, s->result, s->dir);
    if (s->work.control) say("verdicts compare rows of one type; whether fewer bits are better, the control shows");
    if (o.clean) clean_folder(s);
    return status ? status : table;
}

int main(int argc, char **argv) {
    o.rate = -1;
    opt_parse(&program, argc, argv);
    if ((o.rate >= 0) == !!o.bytes) die_usage("give --rate or --bytes%s", o.bytes ? ", not both" : "");
    if (o.output_type && !o.mixture) die_usage("--output-type belongs to --mixture");
    if (o.eval_windows.last && !o.eval.n) die_usage("--eval-windows belongs to --eval");
    kit_blas_start(argv); // its speed is measured
    dw_err err = {0};
    shrink s = {0};
    int rc = prepare(&s, &err);
    if (!rc) {
        dw_model_close(s.model); // the steps need the memory
        s.model = NULL;
        children_on_signals();
        rc = make(&s, &err);
    }
    release(&s);
    if (rc < 0) die_err(&err);
    return rc;
}
