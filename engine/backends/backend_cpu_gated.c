/* backend_cpu_gated.c - gated layers for a few tokens.
 *
 *   fused     each thread walks over its neurons: it computes the gates of a piece and tests them.  When a block of
 *             open neurons is complete, it computes their ups and adds their down rows to its sum.  With a predictor
 *             the scores come before the walk, and only the gates of open neurons are computed.  The only barrier is
 *             after a predictor's hidden values.  Rows of closed neurons are not read.
 *   masked    used where skipping rows does not pay (break_even.c): the same walk, but gates and ups of all neurons are
 *             computed, as in a dense layer, and closed neurons are set to zero.  The results have the same bits.
 *   gathered  what array frameworks do, for comparison: all gates, barrier, one thread lists the open neurons, barrier,
 *             their rows are copied together, barrier, products over the copy.
 *
 * With several tokens a neuron is computed if it is open for any of them; for the others it adds zero. */
#include "backends/backend_cpu.h"
#include "backends/kernels_axpy.h"

#include <string.h>

enum { BLOCK = 64 }; // open neurons are computed in blocks of this size

/* ---- memory --------------------------------------------------------------------------------------------------- */

void dw_gated_lay_out(dw_pass *p, dw_layout *a) {
    const dw_gate_sizes most = dw_gate_sizes_of(p->net);
    const size_t rows = (size_t)p->n_batch, rank = (size_t)most.rank, n_groups = (size_t)most.n_groups;
    dw_gated *g = &((dw_cpu *)p->own)->gated;
    for (int i = 0; i < 2; i++) g->hidden[i] = dw_layout_take(a, rows * rank, sizeof(float));
    g->open = dw_layout_take(a, rows, n_groups);
    g->packed = dw_layout_take(a, rank ? dw_gemm_pack_bytes(p->n_batch, most.rank) : 0, 1);
    g->score = dw_layout_take(a, rank ? DW_DOT_MAX_COLS * n_groups : 0, sizeof(float));
    g->sum = dw_layout_take(a, (size_t)(p->n_threads + DW_TAIL_PIECES) * DW_DOT_MAX_COLS * (size_t)p->net->hp.n_embd, sizeof(float));
}

/* Copies of rows have room for the widest type, F32, because tensors may be replaced. */
void dw_gathered_lay_out(dw_pass *p, dw_layout *a) {
    const size_t n_ff = (size_t)dw_gate_sizes_of(p->net).n_ff;
    dw_gated *g = &((dw_cpu *)p->own)->gated;
    g->list = dw_layout_take(a, n_ff + 1, sizeof *g->list);
    for (int i = 0; i < 3; i++) g->rows[i] = dw_layout_take(a, n_ff, (size_t)p->net->hp.n_embd * sizeof(float));
}

/* ---- shares of the walk: each thread owns a part of nine tenths of the pieces, the rest is shared ------ */

typedef struct shares {
    int rows, n_pieces; // rows of a piece: whole groups
    int own, n_tail;    // pieces that each thread owns; number of parts of the rest
} shares;

static shares shares_of(const dw_step *s, const dw_layer *w) {
    const int group = w->sparse.group, rows = (DW_FEW_ROWS + group - 1) / group * group, n = (w->n_ff + rows - 1) / rows;
    const int own = n * 9 / 10 / s->n_threads, rest = n - own * s->n_threads;
    return (shares){rows, n, own, dw_smaller(rest, dw_smaller(4 * s->n_threads, DW_TAIL_PIECES))};
}

static float *sum_of(const dw_step *s, int i) {
    return s->gated->sum + (size_t)i * DW_DOT_MAX_COLS * (size_t)s->p->net->hp.n_embd;
}

/* ---- neurons ------------------------------------------------------------------------------------------------ */

typedef struct walker {
    const dw_step *s;
    const dw_layer *w;
    int l, n_groups;
    bool predicted;
    bool is_whole;            // masked: pass->neuron holds all neurons
    dw_vectors *h;
    dw_tensor gate, up, down; // rows of neurons: the file's, or the gathered copies
    const dw_axpy_kernel *axpy;
    dw_coverage *count;
    float *sum;               // (n_tokens, n_embd)
    int32_t block[BLOCK];     // open neurons, until the block is full
    int n_block;
} walker;

