/* kit_own.h - what the files of engine/kit share with each other and with their test. */
#ifndef KIT_OWN_H
#define KIT_OWN_H

#include "kit/options.h"
#include "kit/progress.h"
#include "kit/talk.h"

#include <stdio.h>

/* ---- options.c ------------------------------------------------------------------------------------------ */

enum { OPT_DONE = 0, OPT_ASKED_HELP, OPT_ASKED_MAN, OPT_ASKED_VERSION, OPT_ASKED_SUMMARY };

/* opt_parse without output and exit: OPT_DONE or what was asked for instead; -1 with the usage error in err. */
int opt_read(const opt_program *program, int argc, char **argv, dw_err *err);

/* The effective values of a row, each as text: *n of them; free() the array and its items.  *n 0, NULL: unset.  A flag
 * that is set has one value, "". */
char **opt_values(const opt_row *row, size_t *n);

/* Calls fn for every name of a table of choices; help: what it means, NULL where the table does not say. */
void opt_each_choice(const opt_row *row, void (*fn)(void *ctx, size_t i, const char *name, const char *help), void *ctx);

/* How a message calls a row: "--type", "DIR".  The text lives until the next call. */
const char *opt_label(const opt_row *row);

/* True for the row after the last. */
static inline bool opt_is_end(const opt_row *row) { return !row->help; }
/* True for rows that can be given: options and positional arguments. */
static inline bool opt_is_value(const opt_row *row) { return row->kind != OPT_GROUP; }

/* ---- options_help.c ------------------------------------------------------------------------------------- */

void opt_print_help(const opt_program *program, FILE *to);
void opt_print_man(const opt_program *program, FILE *to);

/* ---- talk.c ------------------------------------------------------------------------------------------ */

extern const opt_program *tool_program; // NULL before opt_parse

/* "deadwood-cut" */
const char *tool_name(void);

/* p, unless it is NULL: then the program ends with a sentence that names what could not be had. */
void *tool_need(void *p, const char *what);

/* ---- signals.c --------------------------------------------------------------------------------------- */

/* SIGINT, SIGTERM and SIGHUP remove unfinished files and folders and end the process by that signal; exit() removes
 * them too.  SIGBUS, which comes when a mapped file becomes shorter, removes them, says which file it was, and ends
 * the process with status 1. */
void signals_catch(void);
void signals_on_interrupt(const char *words); // what SIGINT then writes to stderr, borrowed; NULL: nothing

/* ---- paths.c ----------------------------------------------------------------------------------------- */

/* Ends the program unless every input that the options name can be read, every output can be written, no output is an
 * input (or a part of one: of a split model), and no two outputs are one file. */
void paths_check(const opt_program *program);

/* ---- progress.c ------------------------------------------------------------------------------------- */

/* Where progress is drawn and by which clock; a test puts its own here. */
typedef struct progress_screen {
    double (*now)(void); // seconds
    FILE *to;
    int columns; // of the terminal; 0: no terminal
} progress_screen;

void progress_set_screen(const progress_screen *screen); // NULL: stderr and the real clock

/* Wipes a bar off the terminal, so that a message can take its line. */
void progress_hide(void);

#endif
