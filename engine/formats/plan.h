/* plan.h - which neurons stay (plan.tsv): readable, editable, checked text; written by rank, read by cut.
 *
 *   # deadwood plan 1
 *   # model  mini.gguf  sha256 4f...
 *   # stats  stats.h5  sha256 77...
 *   # metric energy (FLAP 2312.11983 without variance ...), group 64, allocate uniform, seed 0
 *   # rate   wanted 0.2000, reached 0.1875
 *   layer  width  keep
 *   0      832    0-63,128-895
 *   1      drop
 *
 * Comments are kept as text; `model` and `width`s are checked against the file that is cut.  Ranges are ascending,
 * both ends included. */
#ifndef DW_PLAN_H
#define DW_PLAN_H

#include "base/base.h"

typedef struct dw_plan_layer {
    bool drop;          // the whole layer goes
    int n_keep;
    int32_t *keep;      // ascending neurons
} dw_plan_layer;

typedef struct dw_plan {
    char *comment;       // the lines beginning with '#', without "# ", newline-separated
    char model_sha256[65]; // "" when the comment does not say
    double rate_wanted, rate_reached; // -1: not said
    char metric[64], allocate[32];
    int group;
    int n_layer;
    dw_plan_layer *layer;
} dw_plan;

/* n_ff: widths of the model the plan is for (n_layer of them), or NULL to read it unchecked. */
int dw_plan_read(dw_plan *p, const char *path, const int *n_ff, int n_layer, dw_err *err);
int dw_plan_write(const dw_plan *p, const char *path, dw_err *err); // a file; "-" means nothing here
void dw_plan_release(dw_plan *p);

#endif
