/* inspect.c - what is in a model; files that are no models: inspect_files.c.
 *
 *     deadwood inspect mini.gguf --lineage */
#include "experiments/inspect_files.h"
#include "formats/ffn_act.h"
#include "formats/ffn_two_part.h"
#include "formats/ffn_gated.h"
#include "model/model.h"
#include "kit/hash_cache.h"
#include "kit/lineage.h"
#include "kit/options.h"
#include "kit/talk.h"
#include "text/json.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct {
    opt_list file, inputs;
    bool tensors, keys, lineage, verify, json;
} o;

// clang-format off
static const opt_row rows[] = {
    {NULL, 0, OPT_TEXTS, OPT_REQUIRED, &o.file, NULL, "FILE", "the model (GGUF), statistics, traces, a plan, or rows of results"},
    {"tensors", 0, OPT_FLAG, 0, &o.tensors, NULL, NULL, "list the tensors: name, type, shape, bytes"},
    {"keys", 0, OPT_FLAG, 0, &o.keys, NULL, NULL, "list the metadata keys"},
    {"lineage", 0, OPT_FLAG, 0, &o.lineage, NULL, NULL, "print the model's own commands, the oldest first (file names without folders); those of its plan and its statistics are in these files"},
    {"verify", 0, OPT_FLAG, 0, &o.verify, NULL, NULL, "check the hashes of the lineage's inputs and texts that are at hand; exit 1 if one differs, or if none is at hand"},
    {"inputs", 0, OPT_TEXTS, 0, &o.inputs, NULL, "DIR", "folders to look for inputs in, in addition to this one and the file's"},
    {"json", 0, OPT_FLAG, 0, &o.json, NULL, NULL, "one JSON object instead of text"},
    OPT_COMMON_HEADING, OPT_QUIET, {0}};
// clang-format on

static const opt_program program = {
    .name = "inspect",
    .summary = "what is in a model, statistics, traces, a plan or rows of results",
    .usage = "FILE [--tensors | --keys | --lineage | --verify | --json [--tensors]]",
    .about = "Prints the hyperparameters, the widths of every layer, the number formats and sizes, and the lineage: "
             "the chain of the model's own commands, with the hashes of what they read.  The commands of its plan and "
             "its statistics are in these files.  Of statistics: the texts, every layer's block influence "
             "(1 - the mean cosine of the residuals before and after it: Men et al. 2024, arXiv 2403.03853), and "
             "quantiles of the magnitudes of neurons, gates and inputs.  Of traces: the texts, and "
             "every layer's groups and share of open ones.  Of a plan: what it was made from, and every "
             "layer's width and the number of runs (spans) of kept neurons.  Of rows: how many, and which values "
             "each column has.\n"
             "\n"
             "The options are for models; of other files there is only this summary.",
    .example = "deadwood inspect mini.gguf\ndeadwood inspect mini.gguf --verify --inputs experiments/mini",
    .rows = rows};

/* ---- numbers by type ------------------------------------------------------------------------------------- */

typedef struct type_sum {
    const dw_qtype_row *type;
    size_t n_tensors, n_values, n_bytes;
} type_sum;

/* Sums over the tensors for each type that occurs; returns how many types. */
static size_t sum_types(const dw_gguf *g, type_sum *sums) {
    size_t n = 0;
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        size_t k = 0;
        while (k < n && sums[k].type != t->type) k++;
        if (k == n) sums[n++] = (type_sum){.type = t->type};
        sums[k].n_tensors++;
        sums[k].n_values += dw_tensor_n_values(t);
        sums[k].n_bytes += t->n_bytes;
    }
    return n;
}

/* ---- what both forms say --------------------------------------------------------------------------------- */

/* Neurons in the cold part of each layer's FFN in two parts; false: it has one. */
static bool cold_neurons(const dw_gguf *g, int n_layer, int n_cold[DW_MAX_LAYERS]) {
    const dw_kv *kv = dw_gguf_find(g, DW_KEY_COLD_LENGTH);
    for (int l = 0; kv && l < n_layer; l++) n_cold[l] = (int)dw_kv_number(kv, kv->is_array ? (size_t)l : 0);
    return kv;
}

