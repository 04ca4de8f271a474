/* continuations.h - whether a model goes on with a text, or only repeats itself.
 *
 * Five built-in prompts, one for each of the project's kinds of text (English, German, Spanish, code, mathematics), are
 * continued greedily by 48 tokens each.  A token repeats when it is one of the four before it, and a continuation only
 * repeats when at least half of its last 32 tokens do.  What has a period of at most four tokens does so with all 32, but
 * a damaged model also drifts, from one word said many times to the next; therefore half, of which text that is written
 * stays far: in the embedded model's continuations, though they come back to whole sentences, 0 to 8 of the 32 repeat.
 * What ends by itself, at an end token, is judged by what stands before that; fewer than 32 tokens do not only repeat.
 *
 * All prompts are sequences of one exact session: the result is the same for every number of threads. */
#ifndef MEASURE_CONTINUATIONS_H
#define MEASURE_CONTINUATIONS_H

#include "engine.h"
#include "text/tokenizers.h"

enum { MEASURE_PROMPTS = 5, MEASURE_CONTINUED = 48, MEASURE_REPEAT_TAIL = 32, MEASURE_REPEAT_REACH = 4 };

/* Whether a continuation of n tokens does. */
bool measure_only_repeats(const int32_t *id, int n);

/* The share of the prompts whose continuation only repeats; of `o` pool, backend, kv and select are used.  tok: the model's. */
int measure_repeats(const dw_model *m, const dw_tokenizer *tok, const dw_session_options *o, double *share, dw_err *err);

#endif
