/* heal.c - deadwood-heal: a cut model learns from the original.
 *
 *     deadwood heal -m mini-cut.gguf -T mini.gguf -f heal.txt -o mini-healed.gguf --tokens 2e6
 *
 * The loss, its steps and the checkpoints: distil.h.  Plan and end of a run: schedule.h.  The healed file is the cut one
 * with other values: each trained row is encoded in its own type, and a row whose values are as they were is copied as
 * bytes.  With --as every matrix is encoded in the type of a mixture, and was rounded to it in every step. */
#include "base/set.h"
#include "formats/ffn_act.h"
#include "kit/disk.h"
#include "kit/hash_cache.h"
#include "kit/lineage.h"
#include "kit/memory.h"
#include "kit/mixtures.h"
#include "kit/options.h"
#include "kit/progress.h"
#include "kit/sizes.h"
#include "kit/talk.h"
#include "kit/tensor_stream.h"
#include "kit/weights.h"
#include "measure/predictions.h"
#include "model/archs.h"
#include "prune/heal_recipe.h"
#include "prune/prune.h"
#include "prune/teacher_cache.h"
#include "qtypes/encoding.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BY_RECIPE = -1 }; // no value was given
enum { MAX_TEXT_BYTES = 1 << 30 };

/* ---- what is trained ------------------------------------------------------------------------------------------- */

static bool is_bias_or_norm(dw_weight w) {
    switch (w) {
    case DW_W_ATTN_NORM:
    case DW_W_FFN_NORM:
    case DW_W_OUTPUT_NORM:
    case DW_W_Q_NORM:
    case DW_W_K_NORM:
    case DW_W_Q_BIAS:
    case DW_W_K_BIAS:
    case DW_W_V_BIAS:
    case DW_W_O_BIAS:
    case DW_W_GATE_BIAS:
    case DW_W_UP_BIAS:
    case DW_W_DOWN_BIAS:
    case DW_W_OUTPUT_BIAS: return true;
    default: return false;
    }
}

static bool is_ffn(dw_weight w) {
    switch (w) {
    case DW_W_FFN_NORM:
    case DW_W_GATE:
    case DW_W_UP:
    case DW_W_DOWN:
    case DW_W_GATE_BIAS:
    case DW_W_UP_BIAS:
    case DW_W_DOWN_BIAS: return true;
    default: return false;
    }
}

static bool is_any(dw_weight w) { return w != DW_W_DOWN_T; }
static bool is_down_or_norm(dw_weight w) { return w == DW_W_DOWN || is_bias_or_norm(w); }
static bool is_of_layer(dw_weight w) { return is_any(w) && (!dw_weight_is_of_model(w) || is_bias_or_norm(w)); }

static const struct trained {
    const char *name, *help;
    bool (*wanted)(dw_weight w);
    bool low_rank;
    double rate; // where --lr says none; 0: by heal_recipe.h
} trained[] = {
    {"all", "every weight", is_any, false, 0},
    {"ffn", "gate, up, down and their norm", is_ffn, false, 0},
    {"down", "down, norms and biases", is_down_or_norm, false, 5e-4},
    {"norms", "norms and biases", is_bias_or_norm, false, 5e-4},
    {"lora", "a product of rank --rank added to every matrix of the layers; norms and biases", is_of_layer, true, 5e-4},
    {0},
};

/* ---- options --------------------------------------------------------------------------------------------------- */

static struct {
    const char *model, *teacher, *out, *train, *activation, *as, *output_type, *weights, *cache;
    opt_list texts;
    double tokens, minutes, rate, temperature, ce, hidden, sparsity, decay, warm, last, clip, checkpoint;
    int patience, rank, batch, n_ctx, seed, n_held;
    bool recompute, snapshots;
} o = {.rate = BY_RECIPE, .hidden = BY_RECIPE};

/* OUT-10.gguf .. OUT-90.gguf: the model after i + 1 tenths; NULL: memory is missing. */
static char *snapshot_name(size_t i) {
    const char *dot = strrchr(o.out, '.');
    const size_t stem = dot && !strcmp(dot, ".gguf") ? (size_t)(dot - o.out) : strlen(o.out);
    return dw_format(NULL, "%.*s-%zu0.gguf", (int)stem, o.out, i + 1);
}

