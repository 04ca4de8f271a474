/* shrink_choices.h - the settings that shrink takes where its user names none: the metric, and what widths fit.
 *
 * Metric.  obs-gradient is at least as good as obs on the models that were measured (results/repair.md).  It needs 16
 * or 32 bits and a backward pass, which takes about twice as long as the pass of the statistics.  A choice by measured
 * time would change from run to run, and with it the grid.  So products are counted: four for each parameter and token,
 * at most SHRINK_MOST_BACKWARD of them, about half an hour on two cores.
 *
 * Widths.  K types have blocks of 256.  A down matrix of another width falls back to a larger type, which takes more
 * bytes than the neurons that rounding a width up keeps: 768 of 1024 neurons in Q4_K_M take fewer bytes than 704, and
 * 1536 of 2048 fewer than 1440 (results/README.md).  So widths are multiples of the mixture's largest block, unless the
 * rate would be missed by more than SHRINK_MOST_OFF.  With one width for all layers the rate comes within half a block
 * of each, with widths that differ within one block of all together (prune/search.h). */
#ifndef EXP_SHRINK_CHOICES_H
#define EXP_SHRINK_CHOICES_H

#include "kit/mixtures.h"

typedef struct shrink_metric {
    const char *name, *help;
} shrink_metric;

extern const shrink_metric shrink_metrics[]; // obs-gradient, obs; ends with name NULL

#define SHRINK_MOST_BACKWARD 2e14
#define SHRINK_MOST_OFF 0.0625

/* The metric for a model of 16 or 32 bits, or of fewer (is_narrow), and so many calibration tokens. */
const char *shrink_choose_metric(const dw_model *m, bool is_narrow, double n_tokens);

typedef struct shrink_widths {
    int block;      // of the mixture's type for down; 1: there is no mixture
    bool fit;       // widths are multiples of it
    int unit;       // what they are multiples of
    double reached; // the rate with such widths
} shrink_widths;

/* Widths for a rate; vary: they may differ by layer. */
shrink_widths shrink_choose_widths(const dw_model *m, const kit_mixture *mixture, double rate, bool vary);
/* Fails where all widths that rank can choose keep every neuron, which it would say only after the statistics. */
int shrink_check_rate(const dw_model *m, const shrink_widths *w, double rate, dw_err *err);

#endif
