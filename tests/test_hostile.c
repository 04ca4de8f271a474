/* test_hostile.c - model files that are valid to the reader but meant to mislead a program. */
#include "build.h"
#include "engine.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

/* ---- models with something changed ------------------------------------------------------------------------ */

typedef struct change {
    void (*keys)(dw_gguf_writer *w); // sets keys; may be NULL
    const char *tensor;              // its shape becomes ne; NULL: none
    int n_dims;
    size_t ne[4];
} change;

/* A copy of the parent in which `c` is changed; a tensor that becomes smaller keeps its first bytes. */
static const char *changed(const char *parent, const char *name, const change *c) {
    const char *path = test_file(name);
    dw_err err = {0};
    dw_gguf *g = dw_gguf_open(parent, &err);
    dw_gguf_writer *w = g ? dw_gguf_writer_new(path, &err) : NULL;
    if (!CHECK(w, "%s", err.text)) exit(1);
    dw_gguf_set_keys(w, g);
    if (c->keys) c->keys(w);
    size_t *n_bytes = calloc(dw_gguf_n_tensors(g), sizeof *n_bytes);
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        const bool is_it = c->tensor && !strcmp(t->name, c->tensor);
        dw_gguf_add_tensor(w, t->name, t->type, is_it ? c->n_dims : t->n_dims, is_it ? c->ne : t->ne);
        n_bytes[i] = t->n_bytes;
        for (int d = 0; is_it && d < 4; d++) n_bytes[i] = n_bytes[i] / t->ne[d] * (d < c->n_dims ? c->ne[d] : 1);
    }
    bool ok = !dw_gguf_begin(w, &err);
    for (size_t i = 0; ok && i < dw_gguf_n_tensors(g); i++)
        ok = !dw_gguf_write(w, dw_gguf_tensor(g, i)->data, n_bytes[i], &err);
    CHECK(ok && !dw_gguf_commit(w, &err), "%s: %s", name, err.text);
    free(n_bytes);
    dw_gguf_writer_free(w);
    dw_gguf_close(g);
    return path;
}

/* Names, types, shapes and bytes. */
static bool same_tensors(const char *a, const char *b) {
    dw_err err = {0};
    dw_gguf *x = dw_gguf_open(a, &err), *y = dw_gguf_open(b, &err);
    bool same = CHECK(x && y, "%s", err.text) && dw_gguf_n_tensors(x) == dw_gguf_n_tensors(y);
    for (size_t i = 0; same && i < dw_gguf_n_tensors(x); i++) {
        const dw_tensor *s = dw_gguf_tensor(x, i), *t = dw_gguf_tensor(y, i);
        same = !strcmp(s->name, t->name) && s->type == t->type && s->n_dims == t->n_dims &&
               !memcmp(s->ne, t->ne, sizeof s->ne) && !memcmp(s->data, t->data, s->n_bytes);
    }
    dw_gguf_close(x);
    dw_gguf_close(y);
    return same;
}

/* ---- dimensions -------------------------------------------------------------------------------------------- */

/* Half of the neurons of tiny-llama's layers. */
static const char *half_plan(const char *model) {
    const char *path = test_file("half.plan");
    dw_err err = {0};
    dw_model *m = dw_model_open(model, &err);
    FILE *f = fopen(path, "w");
    if (!CHECK(m && f, "%s", err.text)) exit(1);
    fprintf(f, "# deadwood plan 1\nlayer width keep\n");
    const dw_hparams *hp = dw_model_hparams(m);
    for (int l = 0; l < hp->n_layer; l++) fprintf(f, "%d %d 0-%d\n", l, hp->n_ff[l] / 2, hp->n_ff[l] / 2 - 1);
    fclose(f);
    dw_model_close(m);
    return path;
}

static const char *half_of(const char *model, const char *name) {
    const char *path = test_file(name);
    CHECK(!test_run("deadwood-cut -m %s -p %s -o %s -q", model, half_plan(model), path), "%s", test_run_output());
    return path;
}

static void trailing_ones(void) {
    const char *plain = random_model("tiny-llama", "F16", 0), *cut = half_of(plain, "half-2.gguf");
    dw_err err = {0};
    dw_gguf *g = dw_gguf_open(plain, &err);
    REQUIRE(g, "%s", err.text);
    const dw_tensor *gate = dw_gguf_find_tensor(g, "blk.0.ffn_gate.weight");
    for (int n_dims = 3; n_dims <= 4; n_dims++) {
        change c = {.tensor = gate->name, .n_dims = n_dims};
        memcpy(c.ne, gate->ne, sizeof c.ne);
        char name[32];
        snprintf(name, sizeof name, "dims%d.gguf", n_dims);
        const char *path = changed(plain, name, &c);
        CHECK(same_tensors(path, plain), "%d dimensions", n_dims);
        snprintf(name, sizeof name, "half-%d.gguf", n_dims);
        CHECK(same_tensors(half_of(path, name), cut), "%d dimensions", n_dims);
    }
    dw_gguf_close(g);
}

