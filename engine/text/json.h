/* json.h - parses JSON with jansson; limits and messages are the same for all callers. */
#ifndef DW_JSON_H
#define DW_JSON_H

#include "base/base.h"

struct json_t;
/* Limits for the memory of a parsed text, which can be 80 times the text.  A text that needs more is refused before
 * parsing. */
#define DW_JSON_TREE ((size_t)60 << 20)        // a header of 30,000 tensors
#define DW_JSON_LARGE_TREE ((size_t)400 << 20) // the largest tokenizers need less

/* Parse a whole file or text.  Duplicate keys and trailing bytes are refused.  The caller calls json_decref(). */
struct json_t *dw_json_load(const char *path, size_t max_bytes, size_t max_tree, dw_err *err);
struct json_t *dw_json_parse(const char *text, size_t len, size_t max_tree, const char *what, dw_err *err);

#endif
