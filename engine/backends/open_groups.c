/* open_groups.c - the decisions of gated layers. */
#include "backends/open_groups.h"
#include "formats/sparse.h"

#include <math.h>
#include <string.h>

/* Without regard to lists of neurons. */
static bool is_chosen(const dw_pass *p, int l) {
    const dw_layer_gate *g = &p->net->layer[l].sparse;
    if (!g->down_t.name || p->select == DW_SELECT_DENSE) return false;
    if (p->select != DW_SELECT_AUTO) return true;
    return p->injected ? p->injected[l] <= dw_gate_break_even(g->group) : !g->dense;
}

bool dw_is_gated(const dw_pass *p, int l) { return is_chosen(p, l) && !p->selected; }

bool dw_needs_hidden(const dw_pass *p, int l) {
    const dw_layer_gate *g = &p->net->layer[l].sparse;
    return dw_is_gated(p, l) && g->pred_a.name && !g->pred_previous;
}

bool dw_gives_hidden(const dw_pass *p, int l) {
    if (l + 1 >= p->net->hp.n_layer || !is_chosen(p, l + 1)) return false;
    const dw_layer_gate *next = &p->net->layer[l + 1].sparse;
    return next->pred_a.name && next->pred_previous;
}

static int larger(int a, int b) { return a > b ? a : b; }

dw_gate_sizes dw_gate_sizes_of(const dw_net *net) {
    dw_gate_sizes most = {0};
    for (int l = 0; l < net->hp.n_layer; l++) {
        const dw_layer *w = &net->layer[l];
        if (!w->sparse.down_t.name) continue;
        most.n_groups = larger(most.n_groups, dw_n_groups(w));
        most.n_ff = larger(most.n_ff, w->n_ff);
        if (w->sparse.pred_a.name) most.rank = larger(most.rank, (int)w->sparse.pred_a.ne[1]);
        const dw_tensor *const matrix[] = {&w->gate, &w->up, &w->sparse.down_t};
        for (int i = 0; i < 3; i++) {
            const size_t bytes = dw_tensor_row_bytes(matrix[i]);
            if (bytes > most.row_bytes) most.row_bytes = bytes;
        }
    }
    return most;
}

/* ---- decisions ---------------------------------------------------------------------------------------------- */

/* Compared so that a NaN leaves its group open and shows. */
static bool reaches(const float *gate, int n, float threshold) {
    int found = 0;
    for (int i = 0; i < n; i++) found |= !(fabsf(gate[i]) < threshold);
    return found;
}

void dw_open_groups(const float *gate, int n_ff, int group, float threshold, uint8_t *open) {
    for (int first = 0; first < n_ff; first += group)
        *open++ = reaches(gate + first, n_ff - first < group ? n_ff - first : group, threshold);
}

/* splitmix64's mixing (Steele et al. 2014). */
static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

static bool is_drawn(uint64_t layer_seed, int pos, int group, float share) {
    const uint64_t hash = mix(layer_seed ^ mix((uint64_t)pos << 32 | (uint64_t)group));
    return (double)(hash >> 11) * 0x1p-53 < (double)share;
}

int dw_decide(const dw_pass *p, int l, int token, int first, int end, uint8_t *open) {
    const dw_layer *w = &p->net->layer[l];
    const int group = w->sparse.group, from = first * group, to = end * group < w->n_ff ? end * group : w->n_ff;
    if (p->injected) {
        const uint64_t seed = mix(p->injected_seed + (uint64_t)l);
        for (int i = first; i < end; i++) open[i] = is_drawn(seed, p->pos[token], i, p->injected[l]);
    } else if (!w->sparse.pred_a.name) {
        dw_open_groups(p->gate + (size_t)token * (size_t)w->n_ff + from, to - from, group, w->sparse.threshold, open + first);
    }
    int n = 0;
    for (int i = first; i < end; i++) n += open[i];
    return n * group - (end * group > to && open[end - 1] ? end * group - to : 0);
}

void dw_count_dense(const dw_pass *p, int l, bool few) {
    const dw_layer *w = &p->net->layer[l];
    const uint64_t n = (uint64_t)(p->selected ? p->n_selected : w->n_ff);
    dw_coverage *c = &p->coverage[l];
    c->n_tokens += (uint64_t)p->n_tokens;
    c->n_open += n * (uint64_t)p->n_tokens;
    if (!few) return;
    c->n_few++;
    c->n_computed += n;
    c->n_bytes += (n - (uint64_t)w->n_cold) * (dw_tensor_row_bytes(&w->gate) + dw_tensor_row_bytes(&w->up)) + w->down.n_bytes +
                  w->gate_cold.n_bytes + w->up_cold.n_bytes + w->down_cold.n_bytes;
}
