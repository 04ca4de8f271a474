/* tokenize.c - use a vocabulary of unknown origin in every way there is. */
#include "tests/tokenize.h"
#include "text/tokenizers.h"

#include <stdlib.h>
#include <string.h>

static void tokenize_one(const dw_tokenizer *t, const char *text, size_t len, size_t n_token) {
    int32_t *ids;
    size_t n, back_len;
    for (unsigned flags = 0; flags < 4; flags++) {
        if (dw_tokenize(t, text, len, flags, &ids, &n, NULL)) abort();
        for (size_t i = 0; i < n; i++)
            if (ids[i] < 0 || (size_t)ids[i] >= n_token) abort();
        char *back = dw_detokenize(t, ids, n, flags & 1, &back_len, NULL);
        if (!back || back[back_len]) abort();
        free(back);
        free(ids);
    }
}

void tokenize_some(dw_vocab *v) {
    static const char text[] =
        "aab ab  abc\n\n'S 12345 <s></s> \xe2\x96\x81 caf\xc3\xa9 \xf0\x9f\x91\x8d \xff\xc3<|im_end|> end";
    dw_tokenizer *t = dw_tokenizer_new(v, NULL);
    if (t) {
        tokenize_one(t, text, sizeof text - 1, v->n_token);
        for (size_t id = 0; id < v->n_token; id++) {
            if (v->type[id] != DW_TOKEN_UNUSED) tokenize_one(t, v->token[id].ptr, v->token[id].len, v->n_token);
            (void)dw_token_ends(t, (int32_t)id);
        }
    }
    dw_tokenizer_free(t);
    dw_vocab_release(v);
}
