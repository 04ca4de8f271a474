/* build.c - files for tests, made in memory. */
#include "tests/build.h"
#include "formats/ffn_gated.h"
#include "tests/test.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void need(bool ok, const char *what) {
    if (ok) return;
    perror(what);
    exit(1);
}

void put(test_bytes *b, const void *data, size_t size) {
    if (!size) return;
    if (size > b->cap - b->size) {
        b->cap = 2 * b->cap + size;
        b->data = realloc(b->data, b->cap);
        need(b->data, "realloc");
    }
    memcpy(b->data + b->size, data, size);
    b->size += size;
}

void put_u8(test_bytes *b, uint8_t v) { put(b, &v, sizeof v); }
void put_u16(test_bytes *b, uint16_t v) { put(b, &v, sizeof v); }
void put_u32(test_bytes *b, uint32_t v) { put(b, &v, sizeof v); }
void put_u64(test_bytes *b, uint64_t v) { put(b, &v, sizeof v); }
void put_f32(test_bytes *b, float v) { put(b, &v, sizeof v); }

void put_zeros(test_bytes *b, size_t n) {
    for (size_t i = 0; i < n; i++) put_u8(b, 0);
}

void put_padding(test_bytes *b, size_t alignment) {
    while (b->size % alignment) put_u8(b, 0);
}

void put_text(test_bytes *b, const char *text) { put(b, text, strlen(text)); }

void put_str(test_bytes *b, const char *text) {
    put_u64(b, strlen(text));
    put_text(b, text);
}

void put_gguf(test_bytes *b, uint32_t version, uint64_t n_tensors, uint64_t n_kv) {
    put_text(b, "GGUF");
    put_u32(b, version);
    put_u64(b, n_tensors);
    put_u64(b, n_kv);
}

void put_key(test_bytes *b, const char *key, uint32_t type) {
    put_str(b, key);
    put_u32(b, type);
}

void put_kv_u32(test_bytes *b, const char *key, uint32_t v) {
    put_key(b, key, DW_KV_U32);
    put_u32(b, v);
}

void put_kv_str(test_bytes *b, const char *key, const char *v) {
    put_key(b, key, DW_KV_STR);
    put_str(b, v);
}

void put_kv_array(test_bytes *b, const char *key, uint32_t type, uint64_t count) {
    put_key(b, key, DW_KV_ARRAY);
    put_u32(b, type);
    put_u64(b, count);
}

void put_tensor(test_bytes *b, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *ne, uint64_t offset) {
    put_str(b, name);
    put_u32(b, n_dims);
    for (uint32_t d = 0; d < n_dims; d++) put_u64(b, ne[d]);
    put_u32(b, type);
    put_u64(b, offset);
}

void put_safetensors(test_bytes *b, const char *json) {
    put_u64(b, strlen(json));
    put_text(b, json);
}

void save(const test_bytes *b, const char *path) {
    FILE *f = fopen(path, "wb");
    need(f, path);
    need(fwrite(b->data, 1, b->size, f) == b->size && !fclose(f), path);
}

/* ---- gated models ---------------------------------------------------------------------------------------- */

static void need_no(const dw_err *err) {
    if (!err->text[0]) return;
    fprintf(stderr, "%s\n", err->text);
    exit(1);
}

enum { MAX_ADDED = 1024 };

typedef struct added { // a tensor that the parent has not, as bytes
    char name[64];
    const dw_qtype_row *type;
    size_t ne[2];
    uint8_t *data;
    bool left_out;
} added;

typedef struct gating {
    const gated_file *o;
    const dw_gguf *parent;
    dw_rng rng;
    added tensor[MAX_ADDED];
    int n;
} gating;

static uint8_t *add(gating *g, int l, const char *name, const dw_qtype_row *type, size_t ne0, size_t ne1) {
    added *t = &g->tensor[g->n++];
    snprintf(t->name, sizeof t->name, "blk.%d.%s", l, name);
    t->type = type;
    t->ne[0] = ne0, t->ne[1] = ne1;
    t->data = calloc(ne1, dw_qtype_row_bytes(type, ne0));
    need(t->data, "calloc");
    t->left_out = g->o->without && !strcmp(g->o->without, t->name);
    return t->data;
}

