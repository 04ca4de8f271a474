/* continuations.h - whether a model continues a text or only repeats itself.
 *
 * The model continues five built-in prompts (English, German, Spanish, code, mathematics) greedily by 48 tokens each.
 * A token repeats when it is one of the four tokens before it.  A continuation only repeats when at least half of its
 * last 32 tokens repeat.
 * A loop of up to four tokens repeats in all 32.  The limit is half because a damaged model may also say one word many
 * times, then another.  Normal text stays far below it: in the embedded model's continuations, which do return to whole
 * sentences, 0 to 8 of the 32 repeat.
 * A continuation that reaches an end token is judged by the tokens before it.  One of fewer than 32 tokens never counts
 * as repeating.
 *
 * All prompts are sequences of one exact session, so the result is the same for every number of threads. */
#ifndef MEASURE_CONTINUATIONS_H
#define MEASURE_CONTINUATIONS_H

#include "engine.h"
#include "text/tokenizers.h"

enum { MEASURE_PROMPTS = 5, MEASURE_CONTINUED = 48, MEASURE_REPEAT_TAIL = 32, MEASURE_REPEAT_REACH = 4 };

/* Whether a continuation of n tokens only repeats. */
bool measure_only_repeats(const int32_t *id, int n);

/* The share of the prompts whose continuation only repeats.  tok: the model's tokenizer.  Of `o` only pool, backend,
 * kv, select and precision are used. */
int measure_repeats(const dw_model *m, const dw_tokenizer *tok, const dw_session_options *o, double *share,
                    dw_err *err);

#endif
