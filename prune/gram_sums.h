/* gram_sums.h - sums of x x^T over tokens, taken by the threads of a session inside its taps.
 *
 * A block of tokens is multiplied in F32 by tiles of columns; each tile is added to sums in double.  A block is what
 * one pass shows: at most 512 tokens of the statistics, at most GRAM_TOKENS of a backward pass (collect_gradients.h),
 * whose longer windows take several blocks.  A tile belongs to one thread, and blocks come in the order of the text, so
 * no bit depends on the number of threads.  Matrices are packed as in kit/gram.h: n (n + 1) / 2 doubles each. */
#ifndef PRUNE_GRAM_SUMS_H
#define PRUNE_GRAM_SUMS_H

#include "engine.h"
#include "kit/gram.h"

typedef struct gram_inputs {
    const char *name; // of --gram
    bool wanted[KIT_GRAM_N_KINDS];
    const char *help;
} gram_inputs;
extern const gram_inputs gram_inputs_names[]; // ends with name NULL
const gram_inputs *gram_inputs_find(const char *name);
extern const gram_inputs gram_inputs_none, gram_inputs_gradient; // of --gradients: no input, but g (kit/gram.h)

typedef struct gram_sums {
    int n_layer;
    double *(*sum)[KIT_GRAM_N_KINDS]; // (n_layer) packed matrices; NULL: not summed
    float *scratch;                     // a tile for each thread
} gram_sums;

/* Width of an input (kit/gram.h) of layer l; 0: the layer has no such matrix. */
int gram_width(const dw_hparams *hp, int l, int input);
/* Bytes of the sums of layers first .. end - 1. */
double gram_bytes(const dw_hparams *hp, const gram_inputs *inputs, int first, int end);

/* Zero sums for the inputs of layers first .. end - 1. */
int gram_sums_init(gram_sums *g, const dw_hparams *hp, const gram_inputs *inputs, int first, int end, int n_threads,
                   dw_err *err);
void gram_sums_release(gram_sums *g);

unsigned gram_tap_points(const gram_inputs *inputs);

/* sum += x x^T over the rows `row` (ascending) of x, (rows, n), on thread ith of n_threads; all threads must call. */
void gram_add(double *sum, int n, const float *x, const int *row, int n_row, float *scratch, int ith, int n_threads);
/* For a tap's fn_thread: does nothing with events that are not summed. */
void gram_sums_add(const gram_sums *g, const dw_tap_event *e, const int *row, int n_row, int ith, int n_threads);

enum {
    GRAM_SCRATCH = 256 * 256, // floats for each thread
    GRAM_TOKENS = 2048,       // of one product in F32; more tokens are several blocks
};

#endif