static void add_random(gating *g, int l, const char *name, size_t ne0, size_t ne1, double mean, double deviation) {
    float *x = (float *)(void *)add(g, l, name, dw_qtype_get(DW_F32), ne0, ne1);
    for (size_t i = 0; i < ne0 * ne1; i++) x[i] = (float)(mean + deviation * dw_rng_normal(&g->rng));
}

/* Down transposed in its own type where rows are whole blocks, else F32; for a twin turned back as F32. */
static void add_down(gating *g, int l, const dw_tensor *down) {
    const size_t n_ff = down->ne[0], n_embd = down->ne[1];
    const dw_qtype_row *type = !down->type->encode || n_embd % (size_t)down->type->block ? dw_qtype_get(DW_F32)
                                                                                         : down->type;
    float *values = calloc(n_ff * n_embd, sizeof *values), *row = calloc(n_embd, sizeof *row);
    need(values && row, "calloc");
    for (size_t i = 0; i < n_embd; i++)
        down->type->decode(down->data + i * dw_tensor_row_bytes(down), values + i * n_ff, n_ff);
    uint8_t *bytes = g->o->twin ? add(g, l, "ffn_down.weight", dw_qtype_get(DW_F32), n_ff, n_embd)
                                : add(g, l, "ffn_down_t.weight", type, n_embd, n_ff);
    const size_t row_bytes = dw_qtype_row_bytes(type, n_embd);
    uint8_t *packed = calloc(1, row_bytes);
    need(packed, "calloc");
    for (size_t j = 0; j < n_ff; j++) {
        for (size_t i = 0; i < n_embd; i++) row[i] = values[i * n_ff + j];
        type->encode(row, g->o->twin ? packed : bytes + j * row_bytes, n_embd, NULL);
        if (!g->o->twin) continue;
        type->decode(packed, row, n_embd);
        for (size_t i = 0; i < n_embd; i++) ((float *)(void *)bytes)[i * n_ff + j] = row[i];
    }
    free(values), free(row), free(packed);
}

static void add_layer(gating *g, int l, const dw_tensor *down) {
    const size_t n_ff = down->ne[0], n_embd = down->ne[1], rank = (size_t)g->o->rank;
    dw_rng_seed(&g->rng, 77 + (uint64_t)l); // a twin gets the same biases
    add_random(g, l, "ffn_gate.bias", n_ff, 1, 0, 0.1);
    add_random(g, l, "ffn_up.bias", n_ff, 1, 0, 0.1);
    add_random(g, l, "ffn_down.bias", n_embd, 1, 0, 0.1);
    add_down(g, l, down);
    if (!rank || g->o->twin) return;
    const size_t n_groups = (n_ff + (size_t)g->o->group - 1) / (size_t)g->o->group;
    add_random(g, l, "ffn_pred_a.weight", n_embd, rank, 0, 1 / sqrt((double)n_embd));
    add_random(g, l, "ffn_pred_a.bias", rank, 1, 0, 0.1);
    add_random(g, l, "ffn_pred_b.weight", rank, n_groups, 0, 1 / sqrt((double)rank));
    add_random(g, l, "ffn_pred_b.bias", n_groups, 1, (double)g->o->open_bias, 0.01);
}

static void set_per_layer(dw_gguf_writer *w, const char *key, const float *values, float all, int n) {
    float value[64];
    need(n <= 64, "layers");
    for (int l = 0; l < n; l++) value[l] = values ? values[l] : all;
    dw_gguf_set_array(w, key, DW_KV_F32, value, (size_t)n);
}

static void set_gate_keys(dw_gguf_writer *w, const gated_file *o, int n_layer) {
    const int n = n_layer + o->layers_more;
    dw_gguf_set_text(w, DW_KEY_GATE_RULE, "test");
    dw_gguf_set_u32(w, DW_KEY_GATE_GROUP, (uint32_t)o->group);
    set_per_layer(w, DW_KEY_GATE_THRESHOLD, o->threshold, 0, n);
    set_per_layer(w, DW_KEY_GATE_ACTIVITY, o->activity, 1, n);
    if (o->dense) dw_gguf_set_array(w, DW_KEY_GATE_DENSE, DW_KV_BOOL, o->dense, (size_t)n);
    if (o->input) dw_gguf_set_text(w, DW_KEY_PREDICTOR_INPUT, o->input);
}

