/* lineage.h - how a model file was made: one step for each program that wrote the file or one of its ancestors. */
#ifndef KIT_LINEAGE_H
#define KIT_LINEAGE_H

#include "kit/options.h"

#define LINEAGE_KEY "deadwood.lineage"
#define LINEAGE_IN_CONFIG "deadwood_lineage"
/* Key of a file that upstream llama.cpp quantized (versus --quantize) after the last step: "llama.cpp VERSION, TYPE".
 * The next step stores it as the fact parent_quantized_by. */
#define LINEAGE_BY_UPSTREAM "deadwood.quantized_by"

/* GGUF key LINEAGE_KEY: an array of strings, one JSON object per step, oldest first:
 *   {"tool": "convert", "version": "0.1", "commit": "0123456789ab", "args": ["mini", "--type", "q8_0"],
 *    "parent": "name of the parent's file",
 *    "inputs": [{"name": .., "sha256": .., "bytes": ..}], "facts": {"rate_reached": "0.1875"},
 *    "texts": [{"name": .., "sha256": .., "tokens": n, "blocks": "hex.."}]}
 * Every program that writes a model adds a step.  A step has no time, host or absolute path, so the same inputs give
 * the same bytes.  (The fact minutes_trained exists only of a run whose end was planned by time.)
 *   args    effective values, defaults included; positional arguments first; paths by their base names
 *   facts   optional: properties of an input, or rates that were reached, by the names of score's columns;
 *           types: the number types of the file's matrices, as kit/sizes.h counts them;
 *           unnamed_data: a file that this step learnt from and that does not say its texts, such as an imatrix;
 *           whether an evaluation text leaks is then unknown
 *   texts   calibration texts, also those of a teacher or of a source of weights; blocks has a 32-bit hash (8 digits)
 *           of each aligned run of 16 tokens
 * An evaluation text that contains three neighbouring blocks is reported as a leak.  A shared run of 63 tokens or more
 * always covers three blocks, wherever it begins; runs of 48 to 62 tokens may be reported, too.
 *
 * Of a text with more than LINEAGE_MOST_BLOCKS blocks (262,144 tokens) three neighbouring blocks in every n / 5,461
 * tokens are kept, 128 KB in all: of 10 million tokens a shared run of 1,900 is always found, a shorter one by chance.
 * Statistics, plans and traces keep the same blocks.
 *
 * A checkpoint folder that cut writes has the lineage of the GGUF file beside it in the metadata of its weights, under
 * the same key: {"parent": "name of the GGUF file", "steps": [step, ..]}.  Other programs that write the weights again
 * drop it; the key LINEAGE_IN_CONFIG in config.json, which they keep, then says that there was one. */
typedef struct lineage lineage;
enum { LINEAGE_MOST_BLOCKS = 1 << 14 };

/* Fails if the file has a lineage that cannot be read, or that no further step fits into.  Call it when the file is
 * opened, so that a program does not fail after its work. */
int lineage_check(const dw_gguf *g, dw_err *err);

/* A new step after the steps of the parent (NULL: the first step), with the arguments that opt_parse has read. */
lineage *lineage_new(const opt_program *program, const dw_gguf *parent, dw_err *err);
int lineage_input(lineage *l, const char *path, dw_err *err); // hashes the file with kit_sha256_input
int lineage_input_hashed(lineage *l, const char *path, const char sha256[65], dw_err *err); // the hash is known
int lineage_fact(lineage *l, const char *name, const char *value, dw_err *err); // "" or NULL: unknown, not stored
int lineage_unnamed_data(lineage *l, const char *path, dw_err *err); // the fact unnamed_data
char *lineage_blocks(const int32_t *ids, size_t n, dw_err *err); // 8 hex digits for each block that is kept; free()
size_t lineage_blocks_bytes(size_t n_tokens); // their length, at most
/* Adds a calibration text: the hash of its file, the blocks of its n tokens. */
int lineage_text_blocks(lineage *l, const char *name, const char sha256[65], const char *blocks, size_t n, dw_err *err);
struct kit_stats_text;
int lineage_texts(lineage *l, const struct kit_stats_text *text, size_t n, dw_err *err); // of statistics or traces
struct kit_plan_text;
int lineage_plan_texts(lineage *l, const struct kit_plan_text *text, size_t n, dw_err *err); // of a plan
/* Adds what another model, from which this step learns (a teacher, a source of weights), has learnt from: the texts of
 * those of its steps that the parent has not.  Fails where these texts are too many. */
