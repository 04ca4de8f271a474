/* sums.c - records of window sums: made, stored, found and compared. */
#include "measure/sums.h"
#include "measure/pack.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

enum { MAX_RAW = 256 << 20, MAX_FILE = 1 << 30, MAX_HOW = 4096, MAX_TEXTS = 1 << 16, MAX_COLUMNS = 64, LEVEL = 6 };

static const char magic[8] = "dw-sums1";
static const char *const names[MEASURE_N_SUMS] = {"tokens", "nll", "base_nll", "kl", "agree", "ids"};

/* ---- a record ---------------------------------------------------------------------------------------------- */

static int by_text(const void *pa, const void *pb) {
    const measure_sums_text *a = pa, *b = pb;
    const int c = memcmp(a->sha256, b->sha256, sizeof a->sha256);
    if (c) return c;
    return a->first != b->first ? (a->first > b->first) - (a->first < b->first)
                                : (a->n_windows > b->n_windows) - (a->n_windows < b->n_windows);
}

/* The order of texts does not depend on the command line: ascending by hash, then by window. */
static int find_place(const measure_sums_text *text, int n_texts, int i) {
    int place = 0;
    for (int k = 0; k < n_texts; k++) {
        const int c = by_text(&text[k], &text[i]);
        place += c < 0 || (c == 0 && k < i);
    }
    return place;
}

int measure_sums_make(measure_sums *s, const char *how, const measure_sums_text *text, int n_texts, int *place,
                      dw_err *err) {
    *s = (measure_sums){.how = dw_strdup(how, err), .n_texts = n_texts};
    s->text = dw_alloc((size_t)n_texts, sizeof *s->text, "texts", err);
    bool ok = s->how && s->text;
    for (int t = 0; t < n_texts && ok; t++) {
        place[t] = find_place(text, n_texts, t);
        s->text[place[t]] = text[t];
        s->n_windows += (size_t)text[t].n_windows;
    }
    for (int k = 0; k < MEASURE_N_SUMS && ok; k++)
        ok = (s->sum[k] = dw_alloc(s->n_windows, sizeof *s->sum[k], "windows", err)) != NULL;
    if (!ok) measure_sums_release(s);
    return ok ? 0 : -1;
}

void measure_sums_release(measure_sums *s) {
    free(s->how);
    free(s->text);
    for (int k = 0; k < MEASURE_N_SUMS; k++) free(s->sum[k]);
    *s = (measure_sums){0};
}

size_t measure_sums_at(const measure_sums *s, int text) {
    size_t at = 0;
    for (int t = 0; t < text; t++) at += (size_t)s->text[t].n_windows;
    return at;
}

double measure_ids_number(const uint8_t ids_sha256[32]) {
    double v = 0;
    for (int i = 0; i < 6; i++) v = v * 256 + ids_sha256[i];
    return v;
}

static void hash_texts(const measure_sums_text *sorted, int n_texts, char hex[65]) {
    dw_sha256 h;
    uint8_t digest[32], range[8];
    dw_sha256_begin(&h);
    for (int t = 0; t < n_texts; t++) {
        measure_put_u32(range, (uint32_t)sorted[t].first);
        measure_put_u32(range + 4, (uint32_t)sorted[t].n_windows);
        dw_sha256_add(&h, sorted[t].sha256, sizeof sorted[t].sha256);
        dw_sha256_add(&h, range, sizeof range);
    }
    dw_sha256_end(&h, digest);
    dw_hex(digest, sizeof digest, hex);
}

int measure_sums_set_hash(const measure_sums_text *text, int n_texts, char hex[65], dw_err *err) {
    measure_sums_text *sorted = dw_alloc((size_t)n_texts, sizeof *sorted, "texts", err);
    if (!sorted) return -1;
    if (n_texts) memcpy(sorted, text, (size_t)n_texts * sizeof *sorted);
    qsort(sorted, (size_t)n_texts, sizeof *sorted, by_text);
    hash_texts(sorted, n_texts, hex);
    free(sorted);
    return 0;
}

