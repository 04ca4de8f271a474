/* fuzz_plan.c - any bytes as a plan: refused, or written so that it is read as the same plan. */
#include "kit/plan.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_layers(const kit_plan *a, const kit_plan *b) {
    if (a->n_layer != b->n_layer) abort();
    for (int l = 0; l < a->n_layer; l++) {
        const kit_plan_layer *x = &a->layer[l], *y = &b->layer[l];
        size_t n_keep = 0;
        if (x->drop != y->drop || x->n_keep != y->n_keep || x->n_span != y->n_span || (!x->drop && !x->n_keep)) abort();
        for (size_t i = 0; i < x->n_span; i++) {
            if (x->span[i].first != y->span[i].first || x->span[i].last != y->span[i].last) abort();
            n_keep += (size_t)(x->span[i].last - x->span[i].first) + 1;
        }
        if (n_keep != (size_t)x->n_keep) abort();
        if (x->n_kv != y->n_kv || x->n_kv_span != y->n_kv_span || (x->drop && x->n_kv)) abort();
        for (size_t i = 0; i < x->n_kv_span; i++)
            if (x->kv[i].first != y->kv[i].first || x->kv[i].last != y->kv[i].last) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char head[] = "# deadwood plan 1\nlayer width keep\n"; // else few inputs come beyond the first line
    static const int n_ff[] = {64, 32, 64, 1000};
    dw_err err = {0};
    const bool with_head = size && data[0] == '+';
    const size_t n_head = with_head ? strlen(head) : 0, skip = with_head;
    char *text = malloc(n_head + size - skip + 1);
    memcpy(text, head, n_head);
    if (size) memcpy(text + n_head, data + skip, size - skip);
    kit_plan p, again;
    const bool checked = size && data[size - 1] & 1;
    const int rc = kit_plan_parse(&p, text, n_head + size - skip, "fuzz", checked ? n_ff : NULL, 4, &err);
    free(text);
    if ((rc != 0) != (err.text[0] != 0)) abort(); // a sentence exactly when it failed
    if (rc) return 0;
    size_t n;
    char *written = kit_plan_format(&p, &n, &err);
    if (!written || kit_plan_parse(&again, written, n, "fuzz", checked ? n_ff : NULL, 4, &err)) abort();
    check_layers(&p, &again);
    kit_plan_release(&again);
    kit_plan_release(&p);
    free(written);
    return 0;
}
