/* experiments.h - the room that compares: programs that import models, run them, and measure them.
 *
 * Programs (one file with main() each): convert, inspect, generate, score, sweep, shrink, table, synth, limits, versus,
 * and deadwood, which runs the others.  They exchange only files with the other rooms.  What measures quality is in
 * engine/measure.  The other files have no main().  Each has its header, but score.h and sweep.h declare for several:
 *   random_model           shapes of known models and random weights for them          (synth, tests)
 *   bandwidth              read bandwidth at the time of a measurement, load and steal time   (limits, versus, score)
 *   peaks                  arithmetic peaks of the machine                              (limits)
 *   child                  a process that answers over a socket                         (score, versus)
 *   speed                  memory, load time and speed, each model in its own process   (score)
 *   measures               the columns of a row of results                              (score, sweep)
 *   checkpoint             a checkpoint folder as the tensors of a GGUF file            (convert)
 *   chat                   recognises the common chat formats                           (generate)
 *   inspect_files          what is in statistics, traces, plans and rows                (inspect)
 *   shrink_choices, shrink_costs   settings that its user did not name; bytes and minutes   (shrink)
 *   score/                 the rows of a run: score.h lists the files
 *   sweep/                 a grid's jobs, run once each: sweep.h lists the files
 *   report/                table: rows (read back), headings and labels (names), against (paired differences), conditions,
 *                          paste and plot (how it looks)
 *   peer/                  versus: stock (upstream llama.cpp through its packaged libraries), program (this engine or
 *                          stock behind one set of calls), level (stock held to a level of instruction sets), runner
 *                          (programs in processes of their own, which work in turn)
 *
 * Rules of every measurement here: it is stated which time is measured, and warm-up is outside of it; medians and whole
 * ranges are printed, never the best value alone; the same row says what disturbed the machine (load, steal, CPU time
 * against wall time); quality is computed by the same kernels for every number of threads. */
#ifndef EXPERIMENTS_H
#define EXPERIMENTS_H

#include "engine.h"

#endif
