/* test_safetensors.c - the safetensors and JSON readers: valid files, every truncation, holes and lies. */
#include "formats/internal.h"
#include "text/json.h"
#include "kit/safetensors.h"
#include "tests/build.h"
#include "tests/test.h"

#include <jansson.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void *open_st(const void *data, size_t size, const char *name, dw_err *err) {
    return kit_safetensors_open_memory(data, size, name, err);
}

/* ---- valid files ------------------------------------------------------------------------------------ */

/* Data out of order, an empty tensor, a scalar, escapes, padding of the header. */
static void put_sample(test_bytes *b) {
    put_safetensors(b, "{\"__metadata__\":{\"format\":\"pt\"},"
                       "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[4,28]},"
                       "\"a\\u002fb\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]},"
                       "\"empty\":{\"dtype\":\"F16\",\"shape\":[4,0],\"data_offsets\":[28,28]},"
                       "\"scalar\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[28,36]}}   ");
    for (uint8_t i = 0; i < 36; i++) put_u8(b, i);
}

static void sample(void) {
    test_bytes b = {0};
    dw_err err = {0};
    put_sample(&b);
    kit_safetensors *st = kit_safetensors_open_memory(b.data, b.size, "sample", &err);
    REQUIRE(st, "%s", err.text);
    CHECK(kit_safetensors_count(st) == 4 && !kit_safetensors_find(st, "__metadata__") &&
          !kit_safetensors_find(st, "c"));
    const kit_st_tensor *t = kit_safetensors_find(st, "b"), *first = kit_safetensors_find(st, "a/b");
    CHECK(t && t->dtype == KIT_ST_F32 && t->n_dims == 2 && t->shape[0] == 2 && t->shape[1] == 3 && t->shape[3] == 1);
    CHECK(t && t->n_bytes == 24 && t->data[0] == 4 && first == kit_safetensors_tensor(st, 0) && first->data[3] == 3);
    const kit_st_tensor *empty = kit_safetensors_find(st, "empty"), *scalar = kit_safetensors_find(st, "scalar");
    CHECK(empty && empty->n_bytes == 0 && empty->n_dims == 2 && empty->shape[1] == 0);
    CHECK(scalar && scalar->n_dims == 0 && scalar->dtype == KIT_ST_OTHER && !strcmp(scalar->dtype_name, "I64"));
    kit_safetensors_close(st);
    size_t n = 0;
    char *seed = dw_read_file("tests/seeds/safetensors-sample.safetensors", 1024, &n, NULL);
    CHECK(seed && n == b.size && !memcmp(seed, b.data, n), "the fuzzer's seed is another file");
    free(seed);
    free(b.data);
}

static void reference_models(void) {
    const char *shared = test_shared();
    if (!shared) SKIP("DW_SHARED is not set");
    const char *models[] = {"reference-model/mini", "reference-model/base", "oracle/mixtral", "oracle/qwen3"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        dw_err err = {0};
        kit_safetensors *st = kit_safetensors_open(test_path(shared, models[i]), &err);
        REQUIRE(st, "%s", err.text);
        const kit_st_tensor *t = kit_safetensors_find(st, "model.embed_tokens.weight");
        CHECK(t && t->n_dims == 2 && t->n_bytes, "%s", models[i]);
        kit_safetensors_close(st);
    }
}

/* ---- shards ------------------------------------------------------------------------------------------- */

