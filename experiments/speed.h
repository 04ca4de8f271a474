/* speed.h - memory, load time and speed of a model, measured in a child process that holds this model alone.
 *
 * Children are made first, while the program has no threads, and wait; each is told to load and then to run rounds,
 * in turn with the other models', so that a slow minute of the machine falls on all. What a round times:
 *   prefill  a batch of n_prefill tokens (fewer where the context ends) from an empty cache, logits of the last one fetched
 *   decode   n_decode tokens one by one behind 8 others, logits of each fetched
 * The first round warms up and is not counted.  In the decoding of gated models is counted what they open and read. */
#ifndef EXP_SPEED_H
#define EXP_SPEED_H

#include "engine.h"
#include "experiments/bandwidth.h"
#include "experiments/child.h"

typedef struct exp_speed_options {
    const char *path;
    const char *backend;
    int n_threads;
    dw_kv_cache kv;
    int n_prefill, n_decode; // 0: not measured, NaN
    dw_select select;        // how gated layers are run
    bool is_listed;          // ... the plain way: open neurons listed, their rows copied together
    const double *inject;    // n_inject shares of open groups, from the first layer to the last, those between interpolated
    int n_inject;            // 0: the gate decides
} exp_speed_options;

enum { EXP_SPEED_TOKENS = 512, EXP_SPEED_PREFIX = 8, EXP_SPEED_MAX_ROUNDS = 1000 };

typedef struct exp_reading { // of the layers of a gated model, a token of decoding
    int n_layer;             // 0: not gated, or nothing was decoded
    double open[DW_MAX_LAYERS];  // share of neurons that counted
    double bytes[DW_MAX_LAYERS]; // of the FFN that were read
    double bytes_per_token;             // of all weights
} exp_reading;

typedef struct exp_speed { // of one model after its rounds
    double load_ms, peak_rss_bytes;
    exp_reading reading;
    exp_spread prefill_tok_s, decode_tok_s;
    char disturbed[128];
} exp_speed;

/* *o is borrowed until then; exp_child_stop ends it. */
int exp_speed_start(exp_child *c, const exp_speed_options *o, dw_err *err);

/* Loads all models and runs the rounds over them in turn. ids[i]: EXP_SPEED_TOKENS ids for model i. step(ctx) is
 * called after each model's round, the warm-up too (may be NULL). */
int exp_speed_measure(exp_child *children, int n, const int32_t *const *ids, int n_threads, int n_rounds,
                      exp_speed *results, void (*step)(void *ctx), void *ctx, dw_err *err);

/* What disturbed a measurement, as a list of words with numbers, or "no":
 *   cpu     the threads got less than 85 % of the CPU time that they could have had
 *   steal   the host took more than 2 % of it
 *   others  other processes used more than a tenth of a core
 *   load    the load average exceeds our threads by more than one */
void exp_disturbed(const exp_watch *w, int n_threads, char *text, size_t size);

#endif
