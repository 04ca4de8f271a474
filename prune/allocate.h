/* allocate.h - how many neurons each layer keeps, when a rate or a file's size is wanted for the whole model.
 *
 * Widths are multiples of a unit: the least common multiple of the group and of `multiple`.  256 fits every number
 * format and kernel, 32 fits the simple formats, 1 fits only 16 and 32 bits.  Every layer that stays keeps at least one
 * unit, or `min_width`; one that keeps everything may have any width, and protected layers do.
 *
 * `uniform` removes the same fraction of every layer.  The other rules sort the groups of all layers together, by a
 * number that must mean the same in every layer:
 *
 *   standardized   (s - mean) / deviation over the layer's groups, as FLAP does (An et al. 2023, arXiv 2312.11983)
 *   relative       s * E[1 / ||x||^2] for scores s that are energies of the layer's output; x is the residual after
 *                  the layer.  The residual stream grows from layer to layer, so the same energy matters
 *                  less in a later one.  The mean of 1 / ||x||^2 is taken, not 1 / the mean of ||x||^2, because a few
 *                  tokens can have norms that would decide the latter alone (massive activations, Sun et al. 2024,
 *                  arXiv 2402.17762)
 *   global         s itself, for scores that are numbers of one scale by their definition
 *
 * Two rules run the model on held-out texts: `sensitivity` and `evolve` (search.h).
 *
 * To add a rule: a function and a row in allocate.c. */
#ifndef PRUNE_ALLOCATE_H
#define PRUNE_ALLOCATE_H

#include "kit/metrics.h"
#include "kit/mixtures.h"
#include "prune/prune.h"
#include "prune/timing.h"

/* Types that the file gets after the cut: those of a mixture, or one type for every matrix; neither: as they are. */
typedef struct prune_as {
    const kit_mixture *mixture;
    const dw_qtype_row *type;
    const dw_qtype_row *output; // with a mixture: of the matrix that gives the logits; NULL: the mixture's
} prune_as;

typedef struct prune_size {    // of a tensor
    int layer;                 // -1: none
    size_t ne[2];              // values of a row, rows; a vector is one row
    bool has_rows, has_values; // one for each neuron
    bool may_fall_back;
    const dw_qtype_row *type; // wanted
} prune_size;

/* Where a file's bytes are, so that the size after a cut, and after requant if wanted, is known before. */
typedef struct prune_sizes {
    prune_size *tensor; // n_tensor: of layers that stay, sorted by layer
    size_t n_tensor;
    size_t *first;  // (n_layer + 1): where each layer's tensors begin
    double fixed;   // outside of layers: header, room for a lineage, padding, embeddings, output
    double *layer;  // (n_layer): all but neurons
    double *neuron; // (n_layer): of one neuron, where all rows are whole blocks
} prune_sizes;

typedef struct prune_sizes_request {
    const dw_model *model;
    const bool *drop; // (n_layer): these layers go
    prune_as as;
    size_t lineage_bytes;
    const int *n_kv; // (n_layer): KV heads that stay; NULL: all
    bool may_differ; // widths or heads may come to differ by layer, so that a carrier stores the file
} prune_sizes_request;

int prune_sizes_init(prune_sizes *z, const prune_sizes_request *wanted, dw_err *err);
void prune_sizes_release(prune_sizes *z);
/* The largest block of any down matrix, of which widths are multiples. */
int prune_sizes_block(const prune_sizes *z);

typedef struct prune_task {
    const dw_model *model;
    const bool *drop; // (n_layer): these layers go
    int group;
    double *const *score;  // (n_layer) lists of n_ff[l] / group
    const double *inverse; // (n_layer): E[1 / ||x||^2] of the residual after the layer; needed by some allocators
    bool is_energy;        // scores are energies of the layer's output
    const prune_sizes *sizes;
    double rate;  // wanted, of the neurons of the layers that stay; used when bytes is 0
    double bytes; // wanted size of the file, at most, but for what a repair adds; 0: by rate
    double us;           // wanted time of a token, of allocators that know times; 0: by rate
    const timing *times; // with us
    int unit;     // of widths
    int min_width;       // of a layer that is cut; 0: a unit
    const bool *protect; // (n_layer): these layers keep all their neurons; NULL: none
    const struct prune_search *search; // of rules that run the model (search.h); else NULL
} prune_task;

typedef struct prune_search prune_search;

typedef struct prune_allocator {
    const char *name;
    int (*allocate)(const prune_task *t, int *n_keep, dw_err *err); // n_keep of layers that go is 0
    kit_scale scale;                                                // scores must be at least so comparable
    bool needs_inverse;
    bool runs_model; // needs held-out texts: task->search
    bool knows_times; // keeps to task->us, not to the rate that is as fast in the uniform rule
    const char *help;
} prune_allocator;

extern const prune_allocator prune_allocators[]; // ends with name NULL
const prune_allocator *prune_allocator_find(const char *name);

/* The fewest neurons that a layer that stays may keep. */
int prune_least_width(const prune_task *t, int l);
/* Bytes of the file when layers keep n_keep neurons. */
double prune_file_bytes(const prune_task *t, const int *n_keep);
/* Microseconds of a token when layers keep n_keep neurons, by t->times. */
double prune_token_us(const prune_task *t, const int *n_keep);
/* Fraction of the neurons of layers that stay that go. */
double prune_rate_of(const prune_task *t, const int *n_keep);
/* The rate, not rounded to any unit, at which the file has t->bytes when all layers lose the same fraction; -1: too
 * small.  Where rows are no whole blocks and fall back to larger types, the rate must be higher. */
double prune_rate_for_bytes(const prune_task *t);

/* keep[j] of n_ff neurons: those of the groups with the largest scores, n_keep in all; of equal ones the first. */
int prune_choose(const double *score, int n_ff, int group, int n_keep, bool *keep, dw_err *err);

#endif
