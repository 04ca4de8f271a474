/* random_model.c - shapes, their tensors, and random blocks of every type. */
#include "experiments/random_model.h"
#include "text/tokenizers.h"

#include "base/half_inline.h"
#include "formats/ffn_gated.h"
#include "model/archs.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- shapes -------------------------------------------------------------------------------------- */

static const int tiny_widths[] = {96, 64, 32, 128};
static const int tiny_heads[] = {4, 2, 4, 2};

// clang-format off
const exp_shape exp_shapes[] = {
    // name           arch    layers  embd     ff heads kv  dim   vocab  tied   rope base  context
    {"qwen2.5-0.5b", "qwen2",   24,   896,  4864, 14,  2,  64, 151936, true,  1000000, 32768, .help = "0.5 G parameters"},
    {"qwen2.5-1.5b", "qwen2",   28,  1536,  8960, 12,  2, 128, 151936, true,  1000000, 32768, .help = "1.5 G parameters"},
    {"qwen2.5-7b",   "qwen2",   28,  3584, 18944, 28,  4, 128, 152064, false, 1000000, 32768, .help = "7.6 G parameters"},
    {"llama3-8b",    "llama",   32,  4096, 14336, 32,  8, 128, 128256, false,  500000,  8192, .help = "8.0 G parameters"},
    {"mini",         "qwen2",    8,   256,  1024,  4,  2,  64,  16384, true,    10000,  1024, .help = "12 M parameters"},
    {"base",         "qwen2",   12,   512,  2048,  8,  4,  64,  16384, true,    10000,  1024, .help = "56 M parameters"},
    {"tiny-llama",   "llama",    4,    64,   128,  4,  2,  16,    512, false,   10000,   256, .help = "with rope factors", .rope_freqs = true},
    {"tiny-qwen2",   "qwen2",    4,    64,   128,  4,  2,  16,    512, true,    10000,   256, .help = "with biases"},
    {"tiny-qwen3",   "qwen3",    4,    64,   128,  4,  2,  32,    512, false,   10000,   256, .help = "heads wider than n_embd / n_head"},
    {"tiny-qwen3-tied", "qwen3", 4,    64,   128,  4,  2,  32,    512, true,    10000,   256, .help = "without an output matrix of its own"},
    {"tiny-deci",    "deci",     4,    64,   128,  4,  2,  16,    512, false,   10000,   256, tiny_widths, tiny_heads, "unequal widths and heads"},
    {"tiny-openelm", "openelm",  4,    64,   128,  4,  2,  32,    512, true,    10000,   256, tiny_widths, tiny_heads, "unequal widths and heads, fused QKV"},
    {0},
};
// clang-format on

const exp_shape *exp_shape_find(const char *name) {
    for (const exp_shape *s = exp_shapes; s->name; s++)
        if (!strcmp(s->name, name)) return s;
    return NULL;
}

static const dw_arch *arch_of(const exp_shape *s) { return dw_arch_find((dw_str){s->arch, strlen(s->arch)}); }

static int width(const exp_shape *s, int l) { return s->n_ff_by_layer ? s->n_ff_by_layer[l] : s->n_ff; }
static int heads(const exp_shape *s, int l) { return s->n_head_by_layer ? s->n_head_by_layer[l] : s->n_head; }
static int heads_kv(const exp_shape *s, int l) { return heads(s, l) * s->n_head_kv / s->n_head; }

/* ---- tensors of a shape ---------------------------------------------------------------------------- */

/* A tensor to be made: normal values around `mean` with deviation `sigma`. */
typedef struct random_tensor {
    char name[DW_TENSOR_NAME];
    const dw_qtype_row *type;
    size_t n_in, n_rows; // n_rows 0: a vector of n_in
    float mean, sigma;
    const int32_t *dead; // rows to be zero, ascending
    size_t n_dead;
} random_tensor;

typedef struct tensor_list {
    const exp_random_options *o;
    random_tensor *tensor;
    size_t n;
} tensor_list;