// clang-format off
static const opt_row rows[] = {
    {"model", 'm', OPT_PATH, OPT_REQUIRED | OPT_INPUT, &o.model, NULL, "FILE", "the cut model (GGUF)"},
    {"teacher", 'T', OPT_PATH, OPT_REQUIRED | OPT_INPUT, &o.teacher, NULL, "FILE",
     "the model that it was cut from, in any type"},
    {"text", 'f', OPT_TEXTS, OPT_REQUIRED | OPT_INPUT, &o.texts, NULL, "FILE",
     "texts to learn from; special tokens in them (<|endoftext|>) count as such", .min = 1, .max = 4096},
    {"out", 'o', OPT_PATH, OPT_REQUIRED | OPT_NO_BYTE, &o.out, NULL, "FILE", "the healed model",
     .beside = ".checkpoint", .holds = KIT_GGUF},
    {"teacher-cache", 0, OPT_PATH, OPT_OUTPUT, &o.cache, NULL, "FILE",
     "predictions of the teacher, its 64 likeliest tokens: written first, or read if the file is there; needs --tokens"},
    {.kind = OPT_GROUP, .help = "how long"},
    {"tokens", 0, OPT_REAL, 0, &o.tokens, "0", "N", "learn from N tokens: 2e6", .min = 0, .max = 1e15},
    {"minutes", 0, OPT_REAL, 0, &o.minutes, "0", "M", "or: plan the schedule so that the command ends after M minutes",
     .min = 0, .max = 1e6},
    {"patience", 0, OPT_INT, 0, &o.patience, "3", "N",
     "stop after N tenths of the run without a lower held-out KL; the lowest wins; 0: never, and the last wins",
     .min = 0, .max = SCHEDULE_PARTS},
    {.kind = OPT_GROUP, .help = "training"},
    {"train", 0, OPT_CHOICE, 0, &o.train, "all", "WHAT", "what is trained", OPT_CHOICES_HELP(trained, struct trained)},
    {"activation", 0, OPT_CHOICE, 0, &o.activation, NULL, "NAME",
     "of the FFN's gates from now on; default: the cut model's own", OPT_CHOICES_HELP(dw_acts, dw_act_row)},
    {"as", 0, OPT_CHOICE, 0, &o.as, NULL, "MIXTURE",
     "round the weights to the types of this mixture in every step, and write them in these; needs --train all",
     OPT_CHOICES(kit_mixtures)},
    {"output-type", 0, OPT_CHOICE, 0, &o.output_type, NULL, "TYPE",
     "of --as: type of the matrix that gives the logits (in tied models the embeddings); default: the mixture's, "
     "Q6_K or Q8_0",
     OPT_CHOICES(dw_encodable_names)},
    {"stats", 's', OPT_PATH, OPT_INPUT, &o.weights, NULL, "FILE",
     "of --as: weigh errors of rounding by how strong each input is, as requant -s does: stats.h5 or llama.cpp's imatrix"},
    {"rank", 0, OPT_INT, 0, &o.rank, "16", "R", "of --train lora", .min = 1, .max = 4096},
    {"lr", 0, OPT_REAL, 0, &o.rate, NULL, "X",
     "AdamW's highest rate; default: (0.025 + 0.2 C) / N, where N is the model's width and C the share of the layers' "
     "weights that was cut; with another --activation C is at least 0.5; for --train down, norms and lora 0.0005",
     .min = 0, .max = 1},
    {"batch", 0, OPT_INT, 0, &o.batch, "2", "N", "windows of a step", .min = 1, .max = 4096},
    {"ctx", 'c', OPT_INT, 0, &o.n_ctx, "512", "N", "tokens of a window", .min = 2, .max = 65536},
    {"seed", 0, OPT_INT, 0, &o.seed, "0", "N", "seed of the places of windows", .min = 0, .max = 2147483647},
    {"temperature", 0, OPT_REAL, 0, &o.temperature, "1", "X", "of both distributions", .min = 0.1, .max = 100},
    {"ce", 0, OPT_REAL, 0, &o.ce, "0", "X", "share of the cross entropy with the texts' own next tokens",
     .min = 0, .max = 1},
    {"hidden-states", 0, OPT_REAL, 0, &o.hidden, NULL, "W",
     "weight of the relative squared error of the layers' outputs, in addition; default: 10, or 0 if the models differ in "
     "layers or width, and with --teacher-cache",
     .min = 0, .max = 1000},
    {"sparsity", 0, OPT_REAL, 0, &o.sparsity, "0", "W",
     "weight of the gates' density, |r|_1 / (sqrt(n) |r|_2) with r = relu(g), in addition: fewer neurons are open; needs "
     "relu and --patience 0, since the held-out loss leaves it out",
     .min = 0, .max = 1000},
    {"decay", 0, OPT_REAL, 0, &o.decay, "0", "X", "AdamW's decay of matrices", .min = 0, .max = 1},
    {"clip", 0, OPT_REAL, 0, &o.clip, "1", "X", "largest norm of a step's gradient; 0: any", .min = 0, .max = 1e6},
    {"warm-up", 0, OPT_REAL, 0, &o.warm, "0.05", "X", "part of the run in which the rate rises", .min = 0, .max = 1},
    {"last", 0, OPT_REAL, 0, &o.last, "0.1", "X", "the cosine falls to X times --lr", .min = 0, .max = 1},
    {"held-out", 0, OPT_INT, 0, &o.n_held, "8", "N",
     "at least N windows at the ends of the texts only measure, as many of each text: one or more",
     .min = 1, .max = 4096},
    {"recompute", 0, OPT_FLAG, OPT_NO_BYTE, &o.recompute, NULL, NULL,
     "compute the layers' values again instead of keeping them: less memory, slower, the same bits"},
    {"snapshots", 0, OPT_FLAG, OPT_NO_BYTE, &o.snapshots, NULL, NULL,
     "also write the model as it is after each tenth of the run, OUT-10.gguf to OUT-90.gguf (fewer of a run of few "
     "steps): scored, they show how it learns", .n_derived = 9, .derived = snapshot_name, .holds = KIT_GGUF},
    {"checkpoint-minutes", 0, OPT_REAL, OPT_NO_BYTE, &o.checkpoint, "2", "M",
     "minutes between checkpoints; 0: after every step", .min = 0, .max = 1e6},
    OPT_COMMON_ENGINE, {0}};

static const opt_program program = {
    .name = "heal",
    .summary = "the cut model learns from the original",
    .usage = "-m CUT.gguf -T TEACHER.gguf -f TEXT... -o M2.gguf --tokens N | --minutes M [--train WHAT] [--lr X] "
             "[--as MIXTURE [--output-type TYPE] [-s STATS]]",
    .about = "AdamW trains the cut model (the student) to give the original's (the teacher's) distributions of the "
             "next token: the loss is KL(teacher || student) over the whole vocabulary, at every position of windows at "
             "random places of the texts (Hinton et al. 2015).  The teacher runs in the same pass, and its logits are "
             "not stored.  For several students of one teacher, --teacher-cache stores its 64 likeliest tokens and the "
             "mass of the others once; the KL is then over these 65 bins.\n"
             "\n"
             "The trained weights are F32 copies.  With --train lora the matrices stay as they are, and the trained "
             "products B A are added to them (Hu et al. 2021): AdamW then needs less memory.  At the end all are "
             "encoded in the types of the cut file, which must have 16 or 32 bits, or in those of --as.  The teacher may "
             "have any type.\n"
             "\n"
             "With --as the model learns to be rounded (quantization-aware training): it computes with weights in the "
             "types that requant --mixture would choose, and the steps change the values before rounding (Bengio et al. "
             "2013, straight-through).  -m may be the original itself.  With -s errors of rounding are weighed as requant "
             "-s weighs them.  In a small model the matrix that gives the logits takes a large part of the bytes; "
             "--output-type sets its type.  Where its rows are no whole blocks of that type, it gets another, as in a "
             "mixture.  A model that heals without --as is rounded afterwards, by requant.\n"
             "\n"
             "The defaults (small steps, hidden states, a rate that fits what was cut) come from runs of two models, of 12 "
             "and 56 M parameters, with half a million tokens and fewer.  If the held-out loss rises first, try a smaller "
             "--lr.\n"
             "\n"
             "The last windows of the texts are held out.  After each tenth of the run their KL(teacher || student) is "
             "measured.  The values with the lowest are written (those of before, where none is as low), and a run that "
             "does not lower it any more stops early.\n"
             "\n"
             "With --activation relu the model learns to do with another activation.  Upstream llama.cpp cannot run such a "
             "file: it computes with the architecture's own.  --sparsity asks for more neurons that are 0.\n"
             "\n"
             "At the end a line tells the speed of the steps, as a share of what their operations and the rate of the "
             "products' inner loop allow.  That rate is measured, from cache, in BF16 where the CPU multiplies it.\n"
             "\n"
             "OUT.checkpoint is written every few minutes, and at Ctrl-C or SIGTERM after the current step.  When a run "
             "has ended early, also by kill -9, the same command goes on from it.  With --tokens the result is then the "
             "same, bit for bit, as that of an uninterrupted run.  A command with other inputs or options is refused "
             "until OUT.checkpoint is removed.",
    .example = "deadwood heal -m mini-cut.gguf -T mini.gguf -f heal.txt -o mini-healed.gguf --tokens 2e6\n"
               "deadwood heal -m mini-cut.gguf -T mini.gguf -f heal.txt -o mini-healed.gguf --minutes 10 --train ffn\n"
               "deadwood heal -m mini.gguf -T mini.gguf -f heal.txt -o mini-Q2_K.gguf --minutes 10 --as Q2_K",
    .rows = rows};
