/* mixtures.c - what stock llama.cpp's quantizer gives to each tensor under a name such as Q4_K_M (its src/llama-quant.cpp).
 *
 * A mixture has one type for all matrices but these:
 *   output            Q6_K (Q8_0 stays); the embeddings too, where they are the output as well
 *   attn_v, attn_qkv  by a rule; models of 80 layers with shared keys have Q5_K where the rule says Q3_K or Q4_K
 *   ffn_down          by a rule
 *   attn_output       by a rule
 * Layers are counted by the tensors that are there: a layer without attention does not count for attn_v. */
#include "quant/quant.h"

#include <string.h>
#include <strings.h>

// clang-format off
#define IF(condition, ...) {QUANT_##condition, __VA_ARGS__} // the type where it holds, the type elsewhere
const quant_mixture quant_mixtures[] = {
    {"Q8_0",    7, DW_Q8_0},
    {"Q6_K",   18, DW_Q6_K},
    {"Q5_K_M", 17, DW_Q5_K,   .attn_v = IF(MORE, DW_Q6_K),              .ffn_down = IF(MORE, DW_Q6_K)},
    {"Q5_K_S", 16, DW_Q5_K},
    {"Q5_1",    9, DW_Q5_1},
    {"Q5_0",    8, DW_Q5_0,                                             .ffn_down = IF(EIGHTH_WEIGHTED, DW_Q5_1)},
    {"Q4_K_M", 15, DW_Q4_K,   .attn_v = IF(MORE, DW_Q6_K),              .ffn_down = IF(MORE, DW_Q6_K)},
    {"Q4_K_S", 14, DW_Q4_K,   .attn_v = IF(FIRST_4, DW_Q5_K),           .ffn_down = IF(EIGHTH, DW_Q5_K)},
    {"Q4_1",    3, DW_Q4_1},
    {"Q4_0",    2, DW_Q4_0,                                             .ffn_down = IF(EIGHTH_WEIGHTED, DW_Q4_1)},
    {"IQ4_NL", 25, DW_IQ4_NL, .attn_v = IF(SHARED_4, DW_Q5_K),          .ffn_down = IF(EIGHTH_PLAIN, DW_Q5_K)},
    {"Q3_K_L", 13, DW_Q3_K,   .attn_v = IF(ALWAYS, DW_Q5_K),            .ffn_down = IF(ALWAYS, DW_Q5_K),             .attn_output = IF(ALWAYS, DW_Q5_K)},
    {"Q3_K_M", 12, DW_Q3_K,   .attn_v = IF(FIRST_2, DW_Q5_K, DW_Q4_K),  .ffn_down = IF(SIXTEENTH, DW_Q5_K, DW_Q4_K), .attn_output = IF(ALWAYS, DW_Q4_K)},
    {"Q3_K_S", 11, DW_Q3_K},
    {"Q2_K",   10, DW_Q2_K,   .attn_v = IF(SHARED_4, DW_Q4_K, DW_Q3_K), .ffn_down = IF(ALWAYS, DW_Q3_K),             .attn_output = IF(ALWAYS, DW_Q3_K)},
    {"Q2_K_S", 21, DW_Q2_K,   .attn_v = IF(SHARED_4, DW_Q4_K),          .ffn_down = IF(EIGHTH, DW_Q4_K)},
    {0},
};
// clang-format on

const quant_mixture *quant_mixture_find(const char *name) {
    for (const quant_mixture *m = quant_mixtures; m->name; m++)
        if (!strcasecmp(m->name, name)) return m;
    return NULL;
}

/* ---- tensors by name --------------------------------------------------------------------------------------- */

static bool ends_with(const char *name, const char *end) {
    const size_t n = strlen(name), k = strlen(end);
    return n >= k && !strcmp(name + n - k, end);
}

bool quant_is_matrix(const dw_tensor *t) {
    return t->ne[1] * t->ne[2] * t->ne[3] > 1 && ends_with(t->name, "weight") && !strstr(t->name, "_norm.weight") &&
           !ends_with(t->name, "ffn_gate_inp.weight") && !strstr(t->name, ".ffn_pred_"); // what decides keeps its bits
}

static bool is_output(const char *name) { return !strcmp(name, "output.weight"); }
static bool is_embedding(const char *name) { return !strcmp(name, "token_embd.weight"); }
static bool is_attn_v(const char *name) { return ends_with(name, ".attn_v.weight") || ends_with(name, ".attn_qkv.weight"); }
static bool is_ffn_down(const char *name) { return ends_with(name, ".ffn_down.weight"); }
static bool is_attn_output(const char *name) { return ends_with(name, ".attn_output.weight"); }

