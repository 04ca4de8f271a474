/* hf.h - a cut model as a checkpoint folder for transformers.
 *
 * The folder that the model came from has what a GGUF file does not keep.  Its config.json is copied with the new width
 * and number of layers, and the tokenizer's files as they are.  The weights carry the lineage (kit/lineage.h).
 * Matrices have 16 or 32 bits.  Rows of q and k that convert permuted for rope get their order in transformers back.
 * Vectors take the type of the matrices where that changes no value.  All layers must have one width, because
 * transformers has no other models. */
#ifndef PRUNE_HF_H
#define PRUNE_HF_H

#include "kit/plan.h"
#include "prune/prune.h"

/* Whether m can be written as a folder: 16 or 32 bits, an architecture that transformers has.  checkpoint: the folder
 * that m came from, of the same class, layers, width and vocabulary. */
int prune_hf_check(const dw_model *m, const char *checkpoint, const char *out, dw_err *err);
/* Writes the cut file `model`; `plan` says which layers stayed.  The folder `out` must not exist.  It appears whole
 * or not at all. */
int prune_hf_write(const char *model, const kit_plan *plan, const char *checkpoint, const char *out, dw_err *err);

#endif
