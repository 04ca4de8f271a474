/* set.h - which strings of bytes were there already: names and texts from files, in any number.
 *
 * The table holds SHA-256 digests and finds them by SipHash with a random key (siphash.h).  So nobody can choose strings
 * that make it slow, and long strings take no memory. */
#ifndef DW_SET_H
#define DW_SET_H

#include "base/siphash.h"

typedef struct dw_set { // begins as {0}
    uint8_t (*slot)[32]; // all zero: free
    size_t n, n_slot;
    dw_hash_key key;
} dw_set;

int dw_set_add(dw_set *s, const void *bytes, size_t n, dw_err *err); // 1: it was not there; 0: it was; -1: no memory
bool dw_set_has(const dw_set *s, const void *bytes, size_t n);
void dw_set_free(dw_set *s);

#endif