static walker walker_of(const dw_step *s, int l, dw_vectors *h) {
    const dw_layer *w = &s->p->net->layer[l];
    return (walker){.s = s, .w = w, .l = l, .n_groups = dw_n_groups(w), .predicted = w->sparse.pred_a.name, .h = h,
                    .gate = w->gate, .up = w->up, .down = w->sparse.down_t, .axpy = dw_axpy_find(s->level, w->sparse.down_t.type->id),
                    .count = dw_coverage_of(s->p, l, s->ith)};
}

static uint8_t *flags_of(const walker *k, int token) { return k->s->gated->open + (size_t)token * (size_t)k->n_groups; }
static size_t row_of(const walker *k, int token) { return (size_t)token * (size_t)k->w->n_ff; }

static void add_listed_bias(const dw_tensor *bias, const int32_t *list, int n, float *x) {
    const float *b = dw_floats(bias);
    for (int i = 0; b && i < n; i++) x[i] += b[list[i]];
}

/* Turns a token's products with up (with a predictor also with gate) into values a of the listed neurons, in up. */
static void finish_token(const walker *k, int token, const int32_t *list, int n, float *gate, float *up) {
    const dw_pass *p = k->s->p;
    const uint8_t *open = flags_of(k, token);
    float *gates = p->gate + row_of(k, token), *neurons = p->neuron + row_of(k, token);
    add_listed_bias(&k->w->up_bias, list, n, up);
    if (k->predicted) {
        add_listed_bias(&k->w->gate_bias, list, n, gate);
        k->s->glu(gate, up, n, up);
    }
    for (int i = 0; i < n; i++) {
        const int j = list[i];
        if (!open[j / k->w->sparse.group]) {
            up[i] = 0;
            continue;
        }
        if (k->predicted) gates[j] = gate[i];
        else up[i] *= gates[j];
        neurons[j] = up[i];
    }
}

/* Computes n <= BLOCK open neurons and adds their down rows.  The rows are the listed ones, or in gathered matrices
 * those from `at` on. */
static void add_neurons(walker *k, const int32_t *list, int n, bool gathered, int at) {
    const int32_t *row = gathered ? NULL : list;
    const int n_tokens = k->h->n_cols, n_embd = k->s->p->net->hp.n_embd;
    const size_t row_bytes = dw_tensor_row_bytes(&k->down);
    float gate[DW_DOT_MAX_COLS * BLOCK], up[DW_DOT_MAX_COLS * BLOCK];
    if (!n) return;
    dw_axpy_prefetch(k->down.data + (size_t)at * row_bytes, row_bytes, row, n);
    if (k->is_whole) {
        for (int t = 0; t < n_tokens; t++)
            for (int i = 0; i < n; i++) up[t * BLOCK + i] = k->s->p->neuron[row_of(k, t) + (size_t)list[i]];
    } else {
        if (k->predicted) dw_dot_rows(k->h, &k->gate, row, at, n, gate, BLOCK);
        dw_dot_rows(k->h, &k->up, row, at, n, up, BLOCK);
        for (int t = 0; t < n_tokens; t++) finish_token(k, t, list, n, gate + t * BLOCK, up + t * BLOCK);
    }
    k->axpy->rows(k->down.data + (size_t)at * row_bytes, row_bytes, row, n, n_embd, up, BLOCK, n_tokens, k->sum, (size_t)n_embd);
    if (!k->is_whole) k->count->n_computed += (uint64_t)n;
    /* Bytes count as if closed neurons were skipped, masked or not: they must not depend on a measurement of time. */
    k->count->n_bytes += (uint64_t)n * (row_bytes + dw_tensor_row_bytes(&k->up) + (k->predicted ? dw_tensor_row_bytes(&k->gate) : 0));
}

/* ---- decisions ---------------------------------------------------------------------------------------------- */

