/* mutate.c - structured mutants of models, statistics and stored bases. */
#include "tests/mutate.h"
#include "formats/internal.h"
#include "measure/predictions.h"
#include "tests/h5_changes.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

static char done[400]; // what was done to the mutant

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
    static const uint64_t odd[] = {0,
                                   1,
                                   2,
                                   3,
                                   31,
                                   32,
                                   63,
                                   64,
                                   255,
                                   256,
                                   65535,
                                   65536,
                                   0x7fffffff,
                                   0x80000000,
                                   0xffffffff,
                                   0x100000000,
                                   0x7fffffffffffffff,
                                   0x8000000000000000,
                                   0xffffffffffffffff};
    switch (dw_rng_below(rng, 6)) {
    case 0: return old + 1;
    case 1: return old - 1;
    case 2: return old * 2;
    case 3: return old / 2;
    case 4: return dw_rng_next(rng) >> dw_rng_below(rng, 64);
    default: return odd[dw_rng_below(rng, sizeof odd / sizeof *odd)];
    }
}

/* A text that a program may stumble over, in static storage. */
static const char *odd_text(dw_rng *rng) {
    static char text[5000];
    static const char *const odd[] = {"", "x", "\033[2J\nx", "\xff", "a/b", "%s%n", "../x", "\t\t"};
    const size_t kind = dw_rng_below(rng, 10);
    if (kind < 8) return odd[kind];
    const size_t n = kind == 8 ? 127 + dw_rng_below(rng, 3) : 4095 + dw_rng_below(rng, 3);
    memset(text, kind == 8 ? 'a' : '0', n);
    text[n] = 0;
    return text;
}

