/* sizes.c - tensors counted by type (sizes.h). */
#include "kit/sizes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kit_size *row_of(kit_sizes *s, const char *type, const char *kind) {
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->row[i].type, type) && !strcmp(s->row[i].kind, kind)) return &s->row[i];
    if (s->n == KIT_SIZES_MAX) return &s->row[s->n - 1];
    kit_size *row = &s->row[s->n++];
    *row = (kit_size){.kind = kind};
    snprintf(row->type, sizeof row->type, "%s", type);
    return row;
}

void kit_sizes_add(kit_sizes *s, const char *type, const char *kind, double n_values, double n_bytes) {
    kit_size *row = row_of(s, type, kind);
    row->n_tensors++;
    row->n_values += n_values;
    row->n_bytes += n_bytes;
}

void kit_sizes_add_tensor(kit_sizes *s, const dw_tensor *t) {
    const bool is_matrix = t->ne[1] * t->ne[2] * t->ne[3] > 1;
    kit_sizes_add(s, t->type->name, is_matrix ? KIT_SIZES_MATRICES : KIT_SIZES_VECTORS,
                  (double)dw_tensor_n_values(t), (double)t->n_bytes);
}

static kit_size total(const kit_sizes *s) {
    kit_size all = {.type = "*", .kind = "total"};
    for (int i = 0; i < s->n; i++) {
        all.n_tensors += s->row[i].n_tensors;
        all.n_values += s->row[i].n_values;
        all.n_bytes += s->row[i].n_bytes;
    }
    return all;
}

static int add_line(char **text, const kit_size *r, dw_err *err) {
    return dw_append(text, err, "%s\t%s\t%zu\t%.0f\t%.0f\t%.4g\n", r->type, r->kind, r->n_tensors, r->n_values,
                     r->n_bytes, r->n_values > 0 ? 8 * r->n_bytes / r->n_values : 0);
}

char *kit_sizes_table(const kit_sizes *s, dw_err *err) {
    char *text = NULL;
    const kit_size all = total(s);
    int rc = dw_append(&text, err, "type\tkind\ttensors\tvalues\tbytes\tbits_per_value\n");
    for (int i = 0; i < s->n && !rc; i++) rc = add_line(&text, &s->row[i], err);
    if (!rc) rc = add_line(&text, &all, err);
    if (!rc) return text;
    free(text);
    return NULL;
}

static bool is_fallback(const kit_size *r) { return !strcmp(r->kind, KIT_SIZES_FALLBACK); }

/* Types as wanted before fallbacks, then by number, then in the order of the table. */
static bool comes_before(const kit_size *a, const kit_size *b) {
    if (is_fallback(a) != is_fallback(b)) return is_fallback(b);
    return a->n_tensors != b->n_tensors ? a->n_tensors > b->n_tensors : a < b;
}

char *kit_sizes_types(const kit_sizes *s, dw_err *err) {
    char *text = NULL;
    bool is_listed[KIT_SIZES_MAX] = {false};
    for (;;) {
        const kit_size *next = NULL;
        for (int i = 0; i < s->n; i++) {
            const kit_size *r = &s->row[i];
            const bool is_wanted = !is_listed[i] && (!strcmp(r->kind, KIT_SIZES_MATRICES) || is_fallback(r));
            if (is_wanted && (!next || comes_before(r, next))) next = r;
        }
        if (!next) break;
        is_listed[next - s->row] = true;
        if (!dw_append(&text, err, "%s%s %zu%s", text ? ", " : "", next->type, next->n_tensors,
                       is_fallback(next) ? " (fallback)" : ""))
            continue;
        free(text);
        return NULL;
    }
    return text ? text : dw_strdup("", err);
}
