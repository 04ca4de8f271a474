/* json.c - JSON text to a jansson tree, with our limits and messages.
 *
 * jansson itself bounds the nesting (2048), checks UTF-8, refuses NUL in strings, and seeds its hash tables. */
#include "text/json.h"

#include <jansson.h>
#include <stdlib.h>

/* A value takes some 100 bytes in memory and may take 2 in the text.  Twice what the largest tokenizers need. */
enum { MAX_VALUES = 4 << 20 };

/* An upper bound of the number of values: every one but the first follows one of these. */
static size_t count_values(const char *text, size_t len) {
    size_t n = 1;
    bool quoted = false;
    for (size_t i = 0; i < len; i++) {
        const char c = text[i];
        if (c == '"')
            quoted = !quoted;
        else if (quoted)
            i += c == '\\';
        else
            n += c == ',' || c == '[' || c == '{' || c == ':';
    }
    return n;
}

struct json_t *dw_json_parse(const char *text, size_t len, const char *what, dw_err *err) {
    if (count_values(text, len) > MAX_VALUES) {
        dw_fail(err, "'%s' has too many values: at most %d are read", what, MAX_VALUES);
        return NULL;
    }
    json_error_t why;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
    if (!root) dw_fail(err, "'%s' is not valid JSON: line %d, column %d: %s", what, why.line, why.column, why.text);
    return root;
}

struct json_t *dw_json_load(const char *path, size_t max_bytes, dw_err *err) {
    size_t size = 0;
    char *text = dw_read_file(path, max_bytes, &size, err);
    if (!text) return NULL;
    json_t *root = dw_json_parse(text, size, path, err);
    free(text);
    return root;
}
