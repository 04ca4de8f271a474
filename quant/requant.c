/* requant.c - a model becomes the same model in other number formats.
 *
 *     deadwood requant -m mini.gguf -o mini-q4.gguf --mixture Q4_K_M
 *
 * First every tensor's type is decided and checked, then the file is written from front to back in slabs of rows: while all
 * threads encode a slab, one of them writes the slab before it. */
#include "quant/quant.h"
#include "tool.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    const char *model, *out, *type, *mixture, *recipe, *weights;
    bool lossy_twice;
} o;

// clang-format off
static const opt_row rows[] = {
    {"model", 'm', OPT_PATH, OPT_REQUIRED | OPT_INPUT, &o.model, NULL, "FILE", "the model"},
    {"out", 'o', OPT_PATH, OPT_REQUIRED | OPT_NO_BYTE, &o.out, NULL, "FILE", "the model to write"},
    {.kind = OPT_GROUP, .help = "which tensor gets which type (one of them)"},
    {"type", 0, OPT_CHOICE, 0, &o.type, NULL, "TYPE", "this type for every matrix", OPT_CHOICES(quant_types)},
    {"mixture", 0, OPT_CHOICE, 0, &o.mixture, NULL, "NAME", "the types that stock llama.cpp gives under this name",
     OPT_CHOICES(quant_mixtures)},
    {"recipe", 0, OPT_PATH, OPT_INPUT, &o.recipe, NULL, "FILE", "lines PATTERN TYPE; the first that matches a matrix decides"},
    {.kind = OPT_GROUP, .help = "how"},
    {"stats", 's', OPT_PATH, OPT_INPUT, &o.weights, NULL, "FILE", "weigh errors by how strong each input is: stats.h5 or stock's imatrix"},
    {"lossy-twice", 0, OPT_FLAG, 0, &o.lossy_twice, NULL, NULL, "round tensors again that are quantized already"},
    {.kind = OPT_GROUP, .help = "common"}, OPT_THREADS, OPT_QUIET, {0}};

static const opt_program program = {
    .name = "requant",
    .summary = "the same model in other number formats",
    .usage = "-m M.gguf -o M2.gguf --type T|--mixture NAME|--recipe FILE [-s STATS] [--lossy-twice]",
    .about = "Rounds the matrices of a model to block formats.  --type gives every matrix, embeddings and output too, one\n"
             "type.  --mixture gives each tensor the type and the bytes that stock llama.cpp's quantizer gives it under that\n"
             "name.  A recipe is a text file of lines PATTERN TYPE: * and ? stand for any characters and for one, /.../ is\n"
             "a regular expression, `keep` keeps, # begins a comment.  Vectors and norms are copied, and so are tensors\n"
             "that have their type already.\n"
             "\n"
             "affine2 to affine4 are MLX's rounding in groups of 64 with a scale and an offset in BF16, minmax2 to minmax4\n"
             "the same without moving the step.  Both are kept in Q4_1 blocks: the file is larger than the method's own\n"
             "bits, which it records.\n"
             "\n"
             "With -s the block formats' errors are weighed by the mean square of each input column, as stock's quantizer does\n"
             "with an importance matrix; Q8_0, affine and minmax know no weights.\n"
             "\n"
             "A tensor that is quantized already is refused, because a second rounding comes on top of the first;\n"
             "--lossy-twice does it all the same.",
    .example = "deadwood requant -m mini.gguf -o mini-q4.gguf --mixture Q4_K_M\n"
               "deadwood requant -m mini.gguf -o mini-q2.gguf --mixture Q2_K -s stats.h5\n"
               "deadwood requant -m mini.gguf -o ffn2.gguf --recipe ffn2.recipe",
    .rows = rows};
// clang-format on

/* ---- what every tensor becomes --------------------------------------------------------------------------------- */

typedef struct target {
    const dw_tensor *from;
    const quant_type *to; // NULL: copied
    const float *weight;  // importances of its columns; NULL: none
} target;

typedef struct choice {
    const quant_type *type; // one of the three
    const quant_mixture *mixture;
    quant_recipe recipe;
    quant_weights weights;
    char sha256[65];        // of the model
    size_t n_fell_back;
    char fell_back[160]; // the first of them
} choice;

