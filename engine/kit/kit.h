/* kit.h - what the programs of deadwood share (libkit.a), one header for each subject:
 *
 *   options        a program's table of options: parsing, --help, man page, effective arguments
 *   talk           messages on stderr, and how a program ends     progress   bars with rate and time left
 *   tsv            tables read and appended by column name        lineage    how a model file was made
 *   calib          calibration texts, divided into windows        stats      activation statistics (stats.h5)
 *   plan           which neurons stay (plan.tsv)                  imatrix    llama.cpp's importance files
 *   metrics        scores of neurons                              safetensors  checkpoints, read and written
 *   hash_cache     hashes of large inputs, remembered between runs
 *   content        what a file holds, told by its first bytes
 *   mixtures       types that llama.cpp's quantizer gives to tensors
 *   sizes          tensors and bytes of a new model, by type    weights    importances of input columns
 * Not included below, because few programs use them:
 *   gram           Gram matrices of matrix inputs (stats.h5.gram) blas       OpenBLAS on one thread
 *   h5             HDF5 files of this project                     traces     training data of predictors (traces.h5)
 *   disk           room for what will be written                  memory     room for copies of a model
 *   tensor_stream  writes tensors while others are computed
 *
 * Programs of different rooms exchange only files.  The readers and writers of these files are here, so each layout is
 * in one place.  The kit uses the engine (engine.h) and text (tokenizers.h).  It is the only library that prints or
 * ends a program: die, die_err, die_usage and opt_parse end it, and calls of options, talk and progress, and
 * lineage_new, lineage_arguments and lineage_commands, which use them, end it when memory is missing.  All other calls
 * return errors.
 *
 * Names begin with kit_ or with their subject: opt_, tool_, tsv_, lineage_, calib_, progress_, traces_, signals_,
 * paths_; talk.h has a few plain verbs: die, say, warn, show. */
#ifndef KIT_H
#define KIT_H

#include "kit/calib.h"
#include "kit/content.h"
#include "kit/hash_cache.h"
#include "kit/imatrix.h"
#include "kit/lineage.h"
#include "kit/metrics.h"
#include "kit/mixtures.h"
#include "kit/options.h"
#include "kit/plan.h"
#include "kit/progress.h"
#include "kit/safetensors.h"
#include "kit/sizes.h"
#include "kit/stats.h"
#include "kit/talk.h"
#include "kit/tsv.h"
#include "kit/weights.h"

#endif
