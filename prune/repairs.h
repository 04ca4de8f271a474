/* repairs.h - repaired down and o matrices, or biases, of all layers that a plan cuts.
 *
 * One-shot repairs come from STATS.gram: each layer's inputs are those of the whole model.  Sequential ones run the
 * calibration texts through the model (walk.h), layer by layer: the inputs a' of a layer come from the layers below,
 * which are cut and repaired already, a are those of the whole model on the same tokens.  With the residual before the
 * FFN, x' of the cut and x of the whole model, the target of layer l is
 *
 *     own      V a'                          the layer's own output on its new inputs
 *     dense    V a + gap (x - x')            what the whole model writes, and a share of the residual's gap
 *     blend    the mean of both
 *
 * and V'_S is fitted to it (repair.h).  x is what follows the FFN less V a.  With 16-bit weights from another file
 * (source) V is theirs, while the pass used the model's own, so the gap then holds that difference, too.  The next
 * layers see V' as it will be in the file, rounded to its type.
 * Where heads are cut, o is repaired as down is, from the Gram matrix of its inputs (one-shot: the heads' mixtures of
 * the whole model); the cut layers of a sequential repair compute with it.
 *
 * A bias is the cheapest repair (An et al. 2023, arXiv 2312.11983: FLAP).  Of the lost contribution V_P a_P it gives back
 * the mean over the calibration tokens, b = V_P E[a_P], and V_S stays:  E[V_S a_S + b] = E[V a].
 *
 * Not here: a fit after quantization.  It was tried on two models (qwen2 of 12 and 56 M parameters, BF16), cut by 30 %
 * and repaired one-shot: a factor for each block of each row of down, fitted to the calibration tokens by least squares
 * and judged by the error of the layers' outputs on others.  Of the error that rounding adds, it takes
 *
 *                        Q8_0   Q6_K   Q4_K   Q4_0   Q3_K   Q2_K
 *     12 M               42 %   5 %    0.7 %  15 %   3 %    1.3 %      rounding adds 0.02 .. 16 % to the cut's own error
 *     56 M               4 %    0.2 %  0.2 %  1.2 %  0.3 %  1.0 %                    0.01 .. 20 %
 *
 * So the whole error falls by 0.5 % at most (Q4_0, 12 M) and by 0.2 % on the larger model.  Perplexities were not
 * compared, because that is less than they resolve.
 *
 * Memory: two residuals of all tokens for sequential repairs, one layer's matrices, and all V' in F32. */
#ifndef PRUNE_REPAIRS_H
#define PRUNE_REPAIRS_H

#include "engine.h"
#include "kit/calib.h"
#include "kit/gram.h"
#include "kit/plan.h"
#include "kit/progress.h"
#include "prune/damping.h"

typedef struct repair_target {
    const char *name;
    double dense; // share of the dense target, the rest is own
    const char *help;
} repair_target;
extern const repair_target repair_targets[]; // ends with name NULL
const repair_target *repair_target_find(const char *name);

#define REPAIR_GAP 0.5

typedef struct repairs_task {
    const dw_model *model, *source; // source: 16-bit weights of the same model, or NULL
    const kit_plan *plan;
    const dw_qtype_row *down_type; // of the file; NULL: each layer's own
    double damp;                   // lambda over the median
    dw_pool *pool;
    kit_gram *gram;        // of one-shot repairs, and of o
    const kit_stats *mean; // of biases; NULL: least squares
    /* sequential repairs; texts NULL: one-shot */
    const calib_texts *texts;
    const char *backend; // NULL: the default
    const repair_target *target;
    double gap;
    progress *bar;                  // hears of repairs_steps in all
    damping_report *report;         // may be NULL
} repairs_task;

typedef struct repairs {
    int n_layer;               // of the model
    float **down;              // (n_layer): (n_embd, n_keep); NULL: the layer keeps all its neurons, or is dropped
    float **importance;        // (n_layer): (n_keep), mean squares of the inputs
    float **o, **o_importance; // the same of o, for the columns of heads that stay; NULL: o is not repaired
    float **bias;              // (n_layer): (n_embd), of down; NULL: as it is
} repairs;

/* After a failure there is nothing to release. */
int repairs_make(repairs *r, const repairs_task *t, dw_err *err);
void repairs_release(repairs *r);
double repairs_steps(const repairs_task *t); // what the bar hears in all: tokens of sequential repairs, else layers

/* Columns of o that stay where heads are cut: those of the query heads of each KV head.  Returns their number; 0: all
 * stay.  column may be NULL. */
int repairs_head_columns(const dw_hparams *hp, const kit_plan *plan, int layer, int32_t *column);

/* Shared by repairs.c and sequential.c: whether a layer's down is repaired. */
bool repairs_needed(const repairs_task *t, int layer);
/* A repaired matrix as a reader of the file will see it: rounded to its type, at the places of the columns that stay. */
typedef struct repairs_rounding {
    const char *tensor, *advice; // for a refusal
    const dw_qtype_row *type;
    const float *value, *importance; // (d, n_keep), (n_keep)
    const int32_t *keep;             // (n_keep): columns of `to`
    size_t d, n_keep, n;
    float *to; // (d, n); columns that go are left as they are
} repairs_rounding;
int repairs_round(const repairs_rounding *m, int layer, dw_err *err);
/* o of the cut model at the places of the whole one's, (n_embd, heads * head_dim), zeros where heads are cut; free(). */
float *repairs_whole_o(const repairs *r, const repairs_task *t, int layer, dw_err *err);
int repairs_sequential(repairs *r, const repairs_task *t, dw_err *err);

#endif
