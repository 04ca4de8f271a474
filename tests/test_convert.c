/* test_convert.c - checkpoint folders, made here with known weights, against the GGUF files that convert makes of
 * them. */
#include "build.h"
#include "kit/safetensors.h"
#include "engine.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A tiny checkpoint: 2 layers, 64 values, 4 heads over 2, width 96, vocabulary 260. */
enum { E = 64, H = 4, KV = 2, D = 16, F = 96, V = 260, LAYERS = 2 };

typedef struct folder {
    char path[256], json[1 << 16];
    test_bytes data;
    dw_rng rng;
    const char *dtype;       // of matrices and vectors: "F32", "F16", "BF16"
    int mlx_bits, mlx_group; // 0: plain matrices
    float mlx_scale;         // of the groups
} folder;

static void add_entry(folder *f, const char *name, const char *dtype, size_t rows, size_t cols,
                      const test_bytes *values) {
    char entry[256], shape[48];
    if (rows) snprintf(shape, sizeof shape, "%zu,%zu", rows, cols);
    else snprintf(shape, sizeof shape, "%zu", cols);
    snprintf(entry, sizeof entry, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
             f->json[1] ? "," : "", name, dtype, shape, f->data.size, f->data.size + values->size);
    strcat(f->json, entry);
    put(&f->data, values->data, values->size);
}

static void put_value(folder *f, test_bytes *b, float v) {
    if (!strcmp(f->dtype, "F32")) put_f32(b, v);
    else put_u16(b, !strcmp(f->dtype, "F16") ? dw_f32_to_f16(v) : dw_f32_to_bf16(v));
}

static void add_plain(folder *f, const char *name, size_t rows, size_t cols) {
    test_bytes b = {0};
    for (size_t i = 0; i < (rows ? rows : 1) * cols; i++) put_value(f, &b, (float)(0.1 * dw_rng_normal(&f->rng)));
    add_entry(f, name, f->dtype, rows, cols, &b);
    free(b.data);
}

/* Random codes in groups: weight (U32), scales, biases. */
static void add_mlx(folder *f, const char *module, size_t rows, size_t cols) {
    char name[128];
    test_bytes codes = {0}, scales = {0}, biases = {0};
    for (size_t i = 0; i < rows * cols * (size_t)f->mlx_bits / 8; i++) put_u8(&codes, (uint8_t)dw_rng_next(&f->rng));
    for (size_t i = 0; i < rows * cols / (size_t)f->mlx_group; i++) {
        put_value(f, &scales, f->mlx_scale * (float)(1 + dw_rng_uniform(&f->rng)));
        put_value(f, &biases, -0.1f * (float)(1 + dw_rng_uniform(&f->rng)));
    }
    snprintf(name, sizeof name, "%s.weight", module);
    add_entry(f, name, "U32", rows, cols * (size_t)f->mlx_bits / 32, &codes);
    snprintf(name, sizeof name, "%s.scales", module);
    add_entry(f, name, f->dtype, rows, cols / (size_t)f->mlx_group, &scales);
    snprintf(name, sizeof name, "%s.biases", module);
    add_entry(f, name, f->dtype, rows, cols / (size_t)f->mlx_group, &biases);
    free(codes.data), free(scales.data), free(biases.data);
}

static void add_matrix(folder *f, const char *module, size_t rows, size_t cols) {
    char name[128];
    snprintf(name, sizeof name, "%s.weight", module);
    if (f->mlx_bits && cols % (size_t)f->mlx_group == 0) add_mlx(f, module, rows, cols);
    else add_plain(f, name, rows, cols);
}

static void write_text(const folder *f, const char *file, const char *text) {
    test_bytes b = {0};
    put_text(&b, text);
    save(&b, test_path(f->path, file));
    free(b.data);
}

