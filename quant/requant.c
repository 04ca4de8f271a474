/* requant.c - a model becomes the same model in other number formats.
 *
 *     deadwood requant -m mini.gguf -o mini-q4.gguf --mixture Q4_K_M
 *
 * First every tensor's type is decided and checked, then the file is written from front to back in slabs of rows: while
 * all threads encode a slab, one of them writes the slab before it. */
#include "formats/ffn_gated.h"
#include "formats/ffn_two_part.h"
#include "kit/hash_cache.h"
#include "kit/lineage.h"
#include "kit/options.h"
#include "kit/progress.h"
#include "kit/sizes.h"
#include "kit/talk.h"
#include "kit/tensor_stream.h"
#include "kit/weights.h"
#include "qtypes/encoding.h"
#include "quant/quant.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    const char *model, *out, *type, *mixture, *output_type, *recipe, *weights, *metric, *cold_type, *hot;
    opt_list tensors;
    double cold_rate; // 0: not given
    int seed;
    bool lossy_twice, dry_run;
} o;

// clang-format off
static const opt_row rows[] = {
    {"model", 'm', OPT_PATH, OPT_REQUIRED | OPT_INPUT, &o.model, NULL, "FILE", "the model (GGUF)"},
    {"out", 'o', OPT_PATH, OPT_REQUIRED | OPT_NO_BYTE, &o.out, NULL, "FILE", "the model to write", .holds = KIT_GGUF},
    {.kind = OPT_GROUP,
     .help = "which tensor gets which type (one of --type, --mixture and --recipe; with --cold-type alone types are kept)"},
    {"type", 0, OPT_CHOICE, 0, &o.type, NULL, "TYPE", "this type for every matrix", OPT_CHOICES(quant_types)},
    {"mixture", 0, OPT_CHOICE, 0, &o.mixture, NULL, "NAME", "the types that upstream llama.cpp gives under this name",
     OPT_CHOICES(kit_mixtures)},
    {"output-type", 0, OPT_CHOICE, 0, &o.output_type, NULL, "TYPE",
     "of --mixture: type of the matrix that gives the logits (in tied models the embeddings); default: the mixture's, "
     "Q6_K or Q8_0",
     OPT_CHOICES(dw_encodable_names)},
    {"recipe", 0, OPT_PATH, OPT_INPUT, &o.recipe, NULL, "FILE",
     "lines PATTERN TYPE; the first that matches a matrix decides"},
    {"tensor", 0, OPT_TEXTS, 0, &o.tensors, NULL, "REGEX=TYPE",
     "on top of those: matrices whose names match get TYPE, `keep` leaves them as they are; the first match decides"},
    {.kind = OPT_GROUP, .help = "less important neurons in fewer bits"},
    {"cold-type", 0, OPT_CHOICE, 0, &o.cold_type, NULL, "TYPE", "the FFN's cold neurons get this type",
     OPT_CHOICES(quant_types)},
    {"cold-rate", 0, OPT_REAL, 0, &o.cold_rate, NULL, "R",
     "this share of each layer is cold, the smallest by --metric; needs -s",
     .min = 0.001, .max = 0.999},
    {"metric", 0, OPT_CHOICE, 0, &o.metric, NULL, "NAME", "of --cold-rate, as in rank; default: activation",
     OPT_CHOICES(kit_metrics), .choice_help = offsetof(kit_metric, formula)},
    {"seed", 0, OPT_INT, 0, &o.seed, NULL, "N", "seed of --metric random; default: 0", .min = 0, .max = 2147483647},
    {"hot", 0, OPT_PATH, OPT_INPUT, &o.hot, NULL, "FILE",
     "a plan of rank, by any metric: its neurons are hot, the rest cold"},
    {.kind = OPT_GROUP, .help = "how"},
    {"stats", 's', OPT_PATH, OPT_INPUT, &o.weights, NULL, "FILE",
     "weigh errors by how strong each input is: stats.h5 or llama.cpp's imatrix"},
    {"lossy-twice", 0, OPT_FLAG, 0, &o.lossy_twice, NULL, NULL, "round tensors again that are quantized already"},
    {"dry-run", 0, OPT_FLAG, OPT_NO_BYTE, &o.dry_run, NULL, NULL,
     "print the types and bytes of the new file; write nothing"},
    OPT_COMMON, {0}};

static opt_program program = {
    .name = "requant",
    .summary = "the same model in other number formats",
    .usage = "-m M.gguf -o M2.gguf --type T|--mixture M [--output-type T]|--recipe R [--tensor RE=T] [-s STATS] "
             "[--cold-type T --cold-rate R]",
    .example = "deadwood requant -m mini.gguf -o mini-q4.gguf --mixture Q4_K_M\n"
               "deadwood requant -m mini.gguf -o mini-q2.gguf --mixture Q2_K -s stats.h5\n"
               "deadwood requant -m mini.gguf -o ffn2.gguf --recipe ffn2.recipe\n"
               "deadwood requant -m mini.gguf -o mixed.gguf --mixture Q4_K_M --tensor 'blk\\.0\\..*=Q8_0' --dry-run\n"
               "deadwood requant -m mini.gguf -o mini-cold.gguf --cold-rate 0.5 --cold-type Q2_K -s stats.h5\n"
               "deadwood rank -m mini.gguf -s stats.h5 -o hot.tsv --metric flap --rate 0.5 --multiple 256   # the "
               "blocks of Q2_K\n"
               "deadwood requant -m mini.gguf -o mini-hot.gguf --hot hot.tsv --cold-type Q2_K",
    .rows = rows};
