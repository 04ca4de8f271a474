/* headings.c - the table of headings, and numbers as a reader wants them. */
#include "experiments/report/headings.h"

#include "experiments/measures.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// clang-format off
const exp_heading exp_headings[] = {
    /* column            head              role           usual  se             scale better */
    {"model",            "model",          EXP_NAME,      true,  NULL,          1,     0},
    {"text",             "text",           EXP_CONDITION, true,  NULL,          1,     0},
    {"speed_test",       "timed",          EXP_CONDITION, true,  NULL,          1,     0},
    {"tool",             "tool",           EXP_TREATMENT,      false, NULL,          1,     0},
    {"metric",           "metric",         EXP_TREATMENT,      true,  NULL,          1,     0},
    {"rule",             "rule",           EXP_TREATMENT,      true,  NULL,          1,     0},
    {"rate",             "rate wanted",    EXP_TREATMENT,      true,  NULL,          1,     0},
    {"rate_reached",     "rate",           EXP_TREATMENT,      true,  NULL,          1,     0},
    {"activity",         "activity",       EXP_TREATMENT,      true,  NULL,          1,     0},
    {"group",            "group",          EXP_TREATMENT,      true,  NULL,          1,     0},
    {"allocate",         "allocate",       EXP_TREATMENT,      true,  NULL,          1,     0},
    {"layers_dropped",   "layers dropped", EXP_TREATMENT,      true,  NULL,          1,     0},
    {"kv_heads",         "KV heads",       EXP_TREATMENT,      true,  NULL,          1,     0},
    {"repair",           "repair",         EXP_TREATMENT,      true,  NULL,          1,     0},
    {"type",             "type",           EXP_TREATMENT,      true,  NULL,          1,     0},
    {"nominal_bits",     "nominal bits",   EXP_TREATMENT,      true,  NULL,          1,     0},
    {"seed",             "seed",           EXP_TREATMENT,      true,  NULL,          1,     0},
    {"tokens_trained",   "tokens trained", EXP_TREATMENT,      true,  NULL,          1,     0},
    {"minutes_trained",  "minutes trained", EXP_TREATMENT,     true,  NULL,          1,     0},
    {"file_bytes",       "MB",             EXP_MEASURE,   true,  NULL,          1e-6, -1},
    {"bits_per_weight",  "bits/weight",    EXP_MEASURE,   true,  NULL,          1,    -1},
    {"params",           "M parameters",   EXP_MEASURE,   false, NULL,          1e-6, -1},
    {"bytes_per_token",  "MB/token",       EXP_MEASURE,   false, NULL,          1e-6, -1},
    {"peak_rss_bytes",   "resident MB",    EXP_MEASURE,   false, NULL,          1e-6, -1},
    {"nll_nats",         "NLL, nats",      EXP_MEASURE,   false, "nll_se",      1,    -1},
    {"ppl",              "ppl",            EXP_MEASURE,   true,  "ppl_se",      1,    -1},
    {"base_ppl",         "ppl of base",    EXP_MEASURE,   false, NULL,          1,     0},
    {"base_repeats",     "base repeats %", EXP_MEASURE,   false, NULL,          100,   0},
    {"ln_ratio",         "ln ratio",       EXP_MEASURE,   true,  "ln_ratio_se", 1,    -1},
    {"difference",       "paired ln ratio",EXP_MEASURE,   true,  "difference_se",1,   -1},
    {"resolvable",       "resolvable",     EXP_MEASURE,   false, NULL,          1,    -1},
    {"kl_mean",          "KL, nats",       EXP_MEASURE,   true,  "kl_se",       1,    -1},
    {"kl_median",        "median KL",      EXP_MEASURE,   false, NULL,          1,    -1},
    {"kl_p99",           "99 % KL",        EXP_MEASURE,   false, NULL,          1,    -1},
    {"top1_agree",       "top-1 %",        EXP_MEASURE,   true,  "top1_se",     100,   1},
    {"repeats",          "repeats %",      EXP_MEASURE,   false, NULL,          100,  -1},
    {"load_ms",          "load, ms",       EXP_MEASURE,   false, NULL,          1,    -1},
    {"prefill_tok_s",    "prefill tok/s",  EXP_MEASURE,   true,  NULL,          1,     1},
    {"decode_tok_s",     "decode tok/s",   EXP_MEASURE,   true,  NULL,          1,     1},
    {"decode_gain",      "decoding, dense = 1", EXP_MEASURE, true, NULL,          1,     1},
    {"read_share",       "read share %",   EXP_MEASURE,   false, NULL,          100,   1},
    {"coverage",         "coverage %",     EXP_MEASURE,   true,  NULL,          100,  -1},
    {"verdict",          "verdict",        EXP_NAME,      true,  NULL,          1,     0},
    {"nll_se",           "SE of NLL",      EXP_MEASURE,   false, NULL,          1,    -1},
    {"ppl_se",           "SE of ppl",      EXP_MEASURE,   false, NULL,          1,    -1},
    {"ln_ratio_se",      "SE of ln ratio", EXP_MEASURE,   false, NULL,          1,    -1},
    {"ln_ratio_se_blocks","SE by blocks",  EXP_MEASURE,   false, NULL,          1,    -1},
    {"kl_se",            "SE of KL",       EXP_MEASURE,   false, NULL,          1,    -1},
    {"top1_se",          "SE of top-1 %",  EXP_MEASURE,   false, NULL,          100,  -1},
    {"nll_ci90",         "90 % NLL ±",     EXP_MEASURE,   false, NULL,          1,    -1},
    {"ln_ratio_ci90",    "90 % ln ratio ±",EXP_MEASURE,   false, NULL,          1,    -1},
    {"difference_se",    "SE of paired ln ratio",EXP_MEASURE,false,NULL,        1,    -1},
    {"difference_ci90",  "90 % paired ln ratio ±",EXP_MEASURE,false,NULL,       1,    -1},
    {"kl_ci90",          "90 % KL ±",      EXP_MEASURE,   false, NULL,          1,    -1},
    {"top1_ci90",        "90 % top-1 % ±", EXP_MEASURE,   false, NULL,          100,  -1},
    {"nll_texts_sd",     "NLL between texts",EXP_MEASURE, false, NULL,          1,     0},
    {"ln_ratio_texts_sd","ln ratio between texts",EXP_MEASURE,false,NULL,       1,     0},
    {"prefill_spread",   "prefill spread", EXP_MEASURE,   false, NULL,          1,    -1},
    {"decode_spread",    "decode spread",  EXP_MEASURE,   false, NULL,          1,    -1},
    {"read_gb_s",        "read, GB/s",     EXP_MEASURE,   false, NULL,          1,     0},
    /* under the table, in this order */
    {"protocol",         "protocol",       EXP_CONDITION, false, NULL,          1,     0},
    {"n_ctx",            "context",        EXP_CONDITION, false, NULL,          1,     0},
    {"windows",          "windows",        EXP_CONDITION, false, NULL,          1,     0},
    {"tokens_scored",    "tokens scored",  EXP_CONDITION, false, NULL,          1,     0},
    {"bos",              "BOS",            EXP_CONDITION, false, NULL,          1,     0},
    {"role",             "role",           EXP_CONDITION, false, NULL,          1,     0},
    {"base",             "base",           EXP_CONDITION, false, NULL,          1,     0},
    {"kl_kind",          "kind of KL",     EXP_CONDITION, false, NULL,          1,     0},
    {"kv",               "KV cache",       EXP_CONDITION, false, NULL,          1,     0},
    {"precision",        "precision",      EXP_CONDITION, false, NULL,          1,     0},
    {"select",           "select",         EXP_CONDITION, false, NULL,          1,     0},
    {"backend",          "backend",        EXP_CONDITION, false, NULL,          1,     0},
    {"threads",          "threads",        EXP_CONDITION, false, NULL,          1,     0},
    {"machine",          "machine",        EXP_CONDITION, false, NULL,          1,     0},
    {"commit",           "commit",         EXP_CONDITION, false, NULL,          1,     0},
    {"date",             "date",           EXP_CONDITION, false, NULL,          1,     0},
    /* what tells rows apart and is not shown unless asked for */
    {"text_sha256",      "text's sha256",  EXP_NAME,      false, NULL,          1,     0},
    {"model_sha256",     "sha256",         EXP_NAME,      false, NULL,          1,     0},
    {"base_sha256",      "base's sha256",  EXP_NAME,      false, NULL,          1,     0},
    {"window_range",     "window range",   EXP_NAME,      false, NULL,          1,     0},
    {"texts",            "texts",          EXP_NAME,      false, NULL,          1,     0},
    {"types",            "types in the file",EXP_NAME,    false, NULL,          1,     0},
    {"parent",           "parent",         EXP_NAME,      false, NULL,          1,     0},
    {"depth",            "depth",          EXP_NAME,      false, NULL,          1,     0},
    {"sequences",        "sequences",      EXP_NAME,      false, NULL,          1,     0},
    {"disturbed",        "disturbed",      EXP_NAME,      false, NULL,          1,     0},
    {"leak",             "leak",           EXP_NAME,      false, NULL,          1,     0},
    {"dominated_by",     "dominated by",   EXP_NAME,      false, NULL,          1,     0},
    {"variant",          "variant",        EXP_NAME,      false, NULL,          1,     0},
    {"note",             "note",           EXP_NAME,      false, NULL,          1,     0},
    {0}};