/* A byte-level vocabulary: 256 bytes, one merge, three special tokens. */
static void write_tokenizer(const folder *f) {
    static char json[1 << 15];
    size_t n = (size_t)snprintf(json, sizeof json, "{\"added_tokens\":[");
    for (int i = 0; i < 3; i++)
        n += (size_t)snprintf(json + n, sizeof json - n, "%s{\"id\":%d,\"content\":\"<|s%d|>\",\"special\":true}",
                              i ? "," : "", 257 + i, i);
    n += (size_t)snprintf(json + n, sizeof json - n,
                          "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                          "\"use_regex\":true},\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{"
                          "\"type\":\"BPE\",\"vocab\":{");
    for (int i = 0; i < 256; i++) { // \u escapes of the byte alphabet
        static int next;
        if (i == 0) next = 256;
        const bool plain = (i >= 0x21 && i <= 0x7e) || (i >= 0xa1 && i <= 0xac) || i >= 0xae;
        n += (size_t)snprintf(json + n, sizeof json - n, "%s\"\\u%04x\":%d", i ? "," : "", plain ? i : next++, i);
    }
    snprintf(json + n, sizeof json - n, ",\"ab\":256},\"merges\":[\"a b\"]}}");
    write_text(f, "tokenizer.json", json);
}

static void begin(folder *f, const char *name, const char *dtype, uint64_t seed) {
    *f = (folder){.dtype = dtype, .mlx_scale = 0.01f};
    snprintf(f->path, sizeof f->path, "%s/%s", test_folder(), name);
    mkdir(f->path, 0777);
    strcpy(f->json, "{");
    dw_rng_seed(&f->rng, seed);
    write_tokenizer(f);
}

static void add_layers(folder *f, bool biases) {
    char name[128];
    add_matrix(f, "model.embed_tokens", V, E);
    add_plain(f, "model.norm.weight", 0, E);
    add_matrix(f, "lm_head", V, E);
    const struct {
        const char *module;
        size_t rows, cols;
        bool bias;
    } m[] = {{"self_attn.q_proj", H * D, E, true},  {"self_attn.k_proj", KV * D, E, true},
             {"self_attn.v_proj", KV * D, E, true}, {"self_attn.o_proj", E, H * D, false},
             {"mlp.gate_proj", F, E, false},        {"mlp.up_proj", F, E, false},
             {"mlp.down_proj", E, F, false}};
    for (int l = 0; l < LAYERS; l++) {
        for (size_t i = 0; i < sizeof m / sizeof *m; i++) {
            snprintf(name, sizeof name, "model.layers.%d.%s", l, m[i].module);
            add_matrix(f, name, m[i].rows, m[i].cols);
            snprintf(name, sizeof name, "model.layers.%d.%s.bias", l, m[i].module);
            if (biases && m[i].bias) add_plain(f, name, 0, m[i].rows);
        }
        snprintf(name, sizeof name, "model.layers.%d.input_layernorm.weight", l);
        add_plain(f, name, 0, E);
        snprintf(name, sizeof name, "model.layers.%d.post_attention_layernorm.weight", l);
        add_plain(f, name, 0, E);
    }
}

static void write_weights(folder *f) {
    test_bytes b = {0};
    strcat(f->json, "}");
    put_safetensors(&b, f->json);
    put(&b, f->data.data, f->data.size);
    save(&b, test_path(f->path, "model.safetensors"));
    free(b.data);
    free(f->data.data);
    f->data = (test_bytes){0};
}

static void write_config(const folder *f, const char *class_name, const char *more) {
    char text[2048];
    snprintf(text, sizeof text,
             "{\"architectures\":[\"%s\"],\"hidden_size\":%d,\"num_hidden_layers\":%d,\"intermediate_size\":%d,"
             "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"vocab_size\":%d,\"max_position_embeddings\":256,"
             "\"rms_norm_eps\":1e-6%s}",
             class_name, E, LAYERS, F, H, KV, V, more);
    write_text(f, "config.json", text);
}

