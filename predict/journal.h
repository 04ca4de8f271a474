/* journal.h - finished pieces of a long run, so that the same command goes on behind them.
 *
 * A file that only grows: "deadwood journal 1\n", the identity of the run (32 bytes: a hash of all that decides its result),
 * then records: the payload's size (u64, little endian), the payload, the SHA-256 of both.  A run that was ended at any
 * moment leaves whole records and perhaps one that is not; the latter is cut off when the file is opened again.  It is
 * locked while it is open, and stays when the program ends before journal_remove. */
#ifndef JOURNAL_H
#define JOURNAL_H

#include "base/base.h"

typedef struct journal journal;

/* Opens or makes the file.  *resumed: it belongs to a run of this identity, whose whole records stay; a file of another
 * run, or something else that begins as a journal does, is emptied.  Any other file is refused. */
journal *journal_open(const char *path, const uint8_t identity[32], bool *resumed, dw_err *err);
void journal_close(journal *j);
void journal_remove(journal *j); // closes and deletes

size_t journal_n_records(const journal *j);
/* A record's payload, mapped until the next journal_begin; NULL: an error, which is in err. */
const uint8_t *journal_record(journal *j, size_t i, size_t *size, dw_err *err);

/* A new record of exactly `size` bytes, which are added in any pieces; on disk for good behind journal_end. */
int journal_begin(journal *j, size_t size, dw_err *err);
int journal_add(journal *j, const void *data, size_t size, dw_err *err);
int journal_end(journal *j, dw_err *err);

#endif