enum { MAX_LAYER_TENSORS = 24, OUTER_TENSORS = 4 };

/* Rows must be whole blocks: 896 inputs, for example, are not a multiple of 256. */
static const dw_qtype_row *type_for_row(const dw_qtype_row *type, size_t n_in) {
    if (n_in % (size_t)type->block == 0) return type;
    return dw_qtype_get(n_in % 32 == 0 ? DW_Q8_0 : DW_F16);
}

static random_tensor *add(tensor_list *list, const char *name, size_t n_in, size_t n_rows, double mean, double sigma) {
    random_tensor *t = &list->tensor[list->n++];
    *t = (random_tensor){.n_in = n_in, .n_rows = n_rows, .mean = (float)mean, .sigma = (float)sigma};
    t->type = n_rows ? type_for_row(list->o->type, n_in) : dw_qtype_get(DW_F32);
    snprintf(t->name, sizeof t->name, "%s", name);
    return t;
}

static dw_sizes sizes_of(const exp_random_options *o, int l) {
    const exp_shape *s = o->shape;
    dw_sizes sizes = {.n_embd = s->n_embd, .n_vocab = s->n_vocab, .head_dim = s->head_dim};
    if (l < 0) return sizes;
    sizes.n_head = heads(s, l), sizes.n_head_kv = heads_kv(s, l), sizes.n_ff = width(s, l);
    return sizes;
}

/* A norm of mean 1, or a matrix that keeps the size of its input; one that adds to the residual stream halves it. */
static random_tensor *add_weight(tensor_list *list, int l, const dw_tensor_row *r) {
    const dw_sizes sizes = sizes_of(list->o, l);
    const dw_tensor_name name = dw_name_gguf(r, l, false);
    const size_t n = dw_dimension(r->shape[0], &sizes);
    if (!r->shape[1]) return add(list, name.text, n, 0, 1, 0.1);
    const size_t n_in = dw_dimension(r->shape[1], &sizes);
    return add(list, name.text, n_in, n, 0, (r->shape[0] == 'd' ? 0.5 : 1) / sqrt((double)n_in));
}

static void add_bias(tensor_list *list, int l, const dw_tensor_row *r) {
    const dw_sizes sizes = sizes_of(list->o, l);
    add(list, dw_name_gguf(r, l, true).text, dw_dimension(r->bias, &sizes), 0, 0, 0.1);
}

/* q, k and v: one matrix, or three with the biases after them. */
static void add_parts(tensor_list *list, int l, const dw_tensor_row *whole) {
    const unsigned has = arch_of(list->o->shape)->has;
    if (has & DW_ARCH_FUSED_QKV) {
        add_weight(list, l, whole);
        return;
    }
    for (int i = 1; i <= whole->n_parts; i++) add_weight(list, l, whole + i);
    for (int i = 1; i <= whole->n_parts && has & DW_ARCH_QKV_BIAS; i++) add_bias(list, l, whole + i);
}

typedef struct dead_rows {
    const int32_t *row; // ascending
    size_t n;
} dead_rows;

/* The rows that the architecture requires.  Where the rows of a matrix are neurons, those of dead ones become zero.
 * */
static void add_rows(tensor_list *list, int l, const dw_tensor_row *rows, dead_rows dead) {
    const unsigned has = arch_of(list->o->shape)->has;
    for (const dw_tensor_row *r = rows; r->gguf; r += 1 + r->n_parts) {
        if (r->n_parts) {
            add_parts(list, l, r);
        } else if (!r->optional && (!r->of || has & r->of)) {
            random_tensor *t = add_weight(list, l, r);
            if (r->shape[0] == 'n') t->dead = dead.row, t->n_dead = dead.n;
        }
    }
}

static int gate_group(const exp_random_options *o) { return o->group ? o->group : 1; }

/* The tensors that gate and train add.  The scores of predictors have a mean of about zero, so half of the groups
 * open. */
