/* backend_cpu.h - internals of the cpu backend: what a step knows, its two ways to compute, and the parts that FFN
 * operators (ffn_*.c) are made of.
 *
 *   few   1..DW_DOT_MAX_COLS tokens that need not be exact: every thread norms and packs the tokens for itself and
 *         takes weight rows with the dot kernels; no barrier inside a step, except between the two parts of
 *         a down, after a predictor's hidden values and in `gathered`.
 *   many  all other passes: all threads pack the tokens once, barrier, then matrix products by pieces of rows.
 *
 * The work of a step is cut into numbered pieces.  Each thread has a portion: a contiguous range of them, the same for
 * every token, so pages and cache lines of its weights stay with the core.  When its portion is empty, a thread takes
 * the last pieces of other portions, so that a thread that lost its core computes fewer.  Results do not depend on which
 * thread computes a piece.
 *
 * Gated layers (gate_decide.h).  Few tokens: threads walk over the neurons and add the down rows of open ones to a
 * sum, and the down step adds up the sums.  There is one sum for the share of each of the pool's threads, nine tenths
 * in all, and one for each piece of the rest, so the order of additions depends only on the pool's size.  Many tokens:
 * all gates, a decision for each token, all ups; closed neurons are zeros, and down is a product with the transposed
 * matrix (ffn_gated.c).
 *
 * Memory is laid out and functions are chosen once, when the state is opened: each thread has a dw_step of its own. */
#ifndef DW_BACKEND_CPU_H
#define DW_BACKEND_CPU_H

#include "backends/gate_decide.h"
#include "backends/kernels_vec.h"

#include <stdatomic.h>

/* What is left of a thread's portion: pieces next .. end - 1.  Its thread takes them from the front and so reads weights
 * in their order; other threads take from the back.  `left` has a tag, the lowest bit of the step's number.  With the
 * tag of the step before, the whole portion is left, so no thread waits for another to begin.  All zero when a state is
 * opened and when the number of threads changes. */
typedef struct dw_portion {
    _Alignas(64) atomic_uint_fast64_t left; // tag, 31 bits of next, 31 of end
    uint64_t n_steps;                       // that had pieces; in a pass only its own thread uses it
} dw_portion;

/* Memory that all gated layers share; rows of a smaller layer follow each other without gaps. */
typedef struct dw_gated {
    float *hidden[2];  // (n_batch, rank): predictors' z of layers of even and odd number
    uint8_t *open;     // (n_batch, n_groups): flags
    uint8_t *packed;   // many: packed z
    float *score;      // few: (DW_DOT_MAX_COLS, n_groups)
    float *sum;        // few: (n_shares + DW_TAIL_PIECES, DW_DOT_MAX_COLS, n_embd)
    int32_t *list;     // gathered: (1 + n_ff): how many neurons, and which
    uint8_t *rows[3];  // gathered: their rows of gate, up and down_t, of any type
} dw_gated;

typedef struct dw_step { // of one thread
    dw_pass *p;
    int ith, n_threads; // of the pass
    int n_shares;       // of a gated layer's sum: the pool's threads
    dw_level level;
    const dw_vec *vec;
    dw_portion *portions; // of all threads
    uint8_t *scratch;  // this thread's: of a product or of attention, or packed vectors
    float *out, *out2; // this thread's: results of a piece, (tokens, rows)
    uint8_t *shared;   // packed tokens, and after them what the head needs
    uint8_t *neurons;  // packed neurons (dw_many_stays_packed)
    const dw_gated *gated;
} dw_step;

typedef struct dw_cpu { // dw_pass.own
    dw_gated gated;
    dw_step step[]; // of the pool's threads
} dw_cpu;

static inline const dw_step *dw_step_of(const dw_pass *p, int ith) { return &((const dw_cpu *)p->own)->step[ith]; }

/* neuron = act(gate) * up with the net's activation, which dw_session_activation may change. */
static inline void dw_glu(const dw_step *s, float *gate, const float *up, int n, float *neuron) {
    s->vec->glu[s->p->net->act](gate, up, n, neuron);
}

/* The pieces 0 .. n - 1 of a step as one thread gets them. */
typedef struct dw_pieces {
    int n, n_empty; // pieces; portions that were found empty, from the thread's own on
    uint64_t tag;   // of this step
} dw_pieces;

typedef struct dw_run {
    int first, end;
} dw_run;

