/* test_archs.c - the tables of architectures, hyperparameters and tensors, and what the reader refuses by them. */
#include "build.h"
#include "engine.h"
#include "model/model.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ------------------------------------------------------------------------------------------------ */

static void check_row(const dw_tensor_row *r, int layer, bool bias) {
    int found_layer;
    bool found_bias;
    const dw_tensor_name name = dw_name_gguf(r, layer, bias);
    const dw_tensor_row *found = dw_tensor_row_find(name.text, &found_layer, &found_bias);
    CHECK(found == r && found_layer == layer && found_bias == bias, "%s", name.text);
    CHECK(strlen(name.text) < 64, "'%s' is too long for GGUF", name.text);
}

static void names_found(void) {
    const dw_tensor_row *const tables[] = {dw_net_rows, dw_attention_rows, dw_ffn_rows};
    const int layers[] = {-1, 3, 511};
    for (int i = 0; i < 3; i++)
        for (const dw_tensor_row *r = tables[i]; r->gguf; r++) {
            check_row(r, layers[i], false);
            if (r->bias) check_row(r, layers[i], true);
        }
    int layer;
    bool bias;
    static const char *const unknown[] = {"blk.0.attn_q",  "blk.0.attn_norm.bias", "blk.0.ffn_pred_a.weight",
                                          "attn_q.weight", "blk.0.output.weight",  "blk.0.attn_q.weights", ""};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        CHECK(!dw_tensor_row_find(unknown[i], &layer, &bias), "'%s'", unknown[i]);
}

static void rows_back(void) {
    for (size_t D = 2; D <= 128; D *= 2)
        for (size_t r = 0; r < 3 * D; r++) {
            CHECK(dw_permuted_row(dw_unpermuted_row(r, D), D) == r, "row %zu of heads of %zu", r, D);
            CHECK(dw_unpermuted_row(r, D) / D == r / D, "row %zu stays within its head", r);
        }
}

/* A random model has exactly what its architecture's rows require, so each shape opens and binds all of it. */
static void columns_reach_net(void) {
    for (const exp_shape *s = exp_shapes; s->name; s++) {
        if (strncmp(s->name, "tiny-", 5)) continue;
        dw_err err = {0};
        dw_model *m = dw_model_open(random_model(s->name, "F32", 0), &err);
        REQUIRE(m, "%s: %s", s->name, err.text);
        const dw_arch *a = dw_arch_find((dw_str){s->arch, strlen(s->arch)});
        const float scale = a->has & DW_ARCH_EMBD_SCALE ? sqrtf((float)s->n_embd) : 1;
        CHECK(m->arch == a && m->net.act == a->act && m->net.embd_scale == scale, "%s", s->name);
        CHECK(m->net.rope_neox == ((a->has & DW_ARCH_ROPE_NEOX) != 0), "%s", s->name);
        CHECK(!m->net.layer[0].q_norm.name == !(a->has & DW_ARCH_QK_NORM), "%s", s->name);
        dw_model_close(m);
    }
}

/* ---- every architecture runs ------------------------------------------------------------------------------ */

enum { N = 16, VOCAB = 512 };

static bool compute_logits(const char *path, const char *backend, float *logits) {
    dw_err err = {0};
    int32_t token[N];
    uint8_t out[N];
    memset(out, 1, sizeof out);
    random_tokens(token, N, VOCAB, 1);
    dw_model *m = dw_model_open(path, &err);
    const dw_session_options o = {.pool = two_threads(), .backend = backend, .n_ctx = N, .kv = DW_KV_CACHE_F32};
    dw_session *s = m ? dw_session_new(m, &o, &err) : NULL;
    const bool ok = s && !dw_session_eval(s, &(dw_batch){.n_tokens = N, .token = token, .out = out}, &err) &&
                    !dw_session_logits(s, 0, N, logits, &err);
    dw_session_free(s);
    dw_model_close(m);
    return CHECK(ok, "%s: %s", backend, err.text);
}

