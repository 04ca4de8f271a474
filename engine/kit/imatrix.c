/* imatrix.c - reads and writes llama.cpp's importance files in both forms (imatrix.h). */
#include "kit/imatrix.h"
#include "formats/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ENTRIES = DW_GGUF_MAX_TENSORS, MAX_COLUMNS = 1 << 28, MAX_NAME = 255 };

/* In statistics the chunks are windows, counted from 1, and the number after the last window is an int, too. */
enum { MAX_CHUNKS = INT32_MAX - 1 };

#define MAX_COUNT 0x1p53f // tokens; up to here a double has every whole number

static const char sums_suffix[] = ".in_sum2", counts_suffix[] = ".counts";

void kit_imatrix_release(kit_imatrix *im) {
    for (size_t i = 0; i < im->n_entry; i++) free(im->entry[i].name), free(im->entry[i].mean);
    free(im->entry);
    free(im->dataset);
    *im = (kit_imatrix){0};
}

const kit_imatrix_entry *kit_imatrix_find(const kit_imatrix *im, const char *name) {
    for (size_t i = 0; i < im->n_entry; i++)
        if (!strcmp(im->entry[i].name, name)) return &im->entry[i];
    return NULL;
}

/* A new entry of n means, which the caller fills; NULL if memory is missing or the name is invalid. */
static float *new_entry(kit_imatrix *im, dw_str name, int n, uint64_t count, dw_err *err) {
    if (dw_name_check(name, MAX_NAME, err)) return NULL;
    if (im->n_entry == MAX_ENTRIES) {
        dw_fail(err, "more than %d entries", MAX_ENTRIES);
        return NULL;
    }
    if (dw_grow(&im->entry, &im->cap_entry, im->n_entry + 1, sizeof *im->entry, "an imatrix", err)) return NULL;
    kit_imatrix_entry e = {.name = dw_format(err, "%.*s", (int)name.len, name.ptr), .n = n, .count = count};
    e.mean = e.name ? dw_alloc((size_t)n, sizeof *e.mean, "an imatrix", err) : NULL;
    if (!e.mean) {
        free(e.name);
        return NULL;
    }
    im->entry[im->n_entry++] = e;
    return e.mean;
}

int kit_imatrix_put(kit_imatrix *im, const char *name, int n, const double *sum_square, uint64_t count, dw_err *err) {
    if (!count) return dw_fail(err, "'%s' has sums, but its token count is 0", name);
    float *mean = new_entry(im, (dw_str){name, strlen(name)}, n, count, err);
    for (int j = 0; mean && j < n; j++) mean[j] = (float)(sum_square[j] / (double)count);
    return mean ? 0 : -1;
}

static int check_means(const kit_imatrix_entry *e, dw_err *err) {
    for (int j = 0; j < e->n; j++)
        if (!(e->mean[j] >= 0) || !isfinite(e->mean[j]))
            return dw_fail(err, "'%.200s' has the importance %g in column %d", e->name, (double)e->mean[j], j);
    return 0;
}

static int check_names(const kit_imatrix *im, dw_err *err) {
    dw_index index = {0};
    const int rc = dw_index_build(&index, im->entry, im->n_entry, sizeof *im->entry, "entry", err);
    dw_index_free(&index);
    return rc;
}

/* ---- the old form ---------------------------------------------------------------------------------------------- */

static int read_old_entry(kit_imatrix *im, dw_cursor *c, dw_err *err) {
    const uint32_t len = dw_cursor_u32(c);
    const char *name = len <= MAX_NAME ? (const char *)dw_cursor_take(c, len) : NULL;
    const uint32_t n_call = dw_cursor_u32(c), n = dw_cursor_u32(c);
    if (!name || c->failed)
        return dw_fail(err, "entry %zu is cut off, or it has a name of %u bytes (at most %d are read)",
                       im->n_entry + 1, len, MAX_NAME);
    if (n_call < 1 || n_call > INT32_MAX || n < 1 || n > MAX_COLUMNS)
        return dw_fail(err, "'%.*s' has %u calls and %u values, which is out of range", (int)len, name, n_call, n);
    const uint8_t *values = dw_cursor_take(c, (size_t)n * sizeof(float));
    if (!values) return dw_fail(err, "'%.*s' has %u values, but the file ends before the last", (int)len, name, n);
    float *mean = new_entry(im, (dw_str){name, len}, (int)n, n_call, err);
    if (!mean) return -1;
    memcpy(mean, values, (size_t)n * sizeof *mean);
    for (uint32_t j = 0; j < n; j++) mean[j] /= (float)n_call;
    return 0;
}

