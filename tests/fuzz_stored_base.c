/* fuzz_stored_base.c - any bytes as a stored base: refused, or every prediction that is handed out is in range.
 *
 * Bytes are tried as a file, and as the content of its frames. */
#include "measure/predictions.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const measure_prediction *p, int n_vocab) {
    if (!(p->logprob <= 1e-6) || !(p->coarse.tail <= 1e-6f)) abort();
    for (int k = 0; k < measure_n_top(n_vocab); k++)
        if (p->coarse.id[k] < 0 || p->coarse.id[k] >= n_vocab || !(p->coarse.logprob[k] <= 1e-6f)) abort();
}

static void read_all(const uint8_t *data, size_t size) {
    dw_err err = {0};
    measure_prediction p;
    measure_predictions *s = measure_predictions_open_memory(data, size, "fuzz", &err);
    if (!s != !!err.text[0]) abort(); // a sentence exactly when it failed
    if (!s) return;
    const measure_stored_head *h = measure_predictions_head(s);
    for (int t = h->n_texts; t-- > 0;) {
        if (strlen(h->text[t].name) > 4096 || (h->text[t].leak && !*h->text[t].leak)) abort();
        measure_predictions_seek(s, t);
        for (uint64_t i = 0; i < h->text[t].n_scored && !measure_predictions_read(s, &p, 1, &err); i++)
            check(&p, h->n_vocab);
    }
    measure_predictions_close(s);
}

static uint8_t *put_u32(uint8_t *to, size_t v) {
    for (int b = 0; b < 4; b++) *to++ = (uint8_t)(v >> 8 * b);
    return to;
}

static uint8_t *put_frame(uint8_t *to, const uint8_t *raw, size_t n) {
    uint8_t frame[1 << 14];
    const size_t packed = ZSTD_compress(frame, sizeof frame, raw, n, 1);
    if (ZSTD_isError(packed)) abort();
    to = put_u32(to, packed);
    memcpy(to, frame, packed);
    return to + packed;
}

/* The same bytes as what the frames hold, because a fuzzer does not find its way through a compressor: a length of two
 * bytes, the header, and the predictions of one chunk. */
static void read_unpacked(const char *magic, const uint8_t *data, size_t size) {
    static uint8_t file[1 << 15];
    const size_t n = size < 2 ? size : (size_t)(data[0] | data[1] << 8);
    if (size < 2 || n > size - 2 || size > 1 << 13) return;
    uint8_t *to = file;
    memcpy(to, magic, 8);
    to = put_frame(put_u32(to + 8, n), data + 2, n);
    if (size > 2 + n) to = put_frame(to, data + 2 + n, size - 2 - n);
    read_all(file, (size_t)(to - file));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    read_all(data, size);
    read_unpacked("dw-base1", data, size);
    read_unpacked("dw-base2", data, size);
    read_unpacked("dw-base3", data, size);
    return 0;
}
