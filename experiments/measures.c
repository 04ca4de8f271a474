/* measures.c - the table of columns, and the fields that need no evaluation. */
#include "experiments/measures.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "model/model.h"
#include "kit/lineage.h"
#include "kit/metrics.h"
#include "kit/mixtures.h"
#include "kit/tsv.h"

/* ---- the table -------------------------------------------------------------------------------------------- */

#define AT(field) offsetof(exp_result, field)

// clang-format off
const exp_column exp_columns[] = {
    {"date", AT(date), 0, "when the row was made, UTC"},
    {"machine", AT(machine), 0, "processor and how many logical ones"},
    {"commit", AT(commit), 0, "of the build that measured"},
    {"model", AT(model), 0, "file name"},
    {"model_sha256", AT(model_sha256), 0, "of the file (of its first part where it is split)"},
    {"parent", AT(parent), 0, "file that the model was made from"},
    {"text", AT(text), 0, "file name; * is the geometric mean of several texts, all with the same weight: its errors are conditional on these texts, see texts_sd"},
    {"text_sha256", AT(text_sha256), 0, "of the file; of *: of the set of texts and windows"},
    {"protocol", AT(protocol), 0, "which tokens are scored: llama, hf, full"},
    {"n_ctx", AT(n_ctx), 12, "tokens of a window"},
    {"bos", AT(bos), 0, "no; text: in front of the text only; window: at the begin of each window"},
    {"windows", AT(windows), 12, "windows scored"},
    {"tokens_scored", AT(tokens_scored), 12, "tokens whose probability was taken"},
    {"nll_nats", AT(nll), 10, "mean negative log-likelihood of a token"},
    {"nll_se", AT(nll_se), 4, "its standard error, clustered by window (engine/measure/statistics.h); unknown for fewer than 5 windows, as are those below"},
    {"ppl", AT(ppl), 8, "perplexity, exp(nll_nats)"},
    {"ppl_se", AT(ppl_se), 4, "ppl * nll_se"},
    {"base", AT(base), 0, "file name of the model compared with"},
    {"ln_ratio", AT(ln_ratio), 8, "ln(ppl / ppl of the base) on the same tokens"},
    {"ln_ratio_se", AT(ln_ratio_se), 4, "its standard error, from window means"},
    {"resolvable", AT(resolvable), 4, "smallest ln_ratio that this text can tell from 0, at 5 % significance with 80 % power: for many windows 2.8 times the larger standard error"},
    {"kl_mean", AT(kl_mean), 8, "mean of KL(base || model) of a token, nats; see kl_kind"},
    {"kl_se", AT(kl_se), 4, "its standard error, clustered by window"},
    {"kl_median", AT(kl_median), 6, "median over tokens"},
    {"kl_p99", AT(kl_p99), 6, "99th percentile over tokens"},
    {"top1_agree", AT(top1_agree), 8, "share of tokens where model and base find the same token likeliest"},
    {"top1_se", AT(top1_se), 4, "its standard error, clustered by window"},
    {"repeats", AT(repeats), 4, "share of five built-in prompts whose greedy continuation only repeats: half of its last 32 tokens are one of the four before them"},
    {"params", AT(params), 15, "parameters of all tensors"},
    {"bits_per_weight", AT(bits_per_weight), 6, "8 file_bytes / params"},
    {"file_bytes", AT(file_bytes), 15, "of all parts"},
    {"bytes_per_token", AT(bytes_per_token), 15, "weight bytes that decoding one token reads, those of gated models as counted while speed was measured; the KV cache comes on top"},
    {"peak_rss_bytes", AT(peak_rss_bytes), 15, "largest resident memory of a process that loads and runs this model alone, the mapped file included"},
    {"load_ms", AT(load_ms), 4, "opening file and session, the file in the page cache"},
    {"prefill_tok_s", AT(prefill_tok_s), 5, "tokens a second of one batch (--speed-prefill) of each sequence after `depth` tokens; median over rounds"},
    {"prefill_spread", AT(prefill_spread), 3, "fastest minus slowest round"},
    {"decode_tok_s", AT(decode_tok_s), 5, "tokens a second one by one (--speed-decode of each sequence) after `depth` tokens, 8 at depth 0; median over rounds"},
    {"decode_spread", AT(decode_spread), 3, "fastest minus slowest round"},
    {"read_gb_s", AT(read_gb_s), 4, "read bandwidth of the machine in the same run, with as many threads: mean of before and after"},
    {"read_share", AT(read_share), 4, "bytes_per_token * decode_tok_s / sequences as a share of it; above 1 where the weights stay in a cache"},
    {"threads", AT(threads), 4, "threads that ran"},
    {"backend", AT(backend), 0, "who computed, and by which instructions"},
    {"disturbed", AT(disturbed), 0, "no, or what shows that others used the machine while speed was measured: cpu, steal, others, load"},
    {"leak", AT(leak), 0, "no, or which calibration text in the lineage of the model, or of the base, shares tokens with this text; unknown if a step learnt from data that it does not name, or the base was stored by a version that did not say"},
    {"coverage", AT(coverage), 6, "share of a gated model's FFN neurons that counted, over the tokens evaluated; with --speed-only over those decoded"},
    {"tool", AT(tool), 0, "last step of the lineage; versus: upstream quantized the file after it"},
    {"metric", AT(metric), 0, "that ranked the neurons; this column and those below tell what the last step that has such an option was given, or what its plan says"},
    {"rate", AT(rate), 0, "fraction of neurons that all cuts were to remove"},
    {"rate_reached", AT(rate_reached), 0, "fraction of neurons that all cuts removed, of the layers that stay"},
    {"group", AT(group), 0, "neurons cut or gated together"},
    {"allocate", AT(allocate), 0, "how the rate was spread over layers"},
    {"layers_dropped", AT(layers_dropped), 0, "layers that were dropped as a whole, of how many, by all cuts"},
    {"kv_heads", AT(kv_heads), 0, "KV heads that the layers keep, of how many that the first cut of heads found in the layers that it kept"},
    {"repair", AT(repair), 0, "what the last cut did for what remained"},
    {"type", AT(type), 0, "type or mixture that was asked for, and the type of --output-type; for `keep` and for files of others the type of most matrices"},
    {"nominal_bits", AT(nominal_bits), 0, "bits a weight that were aimed at"},
    {"rule", AT(rule), 0, "rule that selects neurons at run time; predictors: what train made decides"},
    {"activity", AT(activity), 0, "fraction to be computed at run time; planted by --inject where that is given"},
    {"tokens_trained", AT(tokens_trained), 0, "tokens learnt from: by heal in all its steps up to the weights that are written, by train without those that choose or are held out; for models of an older train all tokens of its texts"},
    {"base_ppl", AT(base_ppl), 8, "perplexity of the base on the same tokens: the dense value"},
    {"base_repeats", AT(base_repeats), 4, "repeats of the base; unknown where its predictions were stored"},
    {"ln_ratio_se_blocks", AT(ln_ratio_se_blocks), 4, "standard error of ln_ratio by bootstrap over runs of windows; unknown for fewer than ten runs"},
    {"kl_kind", AT(kl_kind), 0, "full: over the vocabulary; top64: a stored base's 64 likeliest tokens and the rest as one, a lower bound"},
    {"kv", AT(kv), 0, "type of the key/value cache"},
    {"select", AT(select), 0, "how gated layers were run: auto, fused, listed, dense"},
    {"precision", AT(precision), 0, "how finely the products of quality columns were rounded: split, rounded, int8, bf16; unknown for ref"},
    {"base_sha256", AT(base_sha256), 0, "of the file of the model compared with"},
    {"window_range", AT(window_range), 0, "first and last window that was scored; of * where all texts have the same"},
    {"nll_ci90", AT(nll_ci90), 4, "half the width of the 90 % interval of nll_nats, by Student's t; that of ppl is exp(nll_nats - this) to exp(nll_nats + this)"},
    {"ln_ratio_ci90", AT(ln_ratio_ci90), 4, "the same for ln_ratio"},
    {"kl_ci90", AT(kl_ci90), 4, "the same for kl_mean"},
    {"top1_ci90", AT(top1_ci90), 4, "the same for top1_agree"},
    {"texts", AT(texts), 12, "of *: how many"},
    {"nll_texts_sd", AT(nll_texts_sd), 4, "of *: standard deviation of nll_nats between its texts"},
    {"ln_ratio_texts_sd", AT(ln_ratio_texts_sd), 4, "of *: standard deviation of ln_ratio between its texts"},
    {"types", AT(types), 0, "types of the matrices in the file and how many there are of each; (fallback): of a mixture, where a row does not fit its type"},
    {"role", AT(role), 0, "select: a variant may be chosen by this row; report: it was not chosen by this text (score --role)"},
    {"speed_test", AT(speed_test), 0, "what was timed, as llama-bench names it: pp512 tg64 @ d4096 is a prefill of 512 tokens and a decode of 64 after 4096; x4: of 4 sequences; bf16: in that --precision, without a name int8; huge pages: the weights lay there"},
    {"depth", AT(depth), 12, "tokens in the KV cache of each sequence before those that are timed (--depth)"},
    {"sequences", AT(sequences), 12, "sequences that are timed together (--sequences); speeds count the tokens of all"},
    {"minutes_trained", AT(minutes_trained), 0, "minutes that training took, where all of it was planned by minutes (heal --minutes)"},
    {"dominated_by", AT(dominated_by), 0, "row of the same type that is no larger and better beyond the error of the paired difference; filled by whoever compares"},
    {"verdict", AT(verdict), 0, "keep, discard, control, collapsed, failed; unknown: it could not be judged, see note"},
    {"note", AT(note), 0, "the reason; what a gated file holds beside the model"},
    {0}};