/* A row of dw_archs is all that a new architecture needs here: the shape is made from it. */
static void architectures_run(void) {
    static float ref[N * VOCAB], cpu[N * VOCAB];
    for (const dw_arch *a = dw_archs; a->name; a++) {
        const exp_shape shape = {.name = a->name, .arch = a->name, .n_layer = 3,  .n_embd = 64,     .n_ff = 128,
                                 .n_head = 4,     .n_head_kv = 2,  .head_dim = 16, .n_vocab = VOCAB, .n_ctx = 256,
                                 .tied = !(a->has & DW_ARCH_UNTIED), .rope_base = 10000};
        const char *path = test_file("any.gguf");
        if (!write_random(path, &shape, "F32")) continue;
        if (!compute_logits(path, "ref", ref) || !compute_logits(path, "cpu", cpu)) continue;
        CHECK(nmse(cpu, ref, N * VOCAB) <= 1e-4, "%s: NMSE %.1e", a->name, nmse(cpu, ref, N * VOCAB));
    }
}

/* ---- what the reader refuses ------------------------------------------------------------------------------ */

/* A copy of a random model with some of its keys changed, and without tensors whose names begin with `without`. */
typedef void change_keys(dw_gguf_writer *w, const void *ctx);

static bool write_changed(const char *shape, change_keys *change, const void *ctx, const char *without) {
    dw_err err = {0};
    dw_gguf *g = dw_gguf_open(random_model(shape, "F32", 0), &err);
    dw_gguf_writer *w = g ? dw_gguf_writer_new(test_file("changed.gguf"), &err) : NULL;
    if (!CHECK(w, "%s", err.text)) return false;
    dw_gguf_set_keys(w, g);
    change(w, ctx);
    int rc = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
            const dw_tensor *t = dw_gguf_tensor(g, i);
            if (without && !strncmp(t->name, without, strlen(without))) continue;
            if (pass) rc |= dw_gguf_write(w, t->data, t->n_bytes, &err);
            else dw_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne);
        }
        rc |= pass ? dw_gguf_commit(w, &err) : dw_gguf_begin(w, &err);
    }
    dw_gguf_writer_free(w);
    dw_gguf_close(g);
    return CHECK(!rc, "%s", err.text);
}

static void check_says(const char *says) {
    dw_err err = {0};
    dw_model *m = dw_model_open(test_file("changed.gguf"), &err);
    CHECK(!m && strstr(err.text, says), "expected '%s': %s", says, m ? "it was opened" : err.text);
    dw_model_close(m);
}

static void without_key(dw_gguf_writer *w, const void *key) { dw_gguf_unset(w, key); }

static void required_keys(void) {
    for (int i = 0; i < DW_N_KEYS; i++) {
        if (!dw_keys[i].required || i == DW_KEY_N_VOCAB) continue; // the vocabulary is as large as the embedding
        char key[96], says[128];
        snprintf(key, sizeof key, "llama.%s", dw_keys[i].gguf);
        snprintf(says, sizeof says, "key '%s' is missing", key);
        if (write_changed("tiny-llama", without_key, key, NULL)) check_says(says);
    }
}

static void with_text(dw_gguf_writer *w, const void *key) { dw_gguf_set_text(w, key, "4"); }

static void key_error_names_file_once(void) {
    if (!write_changed("tiny-llama", with_text, "llama.block_count", NULL)) return;
    dw_err err = {0};
    dw_model *m = dw_model_open(test_file("changed.gguf"), &err);
    const char *name = strstr(err.text, "changed.gguf");
    CHECK(!m && name && !strstr(name + 1, "changed.gguf") && strstr(err.text, "'llama.block_count' is str, not u32"),
          "%s", err.text);
    dw_model_close(m);
}

typedef struct real_key { const char *key; float value; } real_key;
static void with_real(dw_gguf_writer *w, const void *p) {
    const real_key *k = p;
    dw_gguf_set_f32(w, k->key, k->value);
}

