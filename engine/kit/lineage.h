/* lineage.h - how a model file came to be: one step for each tool that wrote it or a file before it. */
#ifndef KIT_LINEAGE_H
#define KIT_LINEAGE_H

#include "kit/options.h"

/* GGUF key "deadwood.lineage": an array of strings, one JSON object a step, oldest first:
 *   {"tool": "convert", "version": "0.1", "args": ["mini", "--type", "q8_0"], "facts": {"rate_reached": "0.1875"}, "parent": "name of the parent's file",
 *    "inputs": [{"name": .., "sha256": .., "bytes": ..}], "texts": [{"name": .., "sha256": .., "tokens": n, "blocks": "hex.."}]}
 * No time, no host, no absolute path: same inputs, same bytes.  A step is stamped by every tool that writes a model.
 * `args` are the effective values, defaults too, positional arguments first, paths by their base names.
 * `facts`, where present, are what an input says of itself or what was reached, by the names of score's columns.  `texts`
 * are calibration texts; `blocks` holds a 32-bit hash (8 digits) of each aligned run of 16 tokens.  Any shared
 * run of 64 tokens, wherever it begins, covers three such blocks: an evaluation text that holds three neighbouring
 * blocks is reported as a leak (so runs of 48 to 63 may be reported too, longer ones always are). */
typedef struct lineage lineage;

/* Whether a file's lineage, if it has one, can be read and continued.  To be called when the file is opened, so that a
 * program does not fail after its work. */
int lineage_check(const dw_gguf *g, dw_err *err);

/* A new step behind the parent's (NULL: a first step), with the arguments that opt_parse has read. */
lineage *lineage_new(const opt_program *program, const dw_gguf *parent, dw_err *err);
int lineage_input(lineage *l, const char *path, dw_err *err); // hashes it: dw_input_sha256
int lineage_input_hashed(lineage *l, const char *path, const char sha256[65], dw_err *err); // its hash is known
int lineage_fact(lineage *l, const char *name, const char *value, dw_err *err); // "" or NULL: not known, nothing is stored
char *lineage_blocks(const int32_t *ids, size_t n, dw_err *err); // 8 hex digits for each whole run of 16 tokens; free()
/* A text that the step learnt from: its file's hash, the blocks of its n tokens. */
int lineage_text_blocks(lineage *l, const char *name, const char sha256[65], const char *blocks, size_t n, dw_err *err);
struct kit_stats_text;
int lineage_texts(lineage *l, const struct kit_stats_text *text, size_t n, dw_err *err); // n of them, as statistics and traces name them
struct kit_plan_text;
int lineage_plan_texts(lineage *l, const struct kit_plan_text *text, size_t n, dw_err *err); // likewise, as a plan names them
int lineage_write(const lineage *l, dw_gguf_writer *w, dw_err *err);
void lineage_free(lineage *l);

/* The effective arguments of this run as `args` has them, quoted for a shell; free(). */
char *lineage_arguments(const opt_program *program, dw_err *err);
/* The chain as commands that can be run again, one a line; free().  Each writes the file that the next one reads.
 * NULL, with err empty, when the file has none.  The file is not trusted: only tools that write models are named, paths by
 * their base names, words are quoted so that no byte acts in a terminal or shell, and a step with an option that loads
 * code or writes another file becomes a comment. */
char *lineage_commands(const dw_gguf *g, dw_err *err);
/* Why this text is a leak for this model ("calibration text 'x' of step collect has the same hash", "... shares 112
 * tokens"), or NULL, with err empty, when it is none.  free(). */
char *lineage_leak(const dw_gguf *g, const char sha256[65], const int32_t *ids, size_t n, dw_err *err);
/* Calls fn for every input of every step. */
int lineage_inputs(const dw_gguf *g, void (*fn)(void *ctx, const char *tool_name, const char *name, const char *sha256),
                   void *ctx, dw_err *err);

#endif
