/* talk.h - what a program says on stderr, and how it ends.
 *
 * stdout is data, stderr is talk.  Only programs call these; libraries return errors. */
#ifndef KIT_TALK_H
#define KIT_TALK_H

#include "base/base.h"

#include <stdio.h>

void die_err(const dw_err *err) __attribute__((noreturn));                           // "deadwood-cut: sentence", exit 1
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));   // the same
void die_usage(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn)); // exit 2, points to --help
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));             // one line on stderr, unless quiet
void warn(const char *format, ...) __attribute__((format(printf, 1, 2)));            // "deadwood-cut: warning: ...", even if quiet

/* SIGINT ends a run with one line on stderr, unless quiet: that nothing unfinished is left, or, from here on, that the file
 * `kept` holds what is finished and the same command goes on from there. */
void say_if_interrupted(const char *kept);

/* What comes from files is printed by these two (messages do it themselves): a name cannot steer the terminal (dw_show). */
void show_text(FILE *to, const char *text, size_t n); // in one line
void show_lines(FILE *to, const char *text);          // line ends and tabs stay

/* A number of bytes for people, in decimal units: show_bytes(n).text is "512 B", "24.7 MB", "4.293 GB". */
typedef struct shown_bytes {
    char text[24];
} shown_bytes;
shown_bytes show_bytes(double n);
static inline const char *plural(double n) { return n == 1 ? "" : "s"; } // "%d token%s"

#endif
