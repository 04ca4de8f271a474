/* err.c - one sentence for what went wrong. */
#include "base/base.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Bytes of the next character when a terminal shows it and does nothing else; else 0, and *skip are its bytes. */
static size_t shown(const char *text, size_t *skip) {
    const uint8_t *b = (const uint8_t *)text;
    *skip = 1;
    if (*b < 0x80) return *b >= ' ' && *b != 0x7f;
    size_t n = 1;
    while (n < 4 && (b[n] & 0xc0) == 0x80) n++;
    if (*b < 0xe0 && n > 2) n = 2;
    if (*b < 0xf0 && n > 3) n = 3;
    if (dw_utf8_len(text, n) != n) return 0;
    *skip = n;
    if (n == 2) return b[0] == 0xc2 && b[1] < 0xa0 ? 0 : n; // C1 controls
    const unsigned point = n == 3 ? (b[0] & 15u) << 12 | (b[1] & 63u) << 6 | (b[2] & 63u) : 0;
    const bool turns = point == 0x200e || point == 0x200f || (point >= 0x202a && point <= 0x202e) ||
                       (point >= 0x2066 && point <= 0x2069);
    return turns || point == 0x2028 || point == 0x2029 ? 0 : n; // the last two end a line
}

void dw_make_printable(char *text) {
    for (size_t skip; *text; text += skip)
        if (!shown(text, &skip)) memset(text, '?', skip);
}

int dw_fail(dw_err *err, const char *format, ...) {
    if (!err || err->text[0]) return -1;
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    dw_make_printable(err->text);
    return -1;
}

int dw_fail_in(dw_err *err, const char *where, ...) {
    if (!err || !err->text[0]) return -1;
    const dw_err inner = *err;
    char text[sizeof inner.text];
    va_list args;
    va_start(args, where);
    vsnprintf(text, sizeof text, where, args);
    va_end(args);
    *err = (dw_err){0};
    return dw_fail(err, "%s: %s", text, inner.text);
}