/* ---- a book ------------------------------------------------------------------------------------------------ */

typedef struct record {
    measure_sums sums;
    uint8_t *packed; // as it is in the file
    size_t raw, size;
} record;

typedef struct entry { // what a row may look for: a text of a record, or all of them
    const char *how;
    char hex[65];
    int first, last; // 0: all texts
    size_t record;
    int text;
} entry;

struct measure_book {
    record **record; // each in its own memory, so that views stay valid
    size_t n, cap;
    entry *entry; // sorted; made when it is needed
    size_t n_entries, cap_entries;
    bool is_indexed;
};

char *measure_book_path(const char *table, dw_err *err) { return dw_format(err, "%s.windows", table); }

measure_book *measure_book_new(dw_err *err) { return dw_alloc(1, sizeof(measure_book), "window sums", err); }

static void free_record(record *r) {
    if (!r) return;
    measure_sums_release(&r->sums);
    free(r->packed);
    free(r);
}

void measure_book_free(measure_book *b) {
    if (!b) return;
    for (size_t i = 0; i < b->n; i++) free_record(b->record[i]);
    free(b->record);
    free(b->entry);
    free(b);
}

size_t measure_book_count(const measure_book *b) { return b->n; }

/* The book owns the record also when this fails. */
static int take_record(measure_book *b, record *r, dw_err *err) {
    if (dw_grow(&b->record, &b->cap, b->n + 1, sizeof *b->record, "window sums", err)) {
        free_record(r);
        return -1;
    }
    b->record[b->n++] = r;
    b->is_indexed = false;
    return 0;
}

/* ---- reading ----------------------------------------------------------------------------------------------- */

static int fail_damaged(dw_err *err) { return dw_fail(err, "is damaged: a record of window sums cannot be read"); }

static int read_texts(measure_sums *s, dw_cursor *c, dw_err *err) {
    const uint32_t n = dw_cursor_u32(c);
    if (c->failed || !n || n > MAX_TEXTS || n > c->left / 40) return fail_damaged(err);
    s->text = dw_alloc(n, sizeof *s->text, "texts", err);
    if (!s->text) return -1;
    s->n_texts = (int)n;
    for (uint32_t t = 0; t < n; t++) {
        const uint8_t *hash = dw_cursor_take(c, 32);
        const uint32_t first = dw_cursor_u32(c), windows = dw_cursor_u32(c);
        if (!hash || c->failed || !first || first > INT32_MAX / 2 || !windows || windows > INT32_MAX / 2)
            return fail_damaged(err);
        memcpy(s->text[t].sha256, hash, 32);
        s->text[t].first = (int)first;
        s->text[t].n_windows = (int)windows;
        s->n_windows += windows;
    }
    return s->n_windows <= c->left / 8 ? 0 : fail_damaged(err);
}

static int read_column(measure_sums *s, dw_cursor *c, dw_err *err) {
    char *name = measure_read_text(c, 64, err);
    int k = 0;
    if (!name) return fail_damaged(err);
    while (k < MEASURE_N_SUMS && strcmp(name, names[k])) k++;
    free(name);
    if (c->failed || s->n_windows > c->left / 8) return fail_damaged(err);
    if (k == MEASURE_N_SUMS || s->sum[k]) {
        dw_cursor_take(c, 8 * s->n_windows);
        return 0;
    }
    s->sum[k] = dw_alloc(s->n_windows, sizeof *s->sum[k], "windows", err);
    if (!s->sum[k]) return -1;
    for (size_t w = 0; w < s->n_windows; w++) {
        const double v = s->sum[k][w] = measure_read_f64(c);
        if (!isfinite(v) || (k == MEASURE_TOKENS && !(v >= 1))) return fail_damaged(err);
    }
    return 0;
}