static int add_layers(gating *g) {
    for (int l = 0;; l++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.ffn_down.weight", l);
        const dw_tensor *down = dw_gguf_find_tensor(g->parent, name);
        if (!down) return l;
        add_layer(g, l, down);
    }
}

static bool is_kept(const gating *g, const dw_tensor *t) { return !g->o->twin || !strstr(t->name, "ffn_down.weight"); }

static void write_tensors(const gating *g, dw_gguf_writer *w, dw_err *err) {
    const size_t n = dw_gguf_n_tensors(g->parent);
    for (size_t i = 0; i < n; i++) {
        const dw_tensor *t = dw_gguf_tensor(g->parent, i);
        if (is_kept(g, t)) dw_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne);
    }
    for (const added *t = g->tensor; t < g->tensor + g->n; t++)
        if (!t->left_out) dw_gguf_add_tensor(w, t->name, t->type, t->ne[1] > 1 ? 2 : 1, t->ne);
    if (dw_gguf_begin(w, err)) return;
    for (size_t i = 0; i < n; i++) {
        const dw_tensor *t = dw_gguf_tensor(g->parent, i);
        if (is_kept(g, t)) dw_gguf_write(w, t->data, t->n_bytes, err);
    }
    for (const added *t = g->tensor; t < g->tensor + g->n; t++)
        if (!t->left_out) dw_gguf_write(w, t->data, t->ne[1] * dw_qtype_row_bytes(t->type, t->ne[0]), err);
}

void write_gated(const char *parent, const char *path, const gated_file *o) {
    dw_err err = {0};
    static gating g;
    dw_gguf *from = dw_gguf_open(parent, &err);
    dw_gguf_writer *w = from ? dw_gguf_writer_new(path, &err) : NULL;
    need_no(&err);
    g = (gating){.o = o, .parent = from};
    dw_gguf_set_keys(w, from);
    const int n_layer = add_layers(&g);
    if (!o->twin) set_gate_keys(w, o, n_layer);
    write_tensors(&g, w, &err);
    if (!err.text[0]) dw_gguf_commit(w, &err);
    need_no(&err);
    for (const added *t = g.tensor; t < g.tensor + g.n; t++) free(t->data);
    dw_gguf_writer_free(w);
    dw_gguf_close(from);
}

/* ---- random models ------------------------------------------------------------------------------- */

dw_pool *two_threads(void) {
    static dw_pool *p;
    dw_err err = {0};
    if (!p && !(p = dw_pool_new(2, &err))) exit(1);
    return p;
}

bool write_random(const char *path, const exp_shape *shape, const char *type) {
    dw_err err = {0};
    const exp_random_options o = {.shape = shape, .type = dw_qtype_by_name(type), .seed = 7, .pool = two_threads()};
    dw_gguf_writer *w = dw_gguf_writer_new(path, &err);
    const bool ok = w && !exp_random_write(w, &o, &err) && !dw_gguf_commit(w, &err);
    dw_gguf_writer_free(w);
    return CHECK(ok, "%s", err.text);
}

const char *random_model(const char *shape, const char *type, double dead) {
    char name[96];
    snprintf(name, sizeof name, "%s-%s-%g.gguf", shape, type, dead);
    const char *path = test_file(name);
    if (!dw_file_exists(path))
        CHECK(!test_run("deadwood-synth --shape %s --type %s --dead %g -o %s -q", shape, type, dead, path), "%s",
              test_run_output());
    return path;
}

const char *random_text(const char *name, int n, uint64_t seed) {
    const char *path = test_file(name);
    if (!access(path, R_OK)) return path;
    FILE *f = fopen(path, "wb");
    dw_rng rng;
    dw_rng_seed(&rng, seed);
    for (int i = 0; f && i < n; i++) fputc(" abcdefghijklmnopqrstuvwxyz\n"[dw_rng_below(&rng, 28)], f);
    if (f) fclose(f);
    return path;
}

void random_tokens(int32_t *token, int n, int n_vocab, uint64_t seed) {
    dw_rng rng;
    dw_rng_seed(&rng, seed);
    for (int i = 0; i < n; i++) token[i] = (int32_t)dw_rng_below(&rng, (uint64_t)n_vocab);
}

