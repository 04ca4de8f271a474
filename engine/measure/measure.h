/* measure.h - what score measures with (libmeasure.a), for every tool that has to know what a change costs:
 *
 *   windows        which tokens of a text are scored, and with which context: the protocols
 *   evaluate       models over windows, side by side with a base
 *   distribution   what one row of logits says: log-probability, divergence, likeliest token
 *   statistics     means with standard errors, paired differences
 *   predictions    a base's predictions, stored once and compared with later
 *   continuations  whether a model continues a text or only repeats itself
 *
 * Quality is computed by one kernel path whatever the number of threads and the batch.  The library returns errors; it
 * neither prints nor ends a program. */
#ifndef MEASURE_H
#define MEASURE_H

#include "measure/continuations.h"
#include "measure/evaluate.h"
#include "measure/statistics.h"

#endif
