/* level.h - stock held to a level of instruction sets, as $DEADWOOD_CPU holds this engine to one.
 *
 * Stock's folder has one library for each kind of CPU, libggml-cpu-NAME.so.  Stock loads the one that suits this CPU
 * best and cannot be told otherwise, but it sees only what is in the folder.  So it is opened through a temporary folder
 * of links to its other libraries and to the variants of the level:
 *
 *   avx2     haswell
 *   avx512   zen4, cooperlake, icelake, cannonlake, cascadelake, skylakex; stock loads the best that runs here
 *   amx      sapphirerapids
 *
 * The links are removed as soon as the libraries are open. */
#ifndef EXP_LEVEL_H
#define EXP_LEVEL_H

#include "experiments/peer/stock.h"

typedef struct exp_level {
    const char *name;
    const char *variant[8]; // NULL at the end
} exp_level;
extern const exp_level exp_levels[]; // a row without a name at the end

/* 0 when this machine has the level and `folder` a library for it; else err says which of them lacks. */
int exp_level_check(const char *level, const char *folder, dw_err *err);

/* A new folder of links to the libraries of `folder`, of the CPU variants only those of the level.  NULL after an
 * error.  exp_level_remove takes links and folder away and frees the name; NULL is allowed. */
char *exp_level_links(const char *folder, const char *level, dw_err *err);
void exp_level_remove(char *links);

/* stock_open, held to a level; NULL: to none. */
stock *stock_open_level(const char *folder, const char *level, dw_err *err);

#endif