// clang-format on

static const char about[] =
    "Rounds the matrices of a model to block formats.  --type gives every matrix, embeddings and output too, one\n"
    "type.  --mixture gives each tensor the type and the bytes that upstream llama.cpp's quantizer gives it under\n"
    "that name.  A recipe is a text file of lines PATTERN TYPE: * and ? match any characters and one, /.../ is a\n"
    "regular expression, `keep` keeps, # begins a comment.  --tensor overrides the type of single tensors by a\n"
    "regular expression.  Vectors and norms are copied, and so are tensors that have their type already.\n"
    "\n"
    "In a mixture, a matrix whose rows are no whole number of blocks gets another type, as in llama.cpp.  The types\n"
    "that a file really has are in its lineage (fact `types`), and --dry-run prints them with their bytes.\n"
    "\n"
    "affine2 to affine4 and minmax2 to minmax4 are stored in Q4_1 blocks: the file is larger than the method's own\n"
    "bits, which it records.\n"
    "\n"
    "With -s the block formats' errors are weighed by the mean square of each input column, as llama.cpp's quantizer\n"
    "does with an importance matrix; Q8_0, affine, minmax and types of 16 and 32 bits use no weights.\n"
    "\n"
    "In a gated model ffn_down_t, which is read in place of ffn_down, gets what is chosen for ffn_down: the same type\n"
    "where its rows are whole blocks, else one with more bits.  Its rows are neurons, so -s does not weigh them.\n"
    "\n"
    "--cold-type keeps all neurons, but stores those that matter least in fewer bits: a layer's FFN is stored in two\n"
    "parts and run as one.  The number of cold neurons is a whole number of the types' blocks.  Upstream llama.cpp\n"
    "cannot load such files, and --mixture and -s do not take them; formats/ffn_two_part.h describes them.\n"
    "\n"
    "A tensor that is quantized already is refused, because a second rounding adds its loss to the first.\n"
    "--lossy-twice allows it.  A tensor in 16 or 32 bits is rounded with a warning if it may have been quantized\n"
    "before.\n"
    "\n"
    "ways of rounding:\n";

/* The help lists the table's formulas. */
static void write_about(void) {
    char *text = NULL;
    dw_err err = {0};
    dw_append(&text, &err, "%s", about);
    for (const quant_method *m = quant_methods; m->name; m++) {
        if (m->max_bits)
            dw_append(&text, &err, "  %s%d to %s%d: %s (%s)\n", m->name, m->min_bits, m->name, m->max_bits, m->formula,
                      m->source);
        else
            dw_append(&text, &err, "  block formats: %s (%s)\n", m->formula, m->source);
    }
    if (err.text[0]) die_err(&err);
    program.about = text;
}

/* ---- what every tensor becomes --------------------------------------------------------------------------------- */

typedef struct target { // a tensor of the new file
    char name[64];
    const dw_tensor *from;
    const quant_type *to;  // NULL: copied
    const float *weight;   // importances of its columns; NULL: none
    float *own_weight;     // memory for them, if they are not those of `from` in their order
    size_t ne[4];          // ne[0] values in each of the other rows
    const int32_t *row;    // the rows of `from` that it has; NULL: all
    const int32_t *column; // the columns, likewise
    bool is_cold;          // the part of --cold-type
    bool of_mixture;       // the mixture chose its type, so another that fits its rows may take its place
    bool fell_back;        // it did
} target;

typedef struct wish {     // of a tensor
    const quant_type *to; // NULL: it stays
    bool of_mixture, fell_back;
} wish;

typedef struct choice {
    const quant_type *type; // one of the three, or none
    const kit_mixture *mixture;
    const dw_qtype_row *output; // of --output-type; NULL: the mixture's
    quant_recipe recipe, overrides; // of --recipe; of --tensor
    kit_weights weights;
    const quant_type *cold_type; // NULL: the FFN stays in one part
    kit_plan plan;               // of what is hot
    quant_cold cold;
    dw_pool *pool;
    char sha256[65]; // of the model
} choice;

/* Mixtures and importances are of whole matrices. */
static int check_parts(const dw_model *m, dw_err *err) {
    const char *option = o.mixture ? "--mixture" : o.weights ? "--stats" : NULL;
    return option && dw_model_need_whole_ffn(m, err) ? dw_fail_in(err, "%s", option) : 0;
}

static int read_choice(choice *c, const dw_model *m, dw_err *err) {
    if (check_parts(m, err)) return -1;
    if (o.type) c->type = quant_type_find(o.type);
    if (o.mixture) c->mixture = kit_mixture_find(o.mixture);
    if (o.output_type) c->output = dw_qtype_by_name(o.output_type);
    if (o.recipe && quant_recipe_read(&c->recipe, o.recipe, err)) return -1;
    if (quant_recipe_of_words(&c->overrides, o.tensors.item, o.tensors.n, err)) return -1;
    if (o.cold_type) c->cold_type = quant_type_find(o.cold_type);
    kit_sha256_gguf(dw_model_gguf(m), c->sha256);
    return o.weights ? kit_weights_read(&c->weights, m, c->sha256, o.weights, err) : 0;
}

