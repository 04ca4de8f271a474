/* inspect_files.h - what is in statistics, traces, plans and rows of results. */
#ifndef EXPERIMENTS_INSPECT_FILES_H
#define EXPERIMENTS_INSPECT_FILES_H

#include "engine.h"
#include "formats/formats.h"

enum { INSPECT_CHARS = 60, INSPECT_ITEMS = 8 }; // of long texts and lists

/* Prints text from a file in one line, cut before the character that goes beyond `most` bytes; 0: whole. */
void inspect_text(dw_str s, size_t most);
void inspect_name(const char *name);

/* Prints a summary of the file.  Prints nothing if the file cannot be read. */
typedef int inspect_file(const char *path, dw_err *err);
inspect_file *inspect_file_of(const char *path); // by its first bytes; NULL: none of these, perhaps a model

/* Says what a file is of which there is no summary, and who reads it. */
void inspect_refuse(const char *path, dw_err *err);

#endif
