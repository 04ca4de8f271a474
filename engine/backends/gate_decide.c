/* gate_decide.c - the decisions of gated layers, and what is counted. */
#include "backends/gate_decide.h"

#include <math.h>
#include <string.h>

dw_gate_sizes dw_gate_sizes_of(const dw_net *net) {
    dw_gate_sizes most = {0};
    for (int l = 0; l < net->hp.n_layer; l++) {
        const dw_layer *w = &net->layer[l];
        if (!w->sparse.down_t.name) continue;
        most.n_groups = dw_larger(most.n_groups, dw_n_groups(w));
        most.n_ff = dw_larger(most.n_ff, w->n_ff);
        if (w->sparse.pred_a.name) most.rank = dw_larger(most.rank, (int)w->sparse.pred_a.ne[1]);
    }
    return most;
}

/* ---- decisions ---------------------------------------------------------------------------------------------- */

/* Compared so that a NaN opens its group and reaches the result. */
static bool reaches(const float *gate, int n, float threshold) {
    int found = 0;
    for (int i = 0; i < n; i++) found |= !(fabsf(gate[i]) < threshold);
    return found;
}

void dw_open_groups(const float *gate, int n_ff, int group, float threshold, uint8_t *open) {
    for (int first = 0; first < n_ff; first += group)
        *open++ = reaches(gate + first, n_ff - first < group ? n_ff - first : group, threshold);
}

static bool is_drawn(uint64_t layer_seed, int pos, int group, float share) {
    const uint64_t hash = dw_splitmix(layer_seed ^ dw_splitmix((uint64_t)pos << 32 | (uint64_t)group));
    return (double)(hash >> 11) * 0x1p-53 < (double)share;
}

void dw_open_random(const void *ctx, int layer, int pos, int first, int end, uint8_t *open) {
    const dw_random_groups *groups = ctx;
    const uint64_t seed = dw_splitmix(groups->seed + (uint64_t)layer);
    for (int i = first; i < end; i++) open[i] = is_drawn(seed, pos, i, groups->share[layer]);
}

int dw_decide(const dw_pass *p, int l, int token, int first, int end, uint8_t *open) {
    const dw_layer *w = &p->net->layer[l];
    const int group = w->sparse.group, from = first * group, to = end * group < w->n_ff ? end * group : w->n_ff;
    if (p->experiment.decide) {
        p->experiment.decide(p->experiment.ctx, l, p->pos[token], first, end, open);
    } else if (!w->sparse.pred_a.name) {
        dw_open_groups(p->gate + (size_t)token * (size_t)w->n_ff + from, to - from, group, w->sparse.threshold,
                       open + first);
    }
    int n = 0;
    for (int i = first; i < end; i++) n += open[i];
    return n * group - (end * group > to && open[end - 1] ? end * group - to : 0);
}

void dw_count_dense(const dw_pass *p, int l, int n, bool few) {
    const dw_layer *w = &p->net->layer[l];
    dw_coverage *c = &p->coverage[l];
    c->n_tokens += (uint64_t)p->n_tokens;
    c->n_open += (uint64_t)n * (uint64_t)p->n_tokens;
    if (!few) return;
    c->n_few++;
    c->n_computed += (uint64_t)n;
    c->n_bytes += (uint64_t)(n - w->n_cold) * (dw_tensor_row_bytes(&w->gate) + dw_tensor_row_bytes(&w->up)) +
                  w->down.n_bytes + w->gate_cold.n_bytes + w->up_cold.n_bytes + w->down_cold.n_bytes;
}