static void add_gate(tensor_list *list, int l) {
    const exp_random_options *o = list->o;
    dw_sizes sizes = sizes_of(o, l);
    sizes.rank = o->predictor_rank;
    sizes.n_group = (sizes.n_ff + gate_group(o) - 1) / gate_group(o);
    const size_t n_embd = (size_t)sizes.n_embd, n_ff = (size_t)sizes.n_ff;
    add(list, dw_name_gguf(dw_gated_rows, l, false).text, n_embd, n_ff, 0, 0.5 / sqrt((double)n_ff));
    for (const dw_tensor_row *r = dw_predictor_rows; r->gguf && o->predictor_rank; r++) {
        const size_t n_in = dw_dimension(r->shape[1], &sizes), n = dw_dimension(r->shape[0], &sizes);
        add(list, dw_name_gguf(r, l, false).text, n_in, n, 0, 1 / sqrt((double)n_in))->type = dw_qtype_get(DW_F16);
        add(list, dw_name_gguf(r, l, true).text, n, 0, 0, 0.1);
    }
}

static size_t n_dead_of_layer(const exp_random_options *o, int l) {
    return (size_t)lround(o->dead * width(o->shape, l));
}

/* The embeddings are small compared with what the layers add, because a tied model would only repeat its input
 * otherwise.  The output norm of a tied model brings the logits back to order one. */
#define EMBEDDING_SIGMA 0.25

static void add_net_row(tensor_list *list, const dw_tensor_row *r) {
    const exp_shape *s = list->o->shape;
    if (r->at == offsetof(dw_net, output) ? s->tied : r->optional && !s->rope_freqs) return;
    random_tensor *t = add_weight(list, -1, r);
    if (r->at == offsetof(dw_net, token_embd)) t->sigma = EMBEDDING_SIGMA;
    const double norm = 1 / (EMBEDDING_SIGMA * sqrt((double)s->n_embd));
    if (r->at == offsetof(dw_net, output_norm) && s->tied) t->mean = (float)norm, t->sigma = (float)(0.1 * norm);
    if (r->optional && !r->shape[1]) t->mean = 4, t->sigma = 0.5f; // rope_freqs
}

/* The embeddings, the layers, and what comes after them.  dead: the lists of all layers, one after the other. */
static void list_tensors(tensor_list *list, const int32_t *dead) {
    const exp_shape *s = list->o->shape;
    add_net_row(list, dw_net_rows);
    for (int l = 0; l < s->n_layer; l++) {
        const dead_rows of_layer = {dead, n_dead_of_layer(list->o, l)};
        add_rows(list, l, dw_attention_rows, of_layer);
        add_rows(list, l, dw_ffn_rows, of_layer);
        if (dead) dead += of_layer.n;
    }
    for (const dw_tensor_row *r = dw_net_rows + 1; r->gguf; r++) add_net_row(list, r);
    for (int l = 0; l < s->n_layer && list->o->gate; l++) add_gate(list, l);
}

static int list_init(tensor_list *list, const exp_random_options *o, const int32_t *dead, dw_err *err) {
    const size_t cap = (size_t)o->shape->n_layer * MAX_LAYER_TENSORS + OUTER_TENSORS;
    *list = (tensor_list){.o = o, .tensor = dw_alloc(cap, sizeof *list->tensor, "the list of tensors", err)};
    if (!list->tensor) return -1;
    list_tensors(list, dead);
    return 0;
}

static size_t row_bytes(const random_tensor *t) { return dw_qtype_row_bytes(t->type, t->n_in); }
static size_t n_rows(const random_tensor *t) { return t->n_rows ? t->n_rows : 1; }

double exp_random_bytes(const exp_random_options *o) {
    tensor_list list;
    double bytes = 0;
    if (list_init(&list, o, NULL, NULL)) return 0;
    for (size_t i = 0; i < list.n; i++) bytes += (double)row_bytes(&list.tensor[i]) * (double)n_rows(&list.tensor[i]);
    free(list.tensor);
    return bytes;
}

