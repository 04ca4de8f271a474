/* fuzz_recipe.c - any bytes as a recipe: refused with a sentence, or rules that every name can be held against. */
#include "quant/quant.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {"token_embd.weight", "blk.0.ffn_down.weight", "blk.79.attn_v.weight", "",
                                        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
    dw_err err = {0};
    quant_recipe r;
    quant_types_init();
    if (!quant_recipe_parse(&r, (const char *)data, size, "fuzz", &err) == !!err.text[0]) abort();
    if (err.text[0]) return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        quant_rule *rule;
        dw_err why = {0};
        if (!quant_recipe_find(&r, names[i], &rule, &why) == !!why.text[0]) abort();
        if (rule && !rule->n_decided) abort();
    }
    quant_recipe_release(&r);
    return 0;
}