static int read_old(kit_imatrix *im, dw_cursor c, dw_err *err) {
    const uint32_t n = dw_cursor_u32(&c);
    if (c.failed || n < 1 || n > c.left / 13)
        return dw_fail(err, "this is not an imatrix: it has neither the GGUF nor the old form");
    for (uint32_t i = 0; i < n; i++)
        if (read_old_entry(im, &c, err)) return -1;
    dw_str name = {"", 0};
    if (c.left) { // files before 2024 end here
        const uint32_t n_chunks = dw_cursor_u32(&c), len = dw_cursor_u32(&c);
        name = (dw_str){(const char *)dw_cursor_take(&c, len), len};
        if (c.failed || n_chunks > MAX_CHUNKS || len > 65535 || !dw_is_utf8(name.ptr, len))
            return dw_fail(err, "the bytes after the last entry are not a number of chunks and the name of a dataset");
        im->n_chunks = (int)n_chunks;
    }
    im->dataset = dw_format(err, "%.*s", (int)name.len, name.ptr);
    return im->dataset ? 0 : -1;
}

static int write_old(const kit_imatrix *im, dw_out *out, dw_err *err) {
    const int32_t n_entry = (int32_t)im->n_entry, n_call = im->n_chunks > 0 ? im->n_chunks : 1;
    const int32_t trailer[] = {im->n_chunks, im->dataset ? (int32_t)strlen(im->dataset) : 0};
    int rc = dw_out_write(out, &n_entry, 4, err);
    for (size_t i = 0; i < im->n_entry && !rc; i++) {
        const kit_imatrix_entry *e = &im->entry[i];
        const int32_t len = (int32_t)strlen(e->name), head[] = {n_call, e->n};
        rc = dw_out_write(out, &len, 4, err) || dw_out_write(out, e->name, (size_t)len, err) ||
             dw_out_write(out, head, 8, err);
        for (int j = 0; j < e->n && !rc; j++) {
            const float value = e->mean[j] * (float)n_call;
            rc = dw_out_write(out, &value, sizeof value, err);
        }
    }
    if (rc || dw_out_write(out, trailer, 8, err) ||
        (trailer[1] && dw_out_write(out, im->dataset, (size_t)trailer[1], err)))
        return -1;
    return 0;
}

/* ---- GGUF ------------------------------------------------------------------------------------------------------ */

/* The token count of an expert. */
static int read_count(const dw_tensor *counts, size_t expert, double *count, dw_err *err) {
    float v;
    memcpy(&v, counts->data + expert * sizeof v, sizeof v);
    *count = (double)v;
    return v >= 0 && v <= MAX_COUNT
               ? 0
               : dw_fail(err, "'%s' has the count %g, which is out of range", counts->name, (double)v);
}