static int read_sums(measure_sums *s, dw_cursor c, dw_err *err) {
    s->how = measure_read_text(&c, MAX_HOW, err);
    if (!s->how) return fail_damaged(err);
    if (read_texts(s, &c, err)) return -1;
    const uint32_t n = dw_cursor_u32(&c);
    if (c.failed || n > MAX_COLUMNS) return fail_damaged(err);
    for (uint32_t k = 0; k < n; k++)
        if (read_column(s, &c, err)) return -1;
    return c.left || c.failed || !s->sum[MEASURE_TOKENS] ? fail_damaged(err) : 0;
}

static int unpack_record(record *r, const uint8_t *packed, dw_err *err) {
    uint8_t *raw = dw_alloc(r->raw + 1, 1, "window sums", err);
    r->packed = dw_alloc(r->size + 1, 1, "window sums", err);
    int rc = raw && r->packed ? 0 : -1;
    if (!rc && measure_unpack(&(dw_cursor){.at = packed, .left = r->size}, r->size, raw, r->raw))
        rc = fail_damaged(err);
    if (!rc) {
        memcpy(r->packed, packed, r->size);
        rc = read_sums(&r->sums, (dw_cursor){.at = raw, .left = r->raw}, err);
    }
    free(raw);
    return rc;
}

static int read_record(measure_book *b, dw_cursor *c, dw_err *err) {
    const size_t raw = dw_cursor_u32(c), size = dw_cursor_u32(c);
    const uint8_t *packed = c->failed ? NULL : dw_cursor_take(c, size);
    if (!packed || raw > MAX_RAW || raw / 4096 > size) return fail_damaged(err);
    record *r = dw_alloc(1, sizeof *r, "window sums", err);
    if (!r) return -1;
    r->raw = raw;
    r->size = size;
    if (!unpack_record(r, packed, err)) return take_record(b, r, err);
    free_record(r);
    return -1;
}

int measure_book_read(measure_book *b, const char *path, dw_err *err) {
    size_t size;
    dw_err own = {0};
    char *data = dw_read_file(path, MAX_FILE, &size, err);
    if (!data) return -1;
    dw_cursor c = {.at = (const uint8_t *)data, .left = size};
    const uint8_t *begin = dw_cursor_take(&c, sizeof magic);
    int rc = begin && !memcmp(begin, magic, sizeof magic) ? 0 : dw_fail(&own, "holds no window sums of deadwood");
    while (!rc && c.left) rc = read_record(b, &c, &own);
    free(data);
    return rc ? dw_fail(err, "'%s' %s", path, own.text) : 0;
}

/* ---- writing ----------------------------------------------------------------------------------------------- */

static void put_sums(measure_bytes *b, const measure_sums *s) {
    uint32_t n = 0;
    measure_add_text(b, s->how);
    measure_add_u32(b, (uint32_t)s->n_texts);
    for (int t = 0; t < s->n_texts; t++) {
        measure_add(b, s->text[t].sha256, 32);
        measure_add_u32(b, (uint32_t)s->text[t].first);
        measure_add_u32(b, (uint32_t)s->text[t].n_windows);
    }
    for (int k = 0; k < MEASURE_N_SUMS; k++) n += s->sum[k] != NULL;
    measure_add_u32(b, n);
    for (int k = 0; k < MEASURE_N_SUMS; k++) {
        if (!s->sum[k]) continue;
        measure_add_text(b, names[k]);
        for (size_t w = 0; w < s->n_windows; w++) measure_add_f64(b, s->sum[k][w]);
    }
}

static int pack(record *r, const measure_bytes *raw, dw_err *err) {
    const size_t bound = ZSTD_compressBound(raw->size);
    r->packed = dw_alloc(bound, 1, "window sums", err);
    if (!r->packed) return -1;
    r->size = measure_pack(r->packed, bound, raw->data, raw->size, LEVEL);
    r->raw = raw->size;
    return r->size ? 0 : dw_fail(err, "cannot compress window sums");
}