// clang-format on

/* ---- inputs ---------------------------------------------------------------------------------------------------- */

typedef struct inputs {
    dw_model *model, *teacher;
    char model_sha256[65], teacher_sha256[65];
    distil_text *text;
    size_t n_text;
    int32_t bos;
} inputs;

static int check_vocabularies(const inputs *in, dw_err *err) {
    dw_vocab a = {0}, b = {0};
    uint8_t hash[2][32];
    if (dw_vocab_from_gguf(&a, dw_model_gguf(in->model), err)) return -1;
    int rc = dw_vocab_from_gguf(&b, dw_model_gguf(in->teacher), err);
    if (!rc) {
        measure_vocab_hash(&a, hash[0]);
        measure_vocab_hash(&b, hash[1]);
        if (memcmp(hash[0], hash[1], 32) ||
            dw_model_hparams(in->model)->n_vocab != dw_model_hparams(in->teacher)->n_vocab)
            rc = dw_fail(err, "'%s' has another vocabulary than '%s'; the teacher must be the model that was cut",
                         o.teacher, o.model);
    }
    dw_vocab_release(&a);
    dw_vocab_release(&b);
    return rc;
}

/* Files of weights that the student's steps name, and whether the teacher, or a file that it was made of, is one. */
typedef struct kinship {
    dw_set files; // hashes
    bool is_found;
} kinship;

/* Relatives and strangers can share texts, tokenizers and configurations. */
static bool has_weights(const char *name) { return strstr(name, ".gguf") || strstr(name, ".safetensors"); }

static void list_file(void *ctx, const char *tool_name, const char *name, const char *sha256) {
    (void)tool_name;
    kinship *k = ctx;
    if (has_weights(name)) dw_set_add(&k->files, sha256, strlen(sha256), NULL);
}

static void look_for_file(void *ctx, const char *tool_name, const char *name, const char *sha256) {
    (void)tool_name;
    kinship *k = ctx;
    k->is_found |= has_weights(name) && dw_set_has(&k->files, sha256, strlen(sha256));
}

/* A student that says what it was made of, and of neither the teacher nor what the teacher was made of, may be the cut
 * of another model.  A lineage that cannot be read says nothing. */
static void warn_of_strangers(const inputs *in) {
    kinship k = {{0}};
    lineage_inputs(dw_model_gguf(in->model), list_file, &k, NULL);
    lineage_inputs(dw_model_gguf(in->teacher), look_for_file, &k, NULL);
    k.is_found |= dw_set_has(&k.files, in->teacher_sha256, strlen(in->teacher_sha256));
    if (k.files.n && !k.is_found && strcmp(in->model_sha256, in->teacher_sha256))
        warn("'%s' was not made of '%s', as its lineage says (deadwood inspect --lineage); is that the original?",
             o.model, o.teacher);
    dw_set_free(&k.files);
}

/* A teacher that was made of the student. */
static void warn_of_swapped(const inputs *in) {
    kinship k = {{0}};
    dw_set_add(&k.files, in->model_sha256, strlen(in->model_sha256), NULL);
    lineage_inputs(dw_model_gguf(in->teacher), look_for_file, &k, NULL);
    if (k.is_found)
        warn("'%s' was made of '%s', as its lineage says, and now '%s' learns from it; are -m and -T swapped?",
             o.teacher, o.model, o.model);
    dw_set_free(&k.files);
}

static int open_models(inputs *in, dw_err *err) {
    in->model = dw_model_open(o.model, err);
    in->teacher = in->model ? dw_model_open(o.teacher, err) : NULL;
    if (!in->teacher || dw_model_need_whole_ffn(in->model, err) || lineage_check(dw_model_gguf(in->model), err) ||
        lineage_check_texts_of_model(dw_model_gguf(in->model), dw_model_gguf(in->teacher), err) ||
        check_vocabularies(in, err))
        return -1;
    if (dw_model_need_ungated(in->model, "heal", err)) return -1;
    if (dw_model_is_gated(in->teacher))
        return dw_fail(err, "'%s' is gated; the teacher must be the original", o.teacher);
    kit_sha256_gguf(dw_model_gguf(in->model), in->model_sha256);
    kit_sha256_gguf(dw_model_gguf(in->teacher), in->teacher_sha256);
    warn_of_strangers(in);
    warn_of_swapped(in);
    return 0;
}

static int read_text(distil_text *t, const dw_tokenizer *tok, const char *path, dw_err *err) {
    size_t size;
    static const uint8_t xz[] = {0xfd, '7', 'z', 'X', 'Z', 0};
    if (dw_file_begins(path, xz, sizeof xz)) return dw_fail(err, "'%s' is compressed; unpack it first (xz -dk)", path);
    char *bytes = dw_read_text(path, MAX_TEXT_BYTES, &size, err);
    if (!bytes) return -1;
    t->name = dw_base_name(path);
    dw_sha256_hex(bytes, size, t->sha256);
    const int rc = dw_tokenize(tok, bytes, size, DW_PARSE_SPECIAL, &t->id, &t->n, err);
    free(bytes);
    return rc;
}

