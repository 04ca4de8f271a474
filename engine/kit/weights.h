/* weights.h - importances: of each input column of a matrix the mean of x^2 over calibration tokens, by which the block
 * formats' encoders weigh errors. */
#ifndef KIT_WEIGHTS_H
#define KIT_WEIGHTS_H

#include "kit/imatrix.h"
#include "kit/lineage.h"
#include "kit/stats.h"

typedef struct kit_weights {
    char sha256[65]; // of the file
    kit_imatrix matrix;
    kit_stats stats; // is_stats: where the matrix came from
    bool is_stats;
} kit_weights;

/* Reads stats.h5 or llama.cpp's importance file, old or new.  Statistics must be of this model (the hash of its file),
 * or of one that its lineage names without a cut between.  Importances of layers that the model lacks are refused.
 * After a failure there is nothing to release. */
int kit_weights_read(kit_weights *w, const dw_model *m, const char model_sha256[65], const char *path, dw_err *err);
/* *mean: the importances of a matrix's columns, raised (dw_weights_raise), borrowed; or NULL when there are none.
 * Refused when their number differs. */
int kit_weights_find(const kit_weights *w, const dw_tensor *t, const float **mean, dw_err *err);
void kit_weights_release(kit_weights *w);

/* Refuses a mixture that needs importances of a tensor; path NULL: none were given. */
int kit_weights_fail(const char *path, const dw_tensor *t, const char *mixture, dw_err *err);

/* Says in a new file's keys, as llama.cpp's quantizer does, where its importances came from; path NULL: none were
 * used.  Keys of an earlier step are removed. */
void kit_weights_put_keys(const kit_weights *w, const char *path, dw_gguf_writer *to);
/* The file at the path, as it was read, is an input of this step; so are the texts that it was made from. */
int kit_weights_stamp(const kit_weights *w, const char *path, lineage *l, dw_err *err);

#endif