static void reals_bounded(void) {
    static const real_key bad[] = {
        {"llama.attention.layer_norm_rms_epsilon", 0},
        {"llama.attention.layer_norm_rms_epsilon", -1e-6f},
        {"llama.attention.layer_norm_rms_epsilon", 1.5f},
        {"llama.attention.layer_norm_rms_epsilon", NAN},
        {"llama.attention.layer_norm_rms_epsilon", INFINITY},
        {"llama.rope.freq_base", 0},
        {"llama.rope.freq_base", NAN},
        {"llama.rope.freq_base", INFINITY}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (write_changed("tiny-llama", with_real, &bad[i], NULL)) check_says(bad[i].key);
}

typedef struct whole_key { const char *key; uint32_t value; const char *says; } whole_key;
static void with_whole(dw_gguf_writer *w, const void *p) {
    const whole_key *k = p;
    dw_gguf_set_u32(w, k->key, k->value);
}

static void counts_bounded(void) {
    static const whole_key bad[] = {
        {"llama.block_count", 0, "block_count"},
        {"llama.block_count", DW_MAX_LAYERS + 1, "block_count"},
        {"llama.embedding_length", (1 << 24) + 1, "embedding_length"},
        {"llama.context_length", 0x80000000u, "context_length"},
        {"llama.feed_forward_length", 0, "feed_forward_length"},
        {"llama.feed_forward_length", UINT32_MAX, "feed_forward_length"},
        {"llama.attention.head_count", 0, "no attention heads"},
        {"llama.attention.head_count", UINT32_MAX, "head_count"},
        {"llama.attention.head_count", 1 << 24, "too many"},
        {"llama.attention.head_count_kv", 0, "do not divide into 0 KV heads"},
        {"llama.attention.head_count_kv", 3, "do not divide into 3 KV heads"},
        {"llama.attention.head_count_kv", 8, "do not divide into 8 KV heads"},
        {"llama.attention.head_count_kv", UINT32_MAX, "head_count_kv"},
        {"llama.attention.key_length", 0, "key_length"},
        {"llama.attention.key_length", 15, "15 values, expected an even number"},
        {"llama.attention.key_length", DW_MAX_HEAD_DIM + 2, "key_length"},
        {"llama.attention.value_length", 8, "value_length"},
        {"llama.rope.dimension_count", 8, "dimension_count"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (write_changed("tiny-llama", with_whole, &bad[i], NULL)) check_says(bad[i].says);
}

static void surplus_tensors(void) {
    static const whole_key fewer = {"llama.block_count", 3, NULL};
    static const char *const says[] = {"tensor 'blk.3.", "(architecture 'llama', 3 layers)"};
    for (int i = 0; i < 2; i++)
        if (write_changed("tiny-llama", with_whole, &fewer, NULL)) check_says(says[i]);
}

/* Keys of llama.cpp under which the model would compute something else. */
static void with_no_causality(dw_gguf_writer *w, const void *value) {
    dw_gguf_set_bool(w, "llama.attention.causal", *(const bool *)value);
}

static void check_opens(void) {
    dw_err err = {0};
    dw_model *m = dw_model_open(test_file("changed.gguf"), &err);
    CHECK(m, "%s", err.text);
    dw_model_close(m);
}

static void others_refused(void) {
    static const bool is_causal[] = {true, false};
    static const whole_key n_expert[] = {{"llama.expert_count", 0, NULL},
                                         {"llama.expert_count", 2, "mixture of experts"}};
    static const real_key scale[] = {{"llama.attention.scale", 0}, // unset
                                     {"llama.attention.scale", 0.25f}, // 1 / sqrt(16)
                                     {"llama.attention.scale", 0.3f}};
    if (write_changed("tiny-llama", with_no_causality, &is_causal[0], NULL)) check_opens();
    if (write_changed("tiny-llama", with_no_causality, &is_causal[1], NULL)) check_says("'llama.attention.causal'");
    if (write_changed("tiny-llama", with_whole, &n_expert[0], NULL)) check_opens();
    if (write_changed("tiny-llama", with_whole, &n_expert[1], NULL)) check_says(n_expert[1].says);
    for (int i = 0; i < 2; i++)
        if (write_changed("tiny-llama", with_real, &scale[i], NULL)) check_opens();
    if (write_changed("tiny-llama", with_real, &scale[2], NULL)) check_says("'llama.attention.scale' is 0.3; only");
}

static void no_rope_factor(void) {
    static const real_key none = {"llama.rope.scaling.factor", 0}, negative = {"llama.rope.scaling.factor", -2};
    dw_err err = {0};
    if (write_changed("tiny-llama", with_real, &negative, NULL)) check_says(negative.key);
    if (!write_changed("tiny-llama", with_real, &none, "rope_freqs")) return; // they would scale, too
    dw_model *m = dw_model_open(test_file("changed.gguf"), &err);
    REQUIRE(m, "%s", err.text);
    for (int i = 0; i < m->net.hp.head_dim / 2; i++) CHECK(m->rope_factors[i] == 1);
    dw_model_close(m);
}

typedef struct heads { const char *arch; int32_t q[4], kv[4]; } heads;
static void with_heads(dw_gguf_writer *w, const void *p) {
    const heads *h = p;
    char key[64];
    snprintf(key, sizeof key, "%s.attention.head_count", h->arch);
    dw_gguf_set_array(w, key, DW_KV_I32, h->q, 4);
    snprintf(key, sizeof key, "%s.attention.head_count_kv", h->arch);
    dw_gguf_set_array(w, key, DW_KV_I32, h->kv, 4);
}

/* The shapes' layers have 4, 2, 4, 2 heads over 2, 1, 2, 1. */
static void layers_without_attention(void) {
    static const heads none = {"deci", {4, 0, 4, 2}, {2, 0, 2, 1}};
    dw_err err = {0};
    if (write_changed("tiny-deci", with_heads, &none, "blk.1.attn_")) {
        dw_model *m = dw_model_open(test_file("changed.gguf"), &err);
        CHECK(m && m->net.layer[1].n_head == 0, "deci may have a layer without attention: %s", err.text);
        dw_model_close(m);
    }
    static const heads kv_only = {"deci", {4, 0, 4, 2}, {2, 4, 2, 1}};
    if (write_changed("tiny-deci", with_heads, &kv_only, "blk.1.attn_"))
        check_says("layer 1: 0 attention heads do not divide into 4 KV heads");
    static const heads q_only = {"deci", {4, 2, 4, 2}, {2, 0, 2, 1}};
    if (write_changed("tiny-deci", with_heads, &q_only, NULL))
        check_says("layer 1: 2 attention heads do not divide into 0 KV heads");
    static const heads first = {"deci", {0, 2, 4, 2}, {0, 1, 2, 1}};
    if (write_changed("tiny-deci", with_heads, &first, "blk.0.attn_"))
        check_says("the first layer has no attention heads");
    static const heads others = {"openelm", {4, 0, 4, 2}, {2, 0, 2, 1}};
    if (write_changed("tiny-openelm", with_heads, &others, "blk.1.attn_")) check_says("'openelm' does not allow");
}

static void with_arch(dw_gguf_writer *w, const void *name) { dw_gguf_set_text(w, "general.architecture", name); }

static void unknown_arch(void) {
    if (!write_changed("tiny-llama", with_arch, "mamba", NULL)) return;
    check_says("architecture 'mamba' is not supported");
    for (const dw_arch *a = dw_archs; a->name; a++) check_says(a->name);
}

static const test_case cases[] = {
    {"every row of a tensor is found by its name, and no other name is", names_found},
    {"rows of q and k come back from permutation and stay within their heads", rows_back},
    {"an architecture's columns reach the net of every tiny model", columns_reach_net},
    {"a random model of every architecture runs, in cpu as in ref", architectures_run},
    {"a model without a required key is refused by name, the norms' epsilon too", required_keys},
    {"the error for a key of another type names key and file, each once", key_error_names_file_once},
    {"real numbers are finite and within bounds", reals_bounded},
    {"every count is bounded", counts_bounded},
    {"a tensor that the model has no place for is named", surplus_tensors},
    {"experts, another scale of attention, and attention to later tokens are refused", others_refused},
    {"a rope factor of 0 means no scaling", no_rope_factor},
    {"a layer has attention and KV heads, or neither where that is allowed", layers_without_attention},
    {"an unknown architecture is refused with the list of those that are known", unknown_arch},
    {0}};
TEST_MAIN(cases)
