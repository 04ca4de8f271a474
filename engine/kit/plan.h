/* plan.h - which neurons stay (plan.tsv): readable, editable, checked text; written by rank, read by cut.
 *
 *   # deadwood plan 1
 *   # model  mini.gguf  sha256 4f...
 *   # stats  stats.h5  sha256 77...
 *   # metric energy (||v_j||^2 E[a_j^2]: ...), group 64, allocate uniform, seed 0
 *   # rate   wanted 0.2000, reached 0.1875
 *   layer  width  keep
 *   0      832    0-63,128-895
 *   1      0      drop
 *   # text   english.txt  sha256 9c...  tokens 3072  blocks 01ab...
 *
 * The first line says what it is.  A layer's width is the number of neurons that stay, `keep` names them: neurons and
 * ranges with both ends included, ascending.  Layers count from 0 and all are named, in order; `drop` removes a whole
 * one, and its width may be left out.  Fields are separated by tabs or spaces.  Of the comments, which stand anywhere,
 * `model`, `metric`, `rate` and `text` are understood; a text is one that the scores learnt from, `blocks` as the lineage
 * wants them (lineage.h). */
#ifndef KIT_PLAN_H
#define KIT_PLAN_H

#include "base/base.h"

typedef struct kit_plan_span {
    int32_t first, last; // both included
} kit_plan_span;

typedef struct kit_plan_layer {
    bool drop;         // the whole layer goes; no neurons then
    int n_keep;        // neurons that stay, at least 1
    kit_plan_span *span; // n_span of them, ascending, not touching
    size_t n_span;
} kit_plan_layer;

typedef struct kit_plan_text {
    char *name, *blocks; // blocks may be ""
    char sha256[65];
    uint64_t n_tokens;
} kit_plan_text;

typedef struct kit_plan {
    char *comment;         // the lines beginning with '#' without "# ", newline-separated; neither the first nor texts
    char model_sha256[65]; // "" when the comment does not say
    double rate_wanted, rate_reached; // -1: not said
    char metric[64], allocate[32];    // "": not said
    int group;                        // 0: not said
    int n_layer;
    kit_plan_layer *layer;
    kit_plan_text *text;
    size_t n_text;
} kit_plan;

/* n_ff: widths of the model that the plan is for (n_layer of them), or NULL to read it unchecked.  After a failure
 * there is nothing to release. */
int kit_plan_read(kit_plan *p, const char *path, const int *n_ff, int n_layer, dw_err *err);
/* The same of text in memory; `name` stands for the path in errors. */
int kit_plan_parse(kit_plan *p, const char *text, size_t size, const char *name, const int *n_ff, int n_layer, dw_err *err);

/* Refused when the plan says that it is for another file than `model` with this hash. */
int kit_plan_check_model(const kit_plan *p, const char *path, const char *model, const char sha256[65], dw_err *err);

/* The file's text, free(); written from comment, layers and texts only. */
char *kit_plan_format(const kit_plan *p, size_t *size, dw_err *err);
int kit_plan_write(const kit_plan *p, const char *path, dw_err *err);
void kit_plan_release(kit_plan *p);

/* A layer's kept neurons, n_keep of them, ascending. */
void kit_plan_neurons(const kit_plan_layer *layer, int32_t *neuron);
/* Sets a layer's spans to the neurons whose `keep` is true. */
int kit_plan_set_layer(kit_plan_layer *layer, const bool *keep, int n_ff, dw_err *err);

#endif
