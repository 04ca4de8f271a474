/* json.c - JSON text to a jansson tree, with our limits and messages.
 *
 * jansson itself bounds the nesting (2048), checks UTF-8, refuses NUL in strings, and seeds its hash tables. */
#include "text/json.h"

#include <jansson.h>
#include <stdlib.h>

/* What jansson 2 takes on a 64-bit machine, allocations rounded up: an object with its first buckets, an array with its
 * first elements, a string besides its bytes, a member with its share of buckets, an element, a number. */
enum { OBJECT = 240, ARRAY = 128, STRING = 80, MEMBER = 80, ELEMENT = 24, NUMBER = 32 };

/* An upper bound of the bytes that the tree of a text takes.  Every value but the first follows one of , [ { or : and may
 * be a number. */
static size_t tree_bytes(const char *text, size_t len) {
    size_t n = OBJECT, longest = 0;
    for (size_t i = 0; i < len; i++) {
        const size_t begin = i;
        switch (text[i]) {
        case '{': n += OBJECT + ELEMENT; break;
        case '[': n += ARRAY + ELEMENT + NUMBER; break;
        case ':': n += MEMBER + NUMBER; break;
        case ',': n += ELEMENT + NUMBER; break;
        case '"':
            for (i++; i < len && text[i] != '"'; i++) i += text[i] == '\\';
            n += STRING + (i - begin);
            if (i - begin > longest) longest = i - begin;
            break;
        default: break;
        }
    }
    return n + 4 * longest; // jansson's buffers while it reads a string
}

struct json_t *dw_json_parse(const char *text, size_t len, size_t max_tree, const char *what, dw_err *err) {
    const size_t n = tree_bytes(text, len);
    if (n > max_tree) {
        dw_fail(err, "'%s' has too many values: its %zu bytes would take %zu MiB of memory, and at most %zu are allowed", what, len,
                n >> 20, max_tree >> 20);
        return NULL;
    }
    json_error_t why;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
    if (!root) dw_fail(err, "'%s' is not valid JSON: line %d, column %d: %s", what, why.line, why.column, why.text);
    return root;
}

struct json_t *dw_json_load(const char *path, size_t max_bytes, size_t max_tree, dw_err *err) {
    size_t size = 0;
    char *text = dw_read_file(path, max_bytes, &size, err);
    if (!text) return NULL;
    json_t *root = dw_json_parse(text, size, max_tree, path, err);
    free(text);
    return root;
}
