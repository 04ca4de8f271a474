/* hf.h - a cut model as a checkpoint folder for transformers.
 *
 * The folder that the model came from gives what a GGUF file does not keep: config.json, copied with the new widths and
 * number of layers, and the tokenizer's files, copied as they are.  Matrices are 16 or 32 bits; rows of q and k go back
 * to the pairs of transformers where the architecture has turned them; vectors take the type of the matrices where that
 * is exact.  One width for all layers: transformers knows no other. */
#ifndef PRUNE_HF_H
#define PRUNE_HF_H

#include "kit/plan.h"
#include "prune/prune.h"

/* Whether the model at hand can be written so: 16 or 32 bits, a native architecture.  checkpoint: the folder. */
int prune_hf_check(const dw_model *m, const char *checkpoint, const char *out, dw_err *err);
/* model: the cut file; plan: names the layers that stay.  The folder `out` appears whole; it must not exist. */
int prune_hf_write(const char *model, const dw_plan *plan, const char *checkpoint, const char *out, dw_err *err);

#endif
