/* tokenize.h - what the fuzz targets do with a vocabulary that was accepted. */
#ifndef TEST_TOKENIZE_H
#define TEST_TOKENIZE_H

#include "text/tokenizers.h"

/* Tokenizes a few texts and every token's own text, turns ids into text again, and releases the vocabulary.
 * Aborts where an id is out of range. */
void tokenize_some(dw_vocab *v);

#endif
