/* speed.h - memory, load time and speed of a model, measured in a child process that holds this model alone.
 *
 * Children are started first, while the program has no threads, and wait.  Each is told to load and then to run rounds,
 * in turn with the other models', so that a slow minute of the machine falls on all.  A round measures at each depth,
 * which is the number of tokens that each sequence has in its KV cache before the timed ones:
 *
 *   prefill  one batch of n_prefill tokens of every sequence; the logits of each one's last token are fetched
 *   decode   n_decode times one token of every sequence; the logits of each are fetched.  At depth 0 eight tokens come
 *            before.
 *
 * Rates count the tokens of all sequences.  Each depth has sequences of its own, whose first tokens are evaluated once
 * and stay in the cache; after each measurement the sequences are rewound to them.  The first round warms up and is not
 * counted.  While gated models decode one sequence, what they open and read is counted. */
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
    const int *depth;        // n_depths
    int n_depths, n_seq;     // n_seq: sequences that run together
    const char *precision;   // of tool_precision_names; NULL: the default, int8
    bool huge_pages;         // weights are copied into them
    dw_select select;        // how gated layers are run
    bool is_listed;          // gated layers the plain way: open neurons listed, their rows copied together
    /* n_inject shares of open groups, from the first layer to the last, those between interpolated. */
    const double *inject;
    int n_inject; // 0: the gate decides
} exp_speed_options;

enum { EXP_SPEED_TOKENS = 512, EXP_SPEED_PREFIX = 8, EXP_SPEED_MAX_ROUNDS = 1000 };
enum { EXP_SPEED_MAX_DEPTHS = 16, EXP_SPEED_MAX_DEPTH = 1 << 20, EXP_SPEED_MAX_SEQ = 256 };

typedef struct exp_reading { // of the layers of a gated model, a token of decoding
    int n_layer;             // 0: not gated, or nothing was decoded
    double open[DW_MAX_LAYERS];  // share of neurons that counted
    double bytes[DW_MAX_LAYERS]; // of the FFN that were read
    double bytes_per_token;             // of all weights
} exp_reading;

typedef struct exp_speed { // of one model at one depth after its rounds
    double load_ms, peak_rss_bytes;
    exp_reading reading;
    exp_spread prefill_tok_s, decode_tok_s;
    char disturbed[128];
} exp_speed;

/* *o is borrowed until then; exp_child_stop ends it. */
int exp_speed_start(exp_child *c, const exp_speed_options *o, dw_err *err);

/* n children, and the ids that each model is timed with: EXP_SPEED_TOKENS of them, which repeat. */
typedef struct exp_speed_run {
    exp_child *children;
    const int32_t *const *ids;
    int n, n_depths;         // as in the options
    int n_threads, n_rounds;
    void (*step)(void *ctx); // called after each measurement of a model at a depth, the warm-up too; or NULL
    void *ctx;
} exp_speed_run;

/* Loads all models and runs the rounds over them in turn; results (n, n_depths). */
int exp_speed_measure(const exp_speed_run *run, exp_speed *results, dw_err *err);

/* "0,4096" as depths[EXP_SPEED_MAX_DEPTHS]; how many, 0: it is no list of different depths. */
int exp_speed_depths(const char *list, int *depths);
/* What was timed, as llama-bench names it: "pp512 tg64 @ d4096", with several sequences "pp512 tg64 x4". */
void exp_speed_name(const exp_speed_options *o, int depth, char *name, size_t size);

/* What disturbed a measurement, as a list of words with numbers, or "no":
 *   cpu     the threads got less than 85 % of the CPU time that they could have had
 *   steal   the host took more than 2 % of it
 *   others  other processes used more than a tenth of a core
 *   load    the load average exceeds our threads by more than one */
void exp_disturbed(const exp_watch *w, int n_threads, char *text, size_t size);

#endif
