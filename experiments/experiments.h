/* experiments.h - the room that compares: programs that bring models in, run them, and measure them.
 *
 * Programs (one file with main() each): convert, inspect, generate, score, sweep, table, synth, limits, versus.  They meet
 * the other rooms in files only.  Code that two of these programs share stands in a file without main() with its own header:
 *   random_model   shapes of known models and random weights for them     (synth, tests)
 *   bandwidth      read bandwidth of this minute, load and steal time     (limits, versus, score)
 *   stock          stock llama.cpp through its packaged libraries         (versus, tests)
 *   side           this engine or stock behind one set of calls           (versus, tests)
 *   contest        sides in processes of their own, lap by lap            (versus)
 *   checkpoint     a checkpoint folder as the tensors of a GGUF file      (convert)
 *   chat           the common chat formats, recognised                    (generate)
 *   speed          memory, load time and speed in a process alone; measures: the columns of a row (score, sweep)
 *   grid           variables and steps as text; controls: those it lacks; jobs: what they ask for, with identities (sweep)
 *   child          a process that answers over a socket; peaks: how much arithmetic the machine does (score, versus, limits)
 *   children       commands as child processes; judge: one table of many rows, with verdicts (sweep)
 *   rows           tables read back; headings: what columns are called; paste, conditions, plot: how they look (table)
 *
 * What every measurement here keeps to: the window that is timed is stated; warm-up lies outside of it; medians and
 * whole ranges are printed, never a best alone; what disturbed the machine (load, steal, CPU time against wall time)
 * stands in the same row; quality is computed by one kernel path whatever the number of threads. */
#ifndef EXPERIMENTS_H
#define EXPERIMENTS_H

#include "engine.h"

#endif
