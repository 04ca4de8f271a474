/* json.h - JSON by way of jansson, so that one file decides on limits and messages. */
#ifndef DW_JSON_H
#define DW_JSON_H

#include "base/base.h"

struct json_t;
/* Parses a whole file: duplicates and trailing bytes are refused.  json_decref() the result. */
struct json_t *dw_json_load(const char *path, size_t max_bytes, dw_err *err);
struct json_t *dw_json_parse(const char *text, size_t len, const char *what, dw_err *err);

#endif
