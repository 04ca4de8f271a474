/* conditions.h - what must be said beside the numbers of a table: verdicts, marks, and under which conditions the rows
 * were measured. */
#ifndef EXP_CONDITIONS_H
#define EXP_CONDITIONS_H

#include "experiments/report/paste.h"

enum { EXP_VERDICT = 2400 };

/* "discard; dominated by mini-q4_0.gguf; leak", with the note in parentheses; a table with labels has the label of that
 * row instead of its file.  False, and "", when there is nothing. */
bool exp_verdict(char text[EXP_VERDICT], const exp_sheet *s, const exp_line *line);
/* Some row's speed was taken while others used the machine. */
bool exp_is_disturbed(const exp_rows *r, const exp_line *line);
/* The divergence is a lower bound: the base was a stored one. */
bool exp_is_bound(const exp_rows *r, const exp_line *line);
/* Some row's model, or its base, was made with a text that it is scored on. */
bool exp_has_leak(const exp_rows *r, const exp_line *line);

/* A copy of at most size - 1 bytes; a longer text is cut to whole characters and ends in "…".  size > 3. */
void exp_clip(char *to, size_t size, const char *text);
/* The same with a backslash before what Markdown would take for itself.  size > 5. */
void exp_escape(char *to, size_t size, const char *text);

/* The paragraphs under a table of results. */
int exp_conditions_print(FILE *out, const exp_sheet *s, dw_err *err);

#endif
