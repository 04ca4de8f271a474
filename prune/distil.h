/* distil.h - one model learns the distributions of another: steps, held-out loss, checkpoints.
 *
 * A step draws `batch` windows of n_ctx tokens at random places of the texts (the places follow from the seed and the
 * step's number alone), computes
 *
 *     loss = (1 - ce) mean tau^2 KL(teacher || student) + ce mean CE + hidden mean E + sparsity mean S
 *
 * and takes one step of AdamW (engine/model/optimizer.h).  CE is the cross entropy with the text's next token, E the
 * relative squared error of the residuals, S the density of the gates (dw_loss in engine.h).  Each mean is over the
 * positions that have the term: KL and S all n_ctx of a window, CE n_ctx - 1 (the last has no next token), E n_ctx - 1
 * (the first is left out).
 *
 * The last windows of the texts are held out.  The held-out loss is their mean KL(teacher || student) at temperature 1,
 * whatever the loss is: the number that score calls kl_mean.
 *
 * Rounded weights.  With dw_trained.rounded (engine/model/optimizer.h) the student computes with weights that are
 * rounded to number types, also where the held-out loss is measured.
 *
 * Dropped layers.  A student with fewer layers than its teacher computes with the teacher's layers that have the same
 * FFN norms, value by value.  The residual before each of them is compared with the teacher's before the
 * same layer, and the last with the last.
 *
 * Teacher and student compute with the same arithmetic, so a student equal to its teacher has a gradient of exactly 0
 * and stays.  Results do not depend on the number of threads.
 *
 * Checkpoint, little endian:
 *   16 bytes "deadwood heal 3\n"; 32 bytes identity: a hash of all that decides the result
 *   u64 steps done; u64 n values; f64 seconds so far; f64 longest step; f64 held-out loss at the beginning
 *   u64 measurements done; u64 step of the lowest one (0: none); f64 its loss; u64 measurements since
 *   f64 seconds that the last measurement and the file need; files of "deadwood heal 2\n", which are read, too, lack it
 *   f32 value[n], mean[n], square[n]: parameters and AdamW's moments; f32 best[n] if the lowest one is kept and exists
 *   32 bytes SHA-256 of everything before */
#ifndef PRUNE_DISTIL_H
#define PRUNE_DISTIL_H

#include "model/optimizer.h"
#include "prune/schedule.h"

typedef struct distil_text {
    const char *name;
    int32_t *id;
    size_t n, n_train; // tokens; those before the held-out windows
    char sha256[65];
} distil_text;

typedef struct distil_options {
    dw_pool *pool;
    const char *backend;
    int n_ctx, batch, n_held; // tokens of a window; windows of a step; least number of held-out windows
    uint64_t seed;
    int32_t bos; // replaces the first token of each window; -1: none does
    double temperature, ce, hidden, sparsity;
    dw_adamw adamw; // its rate is set by the caller of each step
    dw_trained trained;
    const char *activation; // of the student's FFN gates (dw_session_activation); NULL: its own
    bool keeps_best;        // a copy of the values with the lowest held-out loss
    bool keeps_values;      // of the layers, for the backward pass: more memory, fewer operations, the same bits
} distil_options;

typedef struct teacher_cache teacher_cache; // teacher_cache.h

typedef struct distil {
    distil_options o;
    distil_text *text; // borrowed
    size_t n_text;
    dw_session *session, *teacher_session;
    dw_train *train, *teacher;
    const dw_model *model, *teacher_model; // borrowed
    teacher_cache *cache;          // in the teacher's place in steps; NULL: the teacher itself
    dw_parameters p;
    int32_t *token; // (batch, n_ctx)
    int n_micro;    // windows of one pass
    int *residual;  // (n_layer) of dw_loss
    float *best;    // (n values); NULL: not kept
    schedule plan;  // steps and time; set by the caller
    double first_held_out;
    double open; // share of open gates in the last step; only with sparsity
} distil;

/* Marks the last windows of every text as held out, in equal shares, which are rounded up: eight windows of 20 texts
 * are one of each.  A text without room for its share holds out fewer.  Fails for a text shorter than a window, and
 * where all texts together hold out fewer than n_held. */
int distil_hold_out(distil_text *text, size_t n_text, const distil_options *o, dw_err *err);
size_t distil_n_held(const distil_text *text, size_t n_text, int n_ctx); // windows that are held out
size_t distil_memory(const dw_model *student, const dw_model *teacher,
                     const distil_options *o); // bytes; 0: cannot be opened
/* Sessions, passes and parameters.  d->text and d->n_text are set, and distil_hold_out has marked the texts.  Models
 * and texts are borrowed until distil_close, which is also called after a failure.  The plan is left to the caller. */
int distil_open(distil *d, const dw_model *student, const dw_model *teacher, const distil_options *o, dw_err *err);
void distil_close(distil *d);

/* The windows of step 1, 2, .. into d->token. */
void distil_draw(const distil *d, uint64_t step);

/* One step at that rate; *loss: the mean before it.  A step whose loss or gradient is not finite changes nothing and
 * fails. */
int distil_step(distil *d, double rate, double *loss, dw_err *err);
/* Operations of a step by its tokens: products with matrices of both models, with the layers' values computed again,
 * unless they are kept, and of attention; a multiply-add is two. */
double distil_operations(const distil *d);
/* Words for a line: tokens a second beside those that the measured rate of products allows. */
void distil_speed_words(char words[160], double tokens, double allowed);
/* The mean over the held-out windows, 0 without any.  Fails where it is not finite. */
int distil_held_out(distil *d, double *loss, dw_err *err);
void distil_keep_best(distil *d); // the values as they are now
void distil_take_best(distil *d); // the values are what was kept

/* Writes the checkpoint.  The file before it stays until the new one is complete. */
int distil_save(const distil *d, const char *path, const uint8_t identity[32], dw_err *err);
/* 1: goes on from the file; 0: there is none, or it is empty; -1: it is damaged or of another run, and stays. */
int distil_load(distil *d, const char *path, const uint8_t identity[32], dw_err *err);

#endif
