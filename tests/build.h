/* build.h - files for tests, valid or broken, made in memory.
 *
 *     test_bytes b = {0};
 *     put_gguf(&b, 3, 1, 1);            // version, tensors, keys
 *     put_kv_u32(&b, "test.number", 7);
 *     put_tensor(&b, "w", DW_F32, 2, (uint64_t[]){4, 2}, 0);
 *     put_padding(&b, 32);
 *     put_zeros(&b, 32);
 *     save(&b, path);  free(b.data);
 *
 * Nothing here checks anything: what is put is what stands in the file. */
#ifndef TEST_BUILD_H
#define TEST_BUILD_H

#include "experiments/random_model.h"

typedef struct test_bytes {
    uint8_t *data;
    size_t size, cap;
} test_bytes;

void put(test_bytes *b, const void *data, size_t size);
void put_u8(test_bytes *b, uint8_t v);
void put_u16(test_bytes *b, uint16_t v);
void put_u32(test_bytes *b, uint32_t v);
void put_u64(test_bytes *b, uint64_t v);
void put_f32(test_bytes *b, float v);
void put_zeros(test_bytes *b, size_t n);
void put_padding(test_bytes *b, size_t alignment); // zeros up to a multiple of it
void put_text(test_bytes *b, const char *text);    // without length or NUL
void put_str(test_bytes *b, const char *text);     // GGUF: u64 length, bytes

void put_gguf(test_bytes *b, uint32_t version, uint64_t n_tensors, uint64_t n_kv); // magic to counts
void put_key(test_bytes *b, const char *key, uint32_t type);                       // the value follows
void put_kv_u32(test_bytes *b, const char *key, uint32_t v);
void put_kv_str(test_bytes *b, const char *key, const char *v);
void put_kv_array(test_bytes *b, const char *key, uint32_t type, uint64_t count); // the elements follow
void put_tensor(test_bytes *b, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *ne, uint64_t offset);

/* A safetensors header: its length and text; the data follow. */
void put_safetensors(test_bytes *b, const char *json);

/* Writes the bytes to a file; ends the program when that fails. */
void save(const test_bytes *b, const char *path);

/* ---- gated models ------------------------------------------------------------------------------------
 *
 * A model's file and what engine/formats/ffn_gated.h adds, with planted biases in the FFN.  Or its dense twin: the same
 * values, but down is what the transposed copy decodes to, in F32. */
typedef struct gated_file {
    bool twin;
    int group;
    const float *threshold, *activity; // n_layer; NULL: all 0, all 1
    const uint8_t *dense;              // n_layer; NULL: no key
    int rank;                          // of the predictors; 0: none
    float open_bias;                   // added to every score
    const char *input;                 // "ffn", "previous"; NULL: no key
    /* damage */
    int layers_more;                   // added to the lengths of arrays
    const char *without;               // tensor that is left out: "blk.1.ffn_pred_b.bias"
} gated_file;

/* Ends the program when files cannot be read or written. */
void write_gated(const char *parent, const char *path, const gated_file *o);

/* A copy of a model's file with other keys.  Ends the program when files cannot be read or written. */
void write_with_keys(const char *parent, const char *path, void (*change)(dw_gguf_writer *w, const void *ctx),
                     const void *ctx);

/* ---- random models, and what comes out of them ------------------------------------------------------- */

dw_pool *two_threads(void); // made once
/* A random model of any shape; a failure is one of the test. */
bool write_random(const char *path, const exp_shape *shape, const char *type);
/* The path of a random model of a shape that `deadwood synth` knows, a fraction of its neurons dead; made once. */
const char *random_model(const char *shape, const char *type, double dead);

/* A text of n random letters in test_file(name), which is made once; the random models have byte tokens. */
const char *random_text(const char *name, int n, uint64_t seed);
void random_tokens(int32_t *token, int n, int n_vocab, uint64_t seed);
/* Sum of squared differences over sum of squares of b; NaN where a value is none. */
double nmse(const float *a, const float *b, size_t n);
bool same_files(const char *a, const char *b); // false when one cannot be read

/* ---- broken files ----------------------------------------------------------------------------------
 *
 * tests/broken/ holds one small file for every way of being wrong that a reader was ever fooled by, so that other
 * readers can be tried with them, too.  The tables in the tests that name them also make them:
 *     build/test_gguf --write tests/broken      writes the files and prints their rows for the README
 * A file without a row, left there by a fuzzer, must be refused as well. */
typedef struct broken_file {
    const char *name;
    const char *cause;
    const char *words; // that the error sentence must hold
    void (*make)(test_bytes *b);
} broken_file;

/* NULL and a sentence in err, or what it opened. */
typedef void *open_bytes(const void *data, size_t size, const char *name, dw_err *err);

/* Every committed file is what its row makes, stands in the README, and is refused with its words; and so is every
 * other file with this prefix. */
void check_broken(const broken_file *files, const char *prefix, open_bytes *open);
/* True when the arguments were `--write FOLDER`: done, the program ends. */
bool write_broken(const broken_file *files, int argc, char **argv);

/* The bytes are refused with one sentence that holds `words`.  They are copied to a block of their exact size, so
 * that an address sanitizer sees the first byte too many. */
void check_refused(open_bytes *open, const void *data, size_t size, const char *words, const char *what);
/* One sentence: not empty, in one line, without a full stop. */
void check_sentence(const dw_err *err, const char *words, const char *what);

#endif
