/* mixtures.c - the table of mixtures and its rules.
 *
 * A mixture has one type for all matrices but these:
 *   output            Q6_K (Q8_0 stays), or the caller's; the embeddings too, where they are the output as well
 *   attn_v, attn_qkv  by a rule; models of 80 layers with shared keys have Q5_K where the rule says Q3_K or Q4_K
 *   ffn_down          by a rule
 *   attn_output       by a rule
 * Layers are counted by the tensors that are there: a layer without attention does not count for attn_v. */
#include "kit/mixtures.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

// clang-format off
#define IF(condition, ...) {KIT_##condition, __VA_ARGS__} // the type where it holds, the type elsewhere
const kit_mixture kit_mixtures[] = {
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

const char *kit_types_words(char words[KIT_TYPES_WORDS], const char *types, const char *output) {
    snprintf(words, KIT_TYPES_WORDS, "%s%s%s", types, output ? ", output " : "", output ? output : "");
    return words;
}

const kit_mixture *kit_mixture_find(const char *name) {
    for (const kit_mixture *m = kit_mixtures; m->name; m++)
        if (!strcasecmp(m->name, name)) return m;
    return NULL;
}

/* ---- tensors by name --------------------------------------------------------------------------------------- */

static bool ends_with(const char *name, const char *end) {
    const size_t n = strlen(name), k = strlen(end);
    return n >= k && !strcmp(name + n - k, end);
}

bool kit_is_matrix(const dw_tensor *t) {
    return t->ne[1] * t->ne[2] * t->ne[3] > 1 && ends_with(t->name, "weight") && !strstr(t->name, "_norm.weight") &&
           !ends_with(t->name, "ffn_gate_inp.weight") && !strstr(t->name, ".ffn_pred_"); // what decides keeps its bits
}

static bool is_output(const char *name) { return !strcmp(name, "output.weight"); }
static bool is_embedding(const char *name) { return !strcmp(name, "token_embd.weight"); }
static bool is_attn_v(const char *name) {
    return ends_with(name, ".attn_v.weight") || ends_with(name, ".attn_qkv.weight");
}
static bool is_ffn_down(const char *name) { return ends_with(name, ".ffn_down.weight"); }
static bool is_attn_output(const char *name) { return ends_with(name, ".attn_output.weight"); }

/* How many tensors of a kind are in layers below `layer`, without dropped ones. */
static int count_below(const kit_mixture_use *use, bool (*is_kind)(const char *name), int layer) {
    const dw_gguf *g = dw_model_gguf(use->model);
    int n = 0;
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const char *name = dw_gguf_tensor(g, i)->name;
        const int l = dw_layer_of(name, NULL);
        n += is_kind(name) && l < layer && !(use->drop && l >= 0 && use->drop[l]);
    }
    return n;
}

/* ---- rules --------------------------------------------------------------------------------------------------- */

static bool holds(kit_mixture_when w, int i, int n, int n_sharing, bool weighted) {
    switch (w) {
    case KIT_NEVER: return false;
    case KIT_ALWAYS: return true;
    case KIT_FIRST_2: return i < 2;
    case KIT_FIRST_4: return i < 4;
    case KIT_SIXTEENTH: return i < n / 16;
    case KIT_EIGHTH: return i < n / 8;
    case KIT_EIGHTH_WEIGHTED: return i < n / 8 && weighted;
    case KIT_EIGHTH_PLAIN: return i < n / 8 && !weighted;
    case KIT_MORE: return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
    case KIT_SHARED_4: return n_sharing >= 4;
    }
    return false;
}

/* Models that llama.cpp takes for Llama 2 70B. */
static bool is_80_layers(const dw_hparams *hp, int n_layer) {
    static const char *const archs[] = {"llama", "qwen2", "deci"};
    if (n_layer != 80 || (!strcmp(hp->arch, "llama") && hp->n_head[0] == hp->n_head_kv[0])) return false;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (!strcmp(hp->arch, archs[i])) return true;
    return false;
}

/* How many heads share a key, in the first layer that stays. */
static int heads_sharing(const dw_hparams *hp, const bool *drop) {
    int l = 0;
    while (drop && l < hp->n_layer - 1 && drop[l]) l++;
    return hp->n_head_kv[l] ? hp->n_head[l] / hp->n_head_kv[l] : 0;
}

static dw_qtype wanted_type(const kit_mixture_use *use, const dw_tensor *t) {
    const kit_mixture *m = use->mixture;
    const dw_hparams *hp = dw_model_hparams(use->model);
    const int layer = dw_layer_of(t->name, NULL);
    if (is_output(t->name) || (hp->tied && is_embedding(t->name))) {
        if (use->output) return use->output->id;
        return m->type == DW_Q8_0 || t->ne[0] % (size_t)dw_qtype_get(m->type)->block ? DW_Q8_0 : DW_Q6_K;
    }
    const kit_mixture_rule *r;
    int n_layer = hp->n_layer, i = 0, n;
    for (int l = 0; use->drop && l < hp->n_layer; l++) n_layer -= use->drop[l];
    n = n_layer;
    if (is_attn_v(t->name)) {
        r = &m->attn_v;
        i = count_below(use, is_attn_v, layer);
        n = count_below(use, is_attn_v, hp->n_layer);
    } else if (is_ffn_down(t->name)) {
        r = &m->ffn_down;
        i = count_below(use, is_ffn_down, layer);
    } else if (is_attn_output(t->name)) {
        r = &m->attn_output;
    } else {
        return m->type;
    }
    const bool ruled = holds(r->when, i, n, heads_sharing(hp, use->drop), use->weighted);
    const dw_qtype other = ruled ? r->then : r->otherwise, type = other ? other : m->type;
    return r == &m->attn_v && is_80_layers(hp, n_layer) && (type == DW_Q3_K || type == DW_Q4_K) ? DW_Q5_K : type;
}

const dw_qtype_row *kit_mixture_wanted(const kit_mixture_use *use, const dw_tensor *t) {
    return dw_qtype_get(wanted_type(use, t));
}

const dw_qtype_row *kit_mixture_fallback(const dw_qtype_row *type, size_t n) {
    static const dw_qtype smaller[DW_QTYPE_END] = {
        [DW_Q2_K] = DW_Q4_0, [DW_Q3_K] = DW_Q4_0, [DW_Q4_K] = DW_Q5_0, [DW_Q5_K] = DW_Q5_1, [DW_Q6_K] = DW_Q8_0};
    const dw_qtype_row *other = dw_qtype_get(smaller[type->id] ? smaller[type->id] : type->id);
    return n % (size_t)other->block ? dw_qtype_get(DW_F16) : other;
}

const dw_qtype_row *kit_mixture_type(const kit_mixture_use *use, const dw_tensor *t, bool *fell_back) {
    const dw_qtype_row *type = kit_mixture_wanted(use, t);
    *fell_back = t->ne[0] % (size_t)type->block != 0;
    return *fell_back ? kit_mixture_fallback(type, t->ne[0]) : type;
}

const dw_qtype_row *kit_down_t_type(const dw_qtype_row *down, size_t n_embd) {
    if (down->encode && n_embd % (size_t)down->block == 0) return down;
    return dw_qtype_get(n_embd % 32 == 0 ? DW_Q8_0 : DW_F16);
}

bool kit_mixture_needs_weights(const kit_mixture *m, const dw_tensor *t, const dw_qtype_row *type) {
    return !strcmp(m->name, "Q2_K_S") && type->id == DW_Q2_K && !is_output(t->name) && !is_embedding(t->name);
}
