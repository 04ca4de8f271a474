/* mem.c - checked allocation, and the cursor over untrusted bytes. */
#include "base/base.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 }; // a cache line, and the widest vector

void *dw_alloc(size_t n, size_t size, const char *what, dw_err *err) {
    size_t bytes, padded;
    void *p = NULL;
    if (!dw_mul(n, size, &bytes) || !dw_add(bytes, ALIGNMENT, &padded) || bytes > PTRDIFF_MAX ||
        !(p = aligned_alloc(ALIGNMENT, padded / ALIGNMENT * ALIGNMENT))) {
        dw_fail(err, "out of memory: %zu x %zu bytes for %s", n, size, what);
        return NULL;
    }
    return memset(p, 0, bytes);
}

void *dw_layout_take(dw_layout *l, size_t n, size_t size) {
    void *p = l->base ? l->base + l->used : NULL;
    size_t bytes, padded;
    if (!dw_mul(n, size, &bytes) || !dw_add(bytes, ALIGNMENT - 1, &padded) ||
        !dw_add(l->used, padded / ALIGNMENT * ALIGNMENT, &l->used))
        l->used = SIZE_MAX;
    return p;
}

int dw_grow(void *array_pointer, size_t *cap, size_t need, size_t size, const char *what, dw_err *err) {
    if (need <= *cap) return 0;
    size_t wanted = *cap < 8 ? 16 : *cap * 2;
    if (wanted < need) wanted = need;
    void *bigger = dw_alloc(wanted, size, what, err);
    if (!bigger) return -1;
    void *old;
    memcpy(&old, array_pointer, sizeof old);
    if (old) memcpy(bigger, old, *cap * size);
    free(old);
    memcpy(array_pointer, &bigger, sizeof bigger);
    *cap = wanted;
    return 0;
}

char *dw_strdup(const char *text, dw_err *err) {
    const size_t n = strlen(text) + 1;
    char *copy = dw_alloc(n, 1, "a string", err);
    return copy ? memcpy(copy, text, n) : NULL;
}

static char *format_list(dw_err *err, const char *format, va_list args) {
    char *text = NULL;
    if (vasprintf(&text, format, args) >= 0) return text;
    dw_fail(err, "out of memory: a string");
    return NULL;
}

char *dw_format(dw_err *err, const char *format, ...) {
    va_list args;
    va_start(args, format);
    char *text = format_list(err, format, args);
    va_end(args);
    return text;
}

int dw_append(char **text, dw_err *err, const char *format, ...) {
    va_list args;
    va_start(args, format);
    char *more = format_list(err, format, args), *longer = more && *text ? dw_format(err, "%s%s", *text, more) : more;
    va_end(args);
    if (longer != more) free(more);
    if (!longer) return -1;
    free(*text);
    *text = longer;
    return 0;
}

const uint8_t *dw_cursor_take(dw_cursor *c, size_t n) {
    if (c->failed || n > c->left) {
        c->failed = true;
        return NULL;
    }
    const uint8_t *p = c->at;
    c->at += n;
    c->left -= n;
    return p;
}

uint8_t dw_cursor_u8(dw_cursor *c) {
    const uint8_t *p = dw_cursor_take(c, 1);
    return p ? *p : 0;
}

uint32_t dw_cursor_u32(dw_cursor *c) {
    const uint8_t *p = dw_cursor_take(c, 4);
    return p ? dw_le32(p) : 0;
}

uint64_t dw_cursor_u64(dw_cursor *c) {
    const uint8_t *p = dw_cursor_take(c, 8);
    return p ? dw_le64(p) : 0;
}

/* Bytes of the UTF-8 character at s; 0 if it is not well-formed or is NUL. */
static int character_bytes(const uint8_t *s, const uint8_t *end) {
    if (*s < 0x80) return *s != 0;
    const int n = *s >= 0xf0 ? 4 : *s >= 0xe0 ? 3 : 2;
    if (*s < 0xc2 || *s > 0xf4 || end - s < n) return 0;
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    const bool overlong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    const bool surrogate = s[0] == 0xed && s[1] > 0x9f, beyond = s[0] == 0xf4 && s[1] > 0x8f;
    return overlong || surrogate || beyond ? 0 : n;
}

size_t dw_utf8_len(const char *text, size_t len) {
    const uint8_t *s = (const uint8_t *)text, *end = s + len;
    for (int n; s < end && (n = character_bytes(s, end)); s += n) {}
    return (size_t)(s - (const uint8_t *)text);
}

bool dw_is_utf8(const char *text, size_t len) { return dw_utf8_len(text, len) == len; }
