/* mutate.c - structured mutants of GGUF files. */
#include "tests/mutate.h"
#include "formats/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char done[256]; // what was done to the mutant

static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void note(const char *format, ...) {
    const size_t used = strlen(done);
    va_list args;
    va_start(args, format);
    vsnprintf(done + used, sizeof done - used, format, args);
    va_end(args);
}

/* A number that code is often wrong about, or one near the old. */
static uint64_t odd_number(dw_rng *rng, uint64_t old) {
    static const uint64_t odd[] = {0, 1, 2, 3, 31, 32, 63, 64, 255, 256, 65535, 65536, 0x7fffffff, 0x80000000, 0xffffffff,
                                   0x100000000, 0x7fffffffffffffff, 0x8000000000000000, 0xffffffffffffffff};
    switch (dw_rng_below(rng, 6)) {
    case 0: return old + 1;
    case 1: return old - 1;
    case 2: return old * 2;
    case 3: return old / 2;
    case 4: return dw_rng_next(rng) >> dw_rng_below(rng, 64);
    default: return odd[dw_rng_below(rng, sizeof odd / sizeof *odd)];
    }
}

/* ---- a field where it stands ------------------------------------------------------------------------------- */

typedef struct field {
    size_t at, n_bytes;
    const char *what;
} field;

typedef struct fields {
    const uint8_t *data;
    size_t at, n, cap;
    field *field;
} fields;

/* Notes a field and passes it; returns its value. */
static uint64_t take(fields *f, size_t n_bytes, const char *what) {
    uint64_t value = 0;
    memcpy(&value, f->data + f->at, n_bytes < 8 ? n_bytes : 8);
    if (dw_grow(&f->field, &f->cap, f->n + 1, sizeof *f->field, "fields", NULL)) exit(1);
    f->field[f->n++] = (field){f->at, n_bytes, what};
    f->at += n_bytes;
    return value;
}

static void take_text(fields *f, const char *what) {
    const size_t len = take(f, 8, "the length of a text");
    if (len) take(f, len, what);
}

static void take_value(fields *f, uint32_t type) {
    if (type == DW_KV_STR) take_text(f, "a text");
    else take(f, dw_kv_type_bytes(type), "a value");
}

static void take_kv(fields *f) {
    take_text(f, "a key");
    const uint32_t type = (uint32_t)take(f, 4, "the type of a key");
    if (type != DW_KV_ARRAY) return take_value(f, type);
    const uint32_t of = (uint32_t)take(f, 4, "the type of an array");
    const size_t n = take(f, 8, "the length of an array");
    for (size_t i = 0; i < n; i++) take_value(f, of);
}

static void take_tensor(fields *f) {
    take_text(f, "the name of a tensor");
    const size_t n_dims = take(f, 4, "a number of dimensions");
    for (size_t d = 0; d < n_dims; d++) take(f, 8, "a dimension");
    take(f, 4, "the type of a tensor");
    take(f, 8, "an offset");
}

/* The fields of a good file. */
static void find_fields(fields *f) {
    f->at = 4;
    take(f, 4, "the version");
    const size_t n_tensors = take(f, 8, "the number of tensors"), n_kv = take(f, 8, "the number of keys");
    for (size_t i = 0; i < n_kv; i++) take_kv(f);
    for (size_t i = 0; i < n_tensors; i++) take_tensor(f);
}

/* Elements of long arrays are as many as everything else together, so half of the choices are fields of other kinds. */
static const field *choose_field(const fields *f, dw_rng *rng) {
    const field *x = &f->field[dw_rng_below(rng, f->n)];
    const bool any = dw_rng_below(rng, 2);
    for (int i = 0; i < 50 && !any && (!strcmp(x->what, "a value") || strstr(x->what, "text")); i++)
        x = &f->field[dw_rng_below(rng, f->n)];
    return x;
}

static void change_field(uint8_t *data, const field *x, dw_rng *rng) {
    uint64_t old = 0;
    const size_t n = x->n_bytes < 8 ? x->n_bytes : 8;
    memcpy(&old, data + x->at, n);
    const uint64_t new = odd_number(rng, old);
    memcpy(data + x->at, &new, n);
    note("%s at %zu: %llu -> %llu; ", x->what, x->at, (unsigned long long)old, (unsigned long long)new);
}

static void mutate_bytes(const char *parent, const char *path, dw_rng *rng) {
    size_t size;
    uint8_t *data = (uint8_t *)dw_read_file(parent, 1 << 28, &size, NULL);
    if (!data) exit(1);
    fields f = {.data = data};
    find_fields(&f);
    for (size_t i = 1 + dw_rng_below(rng, 3); i; i--) change_field(data, choose_field(&f, rng), rng);
    if (!dw_rng_below(rng, 8)) {
        size = dw_rng_below(rng, dw_rng_below(rng, 2) ? f.at : size);
        note("cut at %zu; ", size);
    }
    save(&(test_bytes){.data = data, .size = size}, path);
    free(f.field);
    free(data);
}

/* ---- records, written anew ---------------------------------------------------------------------------------- */