/* ---- random values ---------------------------------------------------------------------------------- */

/* Values come from a table of N_VALUE numbers that sums to zero exactly: a mean of a thousandth would add up over the
 * thousands of inputs of a row into one direction that drowns all others. */
enum { VALUE_BITS = 12, N_VALUE = 1 << VALUE_BITS, SCALE_BITS = 6, N_SCALE = 1 << SCALE_BITS };

typedef struct value_table { // of one tensor
    union {
        float f32[N_VALUE];
        uint16_t f16[N_VALUE]; // F16 or BF16, and the scales of blocks
    };
} value_table;

/* How random bytes become blocks of a type.  Codes are uniform; their mean is cancelled by a random sign of the
 * scale, or where the type has a minimum, by minimum = middle * scale, rounded to F16. */
typedef struct block_form {
    dw_qtype type;
    int d_at, min_at;    // byte offsets of the F16 scale and minimum; min_at -1: none, the scale is signed
    float middle;        // mean code (times inner scale) that the minimum takes away
    float deviation;     // of code * inner scale
    void (*finish)(uint8_t *block); // makes inner scales and codes legal; NULL: every byte is
} block_form;

/* No converter writes -128. */
static void finish_q8_0(uint8_t *block) {
    int8_t *q = (int8_t *)block + 2;
    for (int i = 0; i < 32; i++) q[i] = q[i] == -128 ? 0 : q[i];
}

static void finish_q2_k(uint8_t *block) { // 16 bytes scale | minimum << 4: both equal, 8 to 15
    for (int k = 0; k < 16; k++) block[k] = (uint8_t)(0x88 | (block[k] & 7) * 0x11);
}

/* The packed 6-bit pairs (scale, minimum) of Q4_K and Q5_K: equal in each pair. */
static void finish_q4_k(uint8_t *block) {
    uint8_t *s = block + 4;
    for (int k = 0; k < 4; k++) {
        s[k + 4] = s[k];
        s[k + 8] = (uint8_t)((s[k + 8] & 15) * 0x11);
    }
}

// clang-format off
static const block_form block_forms[] = {
    // type      d  min  middle  deviation
    {DW_Q8_0,    0,  -1,    0,    73.6f, finish_q8_0},
    {DW_Q4_0,    0,  -1,    0,    4.64f, NULL},
    {DW_Q4_1,    0,   2,  7.5f,   4.61f, NULL},
    {DW_Q5_0,    0,  -1,    0,    9.25f, NULL},
    {DW_Q5_1,    0,   2, 15.5f,   9.23f, NULL},
    {DW_IQ4_NL,  0,  -1,    0,   70.1f,  NULL},
    {DW_Q2_K,   80,  82,  1.5f,  13.1f,  finish_q2_k},
    {DW_Q3_K,  108,  -1,    0,   43.3f,  NULL},
    {DW_Q4_K,    0,   2,  7.5f, 168.0f,  finish_q4_k},
    {DW_Q5_K,    0,   2, 15.5f, 337.0f,  finish_q4_k},
    {DW_Q6_K,  208,  -1,    0, 1366.0f,  NULL},
};
// clang-format on

static const block_form *form_of(dw_qtype type) {
    for (size_t i = 0; i < sizeof block_forms / sizeof *block_forms; i++)
        if (block_forms[i].type == type) return &block_forms[i];
    return NULL;
}

/* Scales of blocks: deviation sigma on the average, +- 25 %, both signs where the form has no minimum. */
static void make_scales(value_table *table, const random_tensor *t, const block_form *form) {
    const float d = t->sigma / form->deviation;
    for (int i = 0; i < N_SCALE; i++) {
        const float spread = 0.75f + 0.5f * (float)(i / 2) / (float)(N_SCALE / 2 - 1);
        table->f16[i] = dw_f32_to_f16(form->min_at < 0 && i % 2 ? -d * spread : d * spread);
    }
}