/* The wish of --tensor, or else of --type, --mixture or --recipe. */
static int named_type(choice *c, const dw_model *m, const dw_tensor *t, wish *w, dw_err *err) {
    const kit_mixture_use use = {c->mixture, m, .weighted = o.weights != NULL, .output = c->output};
    quant_rule *rule;
    *w = (wish){.to = c->type};
    if (quant_recipe_find(&c->overrides, t->name, &rule, err)) return dw_fail_in(err, "--tensor");
    if (!rule && o.recipe && quant_recipe_find(&c->recipe, t->name, &rule, err))
        return dw_fail_in(err, "'%s'", o.recipe);
    if (rule) {
        w->to = rule->type;
    } else if (c->mixture) {
        w->to = quant_type_of(kit_mixture_type(&use, t, &w->fell_back));
        w->of_mixture = true;
    }
    return 0;
}

/* Whether the tensor is ffn_down_t, a transposed copy of the layer's ffn_down. */
static bool is_copy_of_down(const char *name, int *layer) {
    const char *part;
    *layer = dw_layer_of(name, &part);
    return *layer >= 0 && !strcmp(part, "ffn_down_t.weight");
}

/* The ffn_down that a tensor is a transposed copy of; NULL: it is none. */
static const dw_tensor *copied_down(const dw_gguf *g, const dw_tensor *t) {
    char name[64];
    int l;
    if (!is_copy_of_down(t->name, &l)) return NULL;
    snprintf(name, sizeof name, "blk.%d.ffn_down.weight", l);
    return dw_gguf_find_tensor(g, name);
}

/* A gated run reads the transposed copy in place of down, so the copy gets down's type.  (Of affine and minmax
 * gate would make plain Q4_1.) */
static int choose_type(choice *c, const dw_model *m, const dw_tensor *t, wish *w, dw_err *err) {
    const dw_tensor *down = copied_down(dw_model_gguf(m), t);
    if (named_type(c, m, down ? down : t, w, err)) return -1;
    if (!down) return 0;
    if (w->to && t->ne[0] % (size_t)w->to->multiple) w->to = quant_type_of(kit_down_t_type(w->to->stored, t->ne[0]));
    w->of_mixture = w->fell_back = false;
    return 0;
}

/* A plain rounding to the type that a tensor has already leaves it as it is. */
static bool is_copy(const quant_type *to, const dw_tensor *t) { return !to || (!to->bits && to->stored == t->type); }

/* Rows that have their type already are copied into their new order. */
static bool is_row_copy(const target *t) { return !t->column && is_copy(t->to, t->from); }

/* Rows of a part of down are as wide as the plan of --hot makes them; no recipe reaches the cold ones. */
static int fail_blocks(const choice *c, const target *t, dw_err *err) {
    const quant_type *to = t->to;
    char ranked[64] = "", other[96];
    if (t->column && t->from->ne[0] % (size_t)to->multiple == 0)
        snprintf(ranked, sizeof ranked, "rank with --multiple %d, or ", to->multiple);
    if (t->is_cold)
        snprintf(other, sizeof other, "give a cold type %s",
                 to->multiple > 32 ? "with blocks of 32" : "without blocks");
    else
        snprintf(other, sizeof other, "choose another type there by --recipe%s",
                 c->type && !to->bits ? ", or let --mixture fall back" : "");
    return dw_fail(err, "tensor '%s': rows of %zu values are no whole number of %s %s of %d; %s%s", t->name, t->ne[0],
                   to->name, to->bits ? "groups" : "blocks", to->multiple, ranked, other);
}

/* The others are copied, or copied into another order.  A block of reordered columns is another block. */
static bool is_rounded(const target *t) {
    return t->to && (!is_copy(t->to, t->from) || (t->column && t->from->type->block > 1));
}

/* Whether importances weigh its errors. */
static bool is_weighed(const target *t) {
    return is_rounded(t) && t->weight && !t->to->method->encode && t->to->stored->block > 1 &&
           t->to->stored->id != DW_Q8_0;
}

static int check_target(const choice *c, const target *t, dw_err *err) {
    const dw_tensor *from = t->from;
    const quant_type *to = t->to;
    int layer;
    if (t->ne[0] % (size_t)to->multiple) return fail_blocks(c, t, err);
    if (from->type->block > 1 && to->stored->id != DW_F32 && !is_row_copy(t) && !o.lossy_twice)
        return dw_fail(err,
                       "tensor '%s' is %s already, and %s would be a loss on top of a loss; give the 16-bit model, "
                       "--lossy-twice, or F32, which loses nothing",
                       t->name, from->type->name, to->name);
    const bool needs = c->mixture && !is_copy_of_down(from->name, &layer); // -s does not weigh the copy
    if (needs && !t->weight && kit_mixture_needs_weights(c->mixture, from, to->stored))
        return kit_weights_fail(o.weights, from, o.mixture, err);
    return 0;
}

/* A tensor of the old file as it is or in another type. */
static target whole(const dw_tensor *from, wish w) {
    target t = {.from = from,
                .to = is_copy(w.to, from) ? NULL : w.to,
                .of_mixture = w.of_mixture,
                .fell_back = w.fell_back};
    snprintf(t.name, sizeof t.name, "%s", from->name);
    memcpy(t.ne, from->ne, sizeof t.ne);
    return t;
}

/* ---- cold neurons ---------------------------------------------------------------------------------------------- */