static int read_choice(choice *c, const dw_gguf *g, dw_err *err) {
    if (o.type) c->type = quant_type_find(o.type);
    if (o.mixture) c->mixture = quant_mixture_find(o.mixture);
    if (o.recipe && quant_recipe_read(&c->recipe, o.recipe, err)) return -1;
    if (dw_sha256_file(o.model, c->sha256, err)) return -1;
    return o.weights ? quant_weights_read(&c->weights, g, c->sha256, o.weights, err) : 0;
}

static const quant_type *mixture_type(choice *c, const dw_model *m, const dw_tensor *t) {
    bool fell_back;
    const dw_qtype_row *type = quant_mixture_type(c->mixture, m, t, o.weights, &fell_back);
    if (fell_back && !c->n_fell_back++) snprintf(c->fell_back, sizeof c->fell_back, "%s gets %s", t->name, type->name);
    return quant_type_of(type);
}

static const quant_type *chosen_type(choice *c, const dw_model *m, const dw_tensor *t) {
    if (c->type) return c->type;
    if (c->mixture) return mixture_type(c, m, t);
    const quant_rule *rule = quant_recipe_find(&c->recipe, t->name);
    return rule ? rule->type : NULL;
}

/* A plain rounding to the type that a tensor has already leaves it as it is. */
static bool is_copy(const quant_type *to, const dw_tensor *t) { return !to || (!to->bits && to->stored == t->type); }

static int check_target(const choice *c, const target *wanted, dw_err *err) {
    const dw_tensor *t = wanted->from;
    const quant_type *to = wanted->to;
    if (t->ne[0] % (size_t)to->multiple)
        return dw_fail(err, "tensor '%s': rows of %zu values are no whole number of %s %s of %d; choose another type there by --recipe%s",
                       t->name, t->ne[0], to->name, to->bits ? "groups" : "blocks", to->multiple,
                       c->type && !to->bits ? ", or let --mixture fall back" : "");
    if (t->type->block > 1 && to->stored->id != DW_F32 && !o.lossy_twice)
        return dw_fail(err, "tensor '%s' is %s already, and %s would be a loss on top of a loss; give the 16-bit model, or --lossy-twice",
                       t->name, t->type->name, to->name);
    if (c->mixture && !wanted->weight && quant_mixture_needs_weights(c->mixture, t, to->stored))
        return dw_fail(err, "tensor '%s': %s is not made without importances; give them by -s, or choose Q2_K", t->name, o.mixture);
    return 0;
}

static int choose(choice *c, const dw_model *m, target *targets, dw_err *err) {
    const dw_gguf *g = dw_model_gguf(m);
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        target *t = &targets[i];
        t->from = dw_gguf_tensor(g, i);
        if (!quant_is_matrix(t->from)) continue;
        t->to = chosen_type(c, m, t->from);
        if (is_copy(t->to, t->from)) t->to = NULL;
        else if (quant_weights_find(&c->weights, t->from, &t->weight, err) || check_target(c, t, err)) return -1;
    }
    for (size_t i = 0; i < c->recipe.n_rule; i++) {
        const quant_rule *r = &c->recipe.rule[i];
        if (!r->n_decided) warn("'%s', line %d: no matrix is left for the pattern '%s'", o.recipe, r->line, r->pattern);
    }
    if (c->n_fell_back) warn("%zu matrices have rows that do not fit their type's blocks and get another, as in stock: %s%s", c->n_fell_back,
                             c->fell_back, c->n_fell_back > 1 ? ", ..." : "");
    return 0;
}

static const dw_qtype_row *stored_type(const target *t) { return t->to ? t->to->stored : t->from->type; }

static size_t n_rows(const dw_tensor *t) { return t->ne[1] * t->ne[2] * t->ne[3]; }

static size_t stored_bytes(const target *t) { return dw_qtype_row_bytes(stored_type(t), t->from->ne[0]) * n_rows(t->from); }

/* ---- metadata -------------------------------------------------------------------------------------------------------- */

/* The type that holds most weights of the matrices stands for the file. */
static int prevailing_file_type(const target *targets, size_t n) {
    double values[DW_QTYPE_END] = {0};
    const dw_qtype_row *best = dw_qtype_get(DW_F32);
    for (size_t i = 0; i < n; i++) {
        const dw_qtype_row *type = stored_type(&targets[i]);
        if (!quant_is_matrix(targets[i].from)) continue;
        values[type->id] += (double)dw_tensor_n_values(targets[i].from);
        if (values[type->id] > values[best->id]) best = type;
    }
    return best->file_type;
}

