/* fuzz_tokenizer_json.c - any bytes as a tokenizer.json: refused, or a vocabulary that tokenizes.
 *
 * The same object also stands for the other JSON files, so that their keys are reached too. */
#include "tests/tokenize.h"
#include "text/tokenizers.h"
#include "text/json.h"
#include "text/internal.h"

#include <jansson.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    dw_vocab v;
    dw_err err = {0};
    json_t *json = dw_json_parse((const char *)data, size, DW_JSON_LARGE_TREE, "tokenizer.json", &err);
    if (!json) return 0;
    const dw_hf_files files = {.tokenizer = json, .tokenizer_config = json, .config = json, .generation_config = json};
    if (!dw_vocab_from_hf_files(&v, &files, 600, &err)) tokenize_some(&v);
    json_decref(json);
    return 0;
}
