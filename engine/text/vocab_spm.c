/* vocab_spm.c - SentencePiece's tokenizer.model, a protocol buffer:
 *
 *   ModelProto      1: pieces (repeated)  2: trainer_spec  3: normalizer_spec
 *   SentencePiece   1: piece, string  2: score, float  3: type, as dw_token_type (1 when absent)
 *   TrainerSpec     3: model_type (1 unigram, the default; 2 BPE)  40, 41, 42, 43: unk, bos, eos, pad id
 *   NormalizerSpec  3: add_dummy_prefix (true when absent)
 * A message is a sequence of fields.  Each is a varint (field number << 3 | wire type) and then the value. */
#include "text/internal.h"

#include <math.h>
#include <string.h>

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

typedef struct field {
    uint64_t number;
    unsigned wire;
    uint64_t value; // VARINT
    dw_str bytes;   // of the other wire types
} field;

static uint64_t read_varint(dw_cursor *c) {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        const uint8_t byte = dw_cursor_u8(c);
        if (shift < 64) value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return value;
    }
    c->failed = true;
    return 0;
}

/* Reads the next field; false at the end, and at damage, which sets c->failed. */
static bool next_field(dw_cursor *c, field *f) {
    if (c->failed || !c->left) return false;
    const uint64_t tag = read_varint(c);
    *f = (field){.number = tag >> 3, .wire = tag & 7};
    size_t len = 0;
    if (f->wire == VARINT)
        f->value = read_varint(c);
    else if (f->wire == FIXED64)
        len = 8;
    else if (f->wire == FIXED32)
        len = 4;
    else if (f->wire == BYTES)
        len = read_varint(c);
    else
        c->failed = true;
    if (f->wire != VARINT) f->bytes = (dw_str){(const char *)dw_cursor_take(c, len), len};
    return !c->failed;
}

static dw_cursor cursor_over(dw_str bytes) { return (dw_cursor){(const uint8_t *)bytes.ptr, bytes.len, false}; }

static int read_piece(dw_vocab *v, size_t id, dw_str message, dw_err *err) {
    dw_str text = {0};
    uint64_t type = DW_TOKEN_NORMAL;
    float score = 0;
    field f;
    dw_cursor c = cursor_over(message);
    while (next_field(&c, &f)) {
        if (f.number == 1 && f.wire == BYTES) text = f.bytes;
        if (f.number == 2 && f.wire == FIXED32) memcpy(&score, f.bytes.ptr, sizeof score);
        if (f.number == 3 && f.wire == VARINT) type = f.value;
    }
    if (c.failed) return dw_fail(err, "piece %zu is damaged", id);
    if (!text.len) return dw_fail(err, "piece %zu has no text", id);
    if (type < DW_TOKEN_NORMAL || type > DW_TOKEN_BYTE) return dw_fail(err, "piece %zu has type %zu", id, (size_t)type);
    if (isnan(score)) return dw_fail(err, "the score of piece %zu is not a number", id);
    v->token[id] = dw_vocab_text(v, text.ptr, text.len, err);
    v->type[id] = (int32_t)type;
    v->score[id] = score;
    return v->token[id].ptr ? 0 : -1;
}

static int read_trainer(dw_vocab *v, dw_str message, dw_err *err) {
    uint64_t model_type = 1;
    int64_t ids[4] = {0, 1, 2, -1}; // unk, bos, eos, pad
    field f;
    dw_cursor c = cursor_over(message);
    while (next_field(&c, &f)) {
        if (f.number == 3 && f.wire == VARINT) model_type = f.value;
        if (f.number >= 40 && f.number < 44 && f.wire == VARINT) ids[f.number - 40] = (int64_t)f.value;
    }
    if (c.failed) return dw_fail(err, "its trainer_spec is damaged");
    if (model_type != 2) return dw_fail(err, "its model type is %zu; only BPE (2) is read", (size_t)model_type);
    int32_t *const to[4] = {&v->unk, &v->bos, &v->eos, &v->pad};
    for (int i = 0; i < 4; i++) *to[i] = ids[i] >= 0 && (uint64_t)ids[i] < v->n_token ? (int32_t)ids[i] : -1;
    return 0;
}

static int read_normalizer(dw_vocab *v, dw_str message, dw_err *err) {
    field f;
    dw_cursor c = cursor_over(message);
    while (next_field(&c, &f))
        if (f.number == 3 && f.wire == VARINT) v->add_space_prefix = f.value;
    return c.failed ? dw_fail(err, "its normalizer_spec is damaged") : 0;
}

int dw_vocab_from_spm(dw_vocab *v, dw_str model, size_t n_rows, dw_err *err) {
    field f;
    size_t n_pieces = 0, id = 0;
    dw_cursor c = cursor_over(model);
    while (next_field(&c, &f)) n_pieces += f.number == 1 && f.wire == BYTES;
    if (c.failed) return dw_fail(err, "tokenizer.model is damaged %zu bytes before its end", c.left);
    if (!n_pieces || n_pieces > n_rows)
        return dw_fail(err, "tokenizer.model has %zu pieces, but the embedding has %zu rows", n_pieces, n_rows);
    if (dw_vocab_alloc(v, "llama", n_rows, err)) return -1;
    v->add_space_prefix = true;
    bool trained = false;
    c = cursor_over(model);
    while (next_field(&c, &f)) {
        if (f.wire != BYTES) continue;
        int rc = 0;
        if (f.number == 1) rc = read_piece(v, id++, f.bytes, err);
        if (f.number == 2) rc = read_trainer(v, f.bytes, err), trained = true;
        if (f.number == 3) rc = read_normalizer(v, f.bytes, err);
        if (rc) return dw_fail_in(err, "tokenizer.model");
    }
    return trained ? 0 : dw_fail(err, "tokenizer.model has no trainer_spec");
}