// clang-format on

size_t exp_n_columns(void) { return sizeof exp_columns / sizeof *exp_columns - 1; }

exp_result exp_result_unknown(void) {
    exp_result r = {0};
    for (const exp_column *c = exp_columns; c->name; c++)
        if (c->digits) memcpy((char *)&r + c->offset, &(double){NAN}, sizeof(double));
    return r;
}

static double number_at(const exp_result *r, const exp_column *c) {
    double v;
    memcpy(&v, (const char *)r + c->offset, sizeof v);
    return v;
}

void exp_cell(const exp_result *r, const exp_column *c, char *cell, size_t size) {
    const char *text = (const char *)r + c->offset;
    if (c->digits && isfinite(number_at(r, c)))
        snprintf(cell, size, "%.*g", c->digits, number_at(r, c));
    else
        snprintf(cell, size, "%s", c->digits || !*text ? "-" : text);
    for (char *p = cell; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127) *p = '?';
    for (char *p = cell; *(p += dw_utf8_len(p, strlen(p)));) *p = '?'; // of names that are none, or were cut
}

/* ---- output ----------------------------------------------------------------------------------------------- */

enum { CELL = 320 };

const char exp_rows_comment[] =
    "# deadwood rows, version 1: a line a model and text; deadwood score --columns says what they mean";