static double odd_real(dw_rng *rng, double old) {
    static const double odd[] = {0,    -0.0,   -1,    1,       1e-310,   1e-45,     1e-30,
                                 1e30, 3.4e38, 1e300, -1e300, INFINITY, -INFINITY, NAN};
    switch (dw_rng_below(rng, 6)) {
    case 0: return -old;
    case 1: return old * 1e9;
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

/* ---- statistics: values -------------------------------------------------------------------------------------- */

static const char stats_magic[] = "deadwood stats 1\n";

/* A few numbers of n, as doubles or as u64, or one text in all places. */
static void change_numbers(void *values, H5T_class_t class, size_t n, dw_rng *rng) {
    uint64_t *integer = values;
    double *real = values;
    char **text = values;
    for (size_t i = class == H5T_STRING ? n : 1 + dw_rng_below(rng, 3); n && i; i--) {
        const size_t at = class == H5T_STRING ? i - 1 : dw_rng_below(rng, n);
        if (class == H5T_STRING) text[at] = (char *)(uintptr_t)odd_text(rng);
        else if (class == H5T_FLOAT) real[at] = odd_real(rng, real[at]);
        else integer[at] = odd_number(rng, integer[at]);
    }
}

/* Keeps shape and type. */
static void change_dataset(hid_t f, const char *name, dw_rng *rng) {
    const hid_t set = H5Dopen2(f, name, H5P_DEFAULT); // fails on a group
    if (set < 0) return;
    const hid_t type = H5Dget_type(set), space = H5Dget_space(set), text = kit_h5_string_type();
    const H5T_class_t class = H5Tget_class(type);
    const hid_t in_memory = class == H5T_STRING ? text : class == H5T_FLOAT ? H5T_NATIVE_DOUBLE : H5T_NATIVE_UINT64;
    const size_t n = (size_t)H5Sget_simple_extent_npoints(space);
    void *values = calloc(n + 1, 8);
    if (class != H5T_STRING) H5Dread(set, in_memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
    change_numbers(values, class, n, rng);
    H5Dwrite(set, in_memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
    note("values of %s; ", name);
    free(values);
    H5Tclose(text), H5Sclose(space), H5Tclose(type), H5Dclose(set);
}

static void change_attribute(hid_t f, dw_rng *rng) {
    static const char *const texts[] = {"model_arch", "backend", "arguments", "model_sha256"};
    static const char *const numbers[] = {"n_ctx", "skip", "hist_every", "n_layer", "n_embd", "format_version"};
    const bool is_text = dw_rng_below(rng, 2);
    const char *name = is_text ? texts[dw_rng_below(rng, 4)] : numbers[dw_rng_below(rng, 6)];
    const hid_t a = H5Aopen(f, name, H5P_DEFAULT), type = kit_h5_string_type();
    int64_t old = 0;
    if (a < 0) exit(1);
    if (!is_text) H5Aread(a, H5T_NATIVE_INT64, &old);
    const int64_t new = (int32_t)odd_number(rng, (uint64_t)old);
    const char *text = odd_text(rng);
    if (is_text) H5Awrite(a, type, &text);
    else H5Awrite(a, H5T_NATIVE_INT64, &new);
    note(is_text ? "%s; " : "%s: %lld -> %lld; ", name, (long long)old, (long long)new);
    H5Tclose(type), H5Aclose(a);
}

static void mutate_values(const char *path, dw_rng *rng) {
    size_t n = 0;
    while (h5_stats.paths[n]) n++;
    const hid_t f = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    if (f < 0) exit(1);
    for (size_t i = 1 + dw_rng_below(rng, 3); i; i--) {
        if (dw_rng_below(rng, 4)) change_dataset(f, h5_stats.paths[dw_rng_below(rng, n)], rng);
        else change_attribute(f, rng);
    }
    H5Fclose(f);
    h5_seal_file(path, stats_magic);
}

static void mutate_sets(const char *path, dw_rng *rng) {
    uint64_t how[3];
    for (int i = 0; i < 3; i++) how[i] = dw_rng_next(rng);
    const size_t n = 1 + dw_rng_below(rng, 3);
    note("%zu changes of datasets; ", n);
    h5_make_changes(&h5_stats, path, (const uint8_t *)how, n * sizeof *how);
}

/* ---- statistics: the structures of HDF5 ----------------------------------------------------------------------- */

/* Structures begin with a signature of four letters or stand at multiples of 8: addresses and sizes no larger than the
 * file, and the heads of messages (type and size, two bytes each, flags). */
static bool is_structure(uint64_t v, size_t size) {
    const bool is_message = v >> 40 == 0 && (v & 0xffff) <= 0x18 && (v >> 16 & 7) == 0;
    return v && (v <= size || v == UINT64_MAX || is_message);
}

static size_t find_structure(const uint8_t *data, size_t size, dw_rng *rng) {
    static const char *const signatures[] = {"\211HDF", "TREE", "SNOD", "HEAP", "GCOL"};
    const char *signature = signatures[dw_rng_below(rng, 5)];
    const bool by_name = dw_rng_below(rng, 2);
    size_t at = KIT_H5_USER_BLOCK + (dw_rng_below(rng, size - KIT_H5_USER_BLOCK) & ~(size_t)7);
    for (size_t i = 0; i < size; i += 8, at += 8) {
        if (at + 64 > size) at = KIT_H5_USER_BLOCK;
        if (!by_name && is_structure(dw_le64(data + at), size)) return at;
        if (by_name && !memcmp(data + at, signature, 4)) return at + 4 + dw_rng_below(rng, 40);
    }
    return KIT_H5_USER_BLOCK;
}

static void mutate_structures(const char *path, dw_rng *rng) {
    size_t size;
    uint8_t *data = h5_bytes(path, &size);
    for (size_t i = 1 + dw_rng_below(rng, 3); i; i--) {
        const size_t at = find_structure(data, size, rng), n = (size_t)1 << dw_rng_below(rng, 4);
        if (at + n <= size) change_field(data, &(field){at, n, "a field"}, rng);
    }
    if (!dw_rng_below(rng, 16)) {
        size = KIT_H5_USER_BLOCK + dw_rng_below(rng, size - KIT_H5_USER_BLOCK);
        note("cut at %zu; ", size);
    }
    h5_seal(path, stats_magic, data, size);
    free(data);
}

static void copy_file(const char *from, const char *to) {
    size_t size;
    uint8_t *data = h5_bytes(from, &size);
    save(&(test_bytes){.data = data, .size = size}, to);
    free(data);
}

const char *mutate_stats(const char *parent, const char *path, uint64_t seed) {
    static void (*const ways[])(const char *, dw_rng *) = {mutate_values, mutate_sets, mutate_structures};
    dw_rng rng;
    dw_rng_seed(&rng, seed);
    *done = 0;
    kit_h5_quiet();
    copy_file(parent, path);
    ways[dw_rng_below(&rng, 3)](path, &rng);
    return done;
}

/* ---- stored bases: frames ------------------------------------------------------------------------------------- */

enum { MAX_CHUNKS = 64, BASE_RECORD = 8 + 8 * MEASURE_TOP + 4 };

typedef struct block { // what a frame holds
    uint8_t *data;
    size_t n;
} block;

typedef struct stored { // the head and the chunks
    block block[1 + MAX_CHUNKS];
    size_t n;
} stored;

static void unpack_base(const char *path, stored *s) {
    size_t size, at = 12; // past magic and the head's raw size
    uint8_t *file = h5_bytes(path, &size);
    for (s->n = 0; at + 4 < size && s->n <= MAX_CHUNKS; s->n++) {
        const size_t packed = dw_le32(file + at), n = (size_t)ZSTD_getFrameContentSize(file + at + 4, packed);
        s->block[s->n] = (block){malloc(n), n};
        if (ZSTD_decompress(s->block[s->n].data, n, file + at + 4, packed) != n) exit(1);
        at += 4 + packed;
    }
    free(file);
}

/* Some frames say another size than they have, or hold other bytes. */
static void pack_base(const stored *s, bool well, const char *path, dw_rng *rng) {
    test_bytes b = {0};
    put_text(&b, "dw-base3");
    const size_t bad = well ? s->n : dw_rng_below(rng, s->n), way = dw_rng_below(rng, 4);
    for (size_t i = 0; i < s->n; i++) {
        uint8_t *frame = malloc(ZSTD_compressBound(s->block[i].n));
        const size_t n = ZSTD_compress(frame, ZSTD_compressBound(s->block[i].n), s->block[i].data, s->block[i].n, 1);
        const bool is_bad = i == bad;
        if (!i) put_u32(&b, (uint32_t)(is_bad && way == 0 ? odd_number(rng, s->block[i].n) : s->block[i].n));
        put_u32(&b, (uint32_t)(is_bad && way == 1 ? odd_number(rng, n) : n));
        if (is_bad) note("frame %zu, way %zu; ", i, way);
        const field byte = {dw_rng_below(rng, n < 20 ? n : 20), 1, "a byte of a frame"};
        if (is_bad && way == 2) change_field(frame, &byte, rng);
        put(&b, frame, n);
        free(frame);
    }
    if (!well && way == 3) b.size = dw_rng_below(rng, b.size);
    save(&b, path);
    free(b.data);
}

static void take_name(fields *f, const char *what) {
    const size_t len = take(f, 4, "the length of a name");
    if (len) take(f, len, what);
}

static void find_head_fields(fields *f) {
    take_name(f, "the model's name");
    take(f, 32, "the model's hash");
    take(f, 4, "n_vocab");
    take(f, 32, "the vocabulary's hash");
    take_name(f, "the protocol");
    take(f, 4, "n_ctx"), take(f, 4, "bos"), take(f, 4, "first"), take(f, 4, "last");
    take(f, 4, "learnt_unnamed");
    for (size_t n = take(f, 4, "n_texts"); n; n--) {
        take_name(f, "a name");
        take(f, 32, "a hash");
        take(f, 8, "n_tokens"), take(f, 8, "n_scored");
        take_name(f, "a leak");
        take(f, 32, "the hash of its ids");
    }
}

/* A number of one record: ln p(target), an id, one of the other ln p. */
static void change_prediction(const block *c, dw_rng *rng) {
    const size_t n = c->n / BASE_RECORD, i = dw_rng_below(rng, n), k = dw_rng_below(rng, 2 + 2 * MEASURE_TOP);
    const double real = odd_real(rng, -3);
    const float single = (float)real;
    const uint32_t id = (uint32_t)odd_number(rng, dw_rng_below(rng, 512));
    const bool is_id = k && k <= MEASURE_TOP;
    const size_t at = k ? 4 + 4 * k : 0, n_bytes = k ? 4 : 8;
    uint8_t bytes[8];
    memcpy(bytes, k == 0 ? (const void *)&real : is_id ? (const void *)&id : (const void *)&single, n_bytes);
    for (size_t b = 0; b < n_bytes; b++) c->data[(at + b) * n + i] = bytes[b];
    note("record %zu, byte %zu: %g or id %u; ", i, at, real, id);
}

static void mutate_frames(const char *parent, const char *path, dw_rng *rng) {
    stored s;
    unpack_base(parent, &s);
    fields f = {.data = s.block[0].data};
    find_head_fields(&f);
    const size_t way = dw_rng_below(rng, 4);
    for (size_t i = 1 + dw_rng_below(rng, 3); way && i; i--) {
        if (way == 1) change_prediction(&s.block[1 + dw_rng_below(rng, s.n - 1)], rng);
        else change_field(s.block[0].data, choose_field(&f, rng), rng);
    }
    pack_base(&s, way, path, rng);
    for (size_t i = 0; i < s.n; i++) free(s.block[i].data);
    free(f.field);
}

/* ---- stored bases: written anew --------------------------------------------------------------------------------- */

/* Changes a field whose value the writer takes as it is. */
static void change_head(measure_stored_head *h, dw_rng *rng) {
    const uint64_t size = dw_rng_below(rng, 4); // numbers are changed a little or much
    int *const numbers[] = {&h->n_vocab, &h->n_ctx, &h->bos, &h->first, &h->last};
    const size_t k = dw_rng_below(rng, 11);
    measure_stored_text *t = &h->text[dw_rng_below(rng, (size_t)h->n_texts)];
    note("field %zu of the head; ", k);
    const uint64_t odd = odd_number(rng, k < 5 ? (uint64_t)*numbers[k] : t->n_tokens);
    const int near = (int)dw_rng_below(rng, 5) - 2;
    if (k < 5) *numbers[k] = size ? (int)((unsigned)*numbers[k] + (unsigned)near) : (int)odd;
    else if (k == 5) h->model = (char *)(uintptr_t)odd_text(rng);
    else if (k == 6) t->name = (char *)(uintptr_t)odd_text(rng);
    else if (k == 7) t->leak = (char *)(uintptr_t)odd_text(rng);
    else if (k == 8) h->learnt_unnamed ^= 1;
    else if (k == 9) t->n_tokens = size ? t->n_tokens + (uint64_t)near : odd;
    else t->n_scored = size ? t->n_scored + (uint64_t)near : 1 + dw_rng_below(rng, 1000);
    if (!t->n_scored || t->n_scored > 2000) t->n_scored = 1;
}

/* Predictions of the parent, from the first one on again after the last. */
static int copy_predictions(measure_predictions *p, const measure_stored_head *h, measure_predictions_writer *w,
                            dw_err *err) {
    for (int t = 0; t < h->n_texts; t++) {
        for (uint64_t i = 0, n = 0; i < h->text[t].n_scored; i++, n--) {
            measure_prediction one;
            if (!n) measure_predictions_seek(p, 0), n = measure_predictions_head(p)->text[0].n_scored;
            if (measure_predictions_read(p, &one, 1, err) || measure_predictions_write(w, &one, 1, err)) return -1;
        }
    }
    return 0;
}

static void mutate_head(const char *parent, const char *path, dw_rng *rng) {
    dw_err err = {0};
    measure_predictions *p = measure_predictions_open(parent, &err);
    if (!p) exit(1);
    measure_stored_head h = *measure_predictions_head(p);
    const int n_texts = dw_rng_below(rng, 4) ? h.n_texts : 1 + (int)dw_rng_below(rng, 50);
    measure_stored_text *text = calloc((size_t)n_texts, sizeof *text);
    for (int t = 0; t < n_texts; t++) text[t] = h.text[t % h.n_texts];
    h.text = text;
    h.n_texts = n_texts;
    for (size_t i = 1 + dw_rng_below(rng, 3); i; i--) change_head(&h, rng);
    note("%d texts; ", n_texts);
    measure_predictions_writer *w = measure_predictions_writer_new(path, &h, &err);
    if (!w || copy_predictions(p, &h, w, &err) || measure_predictions_commit(w, true, &err)) {
        fprintf(stderr, "a mutant cannot be written: %s\n", err.text);
        exit(1);
    }
    measure_predictions_writer_free(w);
    measure_predictions_close(p);
    free(text);
}

const char *mutate_base(const char *parent, const char *path, uint64_t seed) {
    dw_rng rng;
    dw_rng_seed(&rng, seed);
    *done = 0;
    if (dw_rng_below(&rng, 2)) mutate_frames(parent, path, &rng);
    else mutate_head(parent, path, &rng);
    return done;
}