/* How many tensors of a kind stand in layers below `layer`. */
static int count_below(const dw_gguf *g, bool (*is_kind)(const char *name), int layer) {
    int n = 0;
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const char *name = dw_gguf_tensor(g, i)->name;
        n += is_kind(name) && dw_layer_of(name, NULL) < layer;
    }
    return n;
}

/* ---- rules --------------------------------------------------------------------------------------------------- */

static bool holds(quant_when w, int i, int n, int n_sharing, bool weighted) {
    switch (w) {
    case QUANT_NEVER: return false;
    case QUANT_ALWAYS: return true;
    case QUANT_FIRST_2: return i < 2;
    case QUANT_FIRST_4: return i < 4;
    case QUANT_SIXTEENTH: return i < n / 16;
    case QUANT_EIGHTH: return i < n / 8;
    case QUANT_EIGHTH_WEIGHTED: return i < n / 8 && weighted;
    case QUANT_EIGHTH_PLAIN: return i < n / 8 && !weighted;
    case QUANT_MORE: return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
    case QUANT_SHARED_4: return n_sharing >= 4;
    }
    return false;
}

/* Models that stock takes for Llama 2 70B. */
static bool is_80_layers(const dw_hparams *hp) {
    static const char *const archs[] = {"llama", "qwen2", "deci"};
    if (hp->n_layer != 80 || (!strcmp(hp->arch, "llama") && hp->n_head[0] == hp->n_head_kv[0])) return false;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (!strcmp(hp->arch, archs[i])) return true;
    return false;
}

static dw_qtype wanted_type(const quant_mixture *m, const dw_model *model, const dw_tensor *t, bool weighted) {
    const dw_hparams *hp = dw_model_hparams(model);
    const dw_gguf *g = dw_model_gguf(model);
    const int layer = dw_layer_of(t->name, NULL), n_sharing = hp->n_head_kv[0] ? hp->n_head[0] / hp->n_head_kv[0] : 0;
    if (is_output(t->name) || (hp->tied && is_embedding(t->name)))
        return m->type == DW_Q8_0 || t->ne[0] % (size_t)dw_qtype_get(m->type)->block ? DW_Q8_0 : DW_Q6_K;
    const quant_mixture_rule *r;
    int i = 0, n = hp->n_layer;
    if (is_attn_v(t->name)) {
        r = &m->attn_v;
        i = count_below(g, is_attn_v, layer);
        n = count_below(g, is_attn_v, hp->n_layer);
    } else if (is_ffn_down(t->name)) {
        r = &m->ffn_down;
        i = count_below(g, is_ffn_down, layer);
    } else if (is_attn_output(t->name)) {
        r = &m->attn_output;
    } else {
        return m->type;
    }
    const dw_qtype ruled = holds(r->when, i, n, n_sharing, weighted) ? r->then : r->otherwise, type = ruled ? ruled : m->type;
    return r == &m->attn_v && is_80_layers(hp) && (type == DW_Q3_K || type == DW_Q4_K) ? DW_Q5_K : type;
}

const dw_qtype_row *quant_mixture_fallback(const dw_qtype_row *type, size_t n) {
    static const dw_qtype smaller[DW_QTYPE_END] = {
        [DW_Q2_K] = DW_Q4_0, [DW_Q3_K] = DW_Q4_0, [DW_Q4_K] = DW_Q5_0, [DW_Q5_K] = DW_Q5_1, [DW_Q6_K] = DW_Q8_0};
    const dw_qtype_row *other = dw_qtype_get(smaller[type->id] ? smaller[type->id] : type->id);
    return n % (size_t)other->block ? dw_qtype_get(DW_F16) : other;
}

const dw_qtype_row *quant_mixture_type(const quant_mixture *m, const dw_model *model, const dw_tensor *t, bool weighted,
                                       bool *fell_back) {
    const dw_qtype_row *type = dw_qtype_get(wanted_type(m, model, t, weighted));
    *fell_back = t->ne[0] % (size_t)type->block != 0;
    return *fell_back ? quant_mixture_fallback(type, t->ne[0]) : type;
}

bool quant_mixture_needs_weights(const quant_mixture *m, const dw_tensor *t, const dw_qtype_row *type) {
    return !strcmp(m->name, "Q2_K_S") && type->id == DW_Q2_K && !is_output(t->name) && !is_embedding(t->name);
}