/* The sums beside a table can be read, if there are any. */
static int check_sums(const char *path, dw_err *err) {
    char *of = measure_book_path(path, err);
    measure_book *b = of ? measure_book_new(err) : NULL;
    const int rc = b && (!dw_file_exists(of) || !measure_book_read(b, of, err)) ? 0 : -1;
    measure_book_free(b);
    free(of);
    return rc;
}

int exp_check_results(const char *path, dw_err *err) {
    const size_t n_columns = exp_n_columns();
    const char **names = dw_alloc(n_columns, sizeof *names, "rows", err);
    for (size_t i = 0; names && i < n_columns; i++) names[i] = exp_columns[i].name;
    int rc = names ? tsv_check(path, names, n_columns, err) : -1;
    if (!rc && tsv_is_there(path)) rc = check_sums(path, err);
    free(names);
    return rc;
}

int exp_width_of(const char *text) {
    int n = 0;
    for (; *text; text++) n += (*text & 0xc0) != 0x80;
    return n;
}

bool exp_column_varies(const char *column) {
    static const char *const names[] = {"date",           "machine",       "commit",         "peak_rss_bytes",
                                        "load_ms",        "prefill_tok_s", "prefill_spread", "decode_tok_s",
                                        "decode_spread",  "read_gb_s",     "read_share",     "disturbed"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], column)) return true;
    return false;
}

