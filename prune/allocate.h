/* allocate.h - how many neurons each layer keeps, when a rate or a file's size is wanted for the whole model.
 *
 * Widths are multiples of a unit: the least common multiple of the group and of `multiple` (256 keeps every number
 * format and every kernel content, 32 the simple formats, 1 only 16 and 32 bits).  Every layer that stays keeps at least
 * one unit; one that keeps everything may have any width.  To add a rule: a function and a row in allocate.c. */
#ifndef PRUNE_ALLOCATE_H
#define PRUNE_ALLOCATE_H

#include "prune/prune.h"

/* Where a file's bytes are, so that the size after a cut is known beforehand. */
typedef struct prune_sizes {
    double fixed;          // outside of layers: header, room for a lineage, padding, embeddings, output
    double *layer;         // (n_layer): all but neurons
    double *neuron;        // (n_layer): of one neuron
} prune_sizes;

int prune_sizes_init(prune_sizes *z, const dw_model *m, size_t lineage_bytes, dw_err *err);
void prune_sizes_release(prune_sizes *z);

typedef struct prune_task {
    const dw_model *model;
    const bool *drop;      // (n_layer): these layers go
    int group;
    double *const *score;  // (n_layer) lists of n_ff[l] / group
    const prune_sizes *sizes;
    double rate;           // wanted, of the neurons of the layers that stay; used when bytes is 0
    double bytes;          // wanted size of the file, never exceeded; 0: by rate
    int unit;              // of widths
    const struct prune_search *search; // of rules that run the model (search.h); else NULL
} prune_task;

typedef struct prune_search prune_search;

typedef struct prune_allocator {
    const char *name;
    int (*allocate)(const prune_task *t, int *n_keep, dw_err *err); // n_keep of layers that go is 0
    bool across_layers; // needs scores that compare across layers
    bool runs_model;    // needs held-out texts: task->search
    const char *help;
} prune_allocator;

extern const prune_allocator prune_allocators[]; // ends with name NULL
const prune_allocator *prune_allocator_find(const char *name);

/* Bytes of the file when layers keep n_keep neurons. */
double prune_file_bytes(const prune_task *t, const int *n_keep);
/* Fraction of the neurons of layers that stay that go. */
double prune_rate_of(const prune_task *t, const int *n_keep);
/* The rate, not rounded to any unit, at which the file has t->bytes when all layers lose alike; -1: too small. */
double prune_rate_for_bytes(const prune_task *t);

/* keep[j] of n_ff neurons: those of the groups with the largest scores, n_keep in all; of equal ones the first. */
int prune_choose(const double *score, int n_ff, int group, int n_keep, bool *keep, dw_err *err);

#endif
