/* show.c - text from files, made safe to print on a terminal. */
#include "base/base.h"

#include <stdio.h>
#include <string.h>

/* Code points that control a terminal (C0, DEL, C1), end a line, or change the direction of writing (which makes a
 * name look like another one). */
static bool is_control(uint32_t c) {
    return c < ' ' || (c >= 0x7f && c < 0xa0) || c == 0x61c || c == 0x200e || c == 0x200f ||
           (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

/* The code point at text; returns its length, 0 if no UTF-8 character begins there.  A NUL has length 1. */
static size_t char_at(const char *text, size_t left, uint32_t *c) {
    const uint8_t *b = (const uint8_t *)text;
    const size_t n = b[0] < 0x80 ? 1 : b[0] < 0xe0 ? 2 : b[0] < 0xf0 ? 3 : 4;
    *c = n == 1 ? b[0] : b[0] & (0x7fu >> n);
    if (n == 1) return 1;
    if (n > left || !dw_is_utf8(text, n)) return 0;
    for (size_t i = 1; i < n; i++) *c = *c << 6 | (b[i] & 0x3f);
    return n;
}

size_t dw_show(char *to, size_t cap, const char *text, size_t n) {
    size_t used = 0, len;
    for (size_t i = 0; i < n; i += len ? len : 1) {
        char escape[16] = "";
        uint32_t c;
        len = char_at(text + i, n - i, &c);
        if (!len) snprintf(escape, sizeof escape, "\\x%02x", (uint8_t)text[i]);
        else if (c == '\n' || c == '\t') snprintf(escape, sizeof escape, "\\%c", c == '\n' ? 'n' : 't');
        else if (is_control(c)) snprintf(escape, sizeof escape, c < 0x80 ? "\\x%02x" : "\\u%04x", c);
        const size_t n_more = *escape ? strlen(escape) : len;
        if (n_more >= cap - used) break;
        memcpy(to + used, *escape ? escape : text + i, n_more);
        used += n_more;
    }
    to[used] = 0;
    return used;
}