// A factor for each frequency (Llama 3).
static bool scales_by_frequency(const dw_model *m) { return dw_gguf_find_tensor(m->gguf, "rope_freqs.weight"); }

typedef struct gate {
    dw_str rule;
    uint32_t group;                     // neurons
    int n_gated, n_dense, n_predictors; // layers; n_gated 0: there is no gate
} gate;

static gate gate_of(const dw_model *m) {
    gate k = {.rule = {"-", 1}};
    for (int l = 0; l < m->net.hp.n_layer; l++) {
        const dw_layer_gate *g = &m->net.layer[l].sparse;
        k.n_gated += g->down_t.name != NULL;
        k.n_dense += g->down_t.name && g->dense;
        k.n_predictors += g->pred_a.name != NULL;
    }
    dw_gguf_str(m->gguf, DW_KEY_GATE_RULE, &k.rule, NULL);
    dw_gguf_u32(m->gguf, DW_KEY_GATE_GROUP, &k.group, NULL);
    return k;
}

static dw_str name_of(const dw_gguf *g) {
    dw_str name = {"-", 1};
    dw_gguf_str(g, "general.name", &name, NULL);
    return name;
}

static double tensor_bytes(const dw_gguf *g) {
    double bytes = 0;
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) bytes += (double)dw_gguf_tensor(g, i)->n_bytes;
    return bytes;
}

static double bits_per_weight(const dw_model *m) {
    return 8 * (double)dw_gguf_file_bytes(dw_model_gguf(m)) / (double)dw_model_n_params(m);
}

/* ---- text ------------------------------------------------------------------------------------------------ */

/* "1024" where all layers agree, else runs: "0-3: 1024, 4: 768". */
static void print_layers(const char *what, const int *v, int n) {
    printf("%-18s", what);
    for (int first = 0, end; first < n; first = end) {
        for (end = first + 1; end < n && v[end] == v[first];) end++;
        if (first == 0 && end == n) printf("%d", v[0]);
        else if (end == first + 1) printf("%s%d: %d", first ? ", " : "", first, v[first]);
        else printf("%s%d-%d: %d", first ? ", " : "", first, end - 1, v[first]);
    }
    printf("\n");
}

static void print_rope(const dw_model *m) {
    const dw_hparams *hp = dw_model_hparams(m);
    printf("%-18s%g", "rope base", (double)hp->rope_base);
    if (m->rope_scaling) printf(", %s scaling by %g", m->rope_scaling, (double)m->rope_factor);
    if (scales_by_frequency(m)) printf(", a factor for each frequency (Llama 3)");
    printf("\n%-18s%g\n", "norm epsilon", (double)hp->norm_eps);
}

static void print_gate(const dw_model *m) {
    const gate k = gate_of(m);
    if (!k.n_gated) return;
    printf("%-18s", "gate");
    inspect_text(k.rule, 0);
    printf(", groups of %u, in %d layers, %d of them kept dense, %d with predictors\n", k.group, k.n_gated, k.n_dense,
           k.n_predictors);
}