/* pass->gate = act(gate) for n neurons from `first` on. */
static void compute_gates(walker *k, int first, int n) {
    const dw_pass *p = k->s->p;
    const float *bias = dw_floats(&k->w->gate_bias);
    float *gate = p->gate + first;
    dw_dot_rows(k->h, &k->w->gate, NULL, first, n, gate, (size_t)k->w->n_ff);
    for (int t = 0; t < p->n_tokens; t++) {
        float *row = gate + row_of(k, t);
        if (bias) k->s->vec->add(row, bias + first, NULL, n);
        k->s->glu(row, row, n, p->neuron + row_of(k, t) + first); // pass->neuron is overwritten later
    }
    if (!k->predicted) k->count->n_bytes += (uint64_t)n * dw_tensor_row_bytes(&k->w->gate);
}

/* Sets the flags of groups first .. end - 1 by their scores. */
static void compute_scores(walker *k, int first, int end) {
    const dw_layer_gate *g = &k->w->sparse;
    const float *bias = dw_floats(&g->pred_b_bias);
    const int n_tokens = k->s->p->n_tokens, rank = (int)g->pred_b.ne[0];
    uint8_t *scratch = k->s->kernel + dw_few_scratch_bytes(k->s->p->net->hp.n_embd); // after the packed h
    dw_vectors z = dw_vectors_of(k->s, scratch, k->s->gated->hidden[k->l % 2], n_tokens, rank);
    dw_dot_rows(&z, &g->pred_b, NULL, first, end - first, k->s->gated->score + first, (size_t)k->n_groups);
    for (int t = 0; t < n_tokens; t++)
        for (int i = first; i < end; i++) flags_of(k, t)[i] = k->s->gated->score[t * k->n_groups + i] + bias[i] >= 0;
    k->count->n_bytes += (uint64_t)(end - first) * dw_tensor_row_bytes(&g->pred_b);
}

void dw_few_hidden(const dw_step *s, int l, dw_vectors *h) {
    const dw_layer_gate *g = &s->p->net->layer[l].sparse;
    const int rank = (int)g->pred_a.ne[1], first = dw_share(rank, s->ith, s->n_threads), n = dw_share(rank, s->ith + 1,
                                                            s->n_threads) - first;
    const float *bias = dw_floats(&g->pred_a_bias);
    float *z = s->gated->hidden[l % 2];
    dw_dot_rows(h, &g->pred_a, NULL, first, n, z + first, (size_t)rank);
    for (int t = 0; t < h->n_cols; t++)
        for (int i = first; i < first + n; i++) {
            float *value = &z[t * rank + i];
            *value = *value + bias[i] > 0 ? *value + bias[i] : 0;
        }
    dw_coverage_of(s->p, l, s->ith)->n_bytes += (uint64_t)n * dw_tensor_row_bytes(&g->pred_a);
}

/* Zeros for neurons that may stay uncomputed. */
static void clear(const walker *k, int first, int end) {
    const dw_pass *p = k->s->p;
    const size_t n_bytes = (size_t)(end - first) * sizeof(float);
    for (int t = 0; t < p->n_tokens; t++) {
        memset(p->neuron + row_of(k, t) + first, 0, n_bytes);
        if (k->predicted) memset(p->gate + row_of(k, t) + first, 0, n_bytes);
    }
}

static bool is_open_for_any(const walker *k, int group) {
    for (int t = 0; t < k->s->p->n_tokens; t++)
        if (flags_of(k, t)[group]) return true;
    return false;
}

/* ---- fused, masked ------------------------------------------------------------------------------------------ */

/* Adds the open neurons of groups first .. end - 1 to the block; the groups are decided. */
static void add_open_groups(walker *k, int first, int end) {
    const int group = k->w->sparse.group;
    for (int i = first; i < end; i++) {
        if (!is_open_for_any(k, i)) continue;
        for (int j = i * group; j < dw_smaller((i + 1) * group, k->w->n_ff); j++) {
            k->block[k->n_block++] = j;
            if (k->n_block < BLOCK) continue;
            add_neurons(k, k->block, BLOCK, false, 0);
            k->n_block = 0;
        }
    }
}