bool exp_column_varies_on(const char *text, const char *column) {
    return exp_column_varies(column) && (is_known(text) || strcmp(column, "machine"));
}

/* Whether a row of a table is this measurement, made before. */
static bool is_again(const tsv_table *t, size_t row, const char *const *cells) {
    const char *text = tsv_cell(t, row, "text");
    bool same = strcmp(tsv_cell(t, row, "model_sha256"), "-") != 0;
    for (size_t c = 0; exp_columns[c].name && same; c++)
        if (!exp_column_varies_on(text, exp_columns[c].name))
            same = !strcmp(tsv_cell(t, row, exp_columns[c].name), *cells[c] ? cells[c] : "-");
    return same;
}

static int count_again(const char *path, const char *const *cells, size_t n, size_t *n_again, dw_err *err) {
    tsv_table t;
    if (tsv_read(&t, path, err)) return -1;
    for (size_t i = 0; i < n; i++)
        for (size_t row = 0; row < t.n_rows; row++)
            if (is_again(&t, row, cells + i * exp_n_columns())) {
                ++*n_again;
                break;
            }
    tsv_release(&t);
    return 0;
}

/* Without a table, sums that an earlier table has left do not count. */
static int append_sums(const char *path, bool exists, const measure_sums *sums, dw_err *err) {
    char *of = measure_book_path(path, err);
    measure_book *b = of ? measure_book_new(err) : NULL;
    int rc = b ? 0 : -1;
    if (!rc && exists && dw_file_exists(of)) rc = measure_book_read(b, of, err);
    if (!rc) rc = measure_book_add(b, sums, err);
    if (!rc) rc = measure_book_write(b, of, err);
    measure_book_free(b);
    free(of);
    return rc;
}

/* Rows are added to the file that a symbolic link leads to, and their sums beside that. */
int exp_append_results(const char *link, const exp_result *r, size_t n, const measure_sums *sums, size_t *n_again,
                       dw_err *err) {
    char *real = realpath(link, NULL);
    const char *path = real ? real : link;
    const size_t n_columns = exp_n_columns();
    const char **names = dw_alloc(n_columns, sizeof *names, "rows", err),
               **cells = dw_alloc(n * n_columns, sizeof *cells, "rows", err);
    char(*text)[CELL] = dw_alloc(n * n_columns, sizeof *text, "rows", err);
    const int folder = names && cells && text ? tsv_lock(path, err) : -1;
    int rc = folder < 0 ? -1 : 0;
    for (size_t i = 0; !rc && i < n * n_columns; i++) {
        names[i % n_columns] = exp_columns[i % n_columns].name;
        exp_cell(&r[i / n_columns], &exp_columns[i % n_columns], text[i], sizeof text[i]);
        cells[i] = text[i];
    }
    const bool exists = tsv_is_there(path);
    *n_again = 0;
    if (!rc && exists) rc = tsv_check(path, names, n_columns, err);
    if (!rc && exists) rc = count_again(path, cells, n, n_again, err);
    if (!rc && sums) rc = append_sums(path, exists, sums, err);
    if (!rc) rc = tsv_append_locked(path, exp_rows_comment, names, n_columns, cells, n, err);
    tsv_unlock(folder);
    free(real);
    free(names);
    free(cells);
    free(text);
    return rc;
}

/* ---- window sums ------------------------------------------------------------------------------------------ */

char *exp_sums_how(exp_cell_of *cell, const void *row, dw_err *err) {
    static const char *const columns[] = {"model_sha256", "protocol", "n_ctx",  "bos",       "base_sha256",
                                          "kl_kind",      "kv",       "select", "precision", "backend"};
    char *how = NULL;
    int rc = 0;
    for (size_t i = 0; i < sizeof columns / sizeof *columns && !rc; i++)
        rc = dw_append(&how, err, "%s%s %s", i ? ", " : "", columns[i], cell(row, columns[i]));
    if (!rc) return how;
    free(how);
    return NULL;
}