static void put_shard(const char *folder, const char *file, const char *tensor) {
    char json[256];
    snprintf(json, sizeof json, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", tensor);
    test_bytes b = {0};
    put_safetensors(&b, json);
    put_text(&b, tensor), put_zeros(&b, 3 - strlen(tensor));
    save(&b, test_path(folder, file));
    free(b.data);
}

static const char *put_index(const char *folder, const char *weight_map) {
    test_bytes b = {0};
    put_text(&b, "{\"metadata\":{\"total_size\":6},\"weight_map\":");
    put_text(&b, weight_map);
    put_text(&b, "}");
    save(&b, test_path(folder, "model.safetensors.index.json"));
    free(b.data);
    return folder;
}

static void folder_refused(const char *folder, const char *words) {
    dw_err err = {0};
    CHECK(!kit_safetensors_open(folder, &err), "%s", words);
    check_sentence(&err, words, folder);
}

static void shards(void) {
    const char *folder = test_path(test_folder(), "shards");
    dw_err err = {0};
    mkdir(folder, 0777);
    folder_refused(folder, "has neither model.safetensors nor");
    put_shard(folder, "one.safetensors", "a");
    put_shard(folder, "two.safetensors", "b");
    put_index(folder, "{\"b\":\"two.safetensors\",\"a\":\"one.safetensors\"}");
    kit_safetensors *st = kit_safetensors_open(folder, &err);
    REQUIRE(st, "%s", err.text);
    const kit_st_tensor *t = kit_safetensors_find(st, "b");
    CHECK(kit_safetensors_count(st) == 2 && t && t->data[0] == 'b');
    kit_safetensors_close(st);

    folder_refused(put_index(folder, "{\"a\":\"one.safetensors\",\"c\":\"two.safetensors\"}"),
                   "the index puts it in no file");
    folder_refused(put_index(folder, "{\"a\":\"one.safetensors\",\"b\":\"one.safetensors\"}"), "'b' is not in");
    folder_refused(put_index(folder, "{\"a\":\"two.safetensors\",\"b\":\"one.safetensors\"}"), "the index puts it in");
    folder_refused(put_index(folder, "{\"a\":\"../one.safetensors\"}"), "not a plain file name");
    folder_refused(put_index(folder, "{\"a\":\"sub/one.safetensors\"}"), "not a plain file name");
    folder_refused(put_index(folder, "{\"a\":\"..\"}"), "not a plain file name");
    folder_refused(put_index(folder, "{\"a\":1}"), "not a plain file name");
    folder_refused(put_index(folder, "{\"a\":\"three.safetensors\"}"), "three.safetensors'");
    folder_refused(put_index(folder, "7"), "has no weight_map");
    folder_refused(put_index(folder, "{\"a\":\"one.safetensors\",\"a\":\"two.safetensors\"}"), "duplicate");
    put_shard(folder, "two.safetensors", "a");
    folder_refused(put_index(folder, "{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}"), "'a' occurs twice");
    put_shard(folder, "model.safetensors", "a"); // one file goes before an index
    st = kit_safetensors_open(folder, &err);
    CHECK(st && kit_safetensors_count(st) == 1, "%s", err.text);
    kit_safetensors_close(st);
    folder_refused(test_path(folder, "none"), "none'");
}

/* ---- truncations and limits ------------------------------------------------------------------------------ */

static void truncations(void) {
    test_bytes b = {0};
    put_sample(&b);
    for (size_t n = 0; n < b.size; n++) check_refused(open_st, b.data, n, "", "a truncated file");
    put_u8(&b, 0);
    check_refused(open_st, b.data, b.size, "account for", "a file with a byte too many");
    free(b.data);
}

static void json_limits(void) {
    dw_err err = {0};
    CHECK(!dw_json_parse("{\"a\":1,\n\"b\":tru}", 16, DW_JSON_LARGE_TREE, "two lines", &err));
    check_sentence(&err, "'two lines' is not valid JSON: line 2", "a bad second line");
    err = (dw_err){0};
    CHECK(!dw_json_parse("{} x", 4, DW_JSON_LARGE_TREE, "trailing", &err));
    check_sentence(&err, "end of file expected", "trailing bytes");

    enum { N = 10 << 20 };
    char *text = malloc(N);
    memset(text, '[', N);
    err = (dw_err){0};
    CHECK(!dw_json_parse(text, 100000, DW_JSON_LARGE_TREE, "deep", &err));
    check_sentence(&err, "depth", "100,000 brackets");
    for (size_t i = 1; i < N; i++) text[i] = i % 2 ? '1' : ',';
    text[N - 1] = ']';
    err = (dw_err){0};
    CHECK(!dw_json_parse(text, N, DW_JSON_TREE, "long", &err));
    check_sentence(&err, "too many values", "5 million values");
    free(text);
}

/* What a text takes in memory is known before it is parsed: the smallest limit that lets it pass is enough for its
 * tree. */
static void json_memory(void) {
    static const char *const repeated[] = {"[],",
                                           "{},",
                                           "[[]],",
                                           "1,",
                                           "\"\",",
                                           "\"0123456789012345678\",",
                                           "{\"a\":1},",
                                           "1.5,",
                                           "{\"a\":[1,2],\"b\":\"c\",\"d\":[3,4]},",
                                           "null,",
                                           "\"\\u00e4\\\"\","};
    enum { N = 1 << 16 };
    char *text = malloc(2 * N);
    for (size_t i = 0; i < sizeof repeated / sizeof *repeated; i++) {
        const size_t n_one = strlen(repeated[i]);
        char *end = text;
        for (*end++ = '['; end + n_one < text + N; end += n_one) memcpy(end, repeated[i], n_one);
        end[-1] = ']';
        size_t low = 0, high = 400 * N;
        while (high - low > N / 8) {
            const size_t middle = (low + high) / 2;
            json_t *root = dw_json_parse(text, (size_t)(end - text), middle, "x", NULL);
            *(root ? &high : &low) = middle;
            json_decref(root);
        }
        const struct mallinfo2 before = mallinfo2();
        json_t *root = dw_json_parse(text, (size_t)(end - text), high, "x", NULL);
        const struct mallinfo2 after = mallinfo2();
        const size_t taken = after.uordblks + after.hblkhd - before.uordblks - before.hblkhd;
        CHECK(root && taken <= high, "%s: %zu bytes, %zu allowed", repeated[i], taken, high);
        json_decref(root);
    }
    free(text);
}

/* 6 MB that would take half a gigabyte as a tree. */
static void large_header(void) {
    enum { N = 6 << 20 };
    char *json = malloc(N + 16), *end = json;
    for (end = stpcpy(end, "{\"a\":["); end < json + N; end += 3) memcpy(end, "[],", 3);
    strcpy(end - 1, "]}");
    test_bytes b = {0};
    put_safetensors(&b, json);
    check_refused(open_st, b.data, b.size, "too many values", "a header of many empty arrays");
    free(b.data);
    free(json);
}

/* ---- broken files --------------------------------------------------------------------------------------------- */

/* A header and 8 bytes of data. */
static void header(test_bytes *b, const char *json) {
    put_safetensors(b, json);
    put_zeros(b, 8);
}

/* One tensor "a" with these fields, and 8 bytes of data. */
static void fields(test_bytes *b, const char *dtype, const char *shape, const char *offsets) {
    char json[512];
    snprintf(json, sizeof json, "{\"a\":{\"dtype\":%s,\"shape\":%s,\"data_offsets\":%s}}", dtype, shape, offsets);
    header(b, json);
}

/* Two tensors of 4 bytes where they say, and 8 bytes of data. */
static void places(test_bytes *b, const char *first, const char *second) {
    char json[512];
    const char *entry = "{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":";
    snprintf(json, sizeof json, "{\"a\":%s%s},\"b\":%s%s}}", entry, first, entry, second);
    header(b, json);
}

static void b_empty(test_bytes *b) { b->size = 0; }
static void b_short(test_bytes *b) { put_zeros(b, 7); }
static void b_length_max(test_bytes *b) { put_u64(b, UINT64_MAX), put_text(b, "{}"); }
static void b_length_wrap(test_bytes *b) { put_u64(b, UINT64_MAX - 7), put_text(b, "{}"); }
static void b_length_beyond(test_bytes *b) { put_u64(b, 3), put_text(b, "{}"); }
static void b_length_0(test_bytes *b) { put_safetensors(b, ""); }
static void b_not_json(test_bytes *b) { put_safetensors(b, "{\"a\":"); }
static void b_array(test_bytes *b) { put_safetensors(b, "[]"); }
static void b_trailing(test_bytes *b) { put_safetensors(b, "{}{}"); }
static void b_nul(test_bytes *b) {
    header(b, "{\"a\\u0000b\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}");
}
static void b_utf8(test_bytes *b) { header(b, "{\"a\xff\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}"); }

static void b_deep(test_bytes *b) {
    put_u64(b, 1000);
    for (int i = 0; i < 500; i++) put_u8(b, '[');
    for (int i = 0; i < 500; i++) put_u8(b, ']');
}

static void b_twice(test_bytes *b) {
    const char *entry = "{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}";
    char json[512];
    snprintf(json, sizeof json, "{\"a\":%s,\"a\":%s}", entry, entry);
    header(b, json);
}

static void b_name_empty(test_bytes *b) {
    header(b, "{\"\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}");
}
static void b_entry_number(test_bytes *b) { header(b, "{\"a\":1}"); }
static void b_metadata_number(test_bytes *b) { put_safetensors(b, "{\"__metadata__\":1}"); }
static void b_metadata_value(test_bytes *b) { put_safetensors(b, "{\"__metadata__\":{\"a\":{}}}"); }
static void b_unused(test_bytes *b) { header(b, "{}"); }
static void b_dtype_none(test_bytes *b) { header(b, "{\"a\":{\"shape\":[1],\"data_offsets\":[0,8]}}"); }
static void b_shape_none(test_bytes *b) { header(b, "{\"a\":{\"dtype\":\"F64\",\"data_offsets\":[0,8]}}"); }
static void b_offsets_none(test_bytes *b) { header(b, "{\"a\":{\"dtype\":\"F64\",\"shape\":[1]}}"); }
static void b_dtype_unknown(test_bytes *b) { fields(b, "\"F65\"", "[1]", "[0,8]"); }
static void b_dtype_number(test_bytes *b) { fields(b, "64", "[1]", "[0,8]"); }
static void b_dims_5(test_bytes *b) { fields(b, "\"F64\"", "[1,1,1,1,1]", "[0,8]"); }
static void b_dim_negative(test_bytes *b) { fields(b, "\"F64\"", "[-1,-1]", "[0,8]"); }
static void b_dim_real(test_bytes *b) { fields(b, "\"F64\"", "[1.0]", "[0,8]"); }
static void b_dim_big(test_bytes *b) { fields(b, "\"F64\"", "[18446744073709551617]", "[0,8]"); }
static void b_dims_wrap(test_bytes *b) { fields(b, "\"F64\"", "[4294967296,4294967296]", "[0,8]"); }
static void b_bits_wrap(test_bytes *b) { fields(b, "\"F64\"", "[288230376151711745]", "[0,8]"); }
static void b_bits_odd(test_bytes *b) { fields(b, "\"F4\"", "[15]", "[0,8]"); }
static void b_size_other(test_bytes *b) { fields(b, "\"F32\"", "[1]", "[0,8]"); }
static void b_offsets_3(test_bytes *b) { fields(b, "\"F64\"", "[1]", "[0,8,8]"); }
static void b_offsets_text(test_bytes *b) { fields(b, "\"F64\"", "[1]", "[\"0\",\"8\"]"); }
static void b_offsets_negative(test_bytes *b) { fields(b, "\"F64\"", "[1]", "[-8,0]"); }
static void b_offsets_reversed(test_bytes *b) { fields(b, "\"F64\"", "[1]", "[8,0]"); }
static void b_offsets_beyond(test_bytes *b) { fields(b, "\"F64\"", "[1]", "[8,16]"); }
static void b_hole_first(test_bytes *b) { fields(b, "\"F32\"", "[1]", "[4,8]"); }
static void b_hole_last(test_bytes *b) { fields(b, "\"F32\"", "[1]", "[0,4]"); }
static void b_hole(test_bytes *b) { places(b, "[0,4]", "[8,12]"), put_zeros(b, 4); }
static void b_overlap(test_bytes *b) { places(b, "[2,6]", "[0,4]"); }
static void b_same_place(test_bytes *b) { places(b, "[0,4]", "[0,4]"); }

static const broken_file broken[] = {
    {"safetensors-empty.safetensors", "a file of 0 bytes", "ends inside its header", b_empty},
    {"safetensors-short.safetensors", "7 bytes: no header length", "ends inside its header", b_short},
    {"safetensors-length-max.safetensors", "header length 2^64 - 1", "not a safetensors file", b_length_max},
    {"safetensors-length-wrap.safetensors", "header length + 8 wraps", "not a safetensors file", b_length_wrap},
    {"safetensors-length-beyond.safetensors", "a header one byte longer than the file", "ends inside its header",
     b_length_beyond},
    {"safetensors-length-0.safetensors", "a header of 0 bytes", "not valid JSON", b_length_0},
    {"safetensors-not-json.safetensors", "a header that is cut", "not valid JSON: line 1", b_not_json},
    {"safetensors-array.safetensors", "a header that is an array", "not a JSON object", b_array},
    {"safetensors-trailing.safetensors", "two values as a header", "end of file expected", b_trailing},
    {"safetensors-nul.safetensors", "a name with NUL", "not valid JSON", b_nul},
    {"safetensors-utf8.safetensors", "a name that is not UTF-8", "not valid JSON", b_utf8},
    {"safetensors-deep.safetensors", "500 brackets, the way to endless recursion", "not a JSON object", b_deep},
    {"safetensors-twice.safetensors", "the same name twice", "duplicate", b_twice},
    {"safetensors-name-empty.safetensors", "a tensor without a name", "empty name", b_name_empty},
    {"safetensors-entry-number.safetensors", "a number instead of a tensor",
     "tensor 'a': its description is not an object", b_entry_number},
    {"safetensors-metadata-number.safetensors", "metadata that is a number", "__metadata__ is not an object",
     b_metadata_number},
    {"safetensors-metadata-value.safetensors", "metadata with a value that is no string",
     "__metadata__ 'a' is not a string", b_metadata_value},
    {"safetensors-unused.safetensors", "data without tensors", "account for 0", b_unused},
    {"safetensors-dtype-none.safetensors", "a tensor without dtype", "dtype or shape is missing", b_dtype_none},
    {"safetensors-shape-none.safetensors", "a tensor without shape", "dtype or shape is missing", b_shape_none},
    {"safetensors-offsets-none.safetensors", "a tensor without data_offsets", "not two whole numbers", b_offsets_none},
    {"safetensors-dtype-unknown.safetensors", "an unknown dtype", "unknown dtype 'F65'", b_dtype_unknown},
    {"safetensors-dtype-number.safetensors", "a dtype that is a number", "dtype or shape is missing", b_dtype_number},
    {"safetensors-dims-5.safetensors", "five dimensions", "5 dimensions", b_dims_5},
    {"safetensors-dim-negative.safetensors", "-1 x -1 values", "dimension 0 is not a whole number", b_dim_negative},
    {"safetensors-dim-real.safetensors", "a dimension of 1.0", "dimension 0 is not a whole number", b_dim_real},
    {"safetensors-dim-big.safetensors", "a dimension of 2^64 + 1", "too big integer", b_dim_big},
    {"safetensors-dims-wrap.safetensors", "2^32 x 2^32 values", "overflow", b_dims_wrap},
    {"safetensors-bits-wrap.safetensors", "2^58 + 1 numbers of 64 bits look like one", "overflow", b_bits_wrap},
    {"safetensors-bits-odd.safetensors", "15 values of 4 bits", "60 bits are not whole bytes", b_bits_odd},
    {"safetensors-size-other.safetensors", "8 bytes for a tensor of 4", "8 bytes of data where dtype and shape need 4",
     b_size_other},
    {"safetensors-offsets-3.safetensors", "three data_offsets", "not two whole numbers", b_offsets_3},
    {"safetensors-offsets-text.safetensors", "data_offsets as strings", "not two whole numbers", b_offsets_text},
    {"safetensors-offsets-negative.safetensors", "a negative offset", "not two whole numbers", b_offsets_negative},
    {"safetensors-offsets-reversed.safetensors", "the end before the begin", "not within the 8 bytes of data",
     b_offsets_reversed},
    {"safetensors-offsets-beyond.safetensors", "a tensor beyond the file", "not within the 8 bytes of data",
     b_offsets_beyond},
    {"safetensors-hole-first.safetensors", "a hole before the first tensor", "a hole or an overlap before tensor 'a'",
     b_hole_first},
    {"safetensors-hole-last.safetensors", "a hole after the last tensor", "account for 4", b_hole_last},
    {"safetensors-hole.safetensors", "a hole between two tensors", "a hole or an overlap before tensor 'b'", b_hole},
    {"safetensors-overlap.safetensors", "two tensors that overlap", "a hole or an overlap before tensor 'a'",
     b_overlap},
    {"safetensors-same-place.safetensors", "two tensors at one place", "a hole or an overlap before tensor",
     b_same_place},
    {0},
};

static void broken_files(void) { check_broken(broken, "safetensors-", open_st); }

static const test_case cases[] = {
    {"tensors are found with their shapes, in order of their data", sample},
    {"the reference models open", reference_models},
    {"shards are read as one, and contradictions with the index are refused", shards},
    {"every truncation, and a byte too many, costs one sentence", truncations},
    {"JSON is bounded in depth and number of values, and errors have a line", json_limits},
    {"JSON takes no more memory than it is allowed", json_memory},
    {"a small header cannot take much memory", large_header},
    {"every broken file is refused for its own reason", broken_files},
    {0},
};

int main(int argc, char **argv) {
    return write_broken(broken, argc, argv) ? 0 : test_main(cases, __FILE__, argc, argv);
}
