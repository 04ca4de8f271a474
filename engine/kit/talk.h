/* talk.h - messages on stderr, and how a program ends.
 *
 * stdout is for data, stderr for messages.  Only programs call these functions; libraries return errors. */
#ifndef KIT_TALK_H
#define KIT_TALK_H

#include "base/base.h"

#include <stdio.h>

void die_err(const dw_err *err) __attribute__((noreturn));                               // "deadwood-cut: text", exit 1
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));       // the same
void die_usage(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn)); // exit 2, refers to --help
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));  // one line on stderr, unless quiet
void warn(const char *format, ...) __attribute__((format(printf, 1, 2))); // "deadwood-cut: warning: text", always

/* Sets the line that SIGINT writes to stderr, unless quiet.  kept NULL: nothing unfinished is left;
 * else: the file `kept` has the finished part, and the same command continues from it. */
void say_if_interrupted(const char *kept);
/* Until signals_hold(NULL) the first SIGINT, SIGTERM or SIGHUP is only noted, so that the program can store what it has
 * and end by it; SIGINT writes `words` (borrowed), unless quiet.  A signal more than a second later ends the program as
 * usual, and so does a noted one at signals_hold(NULL). */
void signals_hold(const char *words);
int signals_noted(void); // 0: none
void signals_end(int sig);

/* Print text that comes from files, so that its bytes cannot control the terminal (dw_show).  Messages do so, too. */
void show_text(FILE *to, const char *text, size_t n); // line ends and tabs are escaped
void show_lines(FILE *to, const char *text);          // line ends and tabs are printed

typedef struct shown_text {
    char text[32];
} shown_text;
shown_text show_bytes(double n);          // decimal units: show_bytes(n).text is "512 B", "24.7 MB" or "4.293 GB"
shown_text show_duration(double seconds); // "5.1 s", "2:03 min" or "1:02:03 h"
static inline const char *plural(double n) { return n == 1 ? "" : "s"; } // "%d token%s"

#endif