static int read_texts(inputs *in, dw_err *err) {
    dw_tokenizer *tok = dw_tokenizer_open(dw_model_gguf(in->model), err);
    in->text = tok ? dw_alloc(o.texts.n, sizeof *in->text, "texts", err) : NULL;
    int rc = in->text ? 0 : -1;
    if (!rc) in->bos = dw_tokenizer_vocab(tok)->add_bos ? dw_tokenizer_vocab(tok)->bos : -1;
    for (size_t i = 0; i < o.texts.n && !rc; i++) rc = read_text(&in->text[in->n_text++], tok, o.texts.item[i], err);
    dw_tokenizer_free(tok);
    return rc;
}

static void close_inputs(inputs *in) {
    for (size_t i = 0; i < in->n_text; i++) free(in->text[i].id);
    free(in->text);
    dw_model_close(in->model);
    dw_model_close(in->teacher);
}

/* ---- the run --------------------------------------------------------------------------------------------------- */

typedef struct run {
    inputs in;
    distil d;
    kit_mixture_use as; // --as; its mixture is NULL without
    kit_weights weights; // -s
    char *checkpoint;
    dw_hold *hold; // of it
    uint8_t identity[32];
    double started, began; // times: of the program; of the steps, less the seconds that the checkpoint had
    double saved;          // time of the last checkpoint
    double in_steps;       // seconds of this process's steps
    uint64_t n_steps;      // how many they are
    double loss, held_out; // latest
    uint64_t measured;     // step after which held_out was measured
    bool told_of_rise;
    bool start_wins; // the weights of before are written
    bool best_wins;  // those after the step of the lowest loss are
} run;

static const struct trained *what_is_trained(void) {
    const struct trained *t = trained;
    while (strcmp(t->name, o.train)) t++;
    return t;
}

/* The type that a tensor is rounded to; NULL: none. */
static const dw_qtype_row *type_as(const void *run_pointer, const dw_tensor *t) {
    const run *r = run_pointer;
    bool fell_back;
    return r->as.mixture && kit_is_matrix(t) ? kit_mixture_type(&r->as, t, &fell_back) : NULL;
}

/* check_as has found them without an error. */
static const float *importance_of(const void *run_pointer, const dw_tensor *t) {
    const run *r = run_pointer;
    const float *mean = NULL;
    kit_weights_find(&r->weights, t, &mean, NULL);
    return mean;
}

/* Importances fit their matrices, and are there where the mixture needs them. */
static int check_as(const run *r, dw_err *err) {
    const dw_gguf *g = dw_model_gguf(r->in.model);
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        const dw_qtype_row *type = type_as(r, t);
        const float *mean;
        if (!type) continue;
        if (kit_weights_find(&r->weights, t, &mean, err)) return dw_fail_in(err, "'%s'", o.weights);
        if (!mean && kit_mixture_needs_weights(r->as.mixture, t, type))
            return kit_weights_fail(o.weights, t, o.as, err);
    }
    return 0;
}

static const dw_qtype_row *file_type_of(const run *r, const dw_tensor *t) {
    const dw_qtype_row *type = type_as(r, t);
    return type ? type : t->type;
}

/* The tensors as --as stores them. */
static kit_sizes sizes_as(const run *r) {
    const dw_gguf *g = dw_model_gguf(r->in.model);
    kit_sizes sizes = {0};
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        const dw_qtype_row *type = file_type_of(r, t);
        const size_t n_rows = t->ne[1] * t->ne[2] * t->ne[3];
        const bool fell_back = kit_is_matrix(t) && type != kit_mixture_wanted(&r->as, t);
        const char *kind = fell_back ? KIT_SIZES_FALLBACK : kit_is_matrix(t) ? KIT_SIZES_MATRICES : KIT_SIZES_VECTORS;
        kit_sizes_add(&sizes, type->name, kind, (double)(t->ne[0] * n_rows),
                      (double)(dw_qtype_row_bytes(type, t->ne[0]) * n_rows));
    }
    return sizes;
}

static void warn_of_fallbacks(const run *r) {
    const kit_sizes sizes = sizes_as(r);
    size_t n = 0;
    for (int i = 0; i < sizes.n; i++)
        if (!strcmp(sizes.row[i].kind, KIT_SIZES_FALLBACK)) n += sizes.row[i].n_tensors;
    if (n)
        warn("'%s' has rows that are no whole blocks of the types of %s; %zu matri%s get%s larger types; where it is "
             "ffn_down, a cut by a plan of rank --multiple 256 avoids it",
             o.model, o.as, n, n > 1 ? "ces" : "x", n > 1 ? "" : "s");
}

static distil_options options_of(const run *r, dw_pool *pool) {
    const struct trained *what = what_is_trained();
    return (distil_options){
        .pool = pool,
        .backend = tool.backend,
        .n_ctx = o.n_ctx,
        .batch = o.batch,
        .n_held = o.n_held,
        .seed = (uint64_t)o.seed,
        .bos = r->in.bos,
        .temperature = o.temperature,
        .ce = o.ce,
        .hidden = o.hidden,
        .activation = o.activation,
        .sparsity = o.sparsity,
        .keeps_best = o.patience > 0,
        .trained = {.wanted = what->wanted,
                    .rank = what->low_rank ? o.rank : 0,
                    .seed = (uint64_t)o.seed,
                    .rounded = type_as,
                    .importance = importance_of,
                    .ctx = r},
        .adamw = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decay = o.decay, .clip = o.clip}};
}

static const char draws[] = "draws 2"; // of windows: distil_draw

/* All that decides the result. */
static int identify(run *r, dw_err *err) {
    char backend[32] = "", *arguments = lineage_arguments(&program, err); // all 32 bytes are hashed
    dw_sha256 h;
    if (!arguments) return -1;
    tool_backend_text(backend);
    dw_sha256_begin(&h);
    dw_sha256_add(&h, r->in.model_sha256, 64);
    dw_sha256_add(&h, r->in.teacher_sha256, 64);
    for (size_t i = 0; i < r->in.n_text; i++) dw_sha256_add(&h, r->in.text[i].sha256, 64);
    dw_sha256_add(&h, r->weights.sha256, strlen(r->weights.sha256));
    dw_sha256_add(&h, backend, strlen(backend) + 1);
    dw_sha256_add(&h, arguments, strlen(arguments));
    dw_sha256_add(&h, draws, sizeof draws);
    dw_sha256_end(&h, r->identity);
    free(arguments);
    return 0;
}

