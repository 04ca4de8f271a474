/* test_qtypes.c - number formats: the table, decoders against slow formulas, encoders. */
#include "base/base.h"
#include "base/half_inline.h"
#include "qtypes/qtypes.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void table_consistent(void) {
    int n = 0;
    for (const dw_qtype_row *t = dw_qtypes; t->name; t++, n++) {
        CHECK(dw_qtype_get(t->id) == t, "%s by id", t->name);
        CHECK(dw_qtype_by_name(t->name) == t && !strcmp(dw_ggml_type_name(t->id), t->name), "%s by name", t->name);
        CHECK(t->block > 0 && t->block_bytes > 0 && t->block_bytes <= 4 * t->block && 256 % t->block == 0, "%s", t->name);
        CHECK(dw_qtype_row_bytes(t, 512) == (size_t)(512 / t->block * t->block_bytes), "%s", t->name);
        CHECK(t->decode, "%s", t->name);
        for (const dw_qtype_row *u = dw_qtypes; u < t; u++)
            CHECK(u->id != t->id && u->file_type != t->file_type, "%s and %s", u->name, t->name);
    }
    CHECK(n == 14, "%d types", n);
    CHECK(dw_qtype_by_name("q4_k") == dw_qtype_get(DW_Q4_K) && dw_qtype_by_name("bf16") == dw_qtype_get(DW_BF16));
    CHECK(!dw_qtype_by_name("Q4") && !dw_qtype_by_name("") && !dw_qtype_by_name("F320"));
    CHECK(!dw_qtype_get(4) && !dw_qtype_get(15) && !dw_qtype_get(DW_QTYPE_END) && !dw_qtype_get(UINT32_MAX));
    CHECK(!strcmp(dw_ggml_type_name(23), "IQ4_XS") && !strcmp(dw_ggml_type_name(1000), "unknown"));
}

static const test_case cases[] = {
    {"every row of the table has consistent sizes and is found by number and by name", table_consistent},
    {0},
};
TEST_MAIN(cases)
