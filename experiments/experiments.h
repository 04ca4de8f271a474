/* experiments.h - the room that compares: programs that import models, run them, and measure them.
 *
 * Programs (one file with main() each): convert, inspect, generate, score, sweep, table, synth, limits, versus, and
 * deadwood, which runs the others.  They exchange only files with the other rooms.  What measures quality is in
 * engine/measure.  The other files of this room have no main() and their own header:
 *   random_model   shapes of known models and random weights for them     (synth, tests)
 *   bandwidth      read bandwidth at the time of a measurement, load and steal time   (limits, versus, score)
 *   stock          upstream llama.cpp through its packaged libraries                     (versus, tests)
 *   program        this engine or stock behind one set of calls                       (versus, tests)
 *   level          stock held to a level of instruction sets                           (versus, tests)
 *   runner         programs in processes of their own, which work in turn             (versus)
 *   checkpoint     a checkpoint folder as the tensors of a GGUF file                  (convert)
 *   chat           recognises the common chat formats                                 (generate)
 *   speed          memory, load time and speed, each model in its own process         (score)
 *   measures       the columns of a row of results                                    (score, sweep)
 *   grid           a grid file: variables and steps                                   (sweep)
 *   controls       adds the controls that a grid lacks                                (sweep)
 *   jobs           the jobs of a grid, each with an identity                          (sweep)
 *   child          a process that answers over a socket                               (score, versus)
 *   peaks          arithmetic peaks of the machine                                    (limits)
 *   children       runs commands as child processes                                   (sweep)
 *   judge          one table of many rows, with verdicts from paired differences      (sweep)
 *   rows           reads tables back; headings: names of columns                      (table)
 *   against        paired differences of all rows from one model                     (table)
 *   paste, conditions, plot    how a table looks                                      (table)
 *
 * Rules of every measurement here: it is stated which time is measured, and warm-up is outside of it; medians and whole
 * ranges are printed, never the best value alone; the same row says what disturbed the machine (load, steal, CPU time
 * against wall time); quality is computed by the same kernels for every number of threads. */
#ifndef EXPERIMENTS_H
#define EXPERIMENTS_H

#include "engine.h"

#endif