static void print_summary(const dw_model *m) {
    const dw_hparams *hp = dw_model_hparams(m);
    const dw_gguf *g = dw_model_gguf(m);
    const double n_bytes = (double)dw_gguf_file_bytes(g), n_params = (double)dw_model_n_params(m);
    int n_cold[DW_MAX_LAYERS];
    printf("%-18s", "name");
    inspect_text(name_of(g), 0);
    printf("\n%-18s%s\n", "architecture", hp->arch);
    if (dw_gguf_find(g, DW_KEY_FFN_ACTIVATION)) printf("%-18s%s\n", "activation", dw_model_activation(m));
    printf("%-18s%.0f (%s)\n", "file bytes", n_bytes, show_bytes(n_bytes).text);
    printf("%-18s%.3f (of tensors alone: %.3f)\n", "bits per weight", bits_per_weight(m),
           8 * tensor_bytes(g) / n_params);
    printf("%-18s%.0f (%.2f M)\n", "parameters", n_params, n_params / 1e6);
    printf("%-18s%zu (%s)\n", "bytes per token", dw_model_bytes_per_token(m),
           show_bytes((double)dw_model_bytes_per_token(m)).text);
    printf("%-18s%d\n%-18s%d\n%-18s%d\n", "layers", hp->n_layer, "embedding", hp->n_embd, "vocabulary", hp->n_vocab);
    printf("%-18s%s\n%-18s%d\n", "output", hp->tied ? "tied to the embedding" : "own matrix", "context",
           hp->n_ctx_train);
    print_layers("heads", hp->n_head, hp->n_layer);
    print_layers("KV heads", hp->n_head_kv, hp->n_layer);
    printf("%-18s%d\n", "head dimension", hp->head_dim);
    print_layers("FFN width", hp->n_ff, hp->n_layer);
    if (cold_neurons(g, hp->n_layer, n_cold)) print_layers("cold neurons", n_cold, hp->n_layer);
    print_rope(m);
    print_gate(m);
    type_sum sums[DW_QTYPE_END];
    const size_t n = sum_types(g, sums);
    for (size_t i = 0; i < n; i++)
        printf("%-18s%zu tensor%s, %zu values, %zu bytes\n", sums[i].type->name, sums[i].n_tensors,
               plural((double)sums[i].n_tensors), sums[i].n_values, sums[i].n_bytes);
}

/* ---- lists -------------------------------------------------------------------------------------------------- */

static void print_tensors(const dw_gguf *g) {
    printf("tensor\ttype\tshape\tbytes\n");
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        inspect_name(t->name);
        printf("\t%s\t", t->type->name);
        for (int k = t->n_dims - 1; k >= 0; k--) printf("%s%zu", k < t->n_dims - 1 ? "x" : "", t->ne[k]);
        printf("\t%zu\n", t->n_bytes);
    }
}

/* As many digits as the number needs. */
static void print_number(const dw_kv *kv, size_t i) {
    const double x = dw_kv_number(kv, i);
    const uint64_t bits = kv->type == DW_KV_U64 || kv->type == DW_KV_I64 ? dw_le64(kv->data + 8 * i) : 0;
    const bool is_f32 = kv->type == DW_KV_F32, is_real = is_f32 || kv->type == DW_KV_F64;
    char text[40];
    int digits = 6;
    do snprintf(text, sizeof text, "%.*g", digits, x);
    while (digits++ < 17 && (is_f32 ? (double)strtof(text, NULL) : strtod(text, NULL)) != x && !isnan(x));
    if (kv->type == DW_KV_U64)
        printf("%" PRIu64, bits);
    else if (kv->type == DW_KV_I64)
        printf("%" PRId64, (int64_t)bits);
    else if (is_real)
        printf("%s", text);
    else
        printf("%.0f", x);
}

static void print_keys(const dw_gguf *g) {
    printf("key\tcount\tvalue\n");
    for (size_t i = 0; i < dw_gguf_n_kv(g); i++) {
        const dw_kv *kv = dw_gguf_kv(g, i);
        inspect_name(kv->key);
        printf("\t%zu\t", kv->count);
        for (size_t k = 0; k < kv->count && k < INSPECT_ITEMS; k++) {
            if (k) printf(", ");
            if (kv->str) inspect_text(kv->str[k], INSPECT_CHARS);
            else
                print_number(kv, k);
        }
        printf("%s\n", kv->count > INSPECT_ITEMS ? ", ..." : "");
    }
}

static int print_lineage(const dw_gguf *g, dw_err *err) {
    char *commands = lineage_commands(g, err);
    if (!commands && err->text[0]) return -1;
    show_lines(stdout, commands ? commands : "no lineage: the file was not made by deadwood\n");
    free(commands);
    return 0;
}

/* ---- verify ----------------------------------------------------------------------------------------------------- */

typedef struct verify_count {
    const char *model_path;
    int n_same, n_other, n_absent;
} verify_count;

static bool is_file(const char *path) {
    struct stat st;
    return !stat(path, &st) && S_ISREG(st.st_mode);
}

static int check_folders(dw_err *err) {
    for (size_t i = 0; i < o.inputs.n; i++)
        if (!dw_is_folder(o.inputs.item[i])) return dw_fail(err, "--inputs: there is no folder '%s'", o.inputs.item[i]);
    return 0;
}

