/* siphash.c - random keys for hash tables. */
#include "base/siphash.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <sys/random.h>
#endif

int dw_hash_key_new(dw_hash_key *key, dw_err *err) {
    if (!getentropy(key->k, sizeof key->k)) return 0; // getrandom(2), at most 256 bytes, all or nothing
    return dw_fail(err, "the system gives no random bytes for a hash table's key: %s", strerror(errno));
}