static const char *out_path(const folder *f) { return test_path(f->path, "out.gguf"); }

static bool convert(const folder *f, const char *options) {
    const int rc = test_run("deadwood-convert %s -o %s %s", f->path, out_path(f), options);
    return CHECK(rc == 0, "%s", test_run_output());
}

static void check_refusal_with(const folder *f, const char *options, const char *words) {
    unlink(out_path(f));
    const int rc = test_run("deadwood-convert %s -o %s %s", f->path, out_path(f), options);
    const char *said = test_run_output(), *newline = strchr(said, '\n');
    CHECK(rc == 1 && strstr(said, words) && newline && !newline[1], "exit %d, expected '%s': %s", rc, words, said);
    CHECK(access(out_path(f), F_OK), "no file may appear");
}

static void check_refusal(const folder *f, const char *words) { check_refusal_with(f, "", words); }

/* ---- what must come out ---------------------------------------------------------------------------------------- */

static void bits_kept(void) {
    const char *dtypes[] = {"BF16", "F16", "F32"};
    for (int i = 0; i < 3; i++) {
        folder f;
        dw_err err = {0};
        begin(&f, dtypes[i], dtypes[i], 1);
        add_layers(&f, true);
        write_weights(&f);
        write_config(&f, "Qwen2ForCausalLM", "");
        if (!convert(&f, "")) return;
        dw_gguf *g = dw_gguf_open(out_path(&f), &err);
        kit_safetensors *st = kit_safetensors_open(f.path, &err);
        REQUIRE(g && st, "%s", err.text);
        const char *pairs[][2] = {{"blk.1.attn_q.weight", "model.layers.1.self_attn.q_proj.weight"},
                                  {"blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"},
                                  {"token_embd.weight", "model.embed_tokens.weight"},
                                  {"output.weight", "lm_head.weight"}};
        for (int k = 0; k < 4; k++) {
            const dw_tensor *t = dw_gguf_find_tensor(g, pairs[k][0]);
            const kit_st_tensor *s = kit_safetensors_find(st, pairs[k][1]);
            REQUIRE(t && s && t->n_bytes == s->n_bytes);
            CHECK(!strcmp(t->type->name, dtypes[i]) && !memcmp(t->data, s->data, s->n_bytes), "%s %s", dtypes[i],
                  pairs[k][0]);
        }
        const dw_tensor *norm = dw_gguf_find_tensor(g, "blk.0.attn_norm.weight");
        CHECK(norm && norm->type->id == DW_F32, "norms are F32");
        dw_gguf_close(g);
        kit_safetensors_close(st);
    }
}

static void same_bytes(void) {
    folder f;
    dw_err err = {0};
    char one[65], two[65];
    begin(&f, "same", "BF16", 2);
    add_layers(&f, false);
    write_weights(&f);
    write_config(&f, "LlamaForCausalLM", "");
    if (!convert(&f, "--type q8_0 -t 1")) return;
    CHECK(!dw_sha256_file(out_path(&f), one, &err), "%s", err.text);
    if (!convert(&f, "--type q8_0 -t 3")) return;
    CHECK(!dw_sha256_file(out_path(&f), two, &err) && !strcmp(one, two), "1 and 3 threads");
}