static char *find_input(const char *model_path, const char *name) {
    const char *slash = strrchr(model_path, '/');
    for (size_t i = 0; i < o.inputs.n + 2; i++) {
        char *path = i == 0                ? dw_format(NULL, "%s", name)
                     : i <= o.inputs.n     ? dw_format(NULL, "%s/%s", o.inputs.item[i - 1], name)
                     : slash               ? dw_format(NULL, "%.*s%s", (int)(slash - model_path + 1), model_path, name)
                                           : NULL;
        if (path && is_file(path)) return path;
        free(path);
    }
    return NULL;
}

static void verify_input(void *ctx, const char *tool_name, const char *name, const char *sha256) {
    verify_count *count = ctx;
    char *path = find_input(count->model_path, name), hex[65];
    const char *state = "not at hand";
    dw_err why = {0};
    if (path && kit_sha256_input(path, hex, &why)) warn("%s; it counts as different", why.text);
    if (path) state = why.text[0] || strcmp(hex, sha256) ? "DIFFERS" : "same";
    inspect_name(tool_name);
    putchar('\t');
    inspect_name(name);
    printf("\t%s\t", state);
    inspect_name(path ? path : "-");
    putchar('\n');
    count->n_same += !strcmp(state, "same");
    count->n_other += !strcmp(state, "DIFFERS");
    count->n_absent += !strcmp(state, "not at hand");
    free(path);
}

static int verify(const dw_gguf *g, dw_err *err) {
    verify_count count = {.model_path = dw_gguf_path(g)};
    if (check_folders(err)) return -1;
    printf("tool\tinput\tstate\tpath\n");
    if (lineage_inputs(g, verify_input, &count, err)) return -1;
    say("inputs: %d the same, %d different, %d not at hand", count.n_same, count.n_other, count.n_absent);
    if (count.n_other)
        return dw_fail(err, "%d input%s not what '%s' was made from", count.n_other,
                       count.n_other == 1 ? " is" : "s are", dw_gguf_path(g));
    if (!count.n_same)
        return dw_fail(err, "none of the inputs of '%s' is at hand; name their folders with --inputs", dw_gguf_path(g));
    return 0;
}

/* ---- JSON ----------------------------------------------------------------------------------------------- */

static json_t *json_ints(const int *v, int n) {
    json_t *a = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(a, json_integer(v[i]));
    return a;
}

static json_t *json_tensors(const dw_gguf *g) {
    json_t *list = json_array();
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        json_t *shape = json_array();
        for (int k = t->n_dims - 1; k >= 0; k--) json_array_append_new(shape, json_integer((json_int_t)t->ne[k]));
        json_array_append_new(list, json_pack("{s:s, s:s, s:o, s:I}", "name", t->name, "type", t->type->name, "shape",
                                              shape, "bytes", (json_int_t)t->n_bytes));
    }
    return list;
}

static void append_step(void *steps, const struct json_t *step) { json_array_append(steps, (json_t *)(uintptr_t)step); }

static json_t *json_lineage(const dw_gguf *g, dw_err *err) {
    json_t *steps = json_array();
    if (!lineage_steps(g, append_step, steps, err)) return steps;
    json_decref(steps);
    return NULL;
}

/* null where it is no UTF-8. */
static json_t *json_text(dw_str text) {
    json_t *j = json_stringn(text.ptr, text.len);
    return j ? j : json_null();
}

static json_t *json_rope_scaling(const dw_model *m) {
    const bool by_frequency = scales_by_frequency(m);
    if (!m->rope_scaling && !by_frequency) return json_null();
    return json_pack("{s:s?, s:f, s:b}", "type", m->rope_scaling, "factor", (double)m->rope_factor, "by_frequency",
                     by_frequency);
}

static json_t *json_gate(const dw_model *m) {
    const gate k = gate_of(m);
    if (!k.n_gated) return json_null();
    return json_pack("{s:o, s:I, s:i, s:i, s:i}", "rule", json_text(k.rule), "group", (json_int_t)k.group, "layers",
                     k.n_gated, "kept_dense", k.n_dense, "with_predictors", k.n_predictors);
}