/* All that decides the teacher's predictions. */
static void identify_cache(const run *r, uint8_t identity[32]) {
    char backend[32] = "", text[160];
    dw_sha256 h;
    tool_backend_text(backend);
    const int n = snprintf(text, sizeof text, "%d %d %d %d %d %a %s", o.seed, o.batch, o.n_ctx, o.n_held,
                           (int)r->in.bos, o.temperature, draws);
    dw_sha256_begin(&h);
    dw_sha256_add(&h, r->in.teacher_sha256, 64);
    for (size_t i = 0; i < r->in.n_text; i++) { // the ids are those of the student's tokenizer
        uint8_t ids[32];
        measure_ids_hash(r->in.text[i].id, r->in.text[i].n, ids);
        dw_sha256_add(&h, ids, sizeof ids);
    }
    dw_sha256_add(&h, backend, strlen(backend) + 1);
    dw_sha256_add(&h, text, (size_t)n);
    dw_sha256_end(&h, identity);
}

/* Makes the file of predictions unless it is there, and learns from it. */
static int open_cache(run *r, dw_err *err) {
    uint8_t identity[32];
    const uint64_t n = r->d.plan.n_steps;
    if (!o.cache) return 0;
    identify_cache(r, identity);
    if (!dw_file_exists(o.cache)) {
        say("teacher cache: %s in '%s'", show_bytes(teacher_cache_bytes(&r->d, n)).text, o.cache);
        if (teacher_cache_make(&r->d, o.cache, identity, n, err)) return -1;
    }
    return teacher_cache_open(&r->d, o.cache, identity, n, err);
}

/* Trained weights are written in the types of the file, and coarse ones would lose what was learned. */
static int check_types(const dw_parameters *p, dw_err *err) {
    for (size_t i = 0; i < p->n; i++) {
        const dw_tensor *t = &p->item[i].source;
        if (t->type->block > 1)
            return dw_fail(
                err,
                "'%s' of '%s' is %s, and trained weights need 16 or 32 bits; heal a 16-bit file first, then requant",
                t->name, o.model, t->type->name);
    }
    return 0;
}

static void tell_held_out(const run *r) {
    const size_t n = distil_n_held(r->in.text, r->in.n_text, o.n_ctx);
    say("held out: %zu window%s at the ends of %zu text%s; their loss is the KL alone", n, plural((double)n),
        r->in.n_text, plural((double)r->in.n_text));
}

/* A text that holds another trains with windows that the other holds out. */
static int warn_of_shared(const inputs *in, dw_err *err) {
    size_t learnt, held;
    lineage_split *text = dw_alloc(in->n_text, sizeof *text, "texts", err);
    for (size_t i = 0; text && i < in->n_text; i++) {
        const distil_text *t = &in->text[i];
        text[i] = (lineage_split){t->id, t->n, t->n_train, t->sha256};
    }
    const long shared = text ? lineage_shared_end(text, in->n_text, &learnt, &held, err) : -1;
    free(text);
    if (shared > 0)
        warn("the end of '%s' is held out, and '%s' trains with %ld tokens of it; give each text once",
             in->text[held].name, in->text[learnt].name, shared);
    return shared < 0 ? -1 : 0;
}

/* Keeps the layers' values where that takes at most half of the memory that is free. */
static int choose_memory(const run *r, distil_options *options, dw_err *err) {
    const double free_bytes = kit_free_memory(), has = isnan(free_bytes) ? INFINITY : free_bytes;
    options->keeps_values = !o.recompute;
    double need = (double)distil_memory(r->in.model, r->in.teacher, options);
    if (options->keeps_values && need > has / 2) {
        options->keeps_values = false;
        need = (double)distil_memory(r->in.model, r->in.teacher, options);
    }
    say("memory: %s for %s of the student and passes of both models; the layers' values are %s", show_bytes(need).text,
        strcmp(o.train, "all") ? o.train : "all weights", options->keeps_values ? "kept" : "computed again");
    if (need <= has) return 0;
    return dw_fail(err, "out of memory: %s are needed, %s are free; try %sa smaller -c or a smaller --batch",
                   show_bytes(need).text, show_bytes(has).text, o.as ? "" : "--train down, ");
}

/* Writing the file takes part of the time, at a rate that slow disks have. */
static schedule plan_of(const run *r) {
    const double bytes_a_second = 200e6;
    const uint64_t n_steps = (uint64_t)fmax(1, round(o.tokens / ((double)o.batch * o.n_ctx)));
    return (schedule){.n_steps = o.tokens > 0 ? n_steps : 0,
                      .budget = 60 * o.minutes,
                      .reserve = (double)dw_gguf_file_bytes(dw_model_gguf(r->in.model)) / bytes_a_second,
                      .rate = o.rate,
                      .warm = o.warm,
                      .last = o.last,
                      .patience = o.patience};
}

static void warn_of_one_step(void) {
    const double step = (double)o.batch * o.n_ctx;
    if (o.tokens > 0 && 2 * o.tokens < step)
        warn("--tokens %.0f is less than half a step of %.0f tokens, and one step is taken; a smaller --batch or -c "
             "takes fewer",
             o.tokens, step);
}

static int open_mixture(run *r, dw_err *err) {
    r->as = (kit_mixture_use){.mixture = kit_mixture_find(o.as),
                              .model = r->in.model,
                              .weighted = o.weights != NULL,
                              .output = o.output_type ? dw_qtype_by_name(o.output_type) : NULL};
    if (o.weights && kit_weights_read(&r->weights, r->in.model, r->in.model_sha256, o.weights, err)) return -1;
    if (check_as(r, err)) return -1;
    warn_of_fallbacks(r);
    return 0;
}

/* The student's from now on. */
static const char *activation_of(const run *r) {
    return o.activation ? o.activation : dw_model_activation(r->in.model);
}