int exp_sums_find(measure_book *book, exp_cell_of *cell, const void *row, measure_view *v, dw_err *err) {
    int first = 0, last = 0;
    if (strcmp(cell(row, "text"), "*") && sscanf(cell(row, "window_range"), "%d-%d", &first, &last) != 2) return 0;
    char *how = exp_sums_how(cell, row, err);
    const int found = how ? measure_book_find(book, how, cell(row, "text_sha256"), first, last, v, err) : -1;
    free(how);
    if (found != 1) return found;
    const double nll = strtod(cell(row, "nll_nats"), NULL); // of "-": 0, the mean of no text
    return fabs(measure_view_mean(v, MEASURE_NLL).mean - nll) <= 1e-6 * fabs(nll);
}

typedef struct cell_buffer { // of the one row that is asked
    const exp_result *row;
    char *text; // CELL bytes
} cell_buffer;

static const char *cell_of_result(const void *of, const char *column) {
    const cell_buffer *b = of;
    for (const exp_column *c = exp_columns; c->name; c++)
        if (!strcmp(c->name, column)) {
            exp_cell(b->row, c, b->text, CELL);
            return b->text;
        }
    return "-";
}

char *exp_sums_how_of(const exp_result *r, dw_err *err) {
    char text[CELL];
    return exp_sums_how(cell_of_result, &(cell_buffer){r, text}, err);
}

/* The number as the cell writes it, so that both say the same. */
static json_t *json_cell(const exp_result *r, const exp_column *c) {
    char cell[CELL];
    exp_cell(r, c, cell, sizeof cell);
    if (!strcmp(cell, "-")) return json_null();
    if (!c->digits) return json_string(cell);
    return strpbrk(cell, ".e") ? json_real(strtod(cell, NULL)) : json_integer(strtoll(cell, NULL, 10));
}

char *exp_result_json(const exp_result *r, dw_err *err) {
    json_t *object = json_object();
    int rc = !object;
    for (const exp_column *c = exp_columns; c->name && !rc; c++)
        rc = json_object_set_new(object, c->name, json_cell(r, c));
    char *text = rc ? NULL : json_dumps(object, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(15));
    json_decref(object);
    if (!text) dw_fail(err, "out of memory: a row as JSON");
    return text;
}

/* ---- what a model file tells ------------------------------------------------------------------------------ */

typedef struct option_field { // an option or a fact of a lineage step and the text field that it fills
    const char *option;
    size_t offset, size;
} option_field;

#define FIELD(option, field)                                                                                           \
    { "--" option, AT(field), sizeof((exp_result *)0)->field }
static const option_field option_fields[] = {
    FIELD("metric", metric), FIELD("rate", rate),        FIELD("group", group),  FIELD("allocate", allocate),
    FIELD("layers_dropped", layers_dropped), FIELD("kv_heads", kv_heads),
    FIELD("repair", repair), FIELD("type", type),        FIELD("mixture", type), FIELD("recipe", type),
    FIELD("rate_reached", rate_reached), FIELD("types", types), FIELD("tokens_trained", tokens_trained),
    FIELD("minutes_trained", minutes_trained),
    FIELD("rule", rule),     FIELD("activity", activity)};

/* The value of an argument "--name value" or "--name=value" at place i; NULL: another one. */
static const char *value_of(const json_t *args, size_t i, const char *option) {
    const char *arg = json_string_value(json_array_get(args, i));
    const size_t n = strlen(option);
    if (!arg || strncmp(arg, option, n)) return NULL;
    return arg[n] == '=' ? arg + n + 1 : arg[n] ? NULL : json_string_value(json_array_get(args, i + 1));
}