/* Rows first .. first + n - 1 of a matrix, or with a list its entries first .. first + n - 1. */
typedef struct dw_rows {
    const int32_t *list;
    int first, n;
} dw_rows;

/* Every thread begins, with the same n.  A barrier must come before the next beginning. */
dw_pieces dw_pieces_begin(const dw_step *s, int n);
/* The next piece, or -1: no more. */
int dw_pieces_next(const dw_step *s, dw_pieces *pieces);
/* Likewise, up to `most` of the thread's own pieces at once, but fewer and fewer of the last tenth; false: no more. */
bool dw_pieces_run(const dw_step *s, dw_pieces *pieces, int most, dw_run *run);
/* The number of piece i when numbers are dealt to the threads in turn.  For pieces that take the less time the higher
 * their number: all threads begin with long ones, and portions take about equally long. */
int dw_pieces_dealt(const dw_step *s, const dw_pieces *pieces, int i);

typedef enum dw_head_kind { DW_HEAD_Q, DW_HEAD_K, DW_HEAD_V } dw_head_kind;

/* Applies bias, norm and rope to one head of one token and stores it in q or in the cache; x (head_dim) is changed. */
void dw_finish_head(const dw_step *s, int l, dw_head_kind kind, int head, int token, float *x);

/* Finishes a piece of neurons: products with gate and up (n_tokens, n) and their biases become neurons first .. first
 * + n - 1 of tokens first_token and following. */
void dw_finish_neurons(const dw_step *s, int l, int first, int n, int first_token, int n_tokens);
/* The same for entries first .. first + n - 1 of the layer's list; neurons between the listed ones become 0. */
void dw_finish_listed(const dw_step *s, int l, int first, int n, int first_token, int n_tokens);

/* Few: the tokens' vectors, packed once in each form that the step's matrices need. */
typedef struct dw_vectors {
    const dw_step *s;
    const float *x; // (n_cols, n), rows ldx apart
    int n_cols, n, ldx;
    bool packed[DW_N_ACT_FORMS];
    uint8_t *act[DW_N_ACT_FORMS];
} dw_vectors;

dw_vectors dw_vectors_of(const dw_step *s, uint8_t *scratch, const float *x, int n_cols, int n); // dw_few_scratch_bytes(n)
/* h = norm(x) in s->scratch.  If a tap needs h, one thread per token copies it to pass->h. */
dw_vectors dw_normed(const dw_step *s, const dw_tensor *norm);
/* y[c * ldy + r] = w_row . vector c for row r of `rows`. */
void dw_dot_rows(dw_vectors *v, const dw_tensor *w, dw_rows rows, float *y, size_t ldy);
/* Pieces of n_rows rows, and the next rows for this thread; false: no more. */
dw_pieces dw_pieces_of_rows(const dw_step *s, int n_rows);
bool dw_next_rows(const dw_step *s, dw_pieces *pieces, int n_rows, int *first, int *n);

static inline const float *dw_floats(const dw_tensor *t) { return t->name ? (const float *)(const void *)t->data : NULL; }
/* Adds to x the listed values of a bias, if there is one. */
static inline void dw_add_listed(const dw_tensor *bias, const int32_t *list, int n, float *x) {
    const float *b = dw_floats(bias);
    for (int i = 0; b && i < n; i++) x[i] += b[list[i]];
}
static inline void dw_prefetch(const uint8_t *p, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i += 64) __builtin_prefetch(p + i);
}

/* Where share i of n things begins, and share i - 1 ends. */
static inline int dw_share(int n, int i, int n_shares) { return (int)((size_t)n * (size_t)i / (size_t)n_shares); }

enum {
    DW_FEW_ROWS = 32,   // of a piece in `few`
    DW_FEW_RUN = 64,    // most pieces of a call; q, k and v take as many rows in heads
    DW_TAIL_PIECES = 16, // of a gated layer: most pieces of the rest
    DW_MANY_ROWS = 256, // most rows of a piece in `many`, except for wider heads
};

extern const dw_way dw_cpu_few, dw_cpu_many;

size_t dw_few_scratch_bytes(int n_max); // of vectors of at most n_max values
size_t dw_many_head_bytes(const dw_hparams *hp, int n_tokens); // of the shared scratch

/* Steps that both ways share. */
void dw_cpu_embed(dw_pass *p, int ith);
void dw_cpu_head_norm(dw_pass *p, const float *x, float *hidden, int ith);
/* Attention in jobs of at most `most` tokens of one sequence. */
void dw_cpu_attend(const dw_step *s, int l, int most, void (*attend)(const dw_attend_job *job));