static bool is_of_parts(const char *key) { return !strncmp(key, "split.", 6); }

/* Bits a weight of all matrices as the methods count them; 0: all are plain block formats. */
static double nominal_bits(const target *targets, size_t n) {
    double bits = 0, values = 0;
    bool differs = false;
    for (size_t i = 0; i < n; i++) {
        const target *t = &targets[i];
        const double v = (double)dw_tensor_n_values(t->from);
        if (!quant_is_matrix(t->from)) continue;
        differs |= t->to && t->to->nominal_bits > 0;
        bits += t->to && t->to->nominal_bits > 0 ? v * t->to->nominal_bits : 8.0 * (double)stored_bytes(t);
        values += v;
    }
    return differs ? bits / values : 0;
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* As stock's quantizer says where its importances came from; what an earlier step said goes. */
static void write_weights_keys(const quant_weights *q, dw_gguf_writer *w) {
    static const char file[] = "quantize.imatrix.file", dataset[] = "quantize.imatrix.dataset", entries[] = "quantize.imatrix.entries_count",
                      chunks[] = "quantize.imatrix.chunks_count";
    const char *const keys[] = {file, dataset, entries, chunks};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) dw_gguf_unset(w, keys[i]);
    if (!o.weights) return;
    int n_chunks = q->matrix.n_chunks;
    for (size_t i = 0; i < q->stats.n_text; i++) n_chunks += q->stats.text[i].n_windows;
    const char *name = q->is_stats ? q->stats.text[0].name : q->matrix.dataset;
    dw_gguf_set_text(w, file, base_name(o.weights));
    if (*name) dw_gguf_set_text(w, dataset, name);
    dw_gguf_set_u32(w, entries, (uint32_t)q->matrix.n_entry);
    if (n_chunks > 0) dw_gguf_set_u32(w, chunks, (uint32_t)n_chunks);
}

static int stamp(const choice *c, const dw_gguf *g, dw_gguf_writer *w, dw_err *err) {
    lineage *l = lineage_new(&program, g, err);
    int rc = l ? lineage_input_hashed(l, o.model, c->sha256, err) : -1;
    if (!rc && o.recipe) rc = lineage_input(l, o.recipe, err);
    if (!rc && o.weights) rc = lineage_input(l, o.weights, err);
    for (size_t i = 0; i < c->weights.stats.n_text && !rc; i++) {
        const dw_stats_text *t = &c->weights.stats.text[i];
        rc = lineage_text_blocks(l, t->name, t->sha256, t->blocks, t->n_tokens, err);
    }
    if (!rc) rc = lineage_write(l, w, err);
    lineage_free(l);
    return rc;
}

static int write_keys(const choice *c, const dw_gguf *g, const target *targets, dw_gguf_writer *w, dw_err *err) {
    const size_t n = dw_gguf_n_tensors(g);
    for (size_t i = 0; i < dw_gguf_n_kv(g); i++) {
        const dw_kv *kv = dw_gguf_kv(g, i);
        if (!is_of_parts(kv->key)) dw_gguf_set_kv(w, kv->key, kv);
    }
    dw_gguf_set_u32(w, "general.quantization_version", 2);
    dw_gguf_set_u32(w, "general.file_type", (uint32_t)(c->mixture ? c->mixture->file_type : prevailing_file_type(targets, n)));
    dw_gguf_unset(w, "deadwood.nominal_bits");
    const double nominal = nominal_bits(targets, n);
    if (nominal > 0) dw_gguf_set_f32(w, "deadwood.nominal_bits", (float)nominal);
    write_weights_keys(&c->weights, w);
    return stamp(c, g, w, err);
}

/* ---- writing ------------------------------------------------------------------------------------------------------------ */

enum { SLAB_BYTES = 8 << 20, MAX_PIECES = 64 };

typedef struct slab { // encoded rows on their way into the file
    uint8_t *bytes;
    size_t n_bytes;
} slab;

