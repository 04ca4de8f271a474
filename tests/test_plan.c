/* test_plan.c - plans: what is written is read, and every bad line costs one sentence that names it. */
#include "build.h"
#include "kit/plan.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

#define HASH "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static const char whole[] = "# deadwood plan 1\n"
                            "# model  my model.gguf  sha256 " HASH "\n"
                            "# metric energy (||v_j||^2 E[a_j^2]), group 4, allocate uniform, seed 0\n"
                            "# rate   wanted 0.5000, reached 0.4375\n"
                            "# anything else: 20% off\n"
                            "layer\twidth\tkeep\n"
                            "0\t5\t0-3,7\n"
                            "1\t0\tdrop\n"
                            "2\t8\t0-7\n"
                            "# text   a b.txt  sha256 " HASH "  tokens 3072  blocks 0123456789abcdef\n";

static const int widths[] = {8, 8, 8};

static int parse(kit_plan *p, const char *text, dw_err *err) {
    return kit_plan_parse(p, text, strlen(text), "plan.tsv", widths, 3, err);
}

static void fields(void) {
    kit_plan p;
    dw_err err = {0};
    REQUIRE(!parse(&p, whole, &err), "%s", err.text);
    CHECK(!strcmp(p.model_sha256, HASH) && !strcmp(p.metric, "energy") && !strcmp(p.allocate, "uniform"));
    CHECK(p.group == 4 && p.rate_wanted == 0.5 && p.rate_reached == 0.4375 && p.n_layer == 3);
    CHECK(p.layer[0].n_keep == 5 && p.layer[0].n_span == 2 && p.layer[1].drop && p.layer[2].n_keep == 8);
    int32_t neuron[5];
    kit_plan_neurons(&p.layer[0], neuron);
    CHECK(neuron[0] == 0 && neuron[3] == 3 && neuron[4] == 7);
    CHECK(p.n_text == 1 && !strcmp(p.text[0].name, "a b.txt") && p.text[0].n_tokens == 3072 &&
          !strcmp(p.text[0].blocks, "0123456789abcdef"));
    kit_plan_release(&p);
}