/* A number, each of an array, or a text of random length. */
static void change_key(const dw_kv *kv, dw_gguf_writer *w, dw_rng *rng) {
    static const char *const texts[] = {"", "x", "\033[2J\nx", "llama", "qwen2", "gpt2", "a/b"};
    note("key %.60s; ", kv->key);
    if (!dw_rng_below(rng, 5)) return dw_gguf_unset(w, kv->key);
    if (kv->str && !kv->is_array) return dw_gguf_set_text(w, kv->key, texts[dw_rng_below(rng, 7)]);
    if (kv->str) return dw_gguf_set_strs(w, kv->key, kv->str, dw_rng_below(rng, kv->count + 1));
    const size_t n_bytes = dw_kv_type_bytes(kv->type);
    uint8_t *data = malloc(kv->n_bytes + 8);
    memcpy(data, kv->data, kv->n_bytes);
    for (size_t i = 1 + dw_rng_below(rng, 3); i && kv->count; i--) {
        uint8_t *at = data + n_bytes * dw_rng_below(rng, kv->count);
        uint64_t old = 0;
        memcpy(&old, at, n_bytes);
        old = odd_number(rng, old);
        memcpy(at, &old, n_bytes);
    }
    const size_t count = kv->is_array && !dw_rng_below(rng, 4) ? dw_rng_below(rng, kv->count + 1) : kv->count;
    dw_kv new = *kv;
    new.data = data;
    new.count = count;
    new.n_bytes = count * n_bytes;
    dw_gguf_set_kv(w, kv->key, &new);
    free(data);
}

typedef struct record {
    const char *name;
    const dw_qtype_row *type;
    int n_dims;
    size_t ne[4], n_bytes;
} record;

/* Small shapes only: data follow. */
static void change_tensor(record *r, dw_rng *rng) {
    const size_t d = dw_rng_below(rng, 4);
    note("tensor %s; ", r->name);
    switch (dw_rng_below(rng, 5)) {
    case 0: r->name = "blk.0.ffn_other.weight"; break;
    case 1: r->n_dims = 1 + (int)dw_rng_below(rng, 4); break;
    case 2: r->n_dims = 4, r->ne[2 + d % 2] = 1 + dw_rng_below(rng, 3); break;
    case 3: r->ne[d % 2] = 32 * (1 + dw_rng_below(rng, 8)); break;
    default: r->type = &dw_qtypes[dw_rng_below(rng, 4)]; break;
    }
    for (int k = r->n_dims; k < 4; k++) r->ne[k] = 1;
    if (r->ne[0] % (size_t)r->type->block) r->type = dw_qtype_get(DW_F32);
    r->n_bytes = dw_qtype_row_bytes(r->type, r->ne[0]) * r->ne[1] * r->ne[2] * r->ne[3];
}

static void mutate_records(const char *parent, const char *path, dw_rng *rng) {
    dw_err err = {0};
    dw_gguf *g = dw_gguf_open(parent, &err);
    dw_gguf_writer *w = g ? dw_gguf_writer_new(path, &err) : NULL;
    const size_t n = g ? dw_gguf_n_tensors(g) : 0;
    record *r = calloc(n + 1, sizeof *r);
    if (!w || !r) exit(1);
    for (size_t i = 0; i < n; i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        r[i] = (record){t->name, t->type, t->n_dims, {t->ne[0], t->ne[1], t->ne[2], t->ne[3]}, t->n_bytes};
    }
    dw_gguf_set_keys(w, g);
    for (size_t i = 1 + dw_rng_below(rng, 3); i; i--) {
        if (dw_rng_below(rng, 2)) change_key(dw_gguf_kv(g, dw_rng_below(rng, dw_gguf_n_kv(g))), w, rng);
        else change_tensor(&r[dw_rng_below(rng, n)], rng);
    }
    const size_t left_out = dw_rng_below(rng, 8) ? n : dw_rng_below(rng, n);
    for (size_t i = 0; i < n; i++)
        if (i != left_out) dw_gguf_add_tensor(w, r[i].name, r[i].type, r[i].n_dims, r[i].ne);
    bool ok = !dw_gguf_begin(w, &err); // the writer refuses some: then the file is the parent's
    for (size_t i = 0; ok && i < n; i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        uint8_t *data = calloc(1, r[i].n_bytes + 1);
        memcpy(data, t->data, r[i].n_bytes < t->n_bytes ? r[i].n_bytes : t->n_bytes);
        if (i != left_out) ok = !dw_gguf_write(w, data, r[i].n_bytes, &err);
        free(data);
    }
    if (!ok || dw_gguf_commit(w, &err)) {
        note("not written: %s", err.text);
        dw_gguf_writer_free(w);
        w = NULL;
        mutate_bytes(parent, path, rng);
    }
    dw_gguf_writer_free(w);
    free(r);
    dw_gguf_close(g);
}

const char *mutate_gguf(const char *parent, const char *path, uint64_t seed) {
    dw_rng rng;
    dw_rng_seed(&rng, seed);
    *done = 0;
    if (dw_rng_below(&rng, 2)) mutate_bytes(parent, path, &rng);
    else mutate_records(parent, path, &rng);
    return done;
}