int measure_book_add(measure_book *b, const measure_sums *s, dw_err *err) {
    record *r = dw_alloc(1, sizeof *r, "window sums", err);
    measure_bytes raw = {.err = err};
    put_sums(&raw, s);
    int rc = r && !raw.failed ? 0 : -1;
    if (!rc && raw.size > MAX_RAW) rc = dw_fail(err, "too many windows for one record of sums");
    if (!rc) rc = pack(r, &raw, err);
    if (!rc) rc = read_sums(&r->sums, (dw_cursor){.at = raw.data, .left = raw.size}, err);
    free(raw.data);
    if (!rc) return take_record(b, r, err);
    free_record(r);
    return -1;
}

/* ---- finding ----------------------------------------------------------------------------------------------- */

static int same_place(const entry *a, const entry *b) {
    int c = strcmp(a->hex, b->hex);
    if (!c) c = strcmp(a->how, b->how);
    if (!c) c = (a->first > b->first) - (a->first < b->first);
    return c ? c : (a->last > b->last) - (a->last < b->last);
}

static int by_place(const void *pa, const void *pb) {
    const entry *a = pa, *b = pb;
    const int c = same_place(a, b);
    return c ? c : (a->record > b->record) - (a->record < b->record);
}

static int add_entry(measure_book *b, size_t i, int text, dw_err *err) {
    const measure_sums *s = &b->record[i]->sums;
    if (dw_grow(&b->entry, &b->cap_entries, b->n_entries + 1, sizeof *b->entry, "window sums", err)) return -1;
    entry *e = &b->entry[b->n_entries++];
    *e = (entry){.how = s->how, .record = i, .text = text};
    if (text < 0) {
        hash_texts(s->text, s->n_texts, e->hex);
        return 0;
    }
    dw_hex(s->text[text].sha256, 32, e->hex);
    e->first = s->text[text].first;
    e->last = e->first + s->text[text].n_windows - 1;
    return 0;
}

static int make_index(measure_book *b, dw_err *err) {
    if (b->is_indexed) return 0;
    b->n_entries = 0;
    for (size_t i = 0; i < b->n; i++)
        for (int t = -1; t < b->record[i]->sums.n_texts; t++)
            if (add_entry(b, i, t, err)) return -1;
    if (b->n_entries) qsort(b->entry, b->n_entries, sizeof *b->entry, by_place);
    b->is_indexed = true;
    return 0;
}