static int read_tensor(kit_imatrix *im, const dw_gguf *g, const dw_tensor *sums, dw_err *err) {
    char name[DW_GGUF_MAX_NAME + 1];
    const size_t len = strlen(sums->name) - strlen(sums_suffix), n_expert = sums->ne[1];
    snprintf(name, sizeof name, "%.*s%s", (int)len, sums->name, counts_suffix);
    const dw_tensor *counts = dw_gguf_find_tensor(g, name);
    if (!counts) return dw_fail(err, "'%s' is missing", name);
    if (sums->type->id != DW_F32 || counts->type->id != DW_F32 || sums->ne[2] * sums->ne[3] != 1 ||
        counts->ne[0] != 1 || counts->ne[1] != n_expert || counts->ne[2] * counts->ne[3] != 1 ||
        dw_tensor_n_values(sums) > MAX_COLUMNS)
        return dw_fail(err, "'%s' and '%s' do not have the shapes of sums and counts", sums->name, name);
    float *mean = new_entry(im, (dw_str){sums->name, len}, (int)dw_tensor_n_values(sums), 0, err);
    if (!mean) return -1;
    memcpy(mean, sums->data, sums->n_bytes);
    double total = 0;
    for (size_t e = 0; e < n_expert; e++) {
        double count;
        if (read_count(counts, e, &count, err)) return -1;
        for (size_t j = e * sums->ne[0]; j < (e + 1) * sums->ne[0]; j++)
            mean[j] = count > 0 ? (float)((double)mean[j] / count) : 1;
        total += count;
    }
    if (total > MAX_COUNT)
        return dw_fail(err, "'%s' counts %g tokens in all experts, at most %g are read", name, total,
                       (double)MAX_COUNT);
    im->entry[im->n_entry - 1].count = (uint64_t)total;
    return total >= 1 ? 0 : dw_fail(err, "the token count of '%s' is 0", name);
}

static int read_gguf(kit_imatrix *im, const dw_gguf *g, dw_err *err) {
    dw_str type = {"", 0}, dataset = {"", 0};
    uint32_t n_chunks = 0, chunk_size = 0;
    if (dw_gguf_str(g, "general.type", &type, err) < 0) return -1;
    if (!dw_str_is(type, "imatrix")) return dw_fail(err, "the file is GGUF but not of type imatrix");
    if (dw_gguf_u32(g, "imatrix.chunk_count", &n_chunks, err) < 0 ||
        dw_gguf_u32(g, "imatrix.chunk_size", &chunk_size, err) < 0)
        return -1;
    const dw_kv *datasets = dw_gguf_find(g, "imatrix.datasets");
    if (datasets && datasets->str && datasets->count) dataset = datasets->str[0];
    if (n_chunks > MAX_CHUNKS || chunk_size > INT32_MAX || !dw_is_utf8(dataset.ptr, dataset.len) || dataset.len > 65535)
        return dw_fail(err, "imatrix.chunk_count, .chunk_size or .datasets are out of range");
    im->n_chunks = (int)n_chunks;
    im->chunk_size = (int)chunk_size;
    im->dataset = dw_format(err, "%.*s", (int)dataset.len, dataset.ptr);
    if (!im->dataset) return -1;
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        const size_t len = strlen(t->name), n = strlen(sums_suffix);
        if (len > n && !strcmp(t->name + len - n, sums_suffix) && read_tensor(im, g, t, err)) return -1;
    }
    return im->n_entry ? 0 : dw_fail(err, "the file has no tensor of sums (NAME.in_sum2)");
}

static int write_gguf(const kit_imatrix *im, const char *path, dw_err *err) {
    const char *dataset = im->dataset ? im->dataset : "";
    const dw_str datasets = {dataset, strlen(dataset)};
    dw_gguf_writer *w = dw_gguf_writer_new(path, err);
    if (!w) return -1;
    dw_gguf_set_text(w, "general.type", "imatrix");
    dw_gguf_set_strs(w, "imatrix.datasets", &datasets, 1);
    dw_gguf_set_u32(w, "imatrix.chunk_count", (uint32_t)im->n_chunks);
    dw_gguf_set_u32(w, "imatrix.chunk_size", (uint32_t)im->chunk_size);
    for (size_t i = 0; i < im->n_entry; i++) {
        const char *const suffix[] = {sums_suffix, counts_suffix};
        for (int k = 0; k < 2; k++) {
            const size_t ne[] = {k ? 1 : (size_t)im->entry[i].n, 1};
            char *name = dw_format(err, "%s%s", im->entry[i].name, suffix[k]);
            if (name) dw_gguf_add_tensor(w, name, dw_qtype_get(DW_F32), 2, ne);
            free(name);
        }
    }
    dw_gguf_hash_writes(w);
    int rc = dw_gguf_begin(w, err);
    for (size_t i = 0; i < im->n_entry && !rc; i++) {
        const kit_imatrix_entry *e = &im->entry[i];
        const float count = (float)e->count;
        for (int j = 0; j < e->n && !rc; j++) {
            const float sum = (float)((double)e->mean[j] * (double)count);
            rc = dw_gguf_write(w, &sum, sizeof sum, err);
        }
        if (!rc) rc = dw_gguf_write(w, &count, sizeof count, err);
    }
    if (!rc) rc = dw_gguf_commit_read_back(w, NULL, NULL, err);
    dw_gguf_writer_free(w);
    return rc;
}