static bool changes_activation(const run *r) {
    return strcmp(activation_of(r), dw_model_activation(r->in.model)) != 0;
}

/* Fills in what no option says, and tells all of it as options. */
static void follow_recipe(const run *r) {
    const dw_model *m = r->in.model, *teacher = r->in.teacher;
    const double own = what_is_trained()->rate;
    if (o.rate == BY_RECIPE) o.rate = own > 0 ? own : heal_recipe_rate(m, teacher, changes_activation(r));
    if (o.hidden == BY_RECIPE) o.hidden = o.cache ? 0 : heal_recipe_hidden(m, teacher);
    opt_chosen(&o.rate);
    opt_chosen(&o.hidden);
    say("recipe: --lr %g --batch %d --hidden-states %g --last %g", o.rate, o.batch, o.hidden, o.last);
}

static int open_run(run *r, dw_pool *pool, dw_err *err) {
    if (open_models(&r->in, err)) return -1;
    if (o.sparsity > 0 && strcmp(activation_of(r), "relu"))
        return dw_fail(err, "'%s' would have the activation %s, and --sparsity needs relu; use --activation relu", o.model,
                       activation_of(r));
    follow_recipe(r);
    if (read_texts(&r->in, err) || (o.as && open_mixture(r, err))) return -1;
    distil_options options = options_of(r, pool);
    /* Without --as the healed file is as large as the cut one. */
    if (!o.as && kit_need_disk(o.out, (double)dw_gguf_file_bytes(dw_model_gguf(r->in.model)), err)) return -1;
    if (distil_hold_out(r->in.text, r->in.n_text, &options, err) || choose_memory(r, &options, err) || identify(r, err))
        return -1;
    tell_held_out(r);
    if (warn_of_shared(&r->in, err)) return -1;
    warn_of_one_step();
    r->d.text = r->in.text;
    r->d.n_text = r->in.n_text;
    if (distil_open(&r->d, r->in.model, r->in.teacher, &options, err) || check_types(&r->d.p, err)) return -1;
    r->d.plan = plan_of(r);
    r->checkpoint = dw_format(err, "%s.checkpoint", o.out);
    r->hold = r->checkpoint ? dw_hold_take(r->checkpoint, err) : NULL;
    if (!r->hold || open_cache(r, err)) return -1;
    const int loaded = distil_load(&r->d, r->checkpoint, r->identity, err);
    if (loaded > 0) say("going on after step %llu, which '%s' has", (unsigned long long)r->d.plan.steps, r->checkpoint);
    if (loaded > 0) say_if_interrupted(r->checkpoint);
    return loaded < 0 ? -1 : 0;
}

static void close_run(run *r) {
    distil_close(&r->d);
    close_inputs(&r->in);
    kit_weights_release(&r->weights);
    dw_hold_free(r->hold);
    free(r->checkpoint);
}

static double tokens_of(const run *r) { return (double)r->d.plan.steps * o.batch * o.n_ctx; }

/* ---- the file -------------------------------------------------------------------------------------------------- */

typedef struct writing { // of one tensor
    const dw_parameters *p;
    const dw_tensor *t;
    dw_encoding encoding; // of its rows, in the file's type
} writing;

/* The trained values of the row that begins at these bytes of the file; NULL: it was not trained. */
static const float *trained_row(const dw_parameters *p, const uint8_t *row) {
    for (const dw_parameter *i = p->item; i < p->item + p->n; i++) {
        const dw_tensor *s = &i->source;
        if (row >= s->data && row < s->data + s->n_bytes)
            return (i->rounded ? p->value + i->first : i->weight) +
                   (size_t)(row - s->data) / dw_tensor_row_bytes(s) * s->ne[0];
    }
    return NULL;
}

static void make_rows(void *ctx, const kit_piece *piece) {
    writing *w = ctx;
    const size_t n = w->t->ne[0], bytes = dw_tensor_row_bytes(w->t);
    const size_t new_bytes = dw_qtype_row_bytes(w->encoding.type, n);
    for (size_t r = 0; r < piece->n; r++) {
        const uint8_t *from = w->t->data + (piece->first + r) * bytes;
        uint8_t *to = piece->out + r * new_bytes;
        const float *row = trained_row(w->p, from);
        bool same = w->encoding.type == w->t->type;
        w->t->type->decode(from, piece->scratch, n);
        for (size_t i = 0; row && i < n; i++) same = same && row[i] == piece->scratch[i];
        if (same)
            memcpy(to, from, bytes);
        else
            dw_encode_row(&w->encoding, piece->first + r, row ? row : piece->scratch, to);
    }
}

static int check_rows(void *ctx, dw_err *err) {
    return dw_encoding_end(&((writing *)ctx)->encoding, o.as ? "try a smaller --lr" : "heal a BF16 or F32 file", err);
}

static int write_tensor(const run *r, kit_stream *s, const dw_tensor *t, dw_err *err) {
    const dw_qtype_row *type = file_type_of(r, t);
    writing w = {.p = &r->d.p, .t = t, .encoding = {.tensor = t->name, .type = type, .n = t->ne[0]}};
    if (type_as(r, t)) w.encoding.weight = importance_of(r, t);
    if (type == t->type && !trained_row(&r->d.p, t->data)) return kit_stream_copy(s, t, err);
    return kit_stream_tensor(s,
                             &(kit_rows){.n_rows = t->ne[1] * t->ne[2] * t->ne[3],
                                         .row_bytes = dw_qtype_row_bytes(type, t->ne[0]),
                                         .n_scratch = t->ne[0],
                                         .make = make_rows,
                                         .check = check_rows,
                                         .ctx = &w},
                             err);
}

static int stamp_text(lineage *l, const distil_text *t, dw_err *err) {
    char *blocks = lineage_blocks(t->id, t->n, err);
    const int rc = blocks ? lineage_text_blocks(l, t->name, t->sha256, blocks, t->n, err) : -1;
    free(blocks);
    return rc;
}

static int stamp_types(const run *r, lineage *l, dw_err *err) {
    const kit_sizes sizes = sizes_as(r);
    char *types = kit_sizes_types(&sizes, err);
    const int rc = types ? lineage_fact(l, "types", types, err) : -1;
    free(types);
    return rc;
}

