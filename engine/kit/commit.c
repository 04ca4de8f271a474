/* commit.c - which commit this was built from: the Makefile gives it, and makes this one object again when it changes. */
#include "kit/lineage.h"

const char *kit_commit(void) { return DEADWOOD_COMMIT; }
