/* safetensors_write.c - writes one safetensors file: data in the order of add, without holes.
 *
 * Spaces pad the header to a multiple of 8 bytes, so that the data begin aligned. */
#include "kit/safetensors.h"
#include "formats/internal.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

struct kit_st_writer {
    dw_out *out;
    json_t *header;
    size_t n_bytes, n_written; // bytes of data: declared, written
    bool begun;
    dw_err err;                // failure of add; begin reports it
};

kit_st_writer *kit_st_writer_new(const char *path, dw_err *err) {
    kit_st_writer *w = dw_alloc(1, sizeof *w, "a safetensors writer", err);
    if (!w) return NULL;
    w->header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    if (w->header) w->out = dw_out_open(path, err);
    else dw_fail(err, "out of memory: a safetensors header");
    if (w->out) return w;
    kit_st_writer_free(w);
    return NULL;
}

void kit_st_writer_free(kit_st_writer *w) {
    if (!w) return;
    json_decref(w->header);
    dw_out_free(w->out);
    free(w);
}

void kit_st_set_metadata(kit_st_writer *w, const char *key, const char *value) {
    if (json_object_set_new(json_object_get(w->header, "__metadata__"), key, json_string(value)))
        dw_fail(&w->err, "out of memory: a safetensors header");
}

void kit_st_add_tensor(kit_st_writer *w, const char *name, kit_st_dtype dtype, int n_dims, const size_t *shape) {
    json_t *dims = json_array();
    size_t n = kit_st_dtypes[dtype].n_bits / 8, end;
    bool fits = true;
    for (int d = 0; d < n_dims; d++) {
        fits &= dw_mul(n, shape[d], &n);
        if (json_array_append_new(dims, json_integer((json_int_t)shape[d])))
            dw_fail(&w->err, "out of memory: a safetensors header");
    }
    if (!dw_add(w->n_bytes, n, &end) || !fits) {
        dw_fail(&w->err, "tensor '%.200s' is too large", name);
        end = w->n_bytes;
    }
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", kit_st_dtypes[dtype].name, "shape", dims, "data_offsets",
                              (json_int_t)w->n_bytes, (json_int_t)end);
    if (json_object_get(w->header, name)) dw_fail(&w->err, "tensor '%.200s' is added twice", name);
    if (!entry || json_object_set_new(w->header, name, entry)) dw_fail(&w->err, "out of memory: a safetensors header");
    w->n_bytes = end;
}

int kit_st_begin(kit_st_writer *w, dw_err *err) {
    if (w->err.text[0]) return dw_fail(err, "%s", w->err.text);
    const size_t n = json_dumpb(w->header, NULL, 0, JSON_COMPACT), padded = (n + 7) / 8 * 8;
    char *text = dw_alloc(8 + padded, 1, "a safetensors header", err);
    if (!text) return -1;
    const uint64_t length = padded;
    memcpy(text, &length, sizeof length);
    memset(text + 8, ' ', padded);
    const bool ok = n && json_dumpb(w->header, text + 8, n, JSON_COMPACT) == n;
    const int rc = ok ? dw_out_write(w->out, text, 8 + padded, err)
                      : dw_fail(err, "out of memory: a safetensors header");
    free(text);
    w->begun = !rc;
    return rc;
}

int kit_st_write(kit_st_writer *w, const void *data, size_t n_bytes, dw_err *err) {
    if (!w->begun || n_bytes > w->n_bytes - w->n_written)
        return dw_fail(err, "more data are written than the safetensors header declares");
    w->n_written += n_bytes;
    return dw_out_write(w->out, data, n_bytes, err);
}

int kit_st_commit(kit_st_writer *w, dw_err *err) {
    if (!w->begun || w->n_written < w->n_bytes)
        return dw_fail(err, "only %zu of %zu bytes of data were written to the safetensors file", w->n_written,
                       w->n_bytes);
    return dw_out_commit(w->out, err);
}
