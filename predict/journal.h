/* journal.h - finished pieces of a long run, so that the same command continues after them.
 *
 * A file that only grows: "deadwood journal 1\n", the identity of the run (32 bytes: a hash of all that decides its
 * result), then records: the payload's size (u64, little endian), the payload, the SHA-256 of both.  A run that was
 * ended at any moment leaves whole records and perhaps one that is not; the latter is cut off when the file is opened
 * again.  It is locked while it is open, and with a record it stays if the program ends before
 * predict_journal_remove. */
#ifndef JOURNAL_H
#define JOURNAL_H

#include "base/base.h"

typedef struct predict_journal predict_journal;

/* Opens or makes the file.  *resumed: it belongs to a run of this identity, whose whole records stay.  A journal of
 * another run is refused, or emptied if it has no whole record.  A file that does not begin as a journal does is
 * refused. */
predict_journal *predict_journal_open(const char *path, const uint8_t identity[32], bool *resumed, dw_err *err);
void predict_journal_close(predict_journal *j);  // deletes a file without records; j may be NULL
void predict_journal_remove(predict_journal *j); // closes and deletes

size_t predict_journal_n_records(const predict_journal *j);
const char *predict_journal_kept(const predict_journal *j); // the path; NULL: no record is there yet
/* A record's payload, mapped until the next predict_journal_begin; NULL: an error, which is in err. */
const uint8_t *predict_journal_record(predict_journal *j, size_t i, size_t *size, dw_err *err);

/* A new record of exactly `size` bytes, which are added in any pieces; safe on disk after predict_journal_end. */
int predict_journal_begin(predict_journal *j, size_t size, dw_err *err);
int predict_journal_add(predict_journal *j, const void *data, size_t size, dw_err *err);
int predict_journal_end(predict_journal *j, dw_err *err);

#endif