/* Row 2i of a head comes from row i, row 2i+1 from row i + D/2; biases alike. */
static void permuted(void) {
    folder f;
    dw_err err = {0};
    begin(&f, "permuted", "F32", 3);
    add_layers(&f, true);
    write_weights(&f);
    write_config(&f, "LlamaForCausalLM", "");
    if (!convert(&f, "")) return;
    dw_gguf *g = dw_gguf_open(out_path(&f), &err);
    kit_safetensors *st = kit_safetensors_open(f.path, &err);
    REQUIRE(g && st, "%s", err.text);
    const dw_tensor *k = dw_gguf_find_tensor(g, "blk.1.attn_k.weight"),
                    *b = dw_gguf_find_tensor(g, "blk.1.attn_k.bias");
    const kit_st_tensor *hf = kit_safetensors_find(st, "model.layers.1.self_attn.k_proj.weight"),
                        *hb = kit_safetensors_find(st, "model.layers.1.self_attn.k_proj.bias");
    REQUIRE(k && b && hf && hb);
    for (size_t head = 0; head < KV; head++)
        for (size_t i = 0; i < D; i++) {
            const size_t from = head * D + i / 2 + (i % 2) * (D / 2), to = head * D + i;
            CHECK(!memcmp(k->data + to * E * 4, hf->data + from * E * 4, E * 4), "row %zu", to);
            CHECK(!memcmp(b->data + to * 4, hb->data + from * 4, 4), "bias %zu", to);
        }
    dw_gguf_close(g);
    kit_safetensors_close(st);
}

static void old_and_new(void) {
    const char *forms[] = {",\"rope_theta\":12345.0",
                           ",\"rope_parameters\":{\"rope_theta\":12345.0,\"rope_type\":\"default\"}"};
    for (int i = 0; i < 2; i++) {
        folder f;
        dw_err err = {0};
        begin(&f, i ? "new" : "old", "BF16", 4);
        add_layers(&f, true);
        write_weights(&f);
        write_config(&f, "Qwen2ForCausalLM", forms[i]);
        if (!convert(&f, "")) return;
        dw_model *m = dw_model_open(out_path(&f), &err);
        REQUIRE(m, "%s", err.text);
        CHECK(dw_model_hparams(m)->rope_base == 12345.0f && dw_model_hparams(m)->n_ff[1] == F);
        dw_model_close(m);
    }
}

static void llama3_scaling(void) {
    const char *forms[] = {
        ",\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"
        "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":64}",
        ",\"rope_parameters\":{\"rope_theta\":500000.0,\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"
        "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":64}"};
    for (int i = 0; i < 2; i++) {
        folder f;
        dw_err err = {0};
        begin(&f, i ? "llama3new" : "llama3old", "BF16", 5);
        add_layers(&f, false);
        write_weights(&f);
        write_config(&f, "LlamaForCausalLM", forms[i]);
        if (!convert(&f, "")) return;
        dw_gguf *g = dw_gguf_open(out_path(&f), &err);
        REQUIRE(g, "%s", err.text);
        const dw_tensor *t = dw_gguf_find_tensor(g, "rope_freqs.weight");
        REQUIRE(t && t->ne[0] == D / 2);
        float first, last;
        memcpy(&first, t->data, 4);
        memcpy(&last, t->data + 4 * (D / 2 - 1), 4);
        CHECK(first == 1 && last == 8, "fast pairs keep their frequency, slow ones are divided: %g, %g", (double)first,
              (double)last);
        dw_gguf_close(g);
    }
}

/* What yarn multiplies cos and sin by: transformers takes attention_factor, else mscale and mscale_all_dim, else the
 * paper's 1 + 0.1 ln(factor), which readers of GGUF multiply by in any case. */
static void yarn_magnitude(void) {
    const double by_factor = 1 + 0.1 * log(4.0);
    const struct { const char *more; double magnitude; } forms[] = {
        {"", by_factor},
        {",\"mscale\":0.7", by_factor},
        {",\"mscale\":0.7,\"mscale_all_dim\":0", by_factor},
        {",\"mscale\":0.7,\"mscale_all_dim\":1.0", (1 + 0.07 * log(4.0)) / by_factor},
        {",\"attention_factor\":1.25,\"mscale\":0.7,\"mscale_all_dim\":1.0", 1.25}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        folder f;
        dw_err err = {0};
        char name[16], more[256];
        snprintf(name, sizeof name, "yarn%zu", i);
        snprintf(more, sizeof more, ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0%s}", forms[i].more);
        begin(&f, name, "BF16", 5);
        add_layers(&f, true);
        write_weights(&f);
        write_config(&f, "Qwen2ForCausalLM", more);
        if (!convert(&f, "")) return;
        dw_gguf *g = dw_gguf_open(out_path(&f), &err);
        REQUIRE(g, "%s", err.text);
        float written = 1;
        dw_gguf_f32(g, "qwen2.rope.scaling.attn_factor", &written, &err);
        CHECK(fabs((double)written * by_factor - forms[i].magnitude) < 1e-6, "%s: %g", forms[i].more, (double)written);
        CHECK(!test_run("deadwood-inspect %s", out_path(&f)) && strstr(test_run_output(), ", yarn scaling by 4\n"),
              "%s", test_run_output());
        dw_gguf_close(g);
    }
}

