/* teacher_cache.h - predictions of a teacher on the windows of a run, stored for several students.
 *
 * The windows of step i follow from the texts, the seed, -c and --batch alone (distil.h), so students that are healed
 * with the same of these learn from the same predictions, and the teacher runs once.  Of each token the file has the 64
 * likeliest next tokens and the mass of all others, p_rest; the loss is the KL over these 65 bins (dw_coarse_teacher in
 * engine.h).  It is at most the KL over the vocabulary, and a student equal to its teacher moves by the rounding of the
 * file.  A run of fewer steps uses the beginning of the file.  Held-out windows are measured with the teacher itself.
 *
 * File, little endian:
 *   16 bytes "deadwood teach 1"; 32 bytes identity: a hash of all that decides the predictions
 *   u64 steps; u32 tokens of a step; u32 n_vocab; u32 k: at most 64; u32 bytes of an id: 2 if n_vocab <= 65536, else 4
 *   for each token of each step: k ids; u16 c[k]: p = exp(-c / 2048); f32 ln p_rest (-1000: no mass)
 *   32 bytes SHA-256 of everything before
 * Rounding c changes p by at most a factor of 1.00025.  The reader checks sizes and the hash when it opens the file, and
 * every id and number when it uses them. */
#ifndef PRUNE_TEACHER_CACHE_H
#define PRUNE_TEACHER_CACHE_H

#include "prune/distil.h"

double teacher_cache_bytes(const distil *d, uint64_t n_steps);
/* Runs the teacher over the windows of steps 1 .. n_steps.  The file appears whole or not at all. */
int teacher_cache_make(distil *d, const char *path, const uint8_t identity[32], uint64_t n_steps, dw_err *err);

typedef struct teacher_cache_shape { // of the run
    uint64_t n_steps;
    int step_tokens, n_vocab, n_ctx;
    int n_windows; // most of one teacher_cache_read
} teacher_cache_shape;

/* path is borrowed.  NULL: not a file of such a run. */
teacher_cache *teacher_cache_new(const char *path, const uint8_t identity[32], const teacher_cache_shape *s,
                                 dw_err *err);
/* Makes the distillation learn from the file, which must be of this run and have n_steps steps or more; distil_close
 * closes it. */
int teacher_cache_open(distil *d, const char *path, const uint8_t identity[32], uint64_t n_steps, dw_err *err);
void teacher_cache_close(teacher_cache *c);
/* The predictions of windows first .. first + n - 1 of the step that is begun. */
int teacher_cache_read(teacher_cache *c, uint64_t step, int first, int n, dw_err *err);
const dw_coarse_teacher *teacher_cache_coarse(const teacher_cache *c); // what was read

#endif