/* A matrix of one row may say that it is a vector, of whatever type. */
static void one_token(void) {
    static const struct {
        int n_dims;
        const char *name, *cut;
    } files[] = {{1, "token-1.gguf", "half-token-1.gguf"}, {2, "token-2.gguf", "half-token-2.gguf"}};
    const char *plain = random_model("tiny-llama", "F16", 0);
    dw_err err = {0};
    dw_gguf *g = dw_gguf_open(plain, &err);
    REQUIRE(g, "%s", err.text);
    const size_t n_embd = dw_gguf_find_tensor(g, "token_embd.weight")->ne[0];
    const bool untied = dw_gguf_find_tensor(g, "output.weight") != NULL;
    dw_gguf_close(g);
    const char *cut[2];
    for (int i = 0; i < 2; i++) {
        change c = {.tensor = "token_embd.weight", .n_dims = files[i].n_dims, .ne = {n_embd, 1, 1, 1}};
        const char *path = changed(plain, "embd.gguf", &c);
        c.tensor = "output.weight";
        cut[i] = half_of(untied ? changed(path, files[i].name, &c) : path, files[i].cut);
    }
    CHECK(same_tensors(cut[0], cut[1]));
}

/* ---- tokens ------------------------------------------------------------------------------------------------ */

enum { N_TOKENS = 512, TOKEN_BYTES = 400 };

static void set_long_tokens(dw_gguf_writer *w) {
    static char text[N_TOKENS][TOKEN_BYTES + 1];
    static int32_t type[N_TOKENS];
    dw_str token[N_TOKENS];
    for (int i = 0; i < N_TOKENS; i++) {
        memset(text[i], 'x', TOKEN_BYTES);
        memcpy(text[i] + TOKEN_BYTES - 4, (char[]){'e', (char)('a' + i / 26), (char)('a' + i % 26), '.'}, 4);
        token[i] = (dw_str){text[i], TOKEN_BYTES};
        type[i] = 1;
    }
    dw_gguf_set_strs(w, "tokenizer.ggml.tokens", token, N_TOKENS);
    dw_gguf_set_array(w, "tokenizer.ggml.token_type", DW_KV_I32, type, N_TOKENS);
    dw_gguf_set_bool(w, "tokenizer.ggml.add_space_prefix", false);
}

static void long_tokens(void) {
    const char *path = changed(random_model("tiny-llama", "F16", 0), "long.gguf", &(change){.keys = set_long_tokens});
    CHECK(!test_run("deadwood-generate -m %s -p a -n 2 --temp 0 -q -t 1", path), "%s", test_run_output());
    const char *text = test_run_output();
    CHECK(strlen(text) == 2 * TOKEN_BYTES + 1 && text[strlen(text) - 2] == '.', "%zu bytes: %.300s", strlen(text),
          text);
}

/* ---- lineage ----------------------------------------------------------------------------------------------- */

static void set_number_lineage(dw_gguf_writer *w) { dw_gguf_set_u32(w, "deadwood.lineage", 7); }
static void set_text_lineage(dw_gguf_writer *w) { dw_gguf_set_strs(w, "deadwood.lineage", &(dw_str){"x", 1}, 1); }

/* Beside a second input that is wrong, too: the lineage is what is reported, for it is read with the model. */
static void early_lineage(void) {
    static const char *const commands[] = {"cut -p", "gate --rule cats --activity 0.5 -s", "requant --recipe",
                                           "train -x"};
    static void (*const changes[])(dw_gguf_writer *) = {set_number_lineage, set_text_lineage};
    const char *plain = random_model("tiny-llama", "F16", 0), *wrong = test_file("wrong");
    FILE *f = fopen(wrong, "w");
    fputs("\xff wrong", f);
    fclose(f);
    for (size_t k = 0; k < 2; k++) {
        const char *path = changed(plain, "lineage.gguf", &(change){.keys = changes[k]});
        for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
            const int rc = test_run("deadwood-%s %s -m %s -o %s -q", commands[i], wrong, path, test_file("out.gguf"));
            const char *text = test_run_output();
            CHECK(rc == 1 && strstr(text, "deadwood.lineage") && strstr(text, "lineage.gguf"), "%s: %d, %s",
                  commands[i], rc, text);
        }
    }
}

static const test_case cases[] = {
    {"trailing dimensions of 1 change nothing, in any program", trailing_ones},
    {"a vocabulary of one token is cut like any other", one_token},
    {"generate writes a token's whole text", long_tokens},
    {"a lineage that cannot be continued is reported before any work", early_lineage},
    {0}};
TEST_MAIN(cases)
