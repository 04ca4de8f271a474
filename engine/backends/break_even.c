/* break_even.c - from which activity on it is faster to compute all neurons of a gated layer than to skip closed
 * ones.
 *
 * The break-even depends on the machine, the types of the matrices, the size of a group, and whether a cache holds
 * the layer.  So it is measured where the model runs, with the layer's own weights, and not stored in a file.  One
 * token's FFN is timed by both operators (dw_ffn_gated, dw_ffn_masked) with half of the groups open and with all of
 * them.  Both times are taken as linear in the share of open groups; the break-even is where the lines cross.  Both
 * compute the same neurons and add them in different orders, so the choice affects time and last digits. */
#include "backends/gate_decide.h"

enum { REPEATS = 3 };

typedef struct trial {
    dw_pass *p;
    const dw_ffn_steps *op;
    int l;
} trial;

static void run_ffn(void *arg, int ith, int n_threads) {
    const trial *t = arg;
    (void)n_threads;
    t->op->neurons(t->p, t->l, ith);
    dw_pool_barrier(t->p->pool);
    t->op->down(t->p, t->l, ith);
}

static void open_half(const void *ctx, int layer, int pos, int first, int end, uint8_t *open) {
    (void)ctx, (void)layer, (void)pos;
    for (int i = first; i < end; i++) open[i] = dw_splitmix((uint64_t)i) & 1;
}

static void open_all(const void *ctx, int layer, int pos, int first, int end, uint8_t *open) {
    (void)ctx, (void)layer, (void)pos;
    for (int i = first; i < end; i++) open[i] = 1;
}

/* The least seconds of a few runs. */
static double time_ffn(trial t) {
    double least = 1e30;
    for (int i = 0; i < REPEATS; i++) {
        const double start = dw_now();
        dw_pool_run(t.p->pool, run_ffn, &t);
        const double seconds = dw_now() - start;
        if (seconds < least) least = seconds;
    }
    return least;
}

float dw_measure_break_even(dw_pass *p, int l, float *x, dw_coverage *counts) {
    const dw_pass kept = *p;
    const int32_t zero = 0;
    trial walk = {p, &dw_ffn_gated.by[DW_BY_FEW], l}, whole = {p, &dw_ffn_masked.by[DW_BY_FEW], l};
    for (int i = 0; i < p->net->hp.n_embd; i++) x[i] = (float)(i % 7 - 3);
    p->n_tokens = 1;
    p->way = DW_WAY_FEW;
    p->token = p->seq = p->pos = &zero;
    p->x = x;
    p->coverage = counts;
    p->keep_h = false;
    p->gate_every = 0;
    p->experiment = (dw_ffn_experiment){.decide = open_all};
    dw_pool_run(p->pool, run_ffn, &walk); // loads the pages
    const double more_at_one = time_ffn(walk) - time_ffn(whole); // seconds that skipping costs
    p->experiment.decide = open_half;
    const double more_at_half = time_ffn(walk) - time_ffn(whole), slope = 2 * (more_at_one - more_at_half);
    *p = kept;
    if (more_at_one <= 0) return 1;
    if (slope <= 0) return 0;
    const double even = 1 - more_at_one / slope;
    return even < 0 ? 0 : (float)even;
}
