/* internal.h - what the readers and writers of this folder share, and what their fuzz targets need. */
#ifndef DW_FORMATS_INTERNAL_H
#define DW_FORMATS_INTERNAL_H

#include "formats/formats.h"

_Static_assert(sizeof(size_t) == 8, "sizes in model files are 64-bit");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are used where they lie in the file");

/* Limits on names, and on counts so that records stay within 64 MiB whatever a file claims. */
enum {
    DW_GGUF_ALIGNMENT = 32, // what is written, and the default of what is read
    DW_GGUF_MAX_NAME = 63,
    DW_GGUF_MAX_KEY = 65535,
    DW_GGUF_MAX_KV = 1 << 16,
    DW_GGUF_MAX_TENSORS = 1 << 17,
    DW_GGUF_MAX_STRINGS = 1 << 22, // in all arrays together
};

/* The same reader over bytes in memory, which must outlive the result; errors name them `name`.  An address sanitizer
 * finds a read one byte beyond them, but a read beyond a map only at the end of its page. */
dw_gguf *dw_gguf_open_memory(const void *data, size_t size, const char *name, dw_err *err);

size_t dw_kv_type_bytes(uint32_t type);     // of an element; 0: strings, arrays and unknown types
const char *dw_kv_type_name(uint32_t type); // "u32"
/* Bytes of a tensor of ne[0..3], ne[0] in whole blocks; fails when a dimension is 0 or the product overflows. */
int dw_tensor_size(const dw_qtype_row *type, const size_t ne[4], size_t *n_bytes, dw_err *err);
/* Names of keys and tensors: 1 to max bytes of UTF-8. */
int dw_name_check(dw_str name, size_t max, dw_err *err);

/* Records by name: pointers sorted by strcmp, so that no choice of names makes look-up slow.  The first member of
 * a record is its name.  Building fails when a name occurs twice. */
typedef struct dw_index {
    const void **sorted;
    size_t n;
} dw_index;

int dw_index_build(dw_index *index, const void *records, size_t n, size_t record_bytes, const char *what, dw_err *err);
const void *dw_index_find(const dw_index *index, const char *name); // NULL: absent
void dw_index_free(dw_index *index);

#endif
