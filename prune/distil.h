/* distil.h - one model learns the distributions of another: steps, held-out loss, checkpoints.
 *
 * A step draws `batch` windows of n_ctx tokens at random places of the texts (the places follow from the seed and the
 * step's number alone), computes the mean over their tokens of (1 - ce) tau^2 KL(teacher || student) + ce * cross
 * entropy, and takes one step of AdamW (engine/model/optimizer.h).  The last windows of the texts are held out.
 * The mean is over n_ctx positions a window; the last position has no next token, and its cross entropy counts as 0.
 *
 * Teacher and student compute with the same arithmetic, so a student equal to its teacher has a gradient of exactly 0
 * and stays.  Results do not depend on the number of threads.
 *
 * Checkpoint, little endian:
 *   16 bytes "deadwood heal 1\n"; 32 bytes identity: a hash of all that decides the result
 *   u64 steps done; u64 n values; f64 seconds so far; f64 held-out loss at the beginning
 *   f32 value[n], mean[n], square[n]: parameters and AdamW's moments
 *   32 bytes SHA-256 of everything before */
#ifndef PRUNE_DISTIL_H
#define PRUNE_DISTIL_H

#include "model/optimizer.h"

typedef struct distil_text {
    const char *name;
    int32_t *id;
    size_t n, n_train; // tokens; those before the held-out windows
    char sha256[65];
} distil_text;

typedef struct distil_options {
    dw_pool *pool;
    const char *backend;
    int n_ctx, batch, n_held; // tokens of a window; windows of a step; held-out windows
    uint64_t seed;
    int32_t bos; // replaces the first token of each window; -1: none does
    double temperature, ce;
    dw_adamw adamw; // its rate is set by the caller of each step
    dw_trained trained;
} distil_options;

typedef struct distil {
    distil_options o;
    distil_text *text; // borrowed
    size_t n_text;
    dw_session *session, *teacher_session;
    dw_train *train, *teacher;
    dw_parameters p;
    int32_t *token;   // (batch, n_ctx)
    int n_micro;      // windows of one pass
    uint64_t n_steps; // done
    double seconds, first_held_out;
} distil;

/* Marks the last windows of every text as held out, in equal shares.  A text without room for its share holds out
 * fewer.  Fails for a text shorter than a window, and where all texts together hold out fewer than n_held. */
int distil_hold_out(distil_text *text, size_t n_text, const distil_options *o, dw_err *err);
size_t distil_memory(const dw_model *student, const dw_model *teacher,
                     const distil_options *o); // bytes; 0: cannot be opened
int distil_open(distil *d, const dw_model *student, const dw_model *teacher, const distil_options *o, dw_err *err);
void distil_close(distil *d);

/* One step at that rate; *loss: the mean before it.  A step whose loss or gradient is not finite changes nothing and
 * fails. */
int distil_step(distil *d, double rate, double *loss, dw_err *err);
int distil_held_out(distil *d, double *loss, dw_err *err); // mean loss of the held-out windows

int distil_save(const distil *d, const char *path, const uint8_t identity[32], dw_err *err);
/* 1: goes on from the file; 0: there is none; -1: it is damaged or of another run, and stays. */
int distil_load(distil *d, const char *path, const uint8_t identity[32], dw_err *err);

#endif
