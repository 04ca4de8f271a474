/* headings.h - what the columns of results are called in a table, in which unit, and what kind of thing each is.
 *
 * Columns that the table of headings lacks (those of other programs' tables too) are treatments: shown under their name,
 * as they stand in the file. */
#ifndef EXP_HEADINGS_H
#define EXP_HEADINGS_H

#include <stdbool.h>

typedef enum exp_role {
    EXP_TREATMENT,      // what was done: rows of other treatments are other variants
    EXP_CONDITION, // how it was measured: rows compare where these are equal
    EXP_MEASURE,   // what was measured: a number
    EXP_NAME,      // what a row is called, and remarks on it
} exp_role;

typedef struct exp_heading {
    const char *column; // of rows.tsv
    const char *head;   // above the column, with its unit
    exp_role role;
    bool usual;       // among the columns of a table for which none were asked
    const char *se;   // column of its standard error; NULL: none
    double scale;     // shown are cells times this
    int better;       // 1: more is better, -1: less, 0: neither
} exp_heading;

/* The heading of a column; one made of its name where there is none. */
exp_heading exp_heading_of(const char *column);
/* True for columns of speeds, which other work on the machine disturbs. */
bool exp_is_speed(const char *column);
extern const exp_heading exp_headings[]; // in the order of a table; ends with column NULL

enum { EXP_NUMBER = 48 };

/* Digits after the point for numbers of absolute value least to most that stand below each other: three significant
 * ones for the least, at most six for the most. */
int exp_decimals(double least, double most);
/* "16.85 ± 0.21": two digits of the error, and the value to the same place; without an error (0, NaN) four digits. */
void exp_format_pair(char text[EXP_NUMBER], double value, double error);

#endif