static int read_plan(choice *c, const dw_model *m, dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(m);
    if (kit_plan_read(&c->plan, o.hot, hp->n_ff, hp->n_layer, err)) return -1;
    if (kit_plan_check_model(&c->plan, o.hot, o.model, c->sha256, err)) return -1;
    return quant_cold_by_plan(&c->cold, m, &c->plan, err);
}

/* Which neurons are cold. */
static int choose_cold(choice *c, const dw_model *m, const wish *wishes, dw_err *err) {
    const dw_gguf *g = dw_model_gguf(m);
    if (o.hot) return read_plan(c, m, err);
    if (!c->weights.is_stats)
        return dw_fail(err, "'%s' holds no statistics of neurons, which --cold-rate needs; collect stats.h5",
                       o.weights);
    int *multiple = dw_alloc((size_t)dw_model_hparams(m)->n_layer, sizeof *multiple, "blocks of layers", err);
    if (!multiple) return -1;
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        const char *part;
        const int l = dw_layer_of(t->name, &part);
        if (l >= 0 && !strcmp(part, "ffn_down.weight"))
            multiple[l] = wishes[i].to ? wishes[i].to->multiple : t->type->block;
    }
    const quant_cold_options how = {.metric = kit_metric_find(o.metric ? o.metric : "activation"),
                                    .pool = c->pool,
                                    .rate = o.cold_rate,
                                    .seed = (uint64_t)o.seed,
                                    .hot_multiple = multiple,
                                    .cold_multiple = c->cold_type->multiple};
    char text[512];
    if (kit_metric_of_pooled(how.metric, &c->weights.stats, text, sizeof text)) warn("%s", text);
    const int rc = quant_cold_by_rate(&c->cold, m, &c->weights.stats, &how, err);
    free(multiple);
    return rc;
}

/* The importances of the columns that a part of down has. */
static int take_weights(target *t, dw_err *err) {
    if (!t->weight) return 0;
    const float *all = t->weight;
    t->weight = t->own_weight = dw_alloc(t->ne[0], sizeof *t->own_weight, "importances", err);
    for (size_t i = 0; t->own_weight && i < t->ne[0]; i++) t->own_weight[i] = all[t->column[i]];
    return t->own_weight ? 0 : -1;
}

typedef struct ffn_part { // a tensor of an FFN that is divided
    const dw_tensor *from;
    wish w;
    int layer;
    const char *name; // "ffn_up.weight"
} ffn_part;

/* Adds the hot and the cold part of a matrix, or its bias in their order, to the *n targets. */
static int split(choice *c, target *targets, size_t *n, const ffn_part *x, dw_err *err) {
    const dw_tensor *from = x->from;
    const int32_t *order = c->cold.order[x->layer];
    const bool is_down = !strcmp(x->name, "ffn_down.weight");
    target *hot = &targets[(*n)++];
    *hot = whole(from, x->w);
    hot->to = x->w.to ? x->w.to : quant_type_of(from->type);
    if (!kit_is_matrix(from)) { // a bias, perhaps of shape (n, 1)
        hot->column = order;
        return 0;
    }
    if (!hot->to)
        return dw_fail(err, "tensor '%s' is %s, which can be read but not encoded; give --type", from->name,
                       from->type->name);
    const size_t n_ff = from->ne[is_down ? 0 : 1], n_cold = (size_t)c->cold.n_cold[x->layer], n_hot = n_ff - n_cold;
    if (kit_weights_find(&c->weights, from, &hot->weight, err)) return -1;
    target *cold = &targets[(*n)++];
    *cold = *hot;
    cold->to = c->cold_type;
    cold->is_cold = true;
    cold->fell_back = false;
    snprintf(cold->name, sizeof cold->name, "blk.%d.%.*s_cold.weight", x->layer, (int)strcspn(x->name, "."), x->name);
    *(is_down ? &hot->column : &hot->row) = order;
    *(is_down ? &cold->column : &cold->row) = order + n_hot;
    hot->ne[!is_down] = n_hot;
    cold->ne[!is_down] = n_cold;
    if (hot->of_mixture && hot->ne[0] % (size_t)hot->to->multiple) {
        hot->to = quant_type_of(kit_mixture_fallback(hot->to->stored, hot->ne[0]));
        hot->fell_back = true;
    }
    if (is_down && (take_weights(hot, err) || take_weights(cold, err))) return -1;
    if (check_target(c, hot, err)) return -1;
    return check_target(c, cold, err);
}

static bool is_of_neurons(const char *part) {
    static const char *const parts[] = {"ffn_gate.weight", "ffn_up.weight", "ffn_down.weight", "ffn_gate.bias",
                                        "ffn_up.bias"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strcmp(part, parts[i])) return true;
    return false;
}

/* ---- all tensors ------------------------------------------------------------------------------------------------- */

static int add_targets(choice *c, const dw_gguf *g, const wish *wishes, target *targets, size_t *n, dw_err *err) {
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        ffn_part x = {.from = dw_gguf_tensor(g, i), .w = wishes[i], .layer = -1};
        if (c->cold_type) x.layer = dw_layer_of(x.from->name, &x.name);
        if (x.layer >= 0 && c->cold.order[x.layer] && is_of_neurons(x.name)) {
            if (split(c, targets, n, &x, err)) return -1;
            continue;
        }
        target *t = &targets[(*n)++];
        *t = whole(x.from, x.w);
        if (!t->to) continue;
        if (kit_weights_find(&c->weights, x.from, &t->weight, err) || check_target(c, t, err)) return -1;
    }
    return 0;
}