/* ---- statistics ------------------------------------------------------------------------------------------------ */

/* Which input each matrix reads. */
static const struct {
    const char *name;
    kit_stats_input input;
} readers[] = {{"attn_q.weight", KIT_STATS_ATTN_IN},       {"attn_k.weight", KIT_STATS_ATTN_IN},
               {"attn_v.weight", KIT_STATS_ATTN_IN},       {"attn_qkv.weight", KIT_STATS_ATTN_IN},
               {"attn_output.weight", KIT_STATS_ATTN_MIX}, {"ffn_gate.weight", KIT_STATS_FFN_IN},
               {"ffn_up.weight", KIT_STATS_FFN_IN},        {"ffn_down.weight", KIT_STATS_FFN_NEURON}};
enum { N_READERS = sizeof readers / sizeof *readers };

static bool has_sums(const double *sums, int n) {
    for (int j = 0; j < n; j++)
        if (sums[j] != 0) return true;
    return false;
}

/* Statistics that were made of an importance matrix have zeros where that had no entry. */
static int put_sums(kit_imatrix *im, const dw_gguf *g, const char *name, int n, const double *sums, uint64_t count,
                    dw_err *err) {
    const dw_tensor *t = dw_gguf_find_tensor(g, name);
    if (!t || !has_sums(sums, n)) return 0;
    if (t->ne[0] != (size_t)n) return dw_fail(err, "'%s' has %zu columns, the statistics have %d", name, t->ne[0], n);
    return kit_imatrix_put(im, name, n, sums, count, err);
}

int kit_imatrix_from_stats(kit_imatrix *im, const kit_stats *s, const dw_gguf *g, bool with_output, dw_err *err) {
    char name[64];
    *im = (kit_imatrix){.n_chunks = kit_stats_n_windows(s), .chunk_size = s->n_ctx};
    const uint64_t count = kit_stats_n_tokens(s);
    int rc = (im->dataset = dw_strdup(s->text[0].name, err)) ? 0 : -1;
    for (int l = 0; l < s->n_layer && !rc; l++) {
        const kit_stats_layer *w = &s->layer[l];
        rc = kit_stats_need_layer(s, l, err);
        for (int i = 0; i < N_READERS && !rc; i++) {
            const kit_stats_input k = readers[i].input;
            snprintf(name, sizeof name, "blk.%d.%s", l, readers[i].name);
            if (w->n_input[k]) rc = put_sums(im, g, name, w->n_input[k], w->input_square[k], count, err);
        }
    }
    if (!rc && with_output) rc = put_sums(im, g, "output.weight", s->n_embd, s->output_square, count, err);
    if (rc) kit_imatrix_release(im);
    return rc;
}

/* Sums with the means of an entry, for n_tokens tokens. */
static int take_sums(const kit_imatrix_entry *e, double *sums, int n, uint64_t n_tokens, dw_err *err) {
    if (e->n != n) return dw_fail(err, "'%s' has %d values, the model has %d columns", e->name, e->n, n);
    for (int j = 0; j < n; j++) sums[j] = (double)e->mean[j] * (double)n_tokens;
    return 0;
}

