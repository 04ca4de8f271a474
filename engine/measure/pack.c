/* pack.c - writes and reads the bytes of pack.h. */
#include "measure/pack.h"

#include <string.h>
#include <zstd.h>

void measure_put_u32(uint8_t *to, uint32_t v) {
    for (int b = 0; b < 4; b++) to[b] = (uint8_t)(v >> 8 * b);
}

void measure_add(measure_bytes *b, const void *data, size_t n) {
    b->failed |= b->failed || dw_grow(&b->data, &b->cap, b->size + n, 1, "bytes of a file", b->err);
    if (b->failed) return;
    if (n) memcpy(b->data + b->size, data, n);
    b->size += n;
}

void measure_add_u32(measure_bytes *b, uint32_t v) {
    uint8_t le[4];
    measure_put_u32(le, v);
    measure_add(b, le, sizeof le);
}

void measure_add_u64(measure_bytes *b, uint64_t v) {
    measure_add_u32(b, (uint32_t)v);
    measure_add_u32(b, (uint32_t)(v >> 32));
}

void measure_add_f64(measure_bytes *b, double v) {
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    measure_add_u64(b, bits);
}

void measure_add_text(measure_bytes *b, const char *text) {
    measure_add_u32(b, (uint32_t)strlen(text));
    measure_add(b, text, strlen(text));
}

char *measure_read_text(dw_cursor *c, size_t most, dw_err *err) {
    const uint32_t len = dw_cursor_u32(c);
    if (len > most) c->failed = true;
    const uint8_t *text = c->failed ? NULL : dw_cursor_take(c, len);
    if (!text || !dw_is_utf8((const char *)text, len)) {
        c->failed = true;
        return NULL;
    }
    return dw_format(err, "%.*s", (int)len, (const char *)text);
}

double measure_read_f64(dw_cursor *c) {
    const uint64_t bits = dw_cursor_u64(c);
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

size_t measure_pack(void *to, size_t cap, const void *raw, size_t size, int level) {
    ZSTD_CCtx *context = ZSTD_createCCtx();
    if (!context) return 0;
    ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, level);
    ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
    const size_t n = ZSTD_compress2(context, to, cap, raw, size);
    ZSTD_freeCCtx(context);
    return ZSTD_isError(n) ? 0 : n;
}

int measure_unpack(dw_cursor *c, size_t packed, void *raw, size_t size) {
    const uint8_t *frame = dw_cursor_take(c, packed);
    if (!frame || ZSTD_getFrameContentSize(frame, packed) != size ||
        ZSTD_findFrameCompressedSize(frame, packed) != packed)
        return -1;
    return ZSTD_decompress(raw, size, frame, packed) == size ? 0 : -1;
}