// clang-format on

exp_heading exp_heading_of(const char *column) {
    for (const exp_heading *h = exp_headings; h->column; h++)
        if (!strcmp(h->column, column)) return *h;
    exp_heading own = {.column = column, .head = column, .role = EXP_TREATMENT, .scale = 1};
    for (const exp_column *c = exp_columns; c->name; c++)
        if (c->digits && !strcmp(c->name, column)) own.role = EXP_MEASURE;
    return own;
}

bool exp_is_speed(const char *column) { return strstr(column, "_tok_s") || !strcmp(column, "decode_gain"); }

/* Place of the first digit: 0 for 1 to 9.99, -1 for 0.1 to 0.99. */
static int magnitude(double v) { return v > 0 ? (int)floor(log10(v) + 1e-9) : 0; }

static int between(int low, int high, int v) { return v < low ? low : v > high ? high : v; }

int exp_decimals(double least, double most) {
    return between(0, between(0, 6, 5 - magnitude(most)), 2 - magnitude(least));
}

/* Takes zeros off the end of a number with a point. */
static void strip_zeros(char *text) {
    if (!strchr(text, '.')) return;
    char *end = text + strlen(text);
    while (end[-1] == '0') end--;
    end[-(end[-1] == '.')] = 0;
}

void exp_format_pair(char text[EXP_NUMBER], double value, double error) {
    const char *format = fabs(value) < 1e15 ? "%.*f" : "%.*g";
    if (!isfinite(value)) {
        snprintf(text, EXP_NUMBER, "-");
    } else if (isfinite(error) && error > 0) {
        const int decimals = between(0, 6, 1 - magnitude(error));
        const int n = snprintf(text, EXP_NUMBER, format, decimals, value);
        strcpy(text + n, " ± ");
        snprintf(text + n + strlen(" ± "), EXP_NUMBER - (size_t)n - 4, format, decimals, error);
    } else {
        snprintf(text, EXP_NUMBER, format, between(0, 6, 3 - magnitude(fabs(value))), value);
        if (error == 0) strip_zeros(text);
    }
}