/* ---- MLX --------------------------------------------------------------------------------------------------------- */

static float half_value(const char *dtype, const uint8_t *p) {
    return !strcmp(dtype, "F16") ? dw_f16_to_f32(dw_le16(p)) : dw_bf16_to_f32(dw_le16(p));
}

/* w = scale q + bias of one element, by the definition. */
static float mlx_value(const kit_safetensors *st, const char *module, const char *dtype, size_t r, size_t j, int bits,
                       int group) {
    char name[128];
    snprintf(name, sizeof name, "%s.weight", module);
    const kit_st_tensor *w = kit_safetensors_find(st, name);
    snprintf(name, sizeof name, "%s.scales", module);
    const kit_st_tensor *s = kit_safetensors_find(st, name);
    snprintf(name, sizeof name, "%s.biases", module);
    const kit_st_tensor *b = kit_safetensors_find(st, name);
    const size_t row_bytes = w->n_bytes / w->shape[0], g = r * s->shape[1] + j / (size_t)group;
    unsigned q = 0;
    for (int k = 0; k < bits; k++) {
        const size_t bit = j * (size_t)bits + (size_t)k;
        q |= (unsigned)(w->data[r * row_bytes + bit / 8] >> bit % 8 & 1) << k;
    }
    return half_value(dtype, s->data + 2 * g) * (float)q + half_value(dtype, b->data + 2 * g);
}

static void check_mlx(const char *dtype, int bits, int group, const char *expected_type, double bound) {
    folder f;
    dw_err err = {0};
    char name[32];
    snprintf(name, sizeof name, "mlx-%s-%d-%d", dtype, bits, group);
    begin(&f, name, dtype, 6);
    f.mlx_bits = bits;
    f.mlx_group = group;
    add_layers(&f, true);
    write_weights(&f);
    write_config(&f, "Qwen2ForCausalLM", ",\"quantization\":{\"group_size\":64,\"bits\":4}");
    if (!convert(&f, "")) return;
    dw_gguf *g = dw_gguf_open(out_path(&f), &err);
    kit_safetensors *st = kit_safetensors_open(f.path, &err);
    REQUIRE(g && st, "%s", err.text);
    const dw_tensor *t = dw_gguf_find_tensor(g, "blk.0.attn_q.weight");
    REQUIRE(t && !strcmp(t->type->name, expected_type), "%s %d bits became %s", dtype, bits,
            t ? t->type->name : "nothing");
    for (size_t r = 0; r < t->ne[1]; r++) {
        float row[E];
        t->type->decode(t->data + r * dw_tensor_row_bytes(t), row, E);
        for (size_t j = 0; j < E; j++) {
            const float exact = mlx_value(st, "model.layers.0.self_attn.q_proj", dtype, r, j, bits, group);
            if (!CHECK(fabsf(row[j] - exact) <= bound * fabsf(exact), "%s %d bits: row %zu, %zu: %.9g, exact %.9g",
                       dtype, bits, r, j, (double)row[j], (double)exact))
                return;
        }
    }
    dw_gguf_close(g);
    kit_safetensors_close(st);
}

