/* commit.c - which commit this was built from: the Makefile gives it, and makes this one object again when it changes.
 * It stands in a field of its own size, so that kit_sha256_program can leave it out. */
#include "kit/lineage.h"

static const char field[KIT_COMMIT_BYTES] = "deadwood-commit:" DEADWOOD_COMMIT;

const char *kit_commit(void) { return field + KIT_COMMIT_MARK; }
const char *kit_commit_mark(void) { return field; }