/* The last entry at the place of `wanted`; NULL: none. */
static const entry *find_entry(const measure_book *b, const entry *wanted) {
    size_t low = 0, high = b->n_entries; // the first entry after the place
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (same_place(&b->entry[middle], wanted) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low && !same_place(&b->entry[low - 1], wanted) ? &b->entry[low - 1] : NULL;
}

measure_view measure_book_at(const measure_book *b, size_t i) {
    const measure_sums *s = &b->record[i]->sums;
    return (measure_view){.of = s, .n_texts = s->n_texts};
}

int measure_book_find(measure_book *b, const char *how, const char text_sha256[65], int first, int last,
                      measure_view *v, dw_err *err) {
    entry wanted = {.how = how, .first = first, .last = last};
    if (make_index(b, err)) return -1;
    if (strlen(text_sha256) != 64) return 0;
    memcpy(wanted.hex, text_sha256, 65);
    const entry *e = find_entry(b, &wanted);
    if (!e) return 0;
    const measure_sums *s = &b->record[e->record]->sums;
    *v = (measure_view){.of = s, .text = e->text < 0 ? 0 : e->text, .n_texts = e->text < 0 ? s->n_texts : 1};
    v->window = measure_sums_at(s, v->text);
    return 1;
}

static int write_record(dw_out *out, const record *r, dw_err *err) {
    uint8_t sizes[8];
    measure_put_u32(sizes, (uint32_t)r->raw);
    measure_put_u32(sizes + 4, (uint32_t)r->size);
    if (dw_out_write(out, sizes, sizeof sizes, err) || dw_out_write(out, r->packed, r->size, err)) return -1;
    return 0;
}

/* In the order of the entries, so that the same records give the same file whatever came first. */
int measure_book_write(measure_book *b, const char *path, dw_err *err) {
    if (make_index(b, err)) return -1;
    dw_out *out = dw_out_open_kept(path, err);
    int rc = out ? dw_out_write(out, magic, sizeof magic, err) : -1;
    for (size_t i = 0; i < b->n_entries && !rc; i++) {
        const entry *e = &b->entry[i];
        const bool replaced = i + 1 < b->n_entries && !same_place(e, e + 1);
        if (e->text < 0 && !replaced) rc = write_record(out, b->record[e->record], err);
    }
    if (!rc) rc = dw_out_commit(out, err);
    dw_out_free(out);
    return rc;
}

/* ---- comparing --------------------------------------------------------------------------------------------- */

/* The mean of a - b; b NULL: of a. */
static measure_mean mean_of(const measure_view *v, const double *a, const double *b) {
    const double *n = v->of->sum[MEASURE_TOKENS];
    measure_texts all = {0};
    size_t at = v->window;
    if (!a) return (measure_mean){NAN, NAN, NAN};
    for (int t = v->text; t < v->text + v->n_texts; t++) {
        const size_t n_windows = (size_t)v->of->text[t].n_windows;
        const measure_mean m = b ? measure_mean_of_pairs(a + at, b + at, n + at, n_windows)
                                 : measure_mean_of_windows(a + at, n + at, n_windows);
        measure_texts_add(&all, &m);
        at += n_windows;
    }
    return measure_texts_mean(&all);
}

measure_mean measure_view_mean(const measure_view *v, measure_sum what) { return mean_of(v, v->of->sum[what], NULL); }

measure_mean measure_view_ratio(const measure_view *v) {
    const double *base = v->of->sum[MEASURE_BASE_NLL];
    return mean_of(v, base ? v->of->sum[MEASURE_NLL] : NULL, base);
}

/* Whether n windows have the same numbers in both, where both know them. */
static bool same_numbers(const measure_view *a, const measure_view *b, measure_sum what, size_t at, size_t n) {
    const double *x = a->of->sum[what], *y = b->of->sum[what];
    return !x || !y || !memcmp(x + a->window + at, y + b->window + at, n * sizeof *x);
}

/* Whether text i of both views has the same tokens in the same windows. */
static bool same_text(const measure_view *a, const measure_view *b, int i, size_t at) {
    const measure_sums_text *x = &a->of->text[a->text + i], *y = &b->of->text[b->text + i];
    const size_t n = (size_t)x->n_windows;
    return !by_text(x, y) && same_numbers(a, b, MEASURE_TOKENS, at, n) && same_numbers(a, b, MEASURE_IDS, at, n);
}

measure_mean measure_view_compare(const measure_view *a, const measure_view *b, measure_sum what) {
    const measure_mean unknown = {NAN, NAN, NAN};
    const double *x = a->of->sum[what], *y = b->of->sum[what], *n = a->of->sum[MEASURE_TOKENS];
    measure_texts all = {0};
    size_t at = 0;
    if (!x || !y || a->n_texts != b->n_texts) return unknown;
    for (int i = 0; i < a->n_texts; i++) {
        if (!same_text(a, b, i, at)) return unknown;
        const size_t n_windows = (size_t)a->of->text[a->text + i].n_windows;
        const measure_mean m = measure_mean_of_pairs(x + a->window + at, y + b->window + at, n + a->window + at,
                                                     n_windows);
        measure_texts_add(&all, &m);
        at += n_windows;
    }
    return measure_texts_mean(&all);
}
