/* search.h - widths of the layers chosen by what they cost, measured on held-out texts (trial.h).
 *
 * sensitivity  Each layer alone is cut to some widths, and the divergence measured: a curve KL_l(w), linear between the
 *              widths.  Dynamic programming minimises sum KL_l(w_l) within the budget: best[l][c] is the least sum of
 *              layers before l that cost at most c (Frantar & Alistarh 2022, arXiv 2202.04997: SPDY).  Sums of single
 *              layers' divergences miss what layers do to each other.  Layers cost neurons, bytes, or their measured
 *              time (timing.h).  Where layers are dropped, each point of a curve contains their divergence, so the
 *              whole width is measured, too.
 * evolve       Starts from another rule's widths.  A step moves neurons from one random layer to another; it stays when
 *              the mean divergence of the windows falls by more than the standard error of the differences (Sieberling
 *              2024, arXiv 2410.14649: EvoPress); of a single window, when it falls.  A move that has failed is not
 *              tried again until another one has stayed, because the same widths give the same divergence.  Where a
 *              whole layer is no multiple of the unit, a move from it or to it leaves less than a unit over, which later moves may use.  The state is
 *              written to a file after every accepted step, and the same command goes on from it; moves that failed
 *              are tried again then.  A state of another command that has accepted steps is refused.
 *
 * Neither exceeds the bytes that were asked for.  Neither exceeds the neurons of the uniform rule, but for one case:
 * where units are so large that this rule misses the rate by more than 0.01, sensitivity may keep as many neurons as
 * the rate allows, in all layers together.  So 12 layers of 2048 in units of 256 reach every rate to 0.0104, where one
 * width for all is 0.125 from the next. */
#ifndef PRUNE_SEARCH_H
#define PRUNE_SEARCH_H

#include "kit/progress.h"
#include "prune/allocate.h"
#include "prune/trial.h"

struct prune_search {
    prune_trial *trial;
    const prune_allocator *start; // of evolve
    int evaluations;              // at most; 0: the rule's own number
    uint64_t seed;
    const char *state; // file; NULL: nothing is kept
    const char *key;   // of all that the result depends on
    progress *bar;     // hears of evaluations; NULL: none
    void (*tell)(const char *text);
};

enum { SEARCH_LEVELS = 8, SEARCH_EVALUATIONS = 400 }; // widths of a layer; steps of evolve

int search_sensitivity(const prune_task *t, int *n_keep, dw_err *err);
int search_evolve(const prune_task *t, int *n_keep, dw_err *err);
double search_n_evaluations(const prune_task *t,
                            const prune_allocator *a); // that the rule will take, its start included

#endif
