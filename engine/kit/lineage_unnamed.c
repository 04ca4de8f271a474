/* lineage_unnamed.c - whether a model learnt from data that its lineage does not name. */
#include "kit/lineage.h"
#include "kit/metrics.h"

#include <jansson.h>
#include <string.h>

static bool has_option(const json_t *args, const char *option) {
    const size_t n = strlen(option);
    for (size_t i = 0; i < json_array_size(args); i++) {
        const char *arg = json_string_value(json_array_get(args, i));
        if (arg && !strncmp(arg, option, n) && (!arg[n] || arg[n] == '=')) return true;
    }
    return false;
}

/* A plan whose metric is unknown was made by hand or elsewhere, from whatever data. */
static bool plan_learns(const json_t *facts) {
    const char *name = json_string_value(json_object_get(facts, "metric"));
    const kit_metric *m = name ? kit_metric_find(name) : NULL;
    return !m || m->needs_stats;
}

static bool step_learns(const json_t *step) {
    static const char *const options[] = {"--stats", "--traces", "--text"};
    const json_t *args = json_object_get(step, "args");
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (has_option(args, options[i])) return true;
    return has_option(args, "--plan") && plan_learns(json_object_get(step, "facts"));
}

/* A text is known by its blocks; one of fewer than three blocks of 16 tokens cannot leak a run (lineage.h). */
static bool names_its_data(const json_t *step) {
    const json_t *texts = json_object_get(step, "texts");
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i);
        const char *blocks = json_string_value(json_object_get(text, "blocks"));
        if (json_integer_value(json_object_get(text, "tokens")) >= 48 && !(blocks && *blocks)) return false;
    }
    return json_array_size(texts) > 0 || !step_learns(step);
}

typedef struct findings {
    bool unnamed, weighed; // weighed: requant or heal had importances, which it names
} findings;

static void look_at(void *ctx, const json_t *step) {
    findings *f = ctx;
    const char *name = json_string_value(json_object_get(step, "tool"));
    const bool rounds = name && (!strcmp(name, "requant") || !strcmp(name, "heal"));
    f->weighed |= rounds && has_option(json_object_get(step, "args"), "--stats");
    f->unnamed |= !names_its_data(step) || json_object_get(json_object_get(step, "facts"), "unnamed_data");
}

/* A key that no step of the lineage accounts for: another program quantized the file with importances. */
static bool weighed_elsewhere(const dw_gguf *g, const findings *f) {
    return dw_gguf_find(g, "quantize.imatrix.file") && !f->weighed;
}

int lineage_learnt_unnamed(const dw_gguf *g, bool *unnamed, dw_err *err) {
    findings f = {false, false};
    const int rc = lineage_steps(g, look_at, &f, err);
    *unnamed = f.unnamed || weighed_elsewhere(g, &f);
    return rc;
}

int lineage_weighed_elsewhere(const dw_gguf *g, dw_str *by, dw_err *err) {
    findings f = {false, false};
    if (lineage_steps(g, look_at, &f, err)) return -1;
    *by = (dw_str){"", 0};
    return !f.unnamed && weighed_elsewhere(g, &f) && dw_gguf_str(g, "quantize.imatrix.file", by, NULL) >= 0;
}