/* For a matrix in two parts (formats/ffn_two_part.h) whose first part is w: how many of n_rows rows from `first` on
 * are in w. */
static inline int dw_hot_rows(const dw_tensor *w, int first, int n_rows) {
    const int left = (int)w->ne[1] - first;
    return left < 0 ? 0 : dw_smaller(left, n_rows);
}

/* ---- parts of FFN operators for few tokens (backend_cpu_few.c) ------------------------------------------ */

/* x += W v + bias. */
void dw_few_add_product(const dw_step *s, dw_vectors *v, const dw_tensor *w, const dw_tensor *bias);
void dw_few_down(dw_pass *p, int l, int ith); // x += Wdown neuron + bias
void dw_few_hidden(const dw_step *s, int l, dw_vectors *h); // z of layer l's predictor; a barrier must follow
/* The end of a step that computed n neurons of a layer without a gate: counts them, and computes z for the next. */
void dw_few_end_neurons(const dw_step *s, int l, int n, dw_vectors *h);

/* ---- parts of FFN operators for many tokens (backend_cpu_many.c) ---------------------------------------- */

typedef struct dw_token_group { // tokens of one product
    int first, n;
    const uint8_t *packed;
} dw_token_group;

/* A neurons step begins with norm and packing for all matrices that read the FFN's input, the next predictor's too. */
typedef struct dw_many_input {
    const dw_step *s;
    int l;
    dw_gemm_form form;
} dw_many_input;

dw_many_input dw_many_begin_neurons(dw_pass *p, int l, int ith);
/* n_counted neurons were computed for all tokens; gated operators count for themselves. */
void dw_many_end_neurons(const dw_many_input *in, int n_counted);

/* A piece of the neurons times a group of tokens. */
typedef struct dw_neuron_piece {
    int first, n; // neurons
    dw_token_group group;
} dw_neuron_piece;

typedef struct dw_neuron_pieces {
    dw_pieces pieces;
    int n_all, rows, n_each;
} dw_neuron_pieces;

dw_neuron_pieces dw_neuron_pieces_of(const dw_many_input *in, int n_all);
bool dw_next_neurons(const dw_many_input *in, dw_neuron_pieces *of, dw_neuron_piece *piece); // false: no more

/* y (tokens of the group, rows.n) = products with rows of w; y's rows lie ldy apart. */
void dw_many_product(const dw_many_input *in, const dw_tensor *w, dw_rows rows, dw_token_group g, float *y, int ldy);

/* Tokens' vectors (n_tokens, n), rows ldx apart, and how the matrices that read them are stored. */
typedef struct dw_many_x {
    const float *x;
    int ldx, n_tokens, n;
    bool turned;
} dw_many_x;

/* Packs x for the matrices; all groups are packed after its barrier. */
dw_gemm_form dw_many_pack(const dw_step *s, uint8_t *packed, dw_many_x x, const dw_tensor *const *w, int n_matrices);
/* Rows of w, this thread's share, times all packed tokens: `use` receives each product in s->out. */
typedef void dw_use_rows(const dw_step *s, int l, dw_token_group g, int first, int n_rows);
void dw_many_own_rows(const dw_many_input *in, const dw_tensor *w, const uint8_t *packed, dw_use_rows *use);
void dw_many_hidden(const dw_many_input *in, int l); // z of layer l's predictor from the packed h
/* x += W v + bias for v (n_tokens, columns of W), rows of v ldv apart. */
void dw_many_add_product(const dw_step *s, const float *v, int ldv, const dw_tensor *w, const dw_tensor *bias);
/* The same for W stored transposed. */
void dw_many_add_turned(const dw_step *s, const float *v, int ldv, const dw_tensor *w, const dw_tensor *bias);
void dw_many_down(dw_pass *p, int l, int ith); // x += Wdown neuron + bias

/* Where all three products are of BF16, the neurons of all tokens stay packed for the product with down.  pass->neuron
 * and pass->gate then hold only what a tap reads.  It takes more than DW_GEMM_FEW tokens, a multiple of 32 neurons, and
 * no biases of gate and up. */
bool dw_many_stays_packed(const dw_step *s, int l);
void dw_many_pack_neurons(const dw_many_input *in, dw_neuron_piece k); // from the packed h
void dw_many_down_packed(dw_pass *p, int l, int ith);

#endif
