/* stock.h - stock llama.cpp, driven through the shared libraries of its public package.
 *
 * No header and no build of llama.cpp is needed: the libraries are opened at run time (libllama*.so and its ggml
 * companions in one folder) and called through prototypes written here.  Two of its parameter structs grow from release
 * to release and are passed by value; both are declared larger than they are, so that the library's own defaults always
 * pass through unchanged.  Single fields are set only when the version is the one whose offsets are known and the
 * defaults found there are the expected ones; else stock_can_set() is false and stock runs with its defaults (only the
 * number of threads is always set).
 *
 * Used to measure beside it and to test parity; nothing of the engine depends on it.  At most one stock at a time, and
 * not on a thread that uses AMX tiles otherwise (the `cpu` backend): stock configures the tiles of a thread once and
 * trusts them for ever, and an instruction on released tiles ends the process.  So versus gives each program a process. */
#ifndef EXP_STOCK_H
#define EXP_STOCK_H

#include "base/base.h"

typedef struct stock stock;

/* Where the libraries are: `folder`, else $DW_STOCK; NULL when neither is given or no libllama*.so is there (err
 * says). */
stock *stock_open(const char *folder, dw_err *err);
void stock_close(stock *s);
const char *stock_version(const stock *s);     // "0.5.0"
const char *stock_cpu_library(const stock *s); // the CPU variant that it chose, "libggml-cpu-sapphirerapids.so"
bool stock_can_set(const stock *s);            // the options below beyond threads are obeyed

typedef enum stock_flash { STOCK_FLASH_AUTO = -1, STOCK_FLASH_OFF, STOCK_FLASH_ON } stock_flash;

typedef struct stock_options {
    int n_threads;
    int n_ctx;          // positions of a sequence; 512
    int n_seq;          // sequences; 1
    int n_batch;        // tokens of one evaluation; 512
    stock_flash flash;
    bool plain_buffers; // no extra buffer types: weights are not repacked at load
    bool kv_f32;        // keys and values in F32 instead of F16
} stock_options;

typedef struct stock_session stock_session; // a model with one context, weights mapped

stock_session *stock_session_new(stock *s, const char *path, const stock_options *o, dw_err *err);
void stock_session_free(stock_session *ss);
int stock_session_n_vocab(const stock_session *ss);

/* n tokens of each of n_seq sequences. */
typedef struct stock_tokens {
    const int32_t *token; // (n_seq, n)
    int n, n_seq;
    int pos0;             // the positions of a sequence are pos0 ..; what was there from pos0 on is forgotten
    int n_out;            // logits are kept of the last n_out tokens of each sequence
} stock_tokens;

/* Evaluates tokens as one batch; returns when the logits are there. */
int stock_session_eval(stock_session *ss, const stock_tokens *tokens, dw_err *err);
/* (n_vocab) logits of token i of the last batch, sequence after sequence; borrowed until the next.  NULL: none are kept
 * of it. */
const float *stock_session_logits(stock_session *ss, int i);

/* Quantizes a model file as llama-quantize does, and writes LINEAGE_BY_UPSTREAM into it.  type: "Q4_K_M", "Q6_K", ...;
 * imatrix: an importance file of either form or NULL.  Source tensors that are quantized already are refused by stock. */
int stock_quantize(stock *s, const char *in, const char *out, const char *type, const char *imatrix, int n_threads,
                   dw_err *err);

#endif