typedef struct stream {
    dw_gguf_writer *w;
    dw_pool *pool;
    progress *p;
    slab full, next; // the one that is written, the one that is encoded
    float *values;   // (MAX_PIECES, longest row)
    size_t longest;
    dw_err *err;
    int rc;
    /* the rows at hand */
    const target *t;
    size_t first, n, rows_per_piece;
    atomic_bool is_bad;       // a weight that is NaN or too large
    atomic_size_t n_inexact;  // groups whose scale or offset was rounded once more
} stream;

static void write_full(stream *s) {
    if (s->rc || !s->full.n_bytes) return;
    s->rc = dw_gguf_write(s->w, s->full.bytes, s->full.n_bytes, s->err);
    progress_step(s->p, (double)s->full.n_bytes);
    s->full.n_bytes = 0;
}

/* NaN is not within. */
static bool all_within(const float *x, size_t n, float limit) {
    int n_beyond = 0;
    for (size_t i = 0; i < n; i++) n_beyond += !(fabsf(x[i]) <= limit);
    return !n_beyond;
}

static void encode_rows(stream *s, size_t piece) {
    const dw_tensor *from = s->t->from;
    const quant_type *to = s->t->to;
    const size_t n = from->ne[0], row_bytes = dw_qtype_row_bytes(to->stored, n), from_bytes = dw_tensor_row_bytes(from);
    const size_t begin = piece * s->rows_per_piece, end = begin + s->rows_per_piece < s->n ? begin + s->rows_per_piece : s->n;
    const float limit = to->stored->id == DW_F32 || to->stored->id == DW_BF16 ? FLT_MAX : QUANT_MAX_WEIGHT;
    float *row = s->values + piece * s->longest;
    for (size_t i = begin; i < end; i++) {
        from->type->decode(from->data + (s->first + i) * from_bytes, row, n);
        if (!all_within(row, n, limit)) atomic_store(&s->is_bad, true);
        else s->n_inexact += to->method->encode(to, row, s->next.bytes + i * row_bytes, n, s->t->weight);
    }
}

static void encode_or_write(void *stream_pointer, size_t piece) {
    stream *s = stream_pointer;
    if (!piece) write_full(s);
    else encode_rows(s, piece - 1);
}

/* Encodes the n rows from s->first on into the next slab, while the full one is written. */
static void encode_slab(stream *s) {
    s->rows_per_piece = (s->n + MAX_PIECES - 1) / MAX_PIECES;
    dw_pool_each(s->pool, 1 + (s->n + s->rows_per_piece - 1) / s->rows_per_piece, encode_or_write, s);
    if (!s->rc && s->is_bad)
        s->rc = dw_fail(s->err, "tensor '%s' holds a weight that is NaN, infinite or beyond %g; the model is damaged", s->t->from->name,
                        (double)QUANT_MAX_WEIGHT);
    const slab encoded = s->next;
    s->next = s->full;
    s->full = encoded;
    s->full.n_bytes = s->n * dw_qtype_row_bytes(s->t->to->stored, s->t->from->ne[0]);
}

static void encode_tensor(stream *s) {
    const size_t row_bytes = dw_qtype_row_bytes(s->t->to->stored, s->t->from->ne[0]), total = n_rows(s->t->from);
    const size_t most = SLAB_BYTES / row_bytes ? SLAB_BYTES / row_bytes : 1;
    for (s->first = 0; s->first < total && !s->rc; s->first += most) {
        s->n = total - s->first < most ? total - s->first : most;
        encode_slab(s);
    }
}

static void copy_tensor(stream *s) {
    write_full(s);
    const dw_tensor *t = s->t->from;
    for (size_t at = 0; at < t->n_bytes && !s->rc; at += SLAB_BYTES) {
        const size_t n = t->n_bytes - at < SLAB_BYTES ? t->n_bytes - at : SLAB_BYTES;
        s->rc = dw_gguf_write(s->w, t->data + at, n, s->err);
        progress_step(s->p, (double)n);
    }
}