/* Computes the neurons of a piece whose groups are decided; closed ones are zero. */
static void compute_neurons(walker *k, int first, int n) {
    const dw_pass *p = k->s->p;
    const float *bias = dw_floats(&k->w->up_bias);
    dw_dot_rows(k->h, &k->up, NULL, first, n, p->neuron + first, (size_t)k->w->n_ff);
    for (int t = 0; t < p->n_tokens; t++) {
        const uint8_t *open = flags_of(k, t);
        float *gates = p->gate + row_of(k, t), *neurons = p->neuron + row_of(k, t);
        if (bias) k->s->vec->add(neurons + first, bias + first, NULL, n);
        for (int j = first; j < first + n; j++) {
            const bool is_open = open[j / k->w->sparse.group];
            neurons[j] = is_open ? gates[j] * neurons[j] : 0;
            if (!is_open && k->predicted) gates[j] = 0;
        }
    }
    k->count->n_computed += (uint64_t)n;
}

/* Walks over pieces first_piece .. end_piece - 1 and adds into `sum`, which begins at zero. */
static void walk(walker *k, const shares *of, int first_piece, int end_piece, float *sum) {
    const dw_pass *p = k->s->p;
    const int group = k->w->sparse.group, end = dw_smaller(end_piece * of->rows, k->w->n_ff);
    k->sum = sum;
    memset(sum, 0, (size_t)p->n_tokens * (size_t)p->net->hp.n_embd * sizeof *sum);
    if (k->predicted && end_piece > first_piece) compute_scores(k, first_piece * of->rows / group, (end + group - 1) / group);
    for (int first = first_piece * of->rows; first < end; first += of->rows) {
        const int n = dw_smaller(of->rows, end - first), first_group = first / group, end_group = (first + n + group - 1) / group;
        if (!k->predicted || k->is_whole) compute_gates(k, first, n);
        if (!k->is_whole) clear(k, first, first + n);
        for (int t = 0; t < p->n_tokens; t++)
            k->count->n_open += (uint64_t)dw_decide(p, k->l, t, first_group, end_group, flags_of(k, t));
        if (k->is_whole) compute_neurons(k, first, n);
        add_open_groups(k, first_group, end_group);
    }
    add_neurons(k, k->block, k->n_block, false, 0);
    k->n_block = 0;
}

static void fused_neurons(walker *k) {
    const dw_step *s = k->s;
    const shares of = shares_of(s, k->w);
    const int tail = of.own * s->n_threads, n = of.n_pieces - tail;
    walk(k, &of, of.own * s->ith, of.own * (s->ith + 1), sum_of(s, s->ith));
    dw_pieces pieces = dw_pieces_begin(s, of.n_tail, false);
    for (int i; (i = dw_pieces_next(s, &pieces)) >= 0;)
        walk(k, &of, tail + n * i / of.n_tail, tail + n * (i + 1) / of.n_tail, sum_of(s, s->n_threads + i));
}

/* ---- gathered ------------------------------------------------------------------------------------------------- */

/* Computes all gates or scores; every thread does its share. */
static void decide_all(walker *k) {
    const dw_step *s = k->s;
    const int ith = s->ith, n_threads = s->n_threads, n_ff = k->w->n_ff;
    if (k->predicted) {
        compute_scores(k, dw_share(k->n_groups, ith, n_threads), dw_share(k->n_groups, ith + 1, n_threads));
        clear(k, dw_share(n_ff, ith, n_threads), dw_share(n_ff, ith + 1, n_threads));
        return;
    }
    dw_pieces pieces = dw_pieces_of_rows(s, n_ff);
    for (int first, n; dw_next_rows(s, &pieces, n_ff, &first, &n);) {
        compute_gates(k, first, n);
        clear(k, first, first + n);
    }
}

static void list_open(walker *k) {
    const int group = k->w->sparse.group;
    int32_t *list = k->s->gated->list + 1;
    int n = 0;
    for (int t = 0; t < k->s->p->n_tokens; t++) k->count->n_open += (uint64_t)dw_decide(k->s->p, k->l, t, 0, k->n_groups, flags_of(k, t));
    for (int i = 0; i < k->n_groups; i++)
        for (int j = i * group; is_open_for_any(k, i) && j < dw_smaller((i + 1) * group, k->w->n_ff); j++) list[n++] = j;
    k->s->gated->list[0] = n;
}