/* Tokens of the texts of a step: what is known of a train that does not say how many it learnt from. */
static json_int_t step_tokens(const json_t *step) {
    json_int_t n = 0;
    const json_t *texts = json_object_get(step, "texts");
    for (size_t i = 0; i < json_array_size(texts); i++)
        n += json_integer_value(json_object_get(json_array_get(texts, i), "tokens"));
    return n;
}

/* train --activity 0 asks for none: the gate's stays. */
static bool is_left_out(const char *tool_name, const char *option, const char *value) {
    return !strcmp(tool_name, "train") && !strcmp(option, "--activity") && atof(value) == 0;
}

/* What heal --as and --output-type, of heal and requant, say of the types. */
static void fill_type(exp_result *r, const json_t *args, bool heals) {
    char types[KIT_TYPES_WORDS];
    for (size_t i = 0; heals && i < json_array_size(args); i++) {
        const char *as = value_of(args, i, "--as");
        if (as) snprintf(r->type, sizeof r->type, "%s", as);
    }
    for (size_t i = 0; i < json_array_size(args); i++) {
        const char *output = value_of(args, i, "--output-type");
        if (output) snprintf(r->type, sizeof r->type, "%s", kit_types_words(types, r->type, output));
    }
}

/* Tokens and minutes of earlier steps of heal count, too; if one of them has no minutes, the sum has none. */
static void add_training(exp_result *r, double tokens, double minutes) {
    const double own = atof(r->minutes_trained);
    snprintf(r->tokens_trained, sizeof r->tokens_trained, "%.0f", tokens + atof(r->tokens_trained));
    r->minutes_trained[0] = 0;
    if (minutes > 0 && own > 0) snprintf(r->minutes_trained, sizeof r->minutes_trained, "%.4g", minutes + own);
}

/* "a of b"; false: it is none. */
static bool read_part(const char *text, long *part, long *whole) { return sscanf(text, "%ld of %ld", part, whole) == 2; }

/* What a cut tells, so that nothing of the cut before stays. */
static void clear_cut(exp_result *r) {
    r->metric[0] = r->rate[0] = r->rate_reached[0] = r->group[0] = r->allocate[0] = r->repair[0] = 0;
    r->layers_dropped[0] = r->kv_heads[0] = 0;
}

/* The rate of this cut and an earlier one together; unknown where one of both is. */
static void add_rate(char *rate, size_t size, const char *before) {
    if (!*before) *rate = 0;
    if (*rate) snprintf(rate, size, "%.4g", 1 - (1 - atof(before)) * (1 - atof(rate)));
}

/* What is gone by this cut and by an earlier one; unknown where one of both is. */
static void add_cut(exp_result *r, const exp_result *before) {
    long part, whole, earlier, of;
    add_rate(r->rate, sizeof r->rate, before->rate);
    add_rate(r->rate_reached, sizeof r->rate_reached, before->rate_reached);
    if (!*r->layers_dropped)
        memcpy(r->layers_dropped, before->layers_dropped, sizeof r->layers_dropped);
    else if (read_part(r->layers_dropped, &part, &whole) && read_part(before->layers_dropped, &earlier, &of))
        snprintf(r->layers_dropped, sizeof r->layers_dropped, "%ld of %ld", part + earlier, of);
    if (!*r->kv_heads)
        memcpy(r->kv_heads, before->kv_heads, sizeof r->kv_heads);
    else if (read_part(r->kv_heads, &part, &whole) && read_part(before->kv_heads, &earlier, &of))
        snprintf(r->kv_heads, sizeof r->kv_heads, "%ld of %ld", part, of);
}

typedef struct history {
    exp_result *r;
    bool has_cut; // an earlier step is one
} history;

