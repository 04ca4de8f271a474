/* grid.h - a grid: variables with lists of values, and steps that are commands, in one small text file.
 *
 *   # deadwood grid 1
 *   calib  := experiments/texts/calib/english-*.txt experiments/texts/calib/german-?.txt
 *   eval   := experiments/texts/eval/english.txt
 *   metric  = activation energy random
 *   rate    = 0.1 0.2 0.3
 *   seed    = 1 2 3                                     if metric = random
 *
 *   dense   : convert experiments/mini -o $out.gguf
 *   stats   : collect -m $dense -f $calib -o $out.h5
 *   plan    : rank -m $dense -s $stats --metric $metric --rate $rate --seed $seed -o $out.tsv
 *   cut     : cut -m $dense -p $plan -o $out.gguf
 *   score   : score -m $cut --base $dense -f $eval --no-speed -o $rows
 *   speed   : alone score -m $cut --speed-only -o $rows
 *
 *   control if metric = random
 *
 * Lines.  The first is as above.  # at the begin of a word begins a comment.  A line that begins with a space goes on
 * with the one before it.  Words are separated by spaces; quotes, ' or ", keep spaces in a word, and in '...' a $ is
 * only a $.  Paths are those of the folder in which the sweep is started.
 *
 *   NAME = VALUE ..       a variable: it has one of these values in a variant
 *   NAME := WORD ..       a list: all words together; a word with * ? [ that is not quoted becomes the files that match, in
 *                         order of their names
 *   NAME : COMMAND ..     a step: a deadwood command, run once for each combination of values of the variables that it
 *                         uses, itself or through the steps that it reads
 *   NAME : alone COMMAND ..     the same, with no other job beside it: for what measures speed
 *   control if ..         rows of these variants are controls (those of metric random are, without a word)
 *
 * A line may end in `if VARIABLE = VALUE .. [and VARIABLE = VALUE ..]..`.  A variable whose condition does not hold is
 * not varied and has its first value; a step whose condition does not hold is not run, nor are those that read it.
 *
 * In a command $NAME or ${NAME} is the value of a variable or the output of a step above.  A word that is only a
 * variable and not quoted is split at spaces, so that a value may hold several words ('--type Q4_0' '--mixture Q2_K');
 * a word that is only a list becomes its words; a word with * ? [ that is not quoted becomes the files that match.
 *
 * $out.SUFFIX is a file that the step writes, $rows the rows of results, which the sweep gathers.  Every step names one
 * at least.  It may name several with different suffixes, and later steps then read $STEP, the first of them, or
 * $STEP.SUFFIX:
 *
 *   learnt  : train -m $gated -x $traces -o $out.gguf --report $out.report.tsv
 *
 * Outputs that end in .gguf or .model are models.
 *
 * Two lists have a meaning of their own.  `select` and `report` are two sets of texts: variants are chosen by rows
 * on the first and reported by their rows on the second.  The column `role` of rows says which of the two their step
 * read.  Both lists are needed, no step reads both, and no text is in both, by its contents.
 *
 * Refused, with the line: names that are unknown or used for nothing, steps without an output, steps that read what
 * stands below them (so there are no circles), values given twice, more than GRID_MAX_JOBS combinations. */
#ifndef EXP_GRID_H
#define EXP_GRID_H

#include "base/base.h"

enum {
    GRID_MAX_VARIABLES = 64,
    GRID_MAX_VALUES = 4096,
    GRID_MAX_STEPS = 256,
    GRID_MAX_OUTPUTS = 4,
    GRID_MAX_JOBS = 100000
};

typedef struct grid_condition { // the variable has one of some of its values
    int variable;
    bool *holds; // (n_value of the variable)
} grid_condition;

typedef struct grid_conditions { // all of them; none: always
    grid_condition *one;
    size_t n, cap;
} grid_conditions;

typedef struct grid_variable {
    char *name;
    int line;
    char **value;
    size_t n_value, cap_value;
    grid_conditions only; // else it has its first value
    uint64_t needs;       // bits of this variable and of those that its conditions ask
    bool used;
} grid_variable;

typedef struct grid_list {
    char *name;
    int line;
    char **word;
    size_t n_word, cap_word;
    bool *matches; // (n_word) a pattern of file names, not quoted: grid_read puts the files there; NULL from then on
    bool used;
} grid_list;

typedef enum grid_piece_kind { GRID_TEXT, GRID_VARIABLE, GRID_LIST, GRID_STEP, GRID_OUTPUT } grid_piece_kind;

typedef struct grid_piece { // of a word
    grid_piece_kind kind;
    int index;  // of the variable, list or step
    int output; // GRID_STEP, GRID_OUTPUT: which output of the step
    char *text; // GRID_TEXT
} grid_piece;

typedef struct grid_word {
    grid_piece *piece;
    size_t n, cap;
    bool splits;  // one variable or list, not quoted: becomes several words
    bool matches; // a pattern of file names, not quoted: becomes the files
    char **file;  // n_file; from grid_read on
    size_t n_file, cap_file;
} grid_word;

typedef struct grid_output {
    char *suffix; // ".gguf"; "" for none
    bool is_rows; // $rows
} grid_output;

typedef enum grid_role { GRID_NO_ROLE, GRID_SELECT, GRID_REPORT } grid_role;

typedef struct grid_step {
    char *name, *tool; // the program is deadwood-TOOL
    int line;
    bool alone, makes_rows;
    grid_role role;      // of the texts that it reads
    grid_output *output; // n_output, as they are named; the first is what $NAME means
    size_t n_output, cap_output;
    grid_word *word; // the arguments
    size_t n_word, cap_word;
    grid_conditions only;
    int *reads; // steps, each once
    size_t n_read, cap_read;
    uint64_t needs; // bits of the variables that decide its output
} grid_step;

typedef struct grid {
    grid_variable *variable;
    size_t n_variable, cap_variable;
    grid_list *list;
    size_t n_list, cap_list;
    grid_step *step;
    size_t n_step, cap_step;
    grid_conditions *control; // any of them
    size_t n_control, cap_control;
    char *notes;       // lines about the controls that were added, or could not be; NULL: none
    size_t n_own_step; // steps after these are controls that were added
} grid;

typedef struct grid_options {
    bool controls;     // add the controls that it lacks (controls.h)
    bool stored_bases; // read a base that several steps share from its stored predictions
} grid_options;

/* `what` names the text in errors.  Looks at no file: patterns stay as they are. */
int grid_parse(grid *g, const char *text, size_t len, const char *what, dw_err *err);
int grid_parse_with(grid *g, const char *text, size_t len, const char *what, const grid_options *o, dw_err *err);
/* Reads a file, puts the files that match in the place of patterns, and refuses texts that are both in `select` and in
 * `report`. */
int grid_read(grid *g, const char *path, const grid_options *o, dw_err *err);
void grid_release(grid *g);

/* Whether conditions hold for the values (n_variable) of a variant. */
bool grid_holds(const grid_conditions *c, const uint16_t *value);

#endif
