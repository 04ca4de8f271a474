/* measures.h - a row of results: what was measured of one model on one text, and the table of its columns.
 *
 * Adding a measure: a field of exp_result, the code that fills it, and a row of exp_columns. Unknown is NaN or "",
 * and is written as "-": never an invented number. rows.tsv, --json and --columns all come from the table; readers go
 * by name. */
#ifndef EXP_MEASURES_H
#define EXP_MEASURES_H

#include "engine.h"
#include "measure/sums.h"

typedef struct exp_result {
    /* what, where */
    char date[32], machine[96], commit[48];
    char model[128], model_sha256[65], parent[128], text[128], text_sha256[65], window_range[32], role[8];
    /* how */
    char protocol[16], bos[16], base[128], base_sha256[65], backend[32], kv[8], precision[16];
    double n_ctx, windows, tokens_scored, threads;
    /* quality */
    double nll, nll_se, ppl, ppl_se;
    double base_ppl, ln_ratio, ln_ratio_se, ln_ratio_se_blocks, resolvable;
    double kl_mean, kl_se, kl_median, kl_p99, top1_agree, top1_se;
    double nll_ci90, ln_ratio_ci90, kl_ci90, top1_ci90;
    double texts, nll_texts_sd, ln_ratio_texts_sd;
    double repeats, base_repeats;
    char kl_kind[16], leak[256];
    /* size and speed */
    double params, bits_per_weight, file_bytes, bytes_per_token;
    double peak_rss_bytes, load_ms, prefill_tok_s, prefill_spread, decode_tok_s, decode_spread, read_gb_s, read_share;
    double depth, sequences;
    char speed_test[48];
    char disturbed[128];
    double coverage;
    char select[16];
    /* what was done to the model, from its lineage */
    char tool[32], metric[64], rate[32], rate_reached[32], group[32], allocate[64], repair[64], type[64],
        nominal_bits[32], types[160], layers_dropped[32], kv_heads[32];
    char rule[64], activity[32], tokens_trained[32], minutes_trained[32];
    /* the judgement of whoever reads the rows */
    char dominated_by[32], verdict[16], note[160];
} exp_result;

exp_result exp_result_unknown(void); // every number NaN, every text ""

typedef struct exp_column {
    const char *name;
    size_t offset; // in exp_result
    int digits;    // significant digits of a number; 0: a text
    const char *help;
} exp_column;

extern const exp_column exp_columns[]; // in the order of rows.tsv; ends with name NULL
size_t exp_n_columns(void);

/* Whether a cell of a table says something. */
static inline bool is_known(const char *cell) { return cell[0] != '-' || cell[1]; }

/* The cell of a column: "-" when unknown; control characters of texts become '?'. */
void exp_cell(const exp_result *r, const exp_column *c, char *cell, size_t size);

extern const char exp_rows_comment[]; // the first line of every table of rows

int exp_width_of(const char *text); // characters of UTF-8

/* Whether a column may differ when the same is measured again: when and where, and how fast it was. */
bool exp_column_varies(const char *column);
/* The same of the rows of a text.  A row without a text ("-") holds speeds only, and those are of one machine. */
bool exp_column_varies_on(const char *text, const char *column);

/* Appends n rows to a table, whole or not at all, after their window sums (sums.h; NULL: they have none).  *n_again is
 * how many of them the table has already: rows that are equal but for columns that vary. */
int exp_append_results(const char *path, const exp_result *r, size_t n, const measure_sums *sums, size_t *n_again,
                       dw_err *err);
/* Whether rows can be appended to what stands there: nothing, or a table with all columns. */
int exp_check_results(const char *path, dw_err *err);
/* One JSON object: numbers as numbers, unknown as null; free(). */
char *exp_result_json(const exp_result *r, dw_err *err);

/* What decides the window sums of a row besides its text: the `how` of measure_sums; free().  cell() gives the cell of
 * a column, "-" for none. */
typedef const char *exp_cell_of(const void *row, const char *column);
char *exp_sums_how(exp_cell_of *cell, const void *row, dw_err *err);
char *exp_sums_how_of(const exp_result *r, dw_err *err);

/* The window sums of a row: those whose mean is the row's nll_nats, because a book may hold another run's of the same
 * model.  1: found, 0: there are none, -1: error. */
int exp_sums_find(measure_book *book, exp_cell_of *cell, const void *row, measure_view *v, dw_err *err);

/* The fields that a model file tells of itself: name, hash (given), size, lineage. */
int exp_fill_model(exp_result *r, const char *path, const char sha256[65], const dw_model *m, dw_err *err);
/* date ($SOURCE_DATE_EPOCH, where it is set, makes it repeatable), machine, commit. */
int exp_fill_place(exp_result *r, dw_err *err);

#endif
