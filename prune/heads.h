/* heads.h - which attention heads are cut.
 *
 * The unit is a KV head with its query heads: its rows of q, k and v, and its columns of o.  The mixtures of the query
 * heads are the inputs of o, so a group is scored as neurons are (obs.h), on the Gram matrix of these inputs:
 *
 *     s_g = tr(O_g ([H^-1]_gg)^-1 O_g^T),   O_g the columns of o, H = E[x x^T] + damping
 *
 * the least error of the layer's output when group g is removed and the rest of o fitted again.  One group goes after
 * the other, with new scores (methods as ZipLM's and DarwinLM's: Kurtic et al. 2023, arXiv 2302.04089; Tang et al. 2025,
 * arXiv 2502.07780).  What the other heads would attend to does not change, because q, k and v of a head are its own.
 *
 *   uniform    every layer loses the same number of groups, so any architecture can store it
 *   relative   the groups of all layers are sorted together, by s * E[1 / ||x||^2] as in allocate.h */
#ifndef PRUNE_HEADS_H
#define PRUNE_HEADS_H

#include "engine.h"
#include "prune/damping.h"

typedef struct heads_allocator {
    const char *name, *help;
} heads_allocator;
extern const heads_allocator heads_allocators[]; // "uniform", "relative"; ends with name NULL

typedef struct heads_task {
    const dw_model *model;
    kit_gram *gram;
    double rate;           // fraction of the KV heads that goes
    const double *inverse; // (n_layer): E[1 / ||x||^2] of the residual after the layer; NULL: uniform
    const bool *fixed;     // (n_layer): these layers are not looked at
    double damp;           // as in obs_task
    dw_pool *pool;
    damping_report *report; // may be NULL
} heads_task;

/* keep[l] (n_head_kv[l]) for each layer, NULL where all stay; free() each.  Every layer keeps a KV head.  Fails when no
 * KV head would go. */
int heads_choose(const heads_task *t, bool **keep, dw_err *err);

/* The fraction of the KV heads of layers that are not fixed that goes.  *nearest: that of all layers together. */
double heads_reached(const heads_task *t, bool *const *keep, double *nearest);

#endif
