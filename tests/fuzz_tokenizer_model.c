/* fuzz_tokenizer_model.c - any bytes as a tokenizer.model: refused, or a vocabulary that tokenizes. */
#include "tests/tokenize.h"
#include "text/tokenizers.h"
#include "text/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    dw_vocab v;
    dw_err err = {0};
    const dw_hf_files files = {.model = {(const char *)data, size}};
    if (!dw_vocab_from_hf_files(&v, &files, 600, &err)) tokenize_some(&v);
    return 0;
}