static int stream_init(stream *s, const target *targets, size_t n) {
    size_t slab_bytes = SLAB_BYTES;
    for (size_t i = 0; i < n; i++) {
        if (!targets[i].to) continue;
        const size_t row = targets[i].from->ne[0], row_bytes = dw_qtype_row_bytes(targets[i].to->stored, row);
        if (row_bytes > slab_bytes) slab_bytes = row_bytes;
        if (row > s->longest) s->longest = row;
    }
    s->full.bytes = dw_alloc(slab_bytes, 1, "encoded rows", s->err);
    s->next.bytes = dw_alloc(slab_bytes, 1, "encoded rows", s->err);
    s->values = dw_alloc(s->longest * MAX_PIECES, sizeof *s->values, "rows to encode", s->err);
    return s->full.bytes && s->next.bytes && s->values ? 0 : -1;
}

static void stream_release(stream *s) {
    free(s->full.bytes);
    free(s->next.bytes);
    free(s->values);
}

static int write_tensors(dw_gguf_writer *w, const target *targets, size_t n, dw_pool *pool, dw_err *err) {
    stream s = {.w = w, .pool = pool, .err = err};
    double total = 0;
    for (size_t i = 0; i < n; i++) total += (double)stored_bytes(&targets[i]);
    s.p = progress_begin("writing", "B", total);
    s.rc = stream_init(&s, targets, n);
    for (size_t i = 0; i < n && !s.rc; i++) {
        s.t = &targets[i];
        s.t->to ? encode_tensor(&s) : copy_tensor(&s);
    }
    write_full(&s);
    progress_end(s.p);
    stream_release(&s);
    if (s.n_inexact)
        warn("%zu groups have a scale or offset below 2^-17, which F16 does not hold exactly; it was rounded once more", (size_t)s.n_inexact);
    return s.rc;
}

static int write_model(const choice *c, const dw_gguf *g, const target *targets, dw_pool *pool, dw_err *err) {
    const size_t n = dw_gguf_n_tensors(g);
    dw_gguf_writer *w = dw_gguf_writer_new(o.out, err);
    int rc = w ? write_keys(c, g, targets, w, err) : -1;
    for (size_t i = 0; i < n && !rc; i++)
        dw_gguf_add_tensor(w, targets[i].from->name, stored_type(&targets[i]), targets[i].from->n_dims, targets[i].from->ne);
    if (!rc) rc = dw_gguf_begin(w, err) || write_tensors(w, targets, n, pool, err) || dw_gguf_commit(w, err) ? -1 : 0;
    dw_gguf_writer_free(w);
    return rc;
}

/* ---- the program ------------------------------------------------------------------------------------------------------------ */

static void tell(const dw_gguf *g, const target *targets) {
    double before = 0, after = 0, bits = 0, values = 0;
    size_t n_changed = 0, n_weighed = 0;
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        before += (double)targets[i].from->n_bytes;
        after += (double)stored_bytes(&targets[i]);
        n_changed += targets[i].to != NULL;
        n_weighed += targets[i].weight != NULL;
        if (!quant_is_matrix(targets[i].from)) continue;
        bits += 8 * (double)stored_bytes(&targets[i]);
        values += (double)dw_tensor_n_values(targets[i].from);
    }
    say("%zu tensor%s rounded, %zu copied; %s -> %s, %.2f bits a weight", n_changed, plural((double)n_changed), dw_gguf_n_tensors(g) - n_changed,
        show_bytes(before).text, show_bytes(after).text, values > 0 ? bits / values : 0);
    if (o.weights) say("%zu of the %zu rounded tensors had importances", n_weighed, n_changed);
}

int main(int argc, char **argv) {
    quant_types_init();
    opt_parse(&program, argc, argv);
    if (!!o.type + !!o.mixture + !!o.recipe != 1) die_usage("give one of --type, --mixture, --recipe");
    dw_err err = {0};
    choice c = {0};
    dw_model *m = dw_model_open(o.model, &err);
    if (!m || read_choice(&c, dw_model_gguf(m), &err)) die_err(&err);
    const dw_gguf *g = dw_model_gguf(m);
    target *targets = dw_alloc(dw_gguf_n_tensors(g), sizeof *targets, "tensors", &err);
    dw_pool *pool = dw_pool_new(tool.threads, &err);
    if (!targets || !pool || choose(&c, m, targets, &err) || write_model(&c, g, targets, pool, &err)) die_err(&err);
    tell(g, targets);
    dw_pool_free(pool);
    free(targets);
    quant_recipe_release(&c.recipe);
    quant_weights_release(&c.weights);
    dw_model_close(m);
    return 0;
}