void write_with_keys(const char *parent, const char *path, void (*change)(dw_gguf_writer *w, const void *ctx),
                     const void *ctx) {
    dw_err err = {0};
    dw_gguf *g = dw_gguf_open(parent, &err);
    dw_gguf_writer *w = g ? dw_gguf_writer_new(path, &err) : NULL;
    if (!CHECK(w, "%s", err.text)) exit(1);
    dw_gguf_set_keys(w, g);
    change(w, ctx);
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        dw_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne);
    }
    dw_gguf_begin(w, &err);
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++)
        dw_gguf_write(w, dw_gguf_tensor(g, i)->data, dw_gguf_tensor(g, i)->n_bytes, &err);
    if (!CHECK(!dw_gguf_commit(w, &err), "%s", err.text)) exit(1);
    dw_gguf_writer_free(w);
    dw_gguf_close(g);
}

double nmse(const float *a, const float *b, size_t n) {
    double error = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        error += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return size > 0 ? error / size : error;
}

bool same_files(const char *a, const char *b) {
    char hash[2][65] = {"a", "b"};
    return !dw_sha256_file(a, hash[0], NULL) && !dw_sha256_file(b, hash[1], NULL) && !strcmp(hash[0], hash[1]);
}

/* ---- broken files -------------------------------------------------------------------------------- */

static const char folder[] = "tests/broken";

void check_sentence(const dw_err *err, const char *words, const char *what) {
    const size_t n = strlen(err->text);
    CHECK(n && !strchr(err->text, '\n') && err->text[n - 1] != '.', "%s: not a sentence: \"%s\"", what, err->text);
    CHECK(strstr(err->text, words), "%s: \"%s\" does not say \"%s\"", what, err->text, words);
}

void check_refused(open_bytes *open, const void *data, size_t size, const char *words, const char *what) {
    dw_err err = {0};
    char *exact = malloc(size ? size : 1);
    need(exact, "malloc");
    if (size) memcpy(exact, data, size);
    CHECK(!open(exact, size, what, &err), "%s of %zu bytes was opened", what, size);
    check_sentence(&err, words, what);
    free(exact);
}

static const broken_file *find_row(const broken_file *files, const char *name) {
    for (; files->name; files++)
        if (!strcmp(files->name, name)) return files;
    return NULL;
}

static void check_file(const broken_file *row, const char *name, const char *readme, open_bytes *open) {
    size_t size = 0;
    char *bytes = dw_read_file(test_path(folder, name), 1 << 20, &size, NULL);
    REQUIRE(bytes, "%s", name);
    CHECK(size <= 1024 && strstr(readme, name), "%s is too large or not in the README", name);
    check_refused(open, bytes, size, row ? row->words : "", name);
    test_bytes made = {0};
    if (row) row->make(&made);
    CHECK(!row || (made.size == size && (!size || !memcmp(made.data, bytes, size))), "%s is not what its row makes",
          name);
    free(made.data);
    free(bytes);
}

void check_broken(const broken_file *files, const char *prefix, open_bytes *open) {
    char *readme = dw_read_file(test_path(folder, "README.md"), 1 << 20, NULL, NULL);
    DIR *dir = opendir(folder);
    REQUIRE(readme && dir, "run me where %s/ is", folder);
    size_t n_rows = 0, n_found = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (strncmp(entry->d_name, prefix, strlen(prefix))) continue;
        const broken_file *row = find_row(files, entry->d_name);
        check_file(row, entry->d_name, readme, open);
        n_found += row != NULL;
    }
    while (files[n_rows].name) n_rows++;
    CHECK(n_found == n_rows, "%zu of %zu files", n_found, n_rows);
    closedir(dir);
    free(readme);
}

bool write_broken(const broken_file *files, int argc, char **argv) {
    if (argc != 3 || strcmp(argv[1], "--write")) return false;
    for (; files->name; files++) {
        test_bytes b = {0};
        files->make(&b);
        save(&b, test_path(argv[2], files->name));
        printf("| `%s` | %s |\n", files->name, files->cause);
        free(b.data);
    }
    return true;
}
