/* json.c - JSON text to a jansson tree, with our limits and messages.
 *
 * jansson limits the nesting to 2048, checks UTF-8, refuses NUL in strings, and seeds its hash tables at random. */
#include "text/json.h"

#include <jansson.h>
#include <stdlib.h>

/* Bytes that jansson 2 allocates on a 64-bit machine, rounded up.  OBJECT includes its first buckets, ARRAY its first
 * elements, MEMBER its share of buckets; STRING excludes the bytes of the text. */
enum { OBJECT = 240, ARRAY = 128, STRING = 80, MEMBER = 80, ELEMENT = 24, NUMBER = 32 };

/* An upper bound of the bytes of the parsed tree.  Every value except the first follows one of , [ : and may be a
 * number, so each of these characters counts one. */
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
        dw_fail(err, "'%s' has too many values: its %zu bytes would take %zu MiB of memory, at most %zu are allowed",
                what, len, (n + (1 << 20) - 1) >> 20, max_tree >> 20);
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