/* Later steps overwrite earlier ones, so that each field tells of the last step that had it. */
static void fill_step(void *history_pointer, const json_t *step) {
    history *h = history_pointer;
    exp_result *r = h->r;
    const exp_result before = *r;
    const char *tool_name = json_string_value(json_object_get(step, "tool")),
               *parent = json_string_value(json_object_get(step, "parent"));
    const json_t *args = json_object_get(step, "args"), *facts = json_object_get(step, "facts");
    snprintf(r->tool, sizeof r->tool, "%s", tool_name ? tool_name : "");
    snprintf(r->parent, sizeof r->parent, "%s", parent ? parent : "");
    const bool heals = !strcmp(r->tool, "heal");
    const double tokens_before = heals ? atof(r->tokens_trained) : 0, minutes_before = atof(r->minutes_trained);
    if (heals) r->minutes_trained[0] = 0;
    const bool trains = !strcmp(r->tool, "train"), cuts = !strcmp(r->tool, "cut");
    if (cuts) clear_cut(r);
    if (trains) snprintf(r->tokens_trained, sizeof r->tokens_trained, "%lld", (long long)step_tokens(step));
    if (trains) snprintf(r->rule, sizeof r->rule, "predictors"); // they decide, no more the gate's rule
    for (size_t f = 0; f < sizeof option_fields / sizeof *option_fields; f++) {
        const char *value = json_string_value(json_object_get(facts, option_fields[f].option + strlen("--")));
        for (size_t i = 0; !value && i < json_array_size(args); i++) value = value_of(args, i, option_fields[f].option);
        if (value && is_left_out(r->tool, option_fields[f].option, value)) value = NULL;
        if (value) snprintf((char *)r + option_fields[f].offset, option_fields[f].size, "%s", value);
    }
    fill_type(r, args, heals);
    if (cuts && h->has_cut) add_cut(r, &before);
    h->has_cut |= cuts;
    if (tokens_before > 0) add_training(r, tokens_before, minutes_before);
}

/* A file that upstream quantized after the last step: "llama.cpp VERSION, TYPE". */
static void fill_upstream(exp_result *r, const dw_gguf *g) {
    dw_str by;
    if (dw_gguf_str(g, LINEAGE_BY_UPSTREAM, &by, NULL) <= 0) return;
    const char *space = memrchr(by.ptr, ' ', by.len), *type = space ? space + 1 : by.ptr;
    snprintf(r->tool, sizeof r->tool, "versus"); // --quantize
    snprintf(r->type, sizeof r->type, "%.*s", (int)(by.ptr + by.len - type), type);
}

/* ---- types of the matrices ---- */

enum { MAX_TYPES = 64 };

typedef struct type_count {
    const char *name;
    size_t n;
} type_count;

static int by_count(const void *pa, const void *pb) {
    const type_count *a = pa, *b = pb;
    return a->n != b->n ? (a->n < b->n) - (a->n > b->n) : strcmp(a->name, b->name);
}

static size_t count_types(const dw_gguf *g, type_count *of) {
    size_t n = 0;
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        size_t k = 0;
        if (t->n_dims < 2) continue;
        while (k < n && strcmp(of[k].name, t->type->name)) k++;
        if (k == MAX_TYPES) continue;
        if (k == n) of[n++] = (type_count){t->type->name, 0};
        of[k].n++;
    }
    qsort(of, n, sizeof *of, by_count);
    return n;
}

/* Whether the lineage's fact "Q4_K 140, Q8_0 12 (fallback)" calls this type a fallback. */
static bool is_fallback(const char *fact, const char *type) {
    const size_t n = strlen(type);
    for (const char *at = fact; (at = strstr(at, type)); at += n) {
        const bool whole = (at == fact || at[-1] == ' ') && at[n] == ' ';
        const size_t part = strcspn(at, ",");
        const char *word = strstr(at, "(fallback)");
        if (whole && word && word < at + part) return true;
    }
    return false;
}

/* "Q4_K 140, Q6_K 20, Q8_0 12 (fallback)"; r->types holds the fact of the lineage before. */
static void fill_types(exp_result *r, const dw_gguf *g) {
    type_count of[MAX_TYPES];
    char fact[sizeof r->types];
    const size_t n = count_types(g, of);
    size_t at = 0;
    memcpy(fact, r->types, sizeof fact);
    for (size_t i = 0; i < n && at < sizeof r->types; i++)
        at += (size_t)snprintf(r->types + at, sizeof r->types - at, "%s%s %zu%s", i ? ", " : "", of[i].name, of[i].n,
                               is_fallback(fact, of[i].name) ? " (fallback)" : "");
    for (const dw_qtype_row *t = dw_qtypes; t->name; t++) // as GGUF writes it, whatever the option's letters
        if (!strcasecmp(t->name, r->type)) snprintf(r->type, sizeof r->type, "%s", t->name);
    if (n && (!*r->type || !strcmp(r->type, "keep"))) snprintf(r->type, sizeof r->type, "%s", of[0].name);
}