/* Layer and input of the matrix of an entry; false for a name that is not in `readers`. */
static bool find_input(const kit_imatrix_entry *e, int *l, kit_stats_input *input) {
    const char *rest;
    if ((*l = dw_layer_of(e->name, &rest)) < 0) return false;
    for (int i = 0; i < N_READERS; i++)
        if (!strcmp(readers[i].name, rest)) return *input = readers[i].input, true;
    return false;
}

int kit_imatrix_to_stats(const kit_imatrix *im, kit_stats *s, dw_err *err) {
    uint64_t n_tokens = 0;
    for (size_t i = 0; i < im->n_entry; i++) n_tokens = im->entry[i].count > n_tokens ? im->entry[i].count : n_tokens;
    if (n_tokens > UINT32_MAX)
        return dw_fail(err, "the imatrix counts %llu tokens; at most %u are read", (unsigned long long)n_tokens,
                       UINT32_MAX);
    s->text[0].n_tokens = n_tokens;
    s->text[0].n_windows = im->n_chunks;
    s->n_ctx = im->chunk_size <= 1 << 22 ? im->chunk_size : 0;
    for (size_t i = 0; i < im->n_entry; i++) {
        const kit_imatrix_entry *e = &im->entry[i];
        int l;
        kit_stats_input k;
        if (!strcmp(e->name, "output.weight")) {
            if (take_sums(e, s->text_output_square, s->n_embd, n_tokens, err)) return -1;
            continue;
        }
        if (!strcmp(e->name, "token_embd.weight")) continue; // statistics have none; some files count tokens there
        if (!find_input(e, &l, &k) || l >= s->n_layer || !s->layer[l].n_input[k])
            return dw_fail(err, "the imatrix belongs to another model: it has '%s', which this model lacks", e->name);
        if (take_sums(e, s->layer[l].text_square[k], s->layer[l].n_input[k], n_tokens, err)) return -1;
    }
    kit_stats_total(s);
    return 0;
}

/* ---- both forms ------------------------------------------------------------------------------------------------ */

static int parse(kit_imatrix *im, const void *data, size_t size, const char *name, dw_err *err) {
    int rc;
    if (size >= 4 && !memcmp(data, "GGUF", 4)) {
        dw_gguf *g = dw_gguf_open_memory(data, size, name, err);
        rc = g ? read_gguf(im, g, err) : -1;
        dw_gguf_close(g);
    } else {
        rc = read_old(im, (dw_cursor){.at = data, .left = size}, err);
    }
    for (size_t i = 0; i < im->n_entry && !rc; i++) rc = check_means(&im->entry[i], err);
    if (rc || check_names(im, err)) return -1;
    return 0;
}

int kit_imatrix_parse(kit_imatrix *im, const void *data, size_t size, const char *name, dw_err *err) {
    dw_err own = {0};
    *im = (kit_imatrix){0};
    if (!parse(im, data, size, name, &own)) return 0;
    kit_imatrix_release(im);
    return dw_fail(err, "imatrix '%s': %s", name, own.text);
}

int kit_imatrix_read(kit_imatrix *im, const char *path, dw_err *err) {
    dw_map map;
    *im = (kit_imatrix){0};
    if (dw_map_file(&map, path, err)) return -1;
    const int rc = kit_imatrix_parse(im, map.data, map.size, path, err);
    dw_unmap(&map);
    return rc;
}

int kit_imatrix_write(const kit_imatrix *im, const char *path, kit_imatrix_form form, dw_err *err) {
    if (!im->n_entry) return dw_fail(err, "the imatrix has no entries, so it is not written");
    for (size_t i = 0; i < im->n_entry; i++)
        if (check_means(&im->entry[i], err)) return -1;
    if (form == KIT_IMATRIX_GGUF) return write_gguf(im, path, err);
    dw_out *out = dw_out_open(path, err);
    const int rc = out && !write_old(im, out, err) && !dw_out_commit(out, err) ? 0 : -1;
    dw_out_free(out);
    return rc;
}
