/* merge.c - merge neighbours, best pair first.
 *
 * A heap holds every pair of neighbours that can merge, ordered by key and then by position.  A word of n symbols
 * therefore costs O(n log n).  A pair in the heap is out of date when one of its symbols was merged since.  Its length
 * shows this: symbols only grow, so two symbols have the recorded total length only while both are unchanged. */
#include "text/internal.h"

static void sift_up(dw_candidate *heap, size_t i) {
    const dw_candidate c = heap[i];
    for (; i && heap[(i - 1) / 2].order > c.order; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = c;
}

static dw_candidate pop(dw_candidate *heap, size_t *n) {
    const dw_candidate first = heap[0], last = heap[--*n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < *n; i = child) {
        if (child + 1 < *n && heap[child + 1].order < heap[child].order) child++;
        if (heap[child].order >= last.order) break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return first;
}

static void push_pair(dw_text_work *w, dw_pair_fn *pair, const void *model, const char *word, uint32_t left) {
    if (left == DW_NO_SYMBOL || w->symbol[left].next == DW_NO_SYMBOL) return;
    const dw_symbol *l = &w->symbol[left], *r = &w->symbol[l->next];
    uint32_t key;
    int32_t id;
    if (!pair(model, word, l, r, &key, &id)) return;
    w->heap[w->n_heap] = (dw_candidate){(uint64_t)key << 32 | left, l->len + r->len, id};
    sift_up(w->heap, w->n_heap++);
}

int dw_merge(dw_text_work *w, dw_pair_fn *pair, const void *model, const char *word, dw_err *err) {
    dw_symbol *s = w->symbol;
    const size_t n = w->n_symbol;
    if (n < 2) return 0;
    // n - 1 pairs at first; each of at most n - 1 merges removes one pair and adds two
    if (dw_grow(&w->heap, &w->cap_heap, 2 * n, sizeof *w->heap, "pairs to merge", err)) return -1;
    for (size_t i = 0; i < n; i++) {
        s[i].prev = i ? (uint32_t)i - 1 : DW_NO_SYMBOL;
        s[i].next = i + 1 < n ? (uint32_t)i + 1 : DW_NO_SYMBOL;
    }
    w->n_heap = 0;
    for (size_t i = 0; i + 1 < n; i++) push_pair(w, pair, model, word, (uint32_t)i);
    while (w->n_heap) {
        const dw_candidate c = pop(w->heap, &w->n_heap);
        dw_symbol *l = &s[(uint32_t)c.order];
        if (!l->len || l->next == DW_NO_SYMBOL || l->len + s[l->next].len != c.len) continue;
        dw_symbol *r = &s[l->next];
        l->len = c.len;
        l->id = c.id;
        l->next = r->next;
        r->len = 0;
        if (l->next != DW_NO_SYMBOL) s[l->next].prev = (uint32_t)c.order;
        push_pair(w, pair, model, word, l->prev);
        push_pair(w, pair, model, word, (uint32_t)c.order);
    }
    return 0;
}