static int stamp(const run *r, dw_gguf_writer *w, dw_err *err) {
    lineage *l = lineage_new(&program, dw_model_gguf(r->in.model), err);
    char tokens[32], minutes[32] = "";
    const uint64_t n_steps = r->start_wins ? 0 : r->best_wins ? r->d.plan.best_step : r->d.plan.steps;
    snprintf(tokens, sizeof tokens, "%.0f", (double)n_steps * o.batch * o.n_ctx);
    const double took = r->start_wins ? 0 : r->d.plan.seconds / 60;
    if (o.minutes > 0) snprintf(minutes, sizeof minutes, took < 1 ? "%.3g" : "%.2f", took);
    int rc = !l || lineage_input_hashed(l, o.model, r->in.model_sha256, err) ||
             lineage_input_hashed(l, o.teacher, r->in.teacher_sha256, err) ||
             lineage_fact(l, "tokens_trained", tokens, err) || lineage_fact(l, "minutes_trained", minutes, err);
    for (size_t i = 0; i < r->in.n_text && !rc; i++) rc = stamp_text(l, &r->in.text[i], err);
    if (!rc) rc = lineage_texts_of_model(l, dw_model_gguf(r->in.teacher), err);
    rc = rc || (o.weights && kit_weights_stamp(&r->weights, o.weights, l, err)) ||
         (r->as.mixture && stamp_types(r, l, err)) || lineage_write(l, w, err);
    lineage_free(l);
    return rc ? -1 : 0;
}

static int write_data(const run *r, dw_gguf_writer *w, dw_err *err) {
    const dw_gguf *g = dw_model_gguf(r->in.model);
    kit_stream *s = kit_stream_new(w, r->d.o.pool, NULL, err);
    int rc = s ? 0 : -1;
    for (size_t i = 0; i < dw_gguf_n_tensors(g) && !rc; i++) rc = write_tensor(r, s, dw_gguf_tensor(g, i), err);
    rc = rc || kit_stream_end(s, err);
    kit_stream_free(s);
    return rc ? -1 : 0;
}

static int write_model(const run *r, const char *path, dw_err *err) {
    const dw_gguf *g = dw_model_gguf(r->in.model);
    dw_gguf_writer *w = dw_gguf_writer_new(path, err);
    if (!w) return -1;
    dw_gguf_set_keys(w, g);
    if (changes_activation(r)) dw_gguf_set_text(w, DW_KEY_FFN_ACTIVATION, o.activation);
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        dw_gguf_add_tensor(w, t->name, file_type_of(r, t), t->n_dims, t->ne);
    }
    if (r->as.mixture) {
        dw_gguf_set_u32(w, "general.quantization_version", 2);
        dw_gguf_set_u32(w, "general.file_type", (uint32_t)r->as.mixture->file_type);
        kit_weights_put_keys(&r->weights, o.weights, w);
    }
    dw_gguf_hash_writes(w);
    int rc = stamp(r, w, err);
    if (!rc) rc = dw_gguf_begin(w, err);
    if (!rc) rc = write_data(r, w, err);
    if (!rc) rc = dw_gguf_commit_read_back(w, dw_model_opens, NULL, err);
    dw_gguf_writer_free(w);
    return rc;
}

/* The model as it is after some tenths. */
static int write_snapshot(const run *r, dw_err *err) {
    char *path = snapshot_name((size_t)r->d.plan.n_measured - 1);
    const int rc = path ? write_model(r, path, err) : dw_fail(err, "out of memory: the name of a snapshot");
    free(path);
    return rc;
}

/* ---- steps ----------------------------------------------------------------------------------------------------- */

/* Measures, keeps the best values, and writes the snapshot. */
static int measure_tenth(run *r, dw_err *err) {
    schedule *p = &r->d.plan;
    const double began = dw_now();
    if (distil_held_out(&r->d, &r->held_out, err)) return -1;
    r->measured = p->steps;
    if (schedule_measure(p, r->held_out) && r->d.best) distil_keep_best(&r->d);
    if (o.snapshots && schedule_done(p) < 1 && write_snapshot(r, err)) return -1;
    p->reserve = fmax(p->reserve, dw_now() - began);
    return 0;
}

static void tell_tenth(run *r) {
    const schedule *p = &r->d.plan;
    const double done = schedule_done(p);
    char loss[32] = "", open[48] = "";
    if (r->n_steps) snprintf(loss, sizeof loss, "loss %.4f, ", r->loss); // else this process has made no step
    if (r->n_steps && o.sparsity > 0)
        snprintf(open, sizeof open, ", in this step %.1f %% of the neurons open", 100 * r->d.open);
    say("%3.0f %%  step %llu, %.0f tokens: %sheld out %.4f (began at %.4f)%s, %.0f tokens/s in all, %s left",
        100 * done, (unsigned long long)p->steps, tokens_of(r), loss, r->held_out, r->d.first_held_out, open,
        tokens_of(r) / p->seconds, show_duration(p->seconds * (1 - done) / done).text);
    if (o.sparsity == 0 && r->held_out > r->d.first_held_out && done < 1 && !r->told_of_rise) {
        say("the held-out loss has risen; it may fall again as the rate falls, but a smaller --lr may do better");
        r->told_of_rise = true;
    }
}

/* At each tenth of the run.  The clock runs on after the line, which is of the last step. */
static int report(run *r, dw_err *err) {
    if (!schedule_is_due(&r->d.plan)) return 0;
    if (measure_tenth(r, err)) return -1;
    tell_tenth(r);
    schedule_clock(&r->d.plan, dw_now() - r->began, 0);
    return 0;
}

/* Every few minutes, and when a signal asks the run to end. */
static int save(run *r, dw_err *err) {
    const int sig = signals_noted();
    if (!sig && (dw_now() - r->saved < 60 * o.checkpoint || schedule_ends(&r->d.plan))) return 0;
    if (distil_save(&r->d, r->checkpoint, r->identity, err)) return -1;
    say_if_interrupted(r->checkpoint);
    if (sig) signals_end(sig);
    r->saved = dw_now();
    schedule_clock(&r->d.plan, r->saved - r->began, 0);
    return 0;
}