/* A line of KV heads after its layer's; without one all stay. */
static void heads(void) {
    static const char text[] =
        "# deadwood plan 1\nlayer\twidth\tkeep\n0\t8\t0-7\nheads\t0\t0,2-3\n1\t0\tdrop\n2\t1\t5\nheads\t2\t1\n";
    kit_plan p;
    dw_err err = {0};
    size_t size;
    int32_t kept[3];
    REQUIRE(!parse(&p, text, &err), "%s", err.text);
    CHECK(p.layer[0].n_kv == 3 && !p.layer[1].n_kv && p.layer[2].n_kv == 1 && p.layer[2].n_keep == 1);
    kit_plan_kv_heads(&p.layer[0], kept);
    CHECK(kept[0] == 0 && kept[1] == 2 && kept[2] == 3);
    char *again = kit_plan_format(&p, &size, &err);
    CHECK(again && !strcmp(again, text), "%s", again ? again : err.text);
    free(again);
    char *seed_text = dw_read_file("tests/seeds/plan-heads.tsv", 1 << 16, &size, &err);
    CHECK(seed_text && !strcmp(seed_text, text), "%s", err.text);
    free(seed_text);
    CHECK(!kit_plan_set_kv_heads(&p.layer[1], (bool[]){true, true, false, true}, 4, &err) && p.layer[1].n_kv == 3 &&
          p.layer[1].n_kv_span == 2 && p.layer[1].kv[1].last == 3);
    kit_plan_release(&p);
    static const struct { const char *lines, *words; } bad[] = {
        {"heads 0 1\n", "line 3: the heads of layer 0 do not follow its line"},
        {"0 8 0-7\nheads 1 0\n", "line 4: the heads of layer 1 do not follow its line"},
        {"0 8 0-7\nheads 0 0\nheads 0 1\n", "line 5: the heads of layer 0 are given twice"},
        {"0 drop\nheads 0 0\n", "line 4: layer 0 is dropped and has no heads"},
        {"0 8 0-7\nheads 0\n", "line 4: the line is not 'heads LAYER KEEP'"},
        {"0 8 0-7\nheads 0 0 1\n", "line 4: the line is not 'heads LAYER KEEP'"},
        {"0 8 0-7\nheads 0 x\n", "line 4: 'x' is not a KV head or a range of KV heads"},
        {"0 8 0-7\nheads 0 1,1\n", "line 4: KV head 1 comes after 1"},
        {"0 8 0-7\nheads 0 99999999\n", "line 4: '99999999' is not a KV head"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char whole_text[256];
        dw_err why = {0};
        snprintf(whole_text, sizeof whole_text, "# deadwood plan 1\nlayer width keep\n%s", bad[i].lines);
        CHECK(kit_plan_parse(&p, whole_text, strlen(whole_text), "plan.tsv", NULL, 0, &why));
        check_sentence(&why, bad[i].words, bad[i].lines);
    }
}

static void round_trip(void) {
    kit_plan p;
    dw_err err = {0};
    REQUIRE(!parse(&p, whole, &err), "%s", err.text);
    size_t size;
    char *text = kit_plan_format(&p, &size, &err);
    CHECK(text && size == strlen(whole) && !strcmp(text, whole), "%s", text ? text : err.text);
    const char *path = test_path(test_folder(), "plan.tsv");
    kit_plan again;
    CHECK(!kit_plan_write(&p, path, &err) && !kit_plan_read(&again, path, NULL, 0, &err), "%s", err.text);
    CHECK(again.n_layer == 3 && again.layer[0].n_keep == 5);
    kit_plan_release(&again);
    kit_plan_release(&p);
    free(text);
}

/* Names with line ends neither break the plan nor are lost. */
static void odd_names(void) {
    kit_plan p, again;
    dw_err err = {0};
    const char *path = test_file("odd.tsv");
    REQUIRE(!parse(&p, whole, &err), "%s", err.text);
    char *name = p.text[0].name;
    p.text[0].name = "two\nlines\x1b.txt";
    CHECK(!kit_plan_write(&p, path, &err) && !kit_plan_read(&again, path, NULL, 0, &err), "%s", err.text);
    CHECK(again.n_text == 1 && !strcmp(again.text[0].name, "two\\nlines\\x1b.txt"), "%s", again.text[0].name);
    kit_plan_release(&again);
    char *comment = p.comment;
    p.comment = "model  two\nlines.gguf  sha256 " HASH "\n";
    CHECK(kit_plan_write(&p, test_file("none.tsv"), &err) && strstr(err.text, "no plan was written"), "%s",
          err.text);
    CHECK(strstr(err.text, "line 2: 'model' is not followed by a name") && !dw_file_exists(test_file("none.tsv")), "%s",
          err.text);
    p.comment = comment;
    p.text[0].name = name;
    kit_plan_release(&p);
}

static void seed(void) {
    size_t size;
    dw_err err = {0};
    char *text = dw_read_file("tests/seeds/plan.tsv", 1 << 16, &size, &err);
    if (!text) SKIP("%s", err.text);
    CHECK(!strcmp(text, whole));
    free(text);
}

static void by_hand(void) { // spaces, an editor's line ends, single neurons that touch, no comment but the first
    kit_plan p;
    dw_err err = {0};
    REQUIRE(!parse(&p, "# deadwood plan 1\r\n\r\nlayer width   keep\r\n0 3 1,2,3\r\n1 drop\n2 1 7", &err), "%s",
            err.text);
    CHECK(p.layer[0].n_span == 1 && p.layer[0].span[0].first == 1 && p.layer[0].span[0].last == 3);
    CHECK(p.layer[1].drop && p.layer[2].n_keep == 1 && !p.model_sha256[0] && p.rate_wanted == -1);
    kit_plan_release(&p);
}

static void from_flags(void) {
    kit_plan_layer layer;
    dw_err err = {0};
    const bool keep[7] = {true, true, false, true, false, false, true};
    REQUIRE(!kit_plan_set_layer(&layer, keep, 7, &err), "%s", err.text);
    CHECK(layer.n_keep == 4 && layer.n_span == 3 && layer.span[1].first == 3 && layer.span[2].last == 6);
    free(layer.span);
}

#define HEAD "# deadwood plan 1\nlayer width keep\n"

static const struct bad {
    const char *text, *words;
} bad[] = {
    {"", "empty"},
    {"layer width keep\n", "this is not a plan"},
    {"# deadwood plan 2\n", "this is not a plan"},
    {"# deadwood plan 1\n", "no layers"},
    {"# deadwood plan 1\nlayer keep\n", "line 2: the columns are not"},
    {"# deadwood plan 1\n0 8 0-7\n", "line 2: the columns are not"},
    {HEAD "x 8 0-7\n", "line 3: the line does not begin with the number of a layer"},
    {HEAD "1 8 0-7\n", "this is layer 1, but layer 0"},
    {HEAD "0 8 0-7\n0 8 0-7\n", "line 4: this is layer 0, but layer 1"},
    {HEAD "0 x 0-7\n", "the width of layer 0"},
    {HEAD "0 99999999999 0-7\n", "the width of layer 0"},
    {HEAD "0 0 \n", "does not say what it keeps"},
    {HEAD "0 0 0-7\n", "keeps no neuron"},
    {HEAD "0 8 0-6\n", "width 8, but 7 neurons"},
    {HEAD "0 8 0-8\n", "neuron 8 does not exist: layer 0 has 8"},
    {HEAD "0 8 0-99999999999\n", "not a range"},
    {HEAD "0 8 7-0\n", "runs backwards"},
    {HEAD "0 8 0-3,3-7\n", "neuron 3 comes after 3"},
    {HEAD "0 8 4-7,0-3\n", "neuron 0 comes after 7"},
    {HEAD "0 8 0-3,,4-7\n", "not a neuron"},
    {HEAD "0 8 0-3,\n", "not a neuron"},
    {HEAD "0 8 -3\n", "not a neuron"},
    {HEAD "0 8 0..7\n", "not a neuron"},
    {HEAD "0 8 0-3, 4-7\n", "'4-7' follows the ranges of layer 0"},
    {HEAD "0 8 drop\n", "its width must be 0"},
    {HEAD "0 8 0-7\n1 8 0-7\n", "it has 2 layers, the model 3"},
    {HEAD "0 8 0-7\n1 8 0-7\n2 8 0-7\n3 8 0-7\n", "the model has 3 layers"},
    {HEAD "0 drop\n1 drop\n2 0 drop\n", "drops every layer"},
    {"# deadwood plan 1\n# model x sha256 12\n", "line 2: 'model'"},
    {"# deadwood plan 1\n# model\n", "line 2: 'model'"},
    {"# deadwood plan 1\n# metric\n", "'metric' has no name"},
    {"# deadwood plan 1\n# metric x, group y\n", "'group' is not a number"},
    {"# deadwood plan 1\n# rate wanted nan, reached 0.5\n", "'rate' is not"},
    {"# deadwood plan 1\n# rate wanted 0.5\n", "'rate' is not"},
    {"# deadwood plan 1\n# rate wanted 0.5, reached 1.5\n", "'rate' is not"},
    {"# deadwood plan 1\n# text x sha256 " HASH " tokens 12 blocks 0\n", "'text' is not"},
    {"# deadwood plan 1\n# text x sha256 " HASH " tokens x blocks 00000000\n", "'text' is not"},
    {"# deadwood plan 1\n# text x sha256 " HASH " tokens -72 blocks 00000000\n", "'text' is not"},
};

static void bad_lines(void) {
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kit_plan p;
        dw_err err = {0};
        if (CHECK(parse(&p, bad[i].text, &err), "read: %s", bad[i].text))
            check_sentence(&err, bad[i].words, bad[i].text);
        else kit_plan_release(&p);
    }
    kit_plan p;
    dw_err err = {0};
    CHECK(kit_plan_parse(&p, "# deadwood plan 1\nlayer\0width", 29, "plan.tsv", NULL, 0, &err));
    check_sentence(&err, "NUL", "a NUL byte");
    err = (dw_err){0};
    CHECK(kit_plan_parse(&p, "GGUF\0\0\0", 7, "plan.tsv", NULL, 0, &err));
    check_sentence(&err, "this is not a plan", "a file that is no text");
}

/* Every beginning of a plan is read or refused with a sentence. */
static void truncated(void) {
    for (size_t n = 0; n < strlen(whole); n++) {
        kit_plan p;
        dw_err err = {0};
        char *copy = malloc(n + 1);
        memcpy(copy, whole, n);
        if (kit_plan_parse(&p, copy, n, "plan.tsv", widths, 3, &err)) check_sentence(&err, "", "a truncated plan");
        else kit_plan_release(&p);
        free(copy);
    }
}

static const test_case cases[] = {
    {"KV heads that stay are read and written, and every bad line of them is named", heads},
    {"a plan's comments and layers are read", fields},
    {"a plan that is read and written has the same bytes", round_trip},
    {"a text's name with a line end is written as an escape; a plan that cannot be read is not written", odd_names},
    {"the seed is what is written today", seed},
    {"a plan made by hand may have spaces and other line ends", by_hand},
    {"flags of neurons become ranges", from_flags},
    {"every bad line costs one sentence that names it", bad_lines},
    {"a truncated plan is read or refused", truncated},
    {0}};
TEST_MAIN(cases)
