/* shrink_costs.h - what shrink tells before it begins: bytes of models that are not made yet, minutes, memory, disk.
 *
 * Bytes.  A cut takes the same share from gate, up and down of every layer, so with the share k of the neurons kept
 *
 *     bytes(mixture, k) = rest(mixture) + k ffn(mixture)
 *
 * where rest and ffn are sums over the tensors in the types of the mixture, or in their own.  It is a few percent off
 * where the cut rows are no whole blocks (fallback types) and rank's widths are rounded.
 *
 * Minutes.  A few runs of tokens through the model give seconds a token, r; products of OpenBLAS on one thread, times
 * the threads, give rates in F32 and F64.  Every step is tokens times r, or operations by a rate:
 *
 *     collect       1.3 r a token, and T n^2 for the Gram matrix of a layer of width n over T tokens; r more where
 *                   Gram matrices take a second pass, 2 r more for gradients
 *     rank obs      4 n^3 a layer: factor, inverse, removals      cut --repair   2 n^3 a layer: factor and solve
 *     evolve        r a token and evaluation, 8 a layer before it, and 2 w^3 for every new width w of a layer
 *     score         2 r a token, a pass for each row
 *     heal          as told, for the cut model, its control, and with a mixture for the uncut one
 *     requant       a constant number of values a second          each step      0.3 s
 *
 * The constants are rough; what the estimate is for is a choice between a coffee and a night. */
#ifndef EXP_SHRINK_COSTS_H
#define EXP_SHRINK_COSTS_H

#include "kit/calib.h"
#include "kit/mixtures.h"

typedef struct shrink_work { // what is to be done
    const dw_model *model;
    const kit_mixture *mixture, *control; // mixture NULL: the types stay; control NULL: there is none
    const dw_qtype_row *output;           // of both: type of the matrix that gives the logits; NULL: the mixture's
    double kept;                          // share of neurons
    double calib_tokens, held_tokens, eval_tokens;
    int evaluations;  // of the held-out tokens, by evolve
    int step;         // of widths
    int n_ctx;        // tokens of heal's windows
    bool by_gradient; // the metric needs gradients
    int n_threads;
    double heal_minutes; // of each of the two cut models and, with a mixture, of the uncut one
} shrink_work;

/* Bytes of the model's file with the share `kept` of its neurons, in the types of a mixture; NULL: in its own. */
double shrink_bytes(const shrink_work *w, const kit_mixture *mixture, double kept);
/* The share of neurons that a file of `bytes` holds in the work's mixture; negative: not even a file without neurons is
 * so small. */
double shrink_kept(const shrink_work *w, double bytes);
/* The mixture in which the uncut model's file is nearest to `bytes`. */
const kit_mixture *shrink_nearest(const shrink_work *w, double bytes);

enum { SHRINK_EVALUATIONS = 200 }; // that are recommended

typedef struct shrink_costs {
    double minutes, memory, disk; // bytes
    double evolve_minutes;        // of SHRINK_EVALUATIONS, on a sixth of the calibration tokens
} shrink_costs;

/* Runs `n` tokens through the model, and estimates. */
int shrink_estimate(shrink_costs *c, const shrink_work *w, const int32_t *token, int n, dw_err *err);

#endif
