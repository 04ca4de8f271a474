/* kit.h - what the programs of deadwood share (libkit.a), one header for each subject:
 *
 *   options      one table of options for a program: parsing, --help, man page, effective arguments
 *   talk         what a program says on stderr, and how it ends         progress   bars with rate and time left
 *   tsv          tables of rows, read and appended by column name       lineage    how a model file came to be
 *   calib        texts to learn from, cut into windows                  stats      activation statistics (stats.h5)
 *   h5           HDF5 files of this project, behind a checksum          traces     what predictors learn from (traces.h5)
 *   plan         which neurons stay (plan.tsv)                          imatrix    llama.cpp's importance files
 *   metrics      how much a neuron matters: a table of scores
 *   safetensors  checkpoints, read and written
 *
 * Tools of different rooms meet in files; the readers and writers of these files are here, so that no two programs know a
 * layout twice.  The kit stands on the engine (engine.h) and on text (tokenizers.h).  Of the four libraries only this one
 * prints, and ends a program: die, die_usage and opt_parse.  Everything else here returns errors.
 *
 * Names begin with kit_ or with their subject: opt_, tool_, tsv_, lineage_, calib_, progress_, traces_, signals_, paths_. */
#ifndef KIT_H
#define KIT_H

#include "kit/calib.h"
#include "kit/imatrix.h"
#include "kit/lineage.h"
#include "kit/metrics.h"
#include "kit/options.h"
#include "kit/plan.h"
#include "kit/progress.h"
#include "kit/safetensors.h"
#include "kit/stats.h"
#include "kit/talk.h"
#include "kit/tsv.h"

#endif
