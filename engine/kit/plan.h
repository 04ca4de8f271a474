/* plan.h - which neurons stay (plan.tsv): text that rank writes, people may edit, and cut reads and checks.
 *
 *   # deadwood plan 1
 *   # model  mini.gguf  sha256 4f...
 *   # stats  stats.h5  sha256 77...
 *   # metric energy (||v_j||^2 E[a_j^2]: ...), group 64, allocate uniform, seed 0
 *   # rate   wanted 0.2000, reached 0.1875
 *   # bytes  at most 20000000
 *   layer  width  keep
 *   0      832    0-63,128-895
 *   1      0      drop
 *   heads  0      0,2-3
 *   # text   english.txt  sha256 9c...  tokens 3072  blocks 01ab...
 *
 * The first line is required.  `width` is the number of neurons of a layer that stay; `keep` lists them: neurons and
 * ranges, ascending, both ends of a range included.  Layers count from 0; every layer is listed, in order.  `drop`
 * removes a whole layer; its width may be left out.  Tabs or spaces separate fields.
 * A line `heads` follows its layer's line, and lists the KV heads that stay; each has its query heads with it (with 8
 * heads and 4 KV heads, KV head 2 has heads 4 and 5).  Without such a line all heads stay.
 * Comments may be anywhere.  Those that begin with `model`, `metric`, `rate`, `bytes` or `text` are read.  A `text` is
 * a calibration text of the scores, or one that judged the widths; `blocks` are its hashes for the lineage
 * (lineage.h). */
#ifndef KIT_PLAN_H
#define KIT_PLAN_H

#include "base/base.h"

typedef struct kit_plan_span {
    int32_t first, last; // both included
} kit_plan_span;

typedef struct kit_plan_layer {
    bool drop;           // the whole layer is removed; n_keep is then 0
    int n_keep;          // neurons that stay, at least 1
    kit_plan_span *span; // n_span ranges, ascending, with gaps between them
    size_t n_span;
    int n_kv;            // KV heads that stay; 0: all
    kit_plan_span *kv;   // n_kv_span ranges likewise
    size_t n_kv_span;
} kit_plan_layer;

typedef struct kit_plan_text {
    char *name, *blocks; // blocks may be ""
    char sha256[65];
    uint64_t n_tokens;
} kit_plan_text;

typedef struct kit_plan {
    char *comment; // comment lines without "# ", each with "\n"; the first line and texts are left out
    char model_sha256[65]; // "": unknown
    double rate_wanted, rate_reached; // -1: unknown
    double most_bytes;                // of the cut file in the model's types; 0: any
    char metric[64], allocate[32];    // "": unknown
    int group;                        // 0: unknown
    int n_layer;
    kit_plan_layer *layer;
    kit_plan_text *text;
    size_t n_text;
} kit_plan;

/* n_ff: the n_layer widths of the model that the plan is for; NULL: the plan is not checked against a model.  After a
 * failure there is nothing to release. */
int kit_plan_read(kit_plan *p, const char *path, const int *n_ff, int n_layer, dw_err *err);
/* The same for text in memory; `name` is used as path in messages. */
int kit_plan_parse(kit_plan *p, const char *text, size_t size, const char *name, const int *n_ff, int n_layer,
                   dw_err *err);

/* Fails when the plan names the hash of another model.  `model` is the name of the model with this sha256. */
int kit_plan_check_model(const kit_plan *p, const char *path, const char *model, const char sha256[65], dw_err *err);

/* The text of the file, made from comment, layers and texts only; free().  Control characters of a text's name become
 * escapes (dw_show).  Fails rather than give a text that kit_plan_parse refuses. */
char *kit_plan_format(const kit_plan *p, size_t *size, dw_err *err);
int kit_plan_write(const kit_plan *p, const char *path, dw_err *err);
void kit_plan_release(kit_plan *p);

/* Lists the n_keep neurons of a layer that stay, ascending. */
void kit_plan_neurons(const kit_plan_layer *layer, int32_t *neuron);
void kit_plan_kv_heads(const kit_plan_layer *layer, int32_t *head); // the same for n_kv KV heads
/* Sets the KV heads that stay of n. */
int kit_plan_set_kv_heads(kit_plan_layer *layer, const bool *keep, int n, dw_err *err);
/* Sets a layer's spans to the neurons whose `keep` is true. */
int kit_plan_set_layer(kit_plan_layer *layer, const bool *keep, int n_ff, dw_err *err);

#endif