int lineage_texts_of_model(lineage *l, const dw_gguf *g, dw_err *err);
/* Fails if a step after the parent could not have the texts of that model.  Call it when the files are opened. */
int lineage_check_texts_of_model(const dw_gguf *parent, const dw_gguf *g, dw_err *err);
/* The lineage of a file as it stands in a checkpoint folder; free().  NULL with empty err: none, or it is so long that
 * kit_safetensors would not read it. */
char *lineage_to_json(const dw_gguf *g, dw_err *err);
int lineage_from_json(lineage *l, const char *json, dw_err *err); // its steps come before the new one
int lineage_write(const lineage *l, dw_gguf_writer *w, dw_err *err);
void lineage_free(lineage *l);

/* The commit that this program was built from, with "-dirty" after it when the tree had changes; "-": unknown.  In the
 * program's file it follows kit_commit_mark, KIT_COMMIT_MARK bytes that stand nowhere else; both take
 * KIT_COMMIT_BYTES. */
enum { KIT_COMMIT_MARK = 16, KIT_COMMIT_BYTES = 64 };
const char *kit_commit(void);
const char *kit_commit_mark(void);

/* The effective arguments of this run, in the form of `args`, quoted for a shell; free(). */
char *lineage_arguments(const opt_program *program, dw_err *err);
/* The steps as commands that can be run again, one per line; free().  Each command writes the file that the next one
 * reads.  NULL with empty err: the file has no lineage.  The file is not trusted: only programs that write models are
 * named, paths are base names, words are quoted so that no byte acts in a terminal or shell, and a step with an option
 * that loads code or writes another file becomes a comment. */
char *lineage_commands(const dw_gguf *g, dw_err *err);
/* Why this text is a leak for this model: "calibration text 'x' of step collect has the same hash", or "... shares
 * a run of 112 tokens or more"; free().  NULL with empty err: the text is not a leak. */
char *lineage_leak(const dw_gguf *g, const char sha256[65], const int32_t *ids, size_t n, dw_err *err);
/* Whether a step learnt from data that it does not name, so that no text can be said to be unseen: importances of
 * unknown texts, a plan of unknown origin, a foreign file quantized with importances. */
int lineage_learnt_unnamed(const dw_gguf *g, bool *unnamed, dw_err *err);
/* 1: only a key of the file says so; *by is what it names; else 0, or -1. */
int lineage_weighed_elsewhere(const dw_gguf *g, dw_str *by, dw_err *err);
/* Tokens of a run that the n ids share, by the same rule, with one of these texts, *which; 0: with none; -1: an error.
 * Texts of the file sha256, from which the ids come, are left out. */
long lineage_shared_run(const struct kit_stats_text *text, size_t n_text, const char sha256[65], const int32_t *ids,
                        size_t n, size_t *which, dw_err *err);
typedef struct lineage_split { // a text: its tokens before n_train are learnt from, its end only measures
    const int32_t *id; // n
    size_t n, n_train;
    const char *sha256; // of the file
} lineage_split;
/* Tokens of the first run that text *learnt learns from and text *held, of another file, has in its end: of 63 or more,
 * and perhaps of 48 to 62.  0: there is none; -1: an error. */
long lineage_shared_end(const lineage_split *text, size_t n_text, size_t *learnt, size_t *held, dw_err *err);
/* Calls fn for every step, oldest first.  A step is a JSON object of jansson, which has tool and args. */
struct json_t;
int lineage_steps(const dw_gguf *g, void (*fn)(void *ctx, const struct json_t *step), void *ctx, dw_err *err);
/* Calls fn for every input and every calibration text of every step. */
int lineage_inputs(const dw_gguf *g, void (*fn)(void *ctx, const char *tool_name, const char *name, const char *sha256),
                   void *ctx, dw_err *err);

#endif
