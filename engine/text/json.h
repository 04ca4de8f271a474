/* json.h - JSON by way of jansson, so that one file decides on limits and messages. */
#ifndef DW_JSON_H
#define DW_JSON_H

#include "base/base.h"

struct json_t;
/* How much memory a parsed text may take, which can be 80 times its bytes.  What needs more is refused before it is
 * parsed. */
#define DW_JSON_TREE ((size_t)60 << 20)        // a header of 30,000 tensors
#define DW_JSON_LARGE_TREE ((size_t)400 << 20) // more than the largest tokenizers need

/* Parses a whole file: duplicates and trailing bytes are refused.  json_decref() the result. */
struct json_t *dw_json_load(const char *path, size_t max_bytes, size_t max_tree, dw_err *err);
struct json_t *dw_json_parse(const char *text, size_t len, size_t max_tree, const char *what, dw_err *err);

#endif