/* Copies the rows of entries first .. end - 1 of the list. */
static void gather(const dw_tensor *w, const int32_t *list, int first, int end, uint8_t *rows) {
    const size_t row_bytes = dw_tensor_row_bytes(w);
    for (int i = first; i < end; i++) memcpy(rows + (size_t)i * row_bytes, w->data + (size_t)list[i] * row_bytes, row_bytes);
}

static void gathered_neurons(walker *k) {
    const dw_step *s = k->s;
    const dw_pass *p = s->p;
    const int32_t *list = k->s->gated->list + 1;
    decide_all(k);
    dw_pool_barrier(p->pool);
    if (s->ith == 0) list_open(k);
    dw_pool_barrier(p->pool);
    const int n = k->s->gated->list[0], first = dw_share(n, s->ith, s->n_threads), end = dw_share(n, s->ith + 1, s->n_threads);
    dw_tensor *const matrix[] = {&k->gate, &k->up, &k->down};
    for (int i = k->predicted ? 0 : 1; i < 3; i++) {
        gather(matrix[i], list, first, end, k->s->gated->rows[i]);
        matrix[i]->data = k->s->gated->rows[i];
    }
    dw_pool_barrier(p->pool);
    k->sum = sum_of(s, s->ith);
    memset(k->sum, 0, (size_t)p->n_tokens * (size_t)p->net->hp.n_embd * sizeof *k->sum);
    for (int i = first; i < end; i += BLOCK) add_neurons(k, list + i, dw_smaller(BLOCK, end - i), true, i);
}

static void masked_neurons(walker *k) {
    k->is_whole = true;
    fused_neurons(k);
}

/* ---- operators -------------------------------------------------------------------------------------------------- */

static void gated_neurons(dw_pass *p, int l, int ith, void (*neurons)(walker *k)) {
    const dw_step *s = dw_step_of(p, ith);
    dw_vectors h = dw_normed(s, &p->net->layer[l].ffn_norm);
    walker k = walker_of(s, l, &h);
    if (p->layer[l].needs_hidden) {
        dw_few_hidden(s, l, &h);
        dw_pool_barrier(p->pool);
    }
    neurons(&k);
    if (p->layer[l].gives_hidden) dw_few_hidden(s, l + 1, &h);
    if (ith) return;
    k.count->n_tokens += (uint64_t)p->n_tokens;
    k.count->n_few++;
}

void dw_few_fused_neurons(dw_pass *p, int l, int ith) { gated_neurons(p, l, ith, fused_neurons); }
void dw_few_masked_neurons(dw_pass *p, int l, int ith) { gated_neurons(p, l, ith, masked_neurons); }
void dw_few_gathered_neurons(dw_pass *p, int l, int ith) { gated_neurons(p, l, ith, gathered_neurons); }

/* x += the sums, in order, + bias; every thread does its columns. */
static void add_sums(const dw_step *s, int l, int n_sums) {
    const dw_pass *p = s->p;
    const float *bias = dw_floats(&p->net->layer[l].down_bias);
    const int n_embd = p->net->hp.n_embd, first = dw_share(n_embd, s->ith, s->n_threads), n = dw_share(n_embd, s->ith + 1,
                                                            s->n_threads) - first;
    for (int t = 0; t < p->n_tokens; t++)
        for (int i = 0; i < n_sums; i++)
            s->vec->add(p->x + t * n_embd + first, sum_of(s, i) + t * n_embd + first, i == 0 && bias ? bias + first : NULL, n);
}

void dw_few_fused_down(dw_pass *p, int l, int ith) {
    const dw_step *s = dw_step_of(p, ith);
    add_sums(s, l, s->n_threads + shares_of(s, &p->net->layer[l]).n_tail);
}

void dw_few_gathered_down(dw_pass *p, int l, int ith) { add_sums(dw_step_of(p, ith), l, p->n_threads); }
