/* measure.h - measures the quality of a model (libmeasure.a); used by score and open to every tool:
 *
 *   windows        the protocols: which tokens of a text are scored, and with which context
 *   evaluate       evaluates models on windows and compares them with a base
 *   distribution   log-probability, divergence and likeliest token of one row of logits
 *   statistics     means with standard errors, paired differences
 *   predictions    the predictions of a base, stored once for later comparisons
 *   sums           sums of each window, stored beside rows: any two rows compare pairwise
 *   continuations  whether a model continues a text or only repeats itself
 *
 * Quality is computed by the same kernels for every number of threads and every batch size.  The library returns
 * errors; it neither prints nor ends a program. */
#ifndef MEASURE_H
#define MEASURE_H

#include "measure/continuations.h"
#include "measure/evaluate.h"
#include "measure/statistics.h"
#include "measure/sums.h"

#endif