/* Normal values, each with its negative around the mean. */
static void make_values(value_table *table, const random_tensor *t, uint64_t seed) {
    dw_rng rng;
    dw_rng_seed(&rng, seed);
    for (int i = 0; i < N_VALUE / 2; i++) {
        const float deviate = t->sigma * (float)dw_rng_normal(&rng);
        const float pair[2] = {t->mean + deviate, t->mean - deviate};
        for (int k = 0; k < 2; k++) {
            if (t->type->id == DW_F32) table->f32[2 * i + k] = pair[k];
            else table->f16[2 * i + k] = t->type->id == DW_F16 ? dw_f32_to_f16(pair[k]) : dw_f32_to_bf16(pair[k]);
        }
    }
}

static void make_table(value_table *table, const random_tensor *t, uint64_t seed) {
    const block_form *form = form_of(t->type->id);
    if (form) make_scales(table, t, form);
    else make_values(table, t, seed);
}

/* splitmix64 (Steele, Lea & Flood 2014).  Its steps are independent of each other, so that here it is four times as
 * fast as the generator of base.h. */
static inline uint64_t next_bits(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

enum { PICKS = 64 / VALUE_BITS }; // table places in one random number

static void pick_f32(float *dst, size_t n, const value_table *table, uint64_t state) {
    for (size_t i = 0; i < n;) {
        uint64_t bits = next_bits(&state);
        for (int k = 0; k < PICKS && i < n; k++, bits >>= VALUE_BITS) dst[i++] = table->f32[bits % N_VALUE];
    }
}

static void pick_f16(uint16_t *dst, size_t n, const value_table *table, uint64_t state) {
    for (size_t i = 0; i < n;) {
        uint64_t bits = next_bits(&state);
        for (int k = 0; k < PICKS && i < n; k++, bits >>= VALUE_BITS) dst[i++] = table->f16[bits % N_VALUE];
    }
}

static void fill_random(uint8_t *dst, size_t n, uint64_t state) {
    for (size_t i = 0; i < n; i += 8) {
        const uint64_t bits = next_bits(&state);
        memcpy(dst + i, &bits, n - i < 8 ? n - i : 8);
    }
}

/* The random bytes at the place of the scale choose a scale of the table. */
static void fill_blocks(uint8_t *dst, size_t n_bytes, const random_tensor *t, const value_table *table,
                        uint64_t state) {
    const block_form *form = form_of(t->type->id);
    fill_random(dst, n_bytes, state);
    for (uint8_t *block = dst; block < dst + n_bytes; block += t->type->block_bytes) {
        const uint16_t d = table->f16[block[form->d_at] % N_SCALE];
        memcpy(block + form->d_at, &d, sizeof d);
        if (form->min_at >= 0) { // Q4_1 and Q5_1 add the minimum, the K types subtract it
            const float sign = t->type->block == 32 ? -1 : 1;
            const uint16_t min = dw_f32_to_f16_inline(sign * form->middle * dw_f16_to_f32_inline(d));
            memcpy(block + form->min_at, &min, sizeof min);
        }
        if (form->finish) form->finish(block);
    }
}

/* ---- chunks --------------------------------------------------------------------------------------------- */

/* A chunk is a run of rows of about CHUNK_BYTES with its own generator, so that chunks may be made in any order. */
enum { CHUNK_BYTES = 1 << 20 };

typedef struct filler { // of one tensor
    const exp_random_options *o;
    const random_tensor *t;
    size_t i_tensor, chunk_rows;
    value_table table;
} filler;

static uint64_t chunk_seed(const filler *f, size_t chunk) {
    uint64_t state = f->o->seed * 0xd1342543de82ef95u + ((uint64_t)f->i_tensor << 32) + chunk;
    return next_bits(&state);
}

static void zero_dead_rows(uint8_t *rows, size_t first, size_t n, const random_tensor *t) {
    const size_t bytes = row_bytes(t);
    for (size_t i = 0; i < t->n_dead; i++) {
        const size_t row = (size_t)t->dead[i];
        if (row >= first && row < first + n) memset(rows + (row - first) * bytes, 0, bytes);
    }
}

/* Rows first .. first+n-1, one chunk. */
static void fill_chunk(const filler *f, size_t first, size_t n, uint8_t *rows) {
    const random_tensor *t = f->t;
    const uint64_t seed = chunk_seed(f, first / f->chunk_rows);
    if (form_of(t->type->id)) fill_blocks(rows, n * row_bytes(t), t, &f->table, seed);
    else if (t->type->id == DW_F32) pick_f32((float *)(void *)rows, n * t->n_in, &f->table, seed);
    else pick_f16((uint16_t *)(void *)rows, n * t->n_in, &f->table, seed);
    zero_dead_rows(rows, first, n, t);
}

static void fill_chunks(void *filler_pointer, const kit_piece *p) {
    const filler *f = filler_pointer;
    for (size_t at = 0; at < p->n; at += f->chunk_rows)
        fill_chunk(f, p->first + at, p->n - at < f->chunk_rows ? p->n - at : f->chunk_rows,
                   p->out + at * row_bytes(f->t));
}

static int write_tensors(dw_gguf_writer *w, const tensor_list *list, dw_err *err) {
    filler *f = dw_alloc(1, sizeof *f, "the random numbers", err);
    kit_stream *s = f ? kit_stream_new(w, list->o->pool, list->o->bar, err) : NULL;
    int rc = s ? 0 : -1;
    for (size_t i = 0; i < list->n && !rc; i++) {
        const random_tensor *t = &list->tensor[i];
        *f = (filler){.o = list->o,
                      .t = t,
                      .i_tensor = i,
                      .chunk_rows = CHUNK_BYTES / row_bytes(t) ? CHUNK_BYTES / row_bytes(t) : 1};
        make_table(&f->table, t, chunk_seed(f, UINT32_MAX));
        const kit_rows rows = {
            .n_rows = n_rows(t), .row_bytes = row_bytes(t), .unit = f->chunk_rows, .make = fill_chunks, .ctx = f};
        rc = kit_stream_tensor(s, &rows, err);
    }
    if (!rc) rc = kit_stream_end(s, err);
    kit_stream_free(s);
    free(f);
    return rc;
}

/* ---- keys -------------------------------------------------------------------------------------------- */

static const char *key_name(const exp_shape *s, dw_key which, char buffer[96]) {
    snprintf(buffer, 96, "%s.%s", s->arch, dw_keys[which].gguf);
    return buffer;
}

static void set_widths(dw_gguf_writer *w, const exp_shape *s) {
    char key[96];
    uint32_t ff[DW_MAX_LAYERS], q[DW_MAX_LAYERS], kv[DW_MAX_LAYERS];
    for (int l = 0; l < s->n_layer; l++) {
        ff[l] = (uint32_t)width(s, l);
        q[l] = (uint32_t)heads(s, l);
        kv[l] = (uint32_t)heads_kv(s, l);
    }
    const struct { dw_key key; const uint32_t *n; bool by_layer; } rows[] = {
        {DW_KEY_N_FF, ff, s->n_ff_by_layer},
        {DW_KEY_N_HEAD, q, s->n_head_by_layer},
        {DW_KEY_N_HEAD_KV, kv, s->n_head_by_layer},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        key_name(s, rows[i].key, key);
        if (rows[i].by_layer) dw_gguf_set_array(w, key, DW_KV_U32, rows[i].n, (size_t)s->n_layer);
        else dw_gguf_set_u32(w, key, rows[i].n[0]);
    }
}

static void set_hparams(dw_gguf_writer *w, const exp_shape *s) {
    const struct { dw_key key; int value; } rows[] = { // in the order of the file
        {DW_KEY_N_CTX, s->n_ctx},          {DW_KEY_N_EMBD, s->n_embd},
        {DW_KEY_N_LAYER, s->n_layer},      {DW_KEY_HEAD_DIM, s->head_dim},
        {DW_KEY_VALUE_DIM, s->head_dim},   {DW_KEY_ROPE_DIM, s->head_dim},
        {DW_KEY_N_VOCAB, s->n_vocab},
    };
    char key[96];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        dw_gguf_set_u32(w, key_name(s, rows[i].key, key), (uint32_t)rows[i].value);
    dw_gguf_set_f32(w, key_name(s, DW_KEY_NORM_EPS, key), 1e-6f);
    dw_gguf_set_f32(w, key_name(s, DW_KEY_ROPE_BASE, key), s->rope_base);
    set_widths(w, s);
}

/* In the form of SentencePiece: three special tokens, the bytes, then words that do not occur in texts. */
enum { WORD_CHARS = 32, FIRST_BYTE = 3, FIRST_WORD = FIRST_BYTE + 256 };

static int set_invented_vocab(dw_gguf_writer *w, size_t n, dw_err *err) {
    static const char *const special[FIRST_BYTE] = {"<unk>", "<s>", "</s>"};
    char(*text)[WORD_CHARS] = dw_alloc(n, sizeof *text, "a vocabulary", err);
    dw_str *token = dw_alloc(n, sizeof *token, "a vocabulary", err);
    int32_t *type = dw_alloc(n, sizeof *type, "a vocabulary", err);
    float *score = dw_alloc(n, sizeof *score, "a vocabulary", err);
    const bool ok = text && token && type && score;
    for (size_t i = 0; ok && i < n; i++) {
        if (i < FIRST_BYTE)
            snprintf(text[i], WORD_CHARS, "%s", special[i]);
        else if (i < FIRST_WORD)
            snprintf(text[i], WORD_CHARS, "<0x%02X>", (unsigned)(i - FIRST_BYTE));
        else
            snprintf(text[i], WORD_CHARS, "\xe2\x96\x81w%zu", i);
        token[i] = (dw_str){text[i], strlen(text[i])};
        type[i] = i == 0           ? DW_TOKEN_UNKNOWN
                  : i < FIRST_BYTE ? DW_TOKEN_CONTROL
                  : i < FIRST_WORD ? DW_TOKEN_BYTE
                                   : DW_TOKEN_NORMAL;
        score[i] = i < FIRST_WORD ? 0 : -(float)(i - FIRST_WORD);
    }
    if (ok) {
        dw_gguf_set_text(w, "tokenizer.ggml.model", "llama");
        dw_gguf_set_strs(w, "tokenizer.ggml.tokens", token, n);
        dw_gguf_set_array(w, "tokenizer.ggml.scores", DW_KV_F32, score, n);
        dw_gguf_set_array(w, "tokenizer.ggml.token_type", DW_KV_I32, type, n);
        dw_gguf_set_u32(w, "tokenizer.ggml.unknown_token_id", 0);
        dw_gguf_set_u32(w, "tokenizer.ggml.bos_token_id", 1);
        dw_gguf_set_u32(w, "tokenizer.ggml.eos_token_id", 2);
        dw_gguf_set_bool(w, "tokenizer.ggml.add_bos_token", true);
        dw_gguf_set_bool(w, "tokenizer.ggml.add_eos_token", false);
    }
    free(text);
    free(token);
    free(type);
    free(score);
    return ok ? 0 : -1;
}

/* ---- dead neurons --------------------------------------------------------------------------------------- */

/* n_dead of each layer's neurons, drawn without repetition, ascending: sampling by selection (Knuth, 3.4.2 S). */
static int32_t *draw_dead(const exp_random_options *o, size_t *n, dw_err *err) {
    *n = 0;
    for (int l = 0; l < o->shape->n_layer; l++) *n += n_dead_of_layer(o, l);
    int32_t *dead = dw_alloc(*n + 1, sizeof *dead, "the list of dead neurons", err);
    if (!dead) return NULL;
    dw_rng rng;
    dw_rng_seed(&rng, o->seed ^ 0xdead);
    size_t at = 0;
    for (int l = 0; l < o->shape->n_layer; l++) {
        size_t wanted = n_dead_of_layer(o, l), left = (size_t)width(o->shape, l);
        for (int j = 0; j < width(o->shape, l); j++, left--) {
            if (dw_rng_below(&rng, left) >= wanted) continue;
            dead[at++] = j;
            wanted--;
        }
    }
    return dead;
}

static int set_dead(dw_gguf_writer *w, const exp_random_options *o, const int32_t *dead, size_t n, dw_err *err) {
    int32_t *pair = dw_alloc(n + 1, 2 * sizeof *pair, "the list of dead neurons", err);
    if (!pair) return -1;
    size_t at = 0;
    for (int l = 0; l < o->shape->n_layer; l++) {
        for (size_t k = n_dead_of_layer(o, l); k; k--, at++) {
            pair[2 * at] = l;
            pair[2 * at + 1] = dead[at];
        }
    }
    dw_gguf_set_array(w, "deadwood.synth.dead", DW_KV_I32, pair, 2 * n);
    free(pair);
    return 0;
}

/* ---- the gate ------------------------------------------------------------------------------------------- */

/* Every neuron reaches the threshold; score --inject sets how many are open. */
static int set_gate(dw_gguf_writer *w, const exp_random_options *o, dw_err *err) {
    const size_t n = (size_t)o->shape->n_layer;
    float *zero = dw_alloc(n, 2 * sizeof *zero, "a gate", err), *one = zero ? zero + n : NULL;
    if (!zero) return -1;
    for (size_t l = 0; l < n; l++) one[l] = 1;
    dw_gguf_set_text(w, DW_KEY_GATE_RULE, gate_group(o) > 1 ? "group-max" : "cats");
    dw_gguf_set_u32(w, DW_KEY_GATE_GROUP, (uint32_t)gate_group(o));
    dw_gguf_set_array(w, DW_KEY_GATE_THRESHOLD, DW_KV_F32, zero, n);
    dw_gguf_set_array(w, DW_KEY_GATE_ACTIVITY, DW_KV_F32, one, n);
    dw_gguf_set_array(w, DW_KEY_GATE_DENSE, DW_KV_BOOL, zero, n);
    if (o->predictor_rank) dw_gguf_set_text(w, DW_KEY_PREDICTOR_INPUT, "ffn");
    free(zero);
    return 0;
}

/* ---- the whole file --------------------------------------------------------------------------------------- */

static int set_keys(dw_gguf_writer *w, const exp_random_options *o, dw_err *err) {
    dw_gguf_set_text(w, "general.architecture", o->shape->arch);
    dw_gguf_set_text(w, "general.type", "model");
    dw_gguf_set_text(w, "general.name", o->shape->name);
    dw_gguf_set_u32(w, "general.quantization_version", 2);
    dw_gguf_set_u32(w, "general.file_type", (uint32_t)o->type->file_type);
    set_hparams(w, o->shape);
    if (!o->vocab) return set_invented_vocab(w, (size_t)o->shape->n_vocab, err);
    dw_vocab_write(o->vocab, w);
    return 0;
}

int exp_random_write(dw_gguf_writer *w, const exp_random_options *o, dw_err *err) {
    int rc = -1;
    size_t n_dead;
    tensor_list list = {0};
    int32_t *dead = draw_dead(o, &n_dead, err);
    if (!dead || list_init(&list, o, dead, err)) goto done;
    if (set_keys(w, o, err) || (n_dead && set_dead(w, o, dead, n_dead, err)) || (o->gate && set_gate(w, o, err)))
        goto done;
    for (size_t i = 0; i < list.n; i++) {
        const random_tensor *t = &list.tensor[i];
        dw_gguf_add_tensor(w, t->name, t->type, t->n_rows ? 2 : 1, (size_t[]){t->n_in, n_rows(t)});
    }
    rc = dw_gguf_begin(w, err);
    if (!rc) rc = write_tensors(w, &list, err);
done:
    free(list.tensor);
    free(dead);
    return rc;
}