static void tell_patterns(const quant_recipe *r) {
    for (size_t i = 0; i < r->n_rule; i++)
        if (!r->rule[i].n_decided)
            warn("'%s', line %d: no matrix is left for the pattern '%s'", o.recipe, r->rule[i].line,
                 r->rule[i].pattern);
}

static void tell_cold(const choice *c) {
    const double reached = 100 * c->cold.rate, wanted = 100 * o.cold_rate;
    if (wanted > 0 && fabs(reached - wanted) > fmin(0.25 * wanted, 5))
        warn("%.2f %% of the FFN's neurons become cold instead of %.2f: a part is a whole number of its type's blocks; "
             "smaller blocks come nearer",
             reached, wanted);
    if (wanted > 0)
        say("%.2f %% of the FFN's neurons become cold (wanted %.2f), in %s; upstream llama.cpp cannot load this",
            reached, wanted, o.cold_type);
    else if (c->cold_type)
        say("%.2f %% of the FFN's neurons become cold, in %s; upstream llama.cpp cannot load this", reached,
            o.cold_type);
}

/* Widths of the FFN come from a cut, which can avoid their fallbacks. */
static void advise_width(char *words, size_t size, size_t n_down, size_t n_fell_back) {
    static const char how[] = "a cut by a plan of rank --multiple 256 avoids it";
    words[0] = 0;
    if (n_down == n_fell_back)
        snprintf(words, size, "; %s", how);
    else if (n_down)
        snprintf(words, size, "; for the %zu ffn_down of them %s", n_down, how);
}

static void tell_fallbacks(const target *targets, size_t n) {
    size_t n_matrices = 0, n_fell_back = 0, n_down = 0;
    const target *first = NULL;
    char advice[128];
    for (size_t i = 0; i < n; i++) {
        n_matrices += kit_is_matrix(targets[i].from);
        if (!targets[i].fell_back) continue;
        if (!n_fell_back++) first = &targets[i];
        n_down += strstr(targets[i].name, ".ffn_down") != NULL;
    }
    if (!first) return;
    advise_width(advice, sizeof advice, n_down, n_fell_back);
    warn("%zu of %zu matrices have rows that are no whole number of their type's blocks and get another type, as in "
         "llama.cpp: '%s' (rows of %zu) gets %s%s%s",
         n_fell_back, n_matrices, first->name, first->ne[0], first->to ? first->to->name : first->from->type->name,
         n_fell_back > 1 ? ", ..." : "", advice);
}

/* A block format that a file once had and has no more leaves its loss in 16 and 32 bits. */
static int tell_rounded_before(const dw_gguf *g, const target *targets, size_t n, dw_err *err) {
    quant_rounding last;
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        const target *t = &targets[i];
        any |= is_rounded(t) && t->from->type->block == 1 && t->to->stored->block > 1;
    }
    if (!any || o.lossy_twice) return 0;
    if (quant_rounded_before(g, &last, err)) return -1;
    if (*last.tool)
        warn(
            "'%s' was in blocks before (%s: %s), so this is a loss on top of a loss; give the 16-bit model that it was "
            "made of, or --lossy-twice if it is meant",
            o.model, last.tool, last.types);
    return 0;
}

static int check_patterns(const choice *c, dw_err *err) {
    size_t n = 0;
    for (size_t i = 0; i < c->recipe.n_rule; i++) n += c->recipe.rule[i].n_decided;
    if (o.recipe && !n)
        return dw_fail(err,
                       "'%s': no pattern matches a matrix of '%s'; deadwood inspect --tensors lists their names",
                       o.recipe, o.model);
    for (size_t i = 0; i < c->overrides.n_rule; i++)
        if (!c->overrides.rule[i].n_decided)
            return dw_fail(err,
                           "--tensor '%s': it matches no matrix of '%s' that is left; deadwood inspect --tensors lists "
                           "their names",
                           o.tensors.item[i], o.model);
    return 0;
}

/* Fills the targets, *n of them: as many as tensors, and three more per layer. */
static int choose(choice *c, const dw_model *m, target *targets, size_t *n, dw_err *err) {
    const dw_gguf *g = dw_model_gguf(m);
    wish *wishes = dw_alloc(dw_gguf_n_tensors(g), sizeof *wishes, "types", err);
    if (!wishes) return -1;
    int rc = 0;
    for (size_t i = 0; i < dw_gguf_n_tensors(g) && !rc; i++)
        if (kit_is_matrix(dw_gguf_tensor(g, i))) rc = choose_type(c, m, dw_gguf_tensor(g, i), &wishes[i], err);
    if (!rc) rc = check_patterns(c, err);
    if (!rc && c->cold_type) rc = choose_cold(c, m, wishes, err);
    if (!rc) rc = add_targets(c, g, wishes, targets, n, err);
    free(wishes);
    if (rc) return -1;
    tell_patterns(&c->recipe);
    tell_fallbacks(targets, *n);
    tell_cold(c);
    return tell_rounded_before(g, targets, *n, err);
}

static const dw_qtype_row *stored_type(const target *t) { return t->to ? t->to->stored : t->from->type; }

static size_t n_rows(const target *t) { return t->ne[1] * t->ne[2] * t->ne[3]; }