static void mlx_exact(void) {
    const char *dtypes[] = {"F16", "BF16"};
    for (int i = 0; i < 2; i++)
        for (int group = 32; group <= 64; group *= 2) {
            for (int bits = 2; bits <= 4; bits++) check_mlx(dtypes[i], bits, group, "Q4_1", 0);
            check_mlx(dtypes[i], 5, group, "Q5_1", 0);
        }
}

static void mlx_through_16_bits(void) {
    check_mlx("F16", 6, 64, "F16", 0x1p-10);
    check_mlx("BF16", 8, 64, "F16", 0x1p-10);
}

/* Scales beyond F16's range: not exact as blocks, so the matrix goes through 16 bits, and that is said. */
static void mlx_tiny_scales(void) {
    folder f;
    dw_err err = {0};
    begin(&f, "mlx-tiny", "BF16", 7);
    f.mlx_bits = 4, f.mlx_group = 64, f.mlx_scale = 1.01e-6f;
    add_layers(&f, true);
    write_weights(&f);
    write_config(&f, "Qwen2ForCausalLM", ",\"quantization\":{\"group_size\":64,\"bits\":4}");
    if (!convert(&f, "")) return;
    CHECK(strstr(test_run_output(), "stored as F16"), "%s", test_run_output());
    dw_gguf *g = dw_gguf_open(out_path(&f), &err);
    REQUIRE(g, "%s", err.text);
    CHECK(dw_gguf_find_tensor(g, "blk.0.attn_q.weight")->type->id == DW_F16);
    dw_gguf_close(g);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void refusals(void) {
    folder f;
    begin(&f, "refused", "BF16", 8);
    add_layers(&f, true);
    write_weights(&f);
    const struct { const char *class_name, *more, *words;
    } bad[] = {
        {"GemmaForCausalLM", "", "GemmaForCausalLM"},
        {"Qwen2ForCausalLM", ",\"hidden_act\":\"gelu\"", "gelu"},
        {"Qwen2ForCausalLM", ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2.0}", "dynamic"},
        {"Qwen2ForCausalLM", ",\"rope_scaling\":{\"type\":\"llama3\"}", "llama3"},
        {"Qwen2ForCausalLM", ",\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4}", "gptq"},
        {"Qwen2ForCausalLM", ",\"partial_rotary_factor\":0.5", "partial_rotary_factor"},
        {"Qwen2ForCausalLM",
         ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1e4,\"partial_rotary_factor\":0.5}",
         "partial_rotary_factor"},
        {"Qwen2ForCausalLM", ",\"rope_scaling\":{\"type\":\"linear\"}", "needs the number 'factor'"},
        {"Qwen2ForCausalLM", ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"original_max_position_embeddings\":1024}",
         "needs the number 'factor'"},
        {"LlamaForCausalLM", ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0}",
         "needs the number 'high_freq_factor'"},
        {"Qwen2ForCausalLM", ",\"head_dim\":-3", "head_dim"},
        {"Qwen2ForCausalLM", ",\"rope_theta\":\"big\"", "rope_theta"},
        {"Qwen2ForCausalLM", ",\"head_dim\":32", "shape"},
        {"Qwen3ForCausalLM", "", "q_norm"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_config(&f, bad[i].class_name, bad[i].more);
        check_refusal(&f, bad[i].words);
    }
    write_text(&f, "config.json", "{\"architectures\":[\"Qwen2ForCausalLM\"]}");
    check_refusal(&f, "is missing");
    write_text(&f, "config.json", "{\"architectures\":");
    check_refusal(&f, "config.json");
    unlink(test_path(f.path, "config.json"));
    check_refusal(&f, "config.json");
}

/* What convert accepts, the engine opens; what the engine would refuse, convert refuses by name. */
static void same_bounds(void) {
    folder f;
    begin(&f, "bounds", "BF16", 12);
    add_layers(&f, false);
    write_weights(&f);
    const struct {
        const char *eps, *more, *words;
    } cases[] = {// words NULL: accepted
                 {"1e-38", "", NULL},
                 {"1", "", NULL},
                 {"1e-6", ",\"rope_theta\":3e38", NULL},
                 {"1e308", "", "rms_norm_eps"},
                 {"1.5", "", "rms_norm_eps"},
                 {"0", "", "rms_norm_eps"},
                 {"1e-60", "", "rms_norm_eps"},
                 {"null", "", "rms_norm_eps"},
                 {"1e-6", ",\"rope_theta\":1e308", "rope_theta"},
                 {"1e-6", ",\"rope_theta\":1e-60", "rope_theta"},
                 {"1e-6", ",\"head_dim\":15", "15 values"},
                 {"1e-6", ",\"head_dim\":8192", "head_dim"},
                 {"1e-6", ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":1e308}", "factor"},
                 {"1e-6", ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":1e-30,\"attention_factor\":1.0}",
                  "attention_factor"},
                 {"1e-6", ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0,\"truncate\":true}", NULL},
                 {"1e-6", ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0,\"truncate\":false}", "truncate"},
                 {"1e-6", ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\",\"rope_theta\":1e6}}",
                  "by type of layer ('full_attention')"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1024];
        snprintf(text, sizeof text,
                 "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":%d,\"num_hidden_layers\":%d,\"intermediate_"
                 "size\":%d,"
                 "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"vocab_size\":%d,\"max_position_embeddings\":"
                 "256,\"rms_norm_eps\":%s%s}",
                 E, LAYERS, F, H, KV, V, cases[i].eps, cases[i].more);
        write_text(&f, "config.json", text);
        if (cases[i].words) {
            check_refusal(&f, cases[i].words);
        } else if (convert(&f, "")) {
            dw_err err = {0};
            dw_model *m = dw_model_open(out_path(&f), &err);
            CHECK(m, "case %zu: %s", i, err.text);
            dw_model_close(m);
        }
    }
}

/* Value i of a tensor becomes v. */
static void spoil(folder *f, const char *name, size_t i, float v) {
    size_t at = 0;
    const char *entry = strstr(f->json, name);
    REQUIRE(entry && sscanf(strstr(entry, "data_offsets"), "data_offsets\":[%zu", &at) == 1);
    const uint16_t half = dw_f32_to_bf16(v);
    const bool is_f32 = !strcmp(f->dtype, "F32");
    memcpy(f->data.data + at + i * (is_f32 ? 4 : 2), is_f32 ? (const void *)&v : &half, is_f32 ? 4 : 2);
}

static void values_refused(void) {
    static const struct {
        const char *dtype, *options;
        float value;
        const char *words;
    } bad[] = {
        {"BF16", "--type q8_0", NAN, "value nan at column 5 cannot be stored as Q8_0; the model is damaged"},
        {"BF16", "--type q4_0", NAN, "value nan at column 5 cannot be stored as Q4_0; the model is damaged"},
        {"F32", "--type q4_0", -INFINITY, "value -inf at column 5 cannot be stored as Q4_0; the model is damaged"},
        {"BF16", "--type f16", NAN, "value nan at column 5 cannot be stored as F16; the model is damaged"},
        {"BF16", "--type f32", NAN, "value nan at column 5 cannot be stored as F32; the model is damaged"},
        {"F32", "--type f16", 1e6f, "value 1e+06 at column 5 cannot be stored as F16; choose --type bf16 or f32"},
        {"F32", "--type bf16", 3.4e38f,
         "value 3.4e+38 at column 5 cannot be stored as BF16; choose --type bf16 or f32"},
        {"F32", "--type q4_0", 1e9f, "value 1e+09 at column 5 cannot be stored as Q4_0; choose --type bf16 or f32"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        folder f;
        char words[192];
        begin(&f, "spoilt", bad[i].dtype, 12);
        add_layers(&f, true);
        spoil(&f, "model.layers.1.mlp.down_proj.weight", 17 * F + 5, bad[i].value);
        spoil(&f, "model.layers.1.mlp.down_proj.weight", 30 * F + 7, bad[i].value); // the first row is told
        write_weights(&f);
        write_config(&f, "Qwen2ForCausalLM", "");
        snprintf(words, sizeof words, "'blk.1.ffn_down.weight' row 17: %s", bad[i].words);
        check_refusal_with(&f, bad[i].options, words);
        convert(&f, ""); // the bits as they are
    }
}

static void unknown_tensor(void) {
    folder f;
    begin(&f, "unknown", "BF16", 9);
    add_layers(&f, true);
    add_plain(&f, "model.layers.0.self_attn.sinks", 0, H);
    write_weights(&f);
    write_config(&f, "Qwen2ForCausalLM", "");
    check_refusal(&f, "self_attn.sinks");
}

static void tied_head(void) {
    folder f;
    dw_err err = {0};
    begin(&f, "tied", "BF16", 10);
    add_layers(&f, true);
    write_weights(&f);
    write_config(&f, "Qwen2ForCausalLM", ",\"tie_word_embeddings\":true");
    if (!convert(&f, "")) return;
    dw_gguf *g = dw_gguf_open(out_path(&f), &err);
    REQUIRE(g, "%s", err.text);
    CHECK(!dw_gguf_find_tensor(g, "output.weight"),
          "a tied model has no output matrix even where the checkpoint repeats it");
    dw_gguf_close(g);
}

static void lineage_stands(void) {
    folder f;
    begin(&f, "lineage", "BF16", 11);
    add_layers(&f, true);
    write_weights(&f);
    write_config(&f, "Qwen2ForCausalLM", "");
    if (!convert(&f, "--type q8_0")) return;
    CHECK(!test_run("deadwood-inspect %s --lineage", out_path(&f)) &&
              strstr(test_run_output(), "deadwood convert lineage"),
          "%s", test_run_output());
    CHECK(strstr(test_run_output(), "q8_0") && !strstr(test_run_output(), test_folder()), "no path: %s",
          test_run_output());
    CHECK(!test_run("deadwood-inspect %s --verify --inputs %s", out_path(&f), f.path) &&
              !strstr(test_run_output(), "DIFFERS"),
          "%s", test_run_output());
    write_text(&f, "tokenizer.json", "{}");
    CHECK(test_run("deadwood-inspect %s --verify --inputs %s", out_path(&f), f.path) == 1 &&
              strstr(test_run_output(), "DIFFERS"),
          "%s", test_run_output());
    CHECK(!test_run("deadwood-inspect %s --json", out_path(&f)) && strstr(test_run_output(), "\"n_ff\":[96,96]"), "%s",
          test_run_output());
}

static const test_case cases[] = {
    {"without --type every matrix keeps its bits", bits_kept},
    {"the same bytes for any number of threads", same_bytes},
    {"llama's rows and biases of q and k are permuted within each head", permuted},
    {"the old and the new form of the configuration say the same", old_and_new},
    {"llama 3's rope scaling becomes frequency factors", llama3_scaling},
    {"yarn's magnitude is the one that transformers derives", yarn_magnitude},
    {"MLX groups of 2 to 5 bits become blocks exactly", mlx_exact},
    {"MLX groups of 6 and 8 bits go through 16 bits", mlx_through_16_bits},
    {"MLX scales that F16 cannot hold are noticed and said", mlx_tiny_scales},
    {"what cannot be carried is refused by name, in one line", refusals},
    {"convert and the engine have the same bounds of numbers", same_bounds},
    {"a value that the type cannot store is refused, with its tensor, row and column; kept bits are kept",
     values_refused},
    {"a tensor that nobody uses is refused by name", unknown_tensor},
    {"a tied head is left out", tied_head},
    {"the lineage can be run again and verified", lineage_stands},
    {0}};
TEST_MAIN(cases)
