/* calib.c - reads calibration texts and divides them into windows. */
#include "kit/calib.h"
#include "kit/talk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT_BYTES = 1 << 30 };

void calib_name(char name[CALIB_NAME], const char *path) {
    snprintf(name, CALIB_NAME, "%s", dw_base_name(path));
    name[dw_utf8_len(name, strlen(name))] = 0; // snprintf may have cut inside a character
}

/* Fills *f; *n: number of its tokens. */
static int read_file(calib_file *f, size_t *n, const dw_tokenizer *tok, const char *path, dw_err *err) {
    size_t size;
    char *bytes = dw_read_text(path, MAX_TEXT_BYTES, &size, err);
    if (!bytes) return -1;
    dw_sha256_hex(bytes, size, f->sha256);
    calib_name(f->name, path);
    const int rc = dw_tokenize(tok, bytes, size, DW_ADD_SPECIAL, &f->token, n, err);
    free(bytes);
    return rc;
}

static int refuse_twins(const calib_texts *t, const char *path, dw_err *err) {
    const calib_file *last = &t->file[t->n_file - 1];
    for (const calib_file *f = t->file; f < last; f++)
        if (!strcmp(f->sha256, last->sha256))
            return dw_fail(err, "'%s' and '%s' are the same text; give it once", f->name, path);
    return 0;
}

static int cut(calib_texts *t, size_t *cap, size_t n_token, const calib_request *wanted, const char *path,
               dw_err *err) {
    const calib_file *f = &t->file[t->n_file - 1];
    const size_t n_ctx = (size_t)t->n_ctx, n_all = n_token / n_ctx;
    opt_range windows = wanted->windows;
    if (!n_all)
        return dw_fail(err, "'%s' has %zu token%s, a window needs %d; give a longer text or a smaller -c", path,
                       n_token, plural((double)n_token), t->n_ctx);
    const bool whole = !windows.first;
    if (whole) windows = (opt_range){1, n_all > INT32_MAX / 2 ? INT32_MAX / 2 : (int)n_all};
    if ((size_t)windows.last > n_all)
        return dw_fail(err, "windows %d to %d are wanted, but '%s' has %zu", windows.first, windows.last, path, n_all);
    for (int first = windows.first, n; first <= windows.last; first += n) {
        const int left = windows.last - first + 1;
        n = wanted->per_text && wanted->per_text < left ? wanted->per_text : left;
        if (dw_grow(&t->text, cap, t->n_text + 1, sizeof *t->text, "texts", err)) return -1;
        t->text[t->n_text++] = (calib_text){.name = f->name,
                                            .sha256 = f->sha256,
                                            .first_window = first,
                                            .n_windows = n,
                                            .token = f->token + (size_t)(first - 1) * n_ctx};
    }
    if (whole && (size_t)windows.last == n_all) t->text[t->n_text - 1].n_tail = (int)(n_token % n_ctx);
    return 0;
}

static int read_files(calib_texts *t, const dw_tokenizer *tok, const calib_request *wanted, dw_err *err) {
    const dw_vocab *v = dw_tokenizer_vocab(tok);
    const opt_list *paths = wanted->paths;
    size_t n_token, cap = 0;
    if (v->add_bos) t->bos = v->bos;
    t->file = dw_alloc(paths->n, sizeof *t->file, "texts", err);
    for (size_t i = 0; t->file && i < paths->n; i++) {
        calib_file *f = &t->file[t->n_file++];
        if (read_file(f, &n_token, tok, paths->item[i], err) || refuse_twins(t, paths->item[i], err)) return -1;
        if (cut(t, &cap, n_token, wanted, paths->item[i], err)) return -1;
    }
    return t->file ? 0 : -1;
}

int calib_read(calib_texts *t, const dw_model *m, const calib_request *wanted, dw_err *err) {
    *t = (calib_texts){.n_ctx = wanted->n_ctx, .bos = -1};
    dw_tokenizer *tok = dw_tokenizer_open(dw_model_gguf(m), err);
    const int rc = tok ? read_files(t, tok, wanted, err) : -1;
    dw_tokenizer_free(tok);
    if (rc) calib_release(t);
    return rc;
}

int calib_n_windows(const calib_text *text) { return text->n_windows + (text->n_tail > 0); }

int calib_first_new(const calib_texts *t, const calib_text *text, int window, int skip) {
    const int n_old = window < text->n_windows ? 0 : t->n_ctx - text->n_tail;
    return n_old > skip ? n_old : skip;
}

uint64_t calib_n_counted(const calib_texts *t, const calib_text *text, int skip) {
    uint64_t n = 0;
    for (int w = 0; w < calib_n_windows(text); w++) n += (uint64_t)(t->n_ctx - calib_first_new(t, text, w, skip));
    return n;
}

void calib_window(const calib_texts *t, const calib_text *text, int window, int32_t *token) {
    size_t first = (size_t)window * (size_t)t->n_ctx;
    if (window == text->n_windows) first -= (size_t)(t->n_ctx - text->n_tail);
    memcpy(token, text->token + first, (size_t)t->n_ctx * sizeof *token);
    if (t->bos >= 0) token[0] = t->bos;
}

size_t calib_n_tokens(const calib_texts *t) {
    size_t n = 0;
    for (size_t i = 0; i < t->n_text; i++) n += (size_t)calib_n_windows(&t->text[i]);
    return n * (size_t)t->n_ctx;
}

void calib_release(calib_texts *t) {
    for (size_t i = 0; i < t->n_file; i++) free(t->file[i].token);
    free(t->file);
    free(t->text);
    *t = (calib_texts){0};
}