static size_t stored_bytes(const target *t) { return dw_qtype_row_bytes(stored_type(t), t->ne[0]) * n_rows(t); }

static double n_values(const target *t) { return (double)t->ne[0] * (double)n_rows(t); }

static kit_sizes sizes_of(const target *targets, size_t n) {
    kit_sizes sizes = {0};
    for (size_t i = 0; i < n; i++) {
        const target *t = &targets[i];
        const char *kind = t->fell_back             ? KIT_SIZES_FALLBACK
                           : kit_is_matrix(t->from) ? KIT_SIZES_MATRICES
                                                    : KIT_SIZES_VECTORS;
        kit_sizes_add(&sizes, t->to ? t->to->name : t->from->type->name, kind, n_values(t), (double)stored_bytes(t));
    }
    return sizes;
}

/* ---- metadata ---------------------------------------------------------------------------------------------------- */

/* The type that holds most weights of the matrices is the type of the file. */
static int prevailing_file_type(const target *targets, size_t n) {
    double values[DW_QTYPE_END] = {0};
    const dw_qtype_row *best = dw_qtype_get(DW_F32);
    for (size_t i = 0; i < n; i++) {
        const dw_qtype_row *type = stored_type(&targets[i]);
        if (!kit_is_matrix(targets[i].from)) continue;
        values[type->id] += n_values(&targets[i]);
        if (values[type->id] > values[best->id]) best = type;
    }
    return best->file_type;
}

#define KEY_NOMINAL_BITS "deadwood.nominal_bits"

/* Bits a weight of the Q4_1 matrices of a file, as the methods count them: what its mean over all matrices leaves for
 * them.  0: the file says nothing. */
static double q4_1_bits(const dw_gguf *g) {
    float mean = 0;
    double bits = 0, values = 0;
    if (dw_gguf_f32(g, KEY_NOMINAL_BITS, &mean, NULL) != 1) return 0;
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        const double v = (double)dw_tensor_n_values(t);
        if (!kit_is_matrix(t)) continue;
        bits += (double)mean * v - (t->type->id == DW_Q4_1 ? 0 : 8.0 * (double)t->n_bytes);
        values += t->type->id == DW_Q4_1 ? v : 0;
    }
    return values > 0 ? bits / values : 0;
}

/* Bits a weight of a method, not of its blocks; kept: of Q4_1 matrices of the old file.  0: a plain block format. */
static double own_bits(const target *t, double kept) {
    if (is_rounded(t)) return t->to->nominal_bits;
    return t->from->type->id == DW_Q4_1 ? kept : 0;
}

/* Bits a weight of all matrices as the methods count them; 0: all are plain block formats. */
static double nominal_bits(const target *targets, size_t n, double kept) {
    double bits = 0, values = 0;
    bool differs = false;
    for (size_t i = 0; i < n; i++) {
        const target *t = &targets[i];
        const double v = n_values(t), own = own_bits(t, kept);
        if (!kit_is_matrix(t->from)) continue;
        differs |= own > 0;
        bits += own > 0 ? v * own : 8.0 * (double)stored_bytes(t);
        values += v;
    }
    return differs ? bits / values : 0;
}

/* Some matrices of several widths of code stay, and the file has one number for all of them. */
static bool is_mean_of_several(const target *targets, size_t n, double kept) {
    bool any_stays = false, any_goes = false, is_one = false;
    for (const quant_type *t = quant_types; t->name; t++) is_one |= fabs(t->nominal_bits - kept) < 1e-3;
    for (size_t i = 0; i < n; i++) {
        if (!kit_is_matrix(targets[i].from) || targets[i].from->type->id != DW_Q4_1) continue;
        *(is_rounded(&targets[i]) ? &any_goes : &any_stays) = true;
    }
    return kept > 0 && !is_one && any_stays && any_goes;
}

static int add_inputs(lineage *l, const choice *c, dw_err *err) {
    const char *const paths[] = {o.recipe, o.hot};
    int rc = lineage_input_hashed(l, o.model, c->sha256, err);
    for (size_t i = 0; i < sizeof paths / sizeof *paths && !rc; i++)
        if (paths[i]) rc = lineage_input(l, paths[i], err);
    if (!rc) rc = lineage_plan_texts(l, c->plan.text, c->plan.n_text, err);
    return rc || !o.weights ? rc : kit_weights_stamp(&c->weights, o.weights, l, err);
}

static int stamp(const choice *c, const dw_gguf *g, const kit_sizes *sizes, dw_gguf_writer *w, dw_err *err) {
    lineage *l = lineage_new(&program, g, err);
    char *types = kit_sizes_types(sizes, err);
    int rc = l && types ? add_inputs(l, c, err) : -1;
    if (!rc) rc = lineage_fact(l, "types", types, err);
    if (!rc) rc = lineage_write(l, w, err);
    free(types);
    lineage_free(l);
    return rc;
}