/* A step that failed says where the run can be taken up again. */
static int step(run *r, dw_err *err) {
    dw_err why = {0};
    const double began = dw_now();
    if (!distil_step(&r->d, schedule_rate(&r->d.plan), &r->loss, &why)) {
        const double now = dw_now();
        r->in_steps += now - began;
        r->n_steps++;
        schedule_clock(&r->d.plan, now - r->began, now - began);
        return 0;
    }
    if (dw_hold_is_kept(r->hold))
        return dw_fail(err, "%s ('%s' has the steps before the last checkpoint)", why.text, r->checkpoint);
    return dw_fail(err, "%s", why.text);
}

/* The loss before the first step, and how long a measurement takes: this one and the last are no learning.  It computes
 * each window forward with both models; a step computes it backward, too, which takes twice as long. */
static int measure_start(run *r, dw_err *err) {
    schedule *p = &r->d.plan;
    const double began = dw_now();
    if (p->steps) return 0;
    if (distil_held_out(&r->d, &r->d.first_held_out, err)) return -1;
    r->began = dw_now();
    const double took = r->began - began;
    p->budget -= took;
    p->reserve += took;
    p->expected = 2 * took * o.batch / (double)distil_n_held(r->in.text, r->in.n_text, o.n_ctx);
    return 0;
}

/* The best values win. */
static void end_run(run *r) {
    const schedule *p = &r->d.plan;
    if (!p->patience) return;
    if (schedule_done(p) < 1)
        say("stopped early: the held-out loss has not fallen in %d tenths of the run (--patience)", p->patience);
    if (r->d.first_held_out < p->best) {
        dw_parameters_restore(&r->d.p);
        warn("no measured loss is as low as that before the first step, so '%s' has the weights of before%s%s; try a "
             "smaller --lr",
             o.out, o.as ? ", as " : "", o.as ? o.as : "");
        r->held_out = r->d.first_held_out;
        r->start_wins = true;
        return;
    }
    if (p->best_step < p->steps) {
        distil_take_best(&r->d);
        r->best_wins = true;
        say("the values after step %llu win, whose held-out loss is the lowest of those measured",
            (unsigned long long)p->best_step);
    }
    r->held_out = p->best;
}

static int learn(run *r, dw_err *err) {
    schedule *p = &r->d.plan;
    progress *bar = progress_begin("healing", "tokens", o.tokens > 0 ? (double)p->n_steps * o.batch * o.n_ctx : 0);
    r->saved = dw_now();
    r->began = r->saved - p->seconds;
    p->budget -= r->saved - r->started; // reading models and texts took part of the minutes
    int rc = measure_start(r, err);
    progress_step(bar, tokens_of(r));
    signals_hold("finishing and storing the current step; a second Ctrl-C ends the run at once");
    while (!rc && !schedule_ends(p)) {
        rc = step(r, err);
        if (!rc) rc = report(r, err);
        if (!rc) rc = save(r, err);
        if (!rc) progress_step(bar, (double)o.batch * o.n_ctx);
    }
    if (!rc) signals_hold(NULL); // else the error is told
    if (!rc && r->measured != p->steps) rc = report(r, err); // a checkpoint took the time of the next step
    progress_end(bar);
    if (!rc) end_run(r);
    return rc;
}

/* How fast the steps were, beside what the inner loop of their products allows. */
static void tell_speed(const run *r) {
    const double tokens = (double)r->n_steps * o.batch * o.n_ctx, rate = dw_train_rate(r->d.train);
    if (!r->n_steps || rate == 0) return;
    char words[160];
    distil_speed_words(words, tokens / r->in_steps, rate / distil_operations(&r->d));
    say("steps: %s (%.3g Tflop/s, measured); held-out losses take time in addition", words, rate / 1e12);
}

/* A run of few steps, or one that ends early, does not write all nine. */
static void warn_of_old_snapshots(void) {
    for (size_t i = 0; i < SCHEDULE_PARTS - 1; i++) {
        char *path = snapshot_name(i);
        if (path && dw_file_exists(path))
            warn("'%s' is of a run before and may stay; remove it, or do not score it beside those of this run", path);
        free(path);
    }
}

static int heal(run *r, dw_pool *pool, dw_err *err) {
    if (open_run(r, pool, err)) return -1;
    if (o.snapshots && !r->d.plan.steps) warn_of_old_snapshots();
    if (learn(r, err)) return -1;
    tell_speed(r);
    if (write_model(r, o.out, err)) return -1;
    dw_hold_remove(r->hold);
    r->hold = NULL;
    say("%.0f tokens in %s: held-out loss %.4f, before %.4f", tokens_of(r), show_duration(r->d.plan.seconds).text,
        r->held_out, r->d.first_held_out);
    if (changes_activation(r))
        say("upstream llama.cpp cannot run '%s': it would compute with %s instead of %s", o.out,
            dw_model_activation(r->in.model), o.activation);
    if (o.sparsity == 0 && r->held_out > r->d.first_held_out) warn("the model has got worse; try a smaller --lr");
    return 0;
}

int main(int argc, char **argv) {
    const double started = dw_now();
    opt_parse(&program, argc, argv);
    say_if_interrupted(NULL);
    if (!(o.tokens > 0) && !(o.minutes > 0)) die_usage("give --tokens N or --minutes M: how long to learn");
    if (o.tokens > 0 && o.minutes > 0) die_usage("give --tokens or --minutes, not both");
    if (o.as && strcmp(o.train, "all")) die_usage("--as rounds every matrix; it needs --train all");
    if (o.weights && !o.as) die_usage("-s belongs to --as");
    if (o.output_type && !o.as) die_usage("--output-type belongs to --as");
    if (opt_is_given("rank") && !what_is_trained()->low_rank) die_usage("--rank is for --train lora");
    if (o.cache && !(o.tokens > 0)) die_usage("--teacher-cache needs --tokens, which say what the file holds");
    if (o.cache && o.hidden > 0) die_usage("--teacher-cache stores no hidden states; leave out it or --hidden-states");
    if (o.sparsity > 0 && o.patience)
        die_usage("--sparsity raises the held-out loss on purpose; add --patience 0, and --activation relu unless the "
                  "model has it");
    dw_err err = {0};
    run r = {.started = started};
    dw_pool *pool = dw_pool_new(tool.threads, &err);
    const int rc = pool ? heal(&r, pool, &err) : -1;
    close_run(&r);
    dw_pool_free(pool);
    if (rc) die_err(&err);
    return 0;
}