/* What the transposed copies and predictors of a gated file take of its bytes. */
static void fill_gate(exp_result *r, const dw_model *m) {
    double down_t = 0, predictors = 0;
    for (int l = 0; l < m->net.hp.n_layer; l++) {
        const dw_layer_gate *g = &m->net.layer[l].sparse;
        if (g->down_t.name) down_t += (double)g->down_t.n_bytes;
        if (g->pred_a.name)
            predictors += (double)(g->pred_a.n_bytes + g->pred_a_bias.n_bytes + g->pred_b.n_bytes +
                                   g->pred_b_bias.n_bytes);
    }
    const int n = down_t > 0 ? snprintf(r->note, sizeof r->note, "down_t %.1f MB of it", down_t * 1e-6) : 0;
    if (predictors > 0) snprintf(r->note + n, sizeof r->note - (size_t)n, ", predictors %.1f MB", predictors * 1e-6);
}

/* Layers that a later cut dropped take their heads with them. */
static void count_heads(exp_result *r, const dw_hparams *hp) {
    long kept = 0, part, whole;
    for (int l = 0; l < hp->n_layer; l++) kept += hp->n_head_kv[l];
    if (read_part(r->kv_heads, &part, &whole) && kept < part)
        snprintf(r->kv_heads, sizeof r->kv_heads, "%ld of %ld", kept, whole);
}

int exp_fill_model(exp_result *r, const char *path, const char sha256[65], const dw_model *m, dw_err *err) {
    const dw_gguf *g = dw_model_gguf(m);
    snprintf(r->model, sizeof r->model, "%s", dw_base_name(path));
    snprintf(r->model_sha256, sizeof r->model_sha256, "%s", sha256);
    r->params = (double)dw_model_n_params(m);
    r->file_bytes = (double)dw_gguf_file_bytes(g);
    r->bits_per_weight = 8 * r->file_bytes / r->params;
    r->bytes_per_token = (double)dw_model_bytes_per_token(m);
    float nominal;
    if (dw_gguf_f32(g, "deadwood.nominal_bits", &nominal, NULL) == 1)
        snprintf(r->nominal_bits, sizeof r->nominal_bits, "%.4g", (double)nominal);
    fill_gate(r, m);
    if (lineage_steps(g, fill_step, &(history){.r = r}, err)) return -1;
    fill_upstream(r, g);
    count_heads(r, dw_model_hparams(m));
    fill_types(r, g);
    return 0;
}

static int processor_name(char *name, size_t size, dw_err *err) {
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    snprintf(name, size, "unknown processor");
    if (!f) return errno == ENOENT ? 0 : dw_fail(err, "cannot open '/proc/cpuinfo': %s", strerror(errno));
    while (fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !colon) continue;
        snprintf(name, size, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    const int rc = ferror(f) ? dw_fail(err, "cannot read '/proc/cpuinfo'") : 0;
    fclose(f);
    return rc;
}

int exp_fill_place(exp_result *r, dw_err *err) {
    char name[64];
    struct tm t;
    const char *given = getenv("SOURCE_DATE_EPOCH");
    const time_t now = given ? (time_t)strtoll(given, NULL, 10) : time(NULL);
    if (gmtime_r(&now, &t)) strftime(r->date, sizeof r->date, "%Y-%m-%dT%H:%M:%SZ", &t);
    if (processor_name(name, sizeof name, err)) return -1;
    snprintf(r->machine, sizeof r->machine, "%s, %ld", name, sysconf(_SC_NPROCESSORS_ONLN));
    if (strcmp(kit_commit(), "-")) snprintf(r->commit, sizeof r->commit, "%s", kit_commit());
    return 0;
}
