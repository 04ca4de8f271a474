/* collect_gram.h - collect's Gram matrices: summed inside the pass when all of them fit, else layer by layer.
 *
 * Those of gradients (collect_gradients.h) are always summed in the one pass, because a backward pass has all layers.
 * When the matrices of all layers are larger than a limit, they are summed after the statistics in a second pass
 * (walk.h), which holds the residuals of all tokens and the matrices of one layer.  Both ways give the same sums.
 * The result is STATS.gram (kit/gram.h); the matrices of parts (-s) are added to it one by one. */
#ifndef PRUNE_COLLECT_GRAM_H
#define PRUNE_COLLECT_GRAM_H

#include "kit/progress.h"
#include "prune/gram_sums.h"
#include "prune/walk.h"

typedef struct collect_gram {
    const gram_inputs *inputs; // NULL: closed
    bool with_gradients;
    const dw_model *model;
    const calib_texts *texts; // that are evaluated; NULL: only parts are added
    int skip;
    bool by_layer;
    gram_sums sums;      // of all layers, unless by_layer
    gram_sums gradients; // of all layers, if wanted
    kit_gram *part;      // files of the parts, in order
    size_t n_part;
    const dw_session_options *session;
    progress *bar; // hears of tokens of the second pass
} collect_gram;

/* The same windows of the same text; they may stand in different rows. */
bool collect_same_text(const kit_stats_text *a, const kit_stats_text *b);

/* Decides and takes memory: limit is in bytes, n_threads is that of the pool. */
int collect_gram_open(collect_gram *g, double limit, int n_threads, dw_err *err);
/* Opens the Gram matrices of the parts (-s), whose texts are those of s.  Checks all that will be added, so that
 * nothing of a part is refused after the texts have been evaluated. */
int collect_gram_open_parts(collect_gram *g, const opt_list *paths, const kit_stats *s, dw_err *err);
void collect_gram_close(collect_gram *g);

/* Keep: the sums so far, of the texts of s, into STATS.gram.next; kept, called when the statistics are written too: it
 * becomes STATS.gram.  So one of the two is of the texts of the statistics whenever the program ends.  Resume goes on
 * from that one; when neither is there and whole, it returns false and leaves the sums as they are.  What the second
 * pass will sum is not kept. */
int collect_gram_keep(const collect_gram *g, const kit_stats *s, const char *stats_path, dw_err *err);
int collect_gram_kept(const collect_gram *g, const char *stats_path, dw_err *err);
bool collect_gram_resume(collect_gram *g, const kit_stats *s, const char *stats_path);
void collect_gram_forget(const char *stats_path); // removes both

/* Writes STATS.gram for the statistics s: those of the parts, in order, and after them the evaluated texts. */
int collect_gram_write(collect_gram *g, const kit_stats *s, const char *stats_path, dw_err *err);

#endif
