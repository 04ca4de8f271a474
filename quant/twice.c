/* twice.c - whether matrices that are in 16 or 32 bits now were in blocks before: what the lineage says (quant.h). */
#include "kit/lineage.h"
#include "quant/quant.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static bool has_blocks(const char *type) {
    const quant_type *t = quant_type_find(type);
    return t && t->stored->block > 1;
}

/* Matrices in blocks, of "Q4_K 140, BF16 20, Q8_0 12 (fallback)". */
static size_t n_in_blocks(const char *types) {
    size_t n, sum = 0;
    char type[24];
    for (const char *at = types; at; at = (at = strchr(at, ',')) ? at + 1 : NULL)
        if (sscanf(at, "%23s %zu", type, &n) == 2 && has_blocks(type)) sum += n;
    return sum;
}

/* The type that convert gave to all matrices; NULL: the source's. */
static const char *converted_type(const json_t *args) {
    for (size_t i = 0; i + 1 < json_array_size(args); i++) {
        const char *option = json_string_value(json_array_get(args, i));
        if (option && !strcmp(option, "--type")) return json_string_value(json_array_get(args, i + 1));
    }
    return NULL;
}

typedef struct history {
    size_t n_matrix, n_now; // of the file; in blocks now
    double n_before;        // most that were in blocks after a step, of layers that are still there
    quant_rounding *last;
} history;

/* A cut that drops layers drops their matrices. */
static void drop_layers(history *h, const json_t *step) {
    const char *dropped = json_string_value(json_object_get(json_object_get(step, "facts"), "layers_dropped"));
    double part, whole;
    if (dropped && sscanf(dropped, "%lf of %lf", &part, &whole) == 2 && part < whole) h->n_before *= 1 - part / whole;
}

static void look(void *history_pointer, const json_t *step) {
    history *h = history_pointer;
    const char *tool_name = json_string_value(json_object_get(step, "tool")),
               *types = json_string_value(json_object_get(json_object_get(step, "facts"), "types"));
    size_t n = types ? n_in_blocks(types) : 0;
    if (tool_name && !strcmp(tool_name, "convert")) {
        types = converted_type(json_object_get(step, "args"));
        n = types && has_blocks(types) ? h->n_matrix : 0;
    }
    drop_layers(h, step);
    if ((double)n < h->n_before || !n || !tool_name) return;
    h->n_before = (double)n;
    snprintf(h->last->tool, sizeof h->last->tool, "%s", tool_name);
    snprintf(h->last->types, sizeof h->last->types, "%s", types);
}

int quant_rounded_before(const dw_gguf *g, quant_rounding *last, dw_err *err) {
    history h = {.last = last};
    *last = (quant_rounding){0};
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        h.n_matrix += kit_is_matrix(t);
        h.n_now += kit_is_matrix(t) && t->type->block > 1;
    }
    if (lineage_steps(g, look, &h, err)) return -1;
    if (h.n_before <= (double)h.n_now) *last = (quant_rounding){0};
    return 0;
}