static json_t *json_types(const dw_gguf *g) {
    type_sum sums[DW_QTYPE_END];
    const size_t n = sum_types(g, sums);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_pack("{s:s, s:I, s:I, s:I}", "type", sums[i].type->name, "tensors",
                                              (json_int_t)sums[i].n_tensors, "values", (json_int_t)sums[i].n_values,
                                              "bytes", (json_int_t)sums[i].n_bytes));
    return list;
}

static int print_json(const dw_model *m, dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(m);
    const dw_gguf *g = dw_model_gguf(m);
    int n_cold[DW_MAX_LAYERS];
    json_t *steps = json_lineage(g, err);
    if (!steps) return -1;
    json_t *j = json_pack("{s:o, s:s, s:s, s:I, s:f, s:I, s:I, s:i, s:i, s:i, s:i, s:i, s:b, s:f, s:o, s:f}", "name",
                          json_text(name_of(g)), "arch", hp->arch, "activation", dw_model_activation(m), "file_bytes",
                          (json_int_t)dw_gguf_file_bytes(g), "bits_per_weight", bits_per_weight(m), "params",
                          (json_int_t)dw_model_n_params(m), "bytes_per_token", (json_int_t)dw_model_bytes_per_token(m),
                          "n_layer", hp->n_layer, "n_embd", hp->n_embd, "n_vocab", hp->n_vocab, "head_dim",
                          hp->head_dim, "n_ctx_train", hp->n_ctx_train, "tied", hp->tied, "rope_base",
                          (double)hp->rope_base, "rope_scaling", json_rope_scaling(m), "norm_eps",
                          (double)hp->norm_eps);
    if (!j) return dw_fail(err, "out of memory: JSON");
    json_object_set_new(j, "n_ff", json_ints(hp->n_ff, hp->n_layer));
    json_object_set_new(j, "n_ff_cold",
                        cold_neurons(g, hp->n_layer, n_cold) ? json_ints(n_cold, hp->n_layer) : json_null());
    json_object_set_new(j, "n_head", json_ints(hp->n_head, hp->n_layer));
    json_object_set_new(j, "n_head_kv", json_ints(hp->n_head_kv, hp->n_layer));
    json_object_set_new(j, "gate", json_gate(m));
    json_object_set_new(j, "types", json_types(g));
    json_object_set_new(j, "lineage", steps);
    if (o.tensors) json_object_set_new(j, "tensors", json_tensors(g));
    json_dumpf(j, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
    putchar('\n');
    json_decref(j);
    return 0;
}

/* A file that can be read, but is no model. */
static bool is_other_file(const char *path) { return is_file(path) && !access(path, R_OK) && !dw_is_gguf(path); }

int main(int argc, char **argv) {
    opt_parse(&program, argc, argv);
    if (o.file.n != 1) die_usage("give one file");
    if (!*o.file.item[0]) die_usage("FILE: the name is empty");
    dw_err err = {0};
    const char *path = o.file.item[0];
    inspect_file *inspect = inspect_file_of(path);
    if (inspect) {
        if (o.json || o.tensors || o.keys || o.lineage || o.verify)
            die_usage("of '%s' there is only the summary; the options are for models", path);
        if (inspect(path, &err)) die_err(&err);
        return 0;
    }
    if ((o.tensors && !o.json) + o.keys + o.lineage + o.verify + o.json > 1)
        die_usage("give one of --tensors, --keys, --lineage, --verify, --json");
    if (o.inputs.n && !o.verify) die_usage("--inputs is for --verify");
    dw_model *m = dw_model_open(path, &err);
    if (!m && is_other_file(path)) {
        err = (dw_err){0};
        inspect_refuse(path, &err);
    }
    if (!m) die_err(&err);
    const dw_gguf *g = dw_model_gguf(m);
    int rc = 0;
    if (o.json)
        rc = print_json(m, &err);
    else if (o.tensors)
        print_tensors(g);
    else if (o.keys)
        print_keys(g);
    else if (o.verify)
        rc = verify(g, &err);
    else if (o.lineage)
        rc = print_lineage(g, &err);
    else
        print_summary(m);
    if (rc) die_err(&err);
    dw_model_close(m);
    return 0;
}
