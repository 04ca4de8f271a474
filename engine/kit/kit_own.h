/* kit_own.h - declarations for the files of engine/kit and their test only. */
#ifndef KIT_OWN_H
#define KIT_OWN_H

#include "kit/options.h"
#include "kit/progress.h"
#include "kit/talk.h"

#include <stdio.h>

/* ---- options.c ------------------------------------------------------------------------------------------ */

enum { OPT_DONE = 0, OPT_ASKED_HELP, OPT_ASKED_MAN, OPT_ASKED_VERSION, OPT_ASKED_SUMMARY, OPT_ASKED_CHECK };

/* opt_parse without output and exit: OPT_DONE, or one of OPT_ASKED_..; -1 with the usage error in err. */
int opt_read(const opt_program *program, int argc, char **argv, dw_err *err);

/* The effective values of a row as *n texts; free() the array and its items.  NULL and *n 0: the row is not set.  A
 * flag that is set has one value, "". */
char **opt_values(const opt_row *row, size_t *n);

/* Calls fn for every name of a table of choices; help: its meaning, NULL if the table has none. */
void opt_each_choice(const opt_row *row, void (*fn)(void *ctx, size_t i, const char *name, const char *help),
                     void *ctx);

/* The name of a row in messages: "--type", "DIR".  The text is valid until the next call. */
const char *opt_label(const opt_row *row);

/* True for the row after the last. */
static inline bool opt_is_end(const opt_row *row) { return !row->help; }
/* True for options and positional arguments, false for headings. */
static inline bool opt_is_value(const opt_row *row) { return row->kind != OPT_GROUP; }

/* ---- options_help.c ------------------------------------------------------------------------------------- */

void opt_print_help(const opt_program *program, FILE *to);
void opt_print_man(const opt_program *program, FILE *to);

/* ---- talk.c ------------------------------------------------------------------------------------------ */

extern const opt_program *tool_program; // NULL before opt_parse

/* "deadwood-cut" */
const char *tool_name(void);

/* Returns p; if p is NULL, the program ends with "out of memory: what". */
void *tool_need(void *p, const char *what);

/* ---- signals.c --------------------------------------------------------------------------------------- */

/* From now on SIGINT, SIGTERM and SIGHUP remove unfinished files and folders and end the process by that signal; exit()
 * removes them, too.  SIGBUS, which comes when a mapped file becomes shorter, removes them, names the file, and ends
 * the process with status 1. */
void signals_catch(void);
void signals_on_interrupt(const char *words); // SIGINT writes words to stderr; they are borrowed; NULL: writes nothing

/* ---- paths.c ----------------------------------------------------------------------------------------- */

/* Ends the program unless every input that the options name can be read, every output can be written, no output is an
 * input or a part of a split input, no two outputs are the same file, and none replaces a file of another kind. */
void paths_check(const opt_program *program);
/* Prints a line "output PATH" for every file or folder that the options name for writing, then "input PATH" for every
 * one for reading. */
void paths_print(const opt_program *program);

/* ---- progress.c ------------------------------------------------------------------------------------- */

/* Where progress is drawn, and its clock; a test sets its own. */
typedef struct progress_screen {
    double (*now)(void); // seconds
    FILE *to;
    int columns; // width of the terminal; 0: not a terminal
} progress_screen;

void progress_set_screen(const progress_screen *screen); // NULL: stderr and the real clock

/* Removes the bar from the terminal, so that a message can use its line. */
void progress_hide(void);

#endif