static int write_keys(const choice *c, const dw_gguf *g, const target *targets, size_t n, dw_gguf_writer *w,
                      dw_err *err) {
    dw_gguf_set_keys(w, g);
    dw_gguf_set_u32(w, "general.quantization_version", 2);
    dw_gguf_set_u32(w, "general.file_type",
                    (uint32_t)(c->mixture ? c->mixture->file_type : prevailing_file_type(targets, n)));
    const double kept = q4_1_bits(g), nominal = nominal_bits(targets, n, kept);
    dw_gguf_unset(w, KEY_NOMINAL_BITS);
    if (nominal > 0) dw_gguf_set_f32(w, KEY_NOMINAL_BITS, (float)nominal);
    if (is_mean_of_several(targets, n, kept))
        warn("the matrices of '%s' in Q4_1 blocks have %.3g bits on average, not each; nominal_bits of the new file "
             "counts those that stay by this average",
             o.model, kept);
    bool any_weighed = false;
    for (size_t i = 0; i < n; i++) any_weighed |= is_weighed(&targets[i]);
    kit_weights_put_keys(&c->weights, any_weighed ? o.weights : NULL, w);
    if (c->cold_type) {
        dw_gguf_set_array(w, DW_KEY_COLD_LENGTH, DW_KV_I32, c->cold.n_cold, (size_t)c->cold.n_layer);
        dw_gguf_set_f32(w, DW_KEY_COLD_RATE, (float)c->cold.rate);
    }
    const kit_sizes sizes = sizes_of(targets, n);
    return stamp(c, g, &sizes, w, err);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

typedef struct encoder { // of one tensor
    const target *t;
    dw_encoding encoding;
    atomic_size_t *n_inexact; // groups whose scale or offset was rounded once more
} encoder;

/* A row of the tensor, in values (room for two rows). */
static const float *decode_row(const target *t, const uint8_t *row, float *values) {
    const size_t n = t->from->ne[0];
    t->from->type->decode(row, values, n);
    if (!t->column) return values;
    for (size_t i = 0; i < t->ne[0]; i++) values[n + i] = values[t->column[i]];
    return values + n;
}

static void encode_row(encoder *e, size_t i, float *values, uint8_t *out) {
    const target *t = e->t;
    const quant_type *to = t->to;
    const size_t r = t->row ? (size_t)t->row[i] : i;
    const uint8_t *from = t->from->data + r * dw_tensor_row_bytes(t->from);
    if (is_row_copy(t)) {
        memcpy(out, from, dw_qtype_row_bytes(to->stored, t->ne[0]));
        return;
    }
    const float *row = decode_row(t, from, values);
    if (!to->method->encode)
        dw_encode_row(&e->encoding, r, row, out);
    else if (dw_encoding_accepts(&e->encoding, r, row))
        atomic_fetch_add(e->n_inexact, to->method->encode(to, row, out, t->ne[0]));
}

static void encode_rows(void *encoder_pointer, const kit_piece *p) {
    encoder *e = encoder_pointer;
    const size_t row_bytes = dw_qtype_row_bytes(e->t->to->stored, e->t->ne[0]);
    for (size_t i = 0; i < p->n; i++) encode_row(e, p->first + i, p->scratch, p->out + i * row_bytes);
}

static int check_rows(void *encoder_pointer, dw_err *err) {
    encoder *e = encoder_pointer;
    char advice[160];
    snprintf(
        advice, sizeof advice,
        "the tensor holds a weight beyond %g, which the scales of %s cannot follow; give it F32 or BF16 by --recipe",
        (double)QUANT_MAX_WEIGHT, e->t->to->name);
    return dw_encoding_end(&e->encoding, advice, err);
}

static int write_tensor(kit_stream *s, const target *t, atomic_size_t *n_inexact, dw_err *err) {
    if (!t->to) return kit_stream_copy(s, t->from, err);
    const dw_qtype_row *stored = t->to->stored;
    const bool has_wide_range = stored->id == DW_F32 || stored->id == DW_BF16;
    encoder e = {.t = t,
                 .n_inexact = n_inexact,
                 .encoding = {.tensor = t->from->name,
                              .type = stored,
                              .type_name = t->to->name,
                              .n = t->ne[0],
                              .weight = t->weight,
                              .limit = has_wide_range ? 0 : QUANT_MAX_WEIGHT}};
    const kit_rows r = {.n_rows = n_rows(t),
                        .row_bytes = dw_qtype_row_bytes(stored, t->ne[0]),
                        .n_scratch = 2 * t->from->ne[0],
                        .make = encode_rows,
                        .check = check_rows,
                        .ctx = &e};
    return kit_stream_tensor(s, &r, err);
}

static int write_tensors(dw_gguf_writer *w, const target *targets, size_t n, dw_pool *pool, dw_err *err) {
    atomic_size_t n_inexact = 0;
    double total = 0;
    for (size_t i = 0; i < n; i++) total += (double)stored_bytes(&targets[i]);
    progress *bar = progress_begin("writing", "B", total);
    kit_stream *s = kit_stream_new(w, pool, bar, err);
    int rc = s ? 0 : -1;
    for (size_t i = 0; i < n && !rc; i++) rc = write_tensor(s, &targets[i], &n_inexact, err);
    if (!rc) rc = kit_stream_end(s, err);
    kit_stream_free(s);
    progress_end(bar);
    if (n_inexact)
        warn("%zu groups have a scale or offset below 2^-17, which F16 does not hold exactly; it was rounded once more",
             (size_t)n_inexact);
    return rc;
}

static int write_file(const choice *c, const dw_gguf *g, const target *targets, size_t n, dw_gguf_writer *w,
                      dw_err *err) {
    if (write_keys(c, g, targets, n, w, err)) return -1;
    for (size_t i = 0; i < n; i++)
        dw_gguf_add_tensor(w, targets[i].name, stored_type(&targets[i]), targets[i].from->n_dims, targets[i].ne);
    dw_gguf_hash_writes(w);
    if (dw_gguf_begin(w, err) || write_tensors(w, targets, n, c->pool, err)) return -1;
    return dw_gguf_commit_read_back(w, dw_model_opens, NULL, err);
}

static int write_model(const choice *c, const dw_gguf *g, const target *targets, size_t n, dw_err *err) {
    dw_gguf_writer *w = dw_gguf_writer_new(o.out, err);
    const int rc = w ? write_file(c, g, targets, n, w, err) : -1;
    dw_gguf_writer_free(w);
    return rc;
}

/* ---- the program ------------------------------------------------------------------------------------------------- */

static void tell(const dw_model *m, const target *targets, size_t n) {
    const dw_gguf *g = dw_model_gguf(m);
    const double before = (double)dw_gguf_file_bytes(g), after = (double)dw_file_bytes(o.out);
    size_t n_copied = 0, n_rounded = 0, n_decoded = 0, n_weighed = 0;
    for (size_t i = 0; i < n; i++) {
        n_copied += !targets[i].to;
        n_rounded += is_rounded(&targets[i]);
        n_decoded += is_rounded(&targets[i]) && targets[i].to->stored->id == DW_F32;
        n_weighed += is_weighed(&targets[i]);
    }
    char reordered[64] = "";
    if (n_copied + n_rounded < n) snprintf(reordered, sizeof reordered, "%zu reordered, ", n - n_copied - n_rounded);
    say("%zu tensor%s %s, %s%zu copied; %s -> %s, %.3f bits a weight", n_rounded, plural((double)n_rounded),
        n_rounded && n_decoded == n_rounded ? "decoded" : "rounded", reordered, n_copied, show_bytes(before).text,
        show_bytes(after).text, 8 * after / (double)dw_model_n_params(m));
    if (o.weights) say("%zu of the %zu rounded tensors had importances", n_weighed, n_rounded);
    if (n_rounded && dw_gguf_find(g, DW_KEY_PREDICTOR_INPUT))
        warn("predictors trained on the weights before decide from rounded weights now; better round first, then gate, "
             "trace and train");
    else if (n_rounded && dw_gguf_find(g, DW_KEY_GATE_THRESHOLD)) // controls that open the same groups have none
        warn("the gate decides from rounded weights now, by thresholds of those before; better round first, then gate");
}

static void check_usage(void) {
    const bool has_rate = o.cold_rate > 0;
    if (!o.cold_type && (has_rate || o.hot))
        die_usage("%s needs --cold-type, the type of the cold neurons", has_rate ? "--cold-rate" : "--hot");
    if (o.cold_type && !has_rate && !o.hot) die_usage("--cold-type needs --cold-rate or --hot, which say what is cold");
    const int n_ways = !!o.type + !!o.mixture + !!o.recipe;
    if (n_ways > 1 || (!n_ways && !o.cold_type && !o.tensors.n)) die_usage("give one of --type, --mixture, --recipe");
    if (o.output_type && !o.mixture) die_usage("--output-type belongs to --mixture; --tensor sets single types");
    if (o.metric && !has_rate) die_usage("--metric says which neurons are cold by --cold-rate; give that too");
    if (opt_is_given("seed") && (!o.metric || strcmp(o.metric, "random")))
        die_usage("--seed is for --metric random; nothing else draws numbers");
    if (has_rate && o.hot) die_usage("give --cold-rate or --hot; a plan says itself what is cold");
    if (has_rate && !o.weights) die_usage("--cold-rate needs statistics of the model: -s stats.h5");
}

static int print_sizes(const target *targets, size_t n, dw_err *err) {
    const kit_sizes sizes = sizes_of(targets, n);
    char *text = kit_sizes_table(&sizes, err);
    if (text) fputs(text, stdout);
    free(text);
    return text ? 0 : -1;
}

static int make(choice *c, const dw_model *m, target *targets, size_t *n, dw_err *err) {
    const dw_gguf *g = dw_model_gguf(m);
    if (choose(c, m, targets, n, err)) return -1;
    if (o.dry_run) return print_sizes(targets, *n, err);
    if (write_model(c, g, targets, *n, err)) return -1;
    tell(m, targets, *n);
    return 0;
}

int main(int argc, char **argv) {
    quant_types_init();
    write_about();
    opt_parse(&program, argc, argv);
    check_usage();
    dw_err err = {0};
    choice c = {.pool = dw_pool_new(tool.threads, &err)};
    dw_model *m = c.pool ? dw_model_open(o.model, &err) : NULL;
    if (!m || lineage_check(dw_model_gguf(m), &err) || read_choice(&c, m, &err)) die_err(&err);
    const size_t most = dw_gguf_n_tensors(dw_model_gguf(m)) + 3 * (size_t)dw_model_hparams(m)->n_layer;
    size_t n = 0;
    target *targets = dw_alloc(most, sizeof *targets, "tensors", &err);
    if (!targets || make(&c, m, targets, &n, &err)) die_err(&err);
    dw_pool_free(c.pool);
    for (size_t i = 0; i < n; i++) free(targets[i].own_weight);
    free(targets);
    quant_recipe_release(&c.recipe);
    quant_recipe_release(&c.overrides);
    kit_weights_release(&c.weights);
    quant_cold_release(&c.cold);
    if (o.hot) kit_plan_release(&c.plan);
    dw_model_close(m);
    return 0;
}
