/* lineage.c - writes into a model file how it was made, and reads it. */
#include "base/set.h"
#include "kit/hash_cache.h"
#include "kit/kit_own.h"
#include "kit/lineage.h"
#include "kit/plan.h"
#include "kit/stats.h"
#include "text/json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 16, LEAK_BLOCKS = 3, MAX_STEPS = 1024, MAX_TAKEN = 16 << 20, MAX_JSON = 8 << 20 };
enum { STEP_TREE = 256 << 20 }; // what a step may take in memory: 160,000 short texts, 2,000 of the longest

static const char key[] = LINEAGE_KEY;

struct lineage {
    json_t *steps;                 // steps of the parent, as strings
    json_t *step, *inputs, *texts; // the new step; it owns inputs and texts
    size_t taken;                  // bytes of the texts of other models, as JSON
};

/* The base name of a path as a JSON string, without a slash at the end. */
static json_t *base_name_json(const char *path) {
    const char *name = dw_base_name(path);
    const size_t n = strcspn(name, "/");
    return json_stringn(name, n ? n : strlen(name));
}

static int fail_memory(dw_err *err) { return dw_fail(err, "out of memory: the lineage"); }

/* The text of *n bytes; free().  json_dumps() loses parts of it when an allocation fails; writing into a buffer
 * allocates nothing. */
static char *dump(const json_t *j, size_t flags, size_t *n, dw_err *err) {
    *n = json_dumpb(j, NULL, 0, flags);
    char *text = dw_alloc(*n + 1, 1, "the lineage", err);
    if (!text || (*n && json_dumpb(j, text, *n, flags) == *n)) return text;
    free(text);
    fail_memory(err);
    return NULL;
}

/* ---- reading ---------------------------------------------------------------------------------------------- */

/* Returns 1 and *steps; 0 if the file has no steps. */
static int find_steps(const dw_gguf *g, const dw_kv **steps, dw_err *err) {
    *steps = dw_gguf_find(g, key);
    if (!*steps) return 0;
    if (!(*steps)->is_array || (*steps)->type != DW_KV_STR || (*steps)->count > MAX_STEPS)
        return dw_fail(err, "'%s': %s is not an array of at most %d strings", dw_gguf_path(g), key, MAX_STEPS);
    return (*steps)->count > 0;
}

static json_t *parse_text(const char *text, size_t len, size_t i, dw_err *err) {
    json_t *step = dw_json_parse(text, len, STEP_TREE, key, err);
    if (step && json_is_string(json_object_get(step, "tool")) && json_is_array(json_object_get(step, "args")))
        return step;
    json_decref(step);
    dw_fail(err, "%s: step %zu is not an object with tool and args", key, i + 1);
    return NULL;
}

static json_t *parse_step(const dw_kv *steps, size_t i, dw_err *err) {
    return parse_text(steps->str[i].ptr, steps->str[i].len, i, err);
}

int lineage_steps(const dw_gguf *g, void (*fn)(void *ctx, const struct json_t *step), void *ctx, dw_err *err) {
    const dw_kv *steps;
    const int found = find_steps(g, &steps, err);
    for (size_t i = 0; found > 0 && i < steps->count; i++) {
        json_t *step = parse_step(steps, i, err);
        if (!step) return dw_fail_in(err, "'%s'", dw_gguf_path(g));
        fn(ctx, step);
        json_decref(step);
    }
    return found < 0 ? -1 : 0;
}

static void count_step(void *ctx, const json_t *step) {
    (void)step;
    ++*(size_t *)ctx;
}

int lineage_check(const dw_gguf *g, dw_err *err) {
    size_t n = 0;
    if (lineage_steps(g, count_step, &n, err)) return -1;
    if (n < MAX_STEPS) return 0;
    return dw_fail(err, "'%s': %s has %d steps, and no file can have more", dw_gguf_path(g), key, MAX_STEPS);
}

static const char *text_of(const json_t *object, const char *name) {
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : "";
}

int lineage_inputs(const dw_gguf *g, void (*fn)(void *ctx, const char *tool_name, const char *name, const char *sha256),
                   void *ctx, dw_err *err) {
    const dw_kv *steps;
    const int found = find_steps(g, &steps, err);
    for (size_t i = 0; found > 0 && i < steps->count; i++) {
        json_t *step = parse_step(steps, i, err), *input;
        if (!step) return -1;
        static const char *const lists[] = {"inputs", "texts"};
        size_t k;
        for (size_t n = 0; n < sizeof lists / sizeof *lists; n++)
            json_array_foreach(json_object_get(step, lists[n]), k, input)
                if (*text_of(input, "name")) // what is none of ours has no name
                    fn(ctx, text_of(step, "tool"), text_of(input, "name"), text_of(input, "sha256"));
        json_decref(step);
    }
    return found < 0 ? -1 : 0;
}

/* ---- writing ---------------------------------------------------------------------------------------------- */

/* The name of a row and its values: "--type" "q8_0"; several values: "--text" "a" "b"; with a dash: "--prompt=-x". */
static int add_values(json_t *args, const opt_row *row) {
    size_t n;
    char **value = opt_values(row, &n);
    const bool is_path = row->kind == OPT_PATH || row->flags & OPT_INPUT;
    int rc = 0;
    for (size_t i = 0; i < n; i++) {
        const bool dashed = row->name && value[i][0] == '-';
        if (dashed)
            rc |= json_array_append_new(args, json_sprintf("--%s=%s", row->name, value[i]));
        else if (row->name && !i)
            rc |= json_array_append_new(args, json_sprintf("--%s", row->name));
        if (!dashed && (row->kind != OPT_FLAG || !row->name))
            rc |= json_array_append_new(args, is_path ? base_name_json(value[i]) : json_string(value[i]));
        free(value[i]);
    }
    free(value);
    return rc;
}

/* JSON holds no other text. */
static int check_text(const char *text, dw_err *err) {
    if (dw_is_utf8(text, strlen(text))) return 0;
    return dw_fail(err, "'%s' is not UTF-8 text, as the lineage in the new file must be; rename it", text);
}

static int check_args(const opt_row *rows, dw_err *err) {
    int rc = 0;
    for (const opt_row *row = rows; !opt_is_end(row); row++) {
        size_t n;
        char **value = opt_is_value(row) && !(row->flags & OPT_NO_BYTE) ? opt_values(row, &n) : NULL;
        for (size_t i = 0; value && i < n; i++) {
            if (!rc) rc = check_text(value[i], err);
            free(value[i]);
        }
        free(value);
    }
    return rc;
}

/* Positional arguments come first; after an option with several values they would be taken as its values. */
static int add_args(json_t *args, const opt_row *rows) {
    int rc = 0;
    for (int named = 0; named < 2; named++)
        for (const opt_row *row = rows; !opt_is_end(row); row++)
            if (opt_is_value(row) && !(row->flags & OPT_NO_BYTE) && (row->name != NULL) == named)
                rc |= add_values(args, row);
    return rc;
}

static int copy_steps(lineage *l, const dw_gguf *parent, dw_err *err) {
    const dw_kv *steps;
    const int found = parent ? find_steps(parent, &steps, err) : 0;
    for (size_t i = 0; found > 0 && i < steps->count; i++)
        if (json_array_append_new(l->steps, json_stringn(steps->str[i].ptr, steps->str[i].len)))
            return dw_fail(err, "'%s': %s: step %zu is not UTF-8 text", dw_gguf_path(parent), key, i + 1);
    return found < 0 ? -1 : 0;
}

/* What another program did with the parent, as far as its keys say it. */
static int add_upstream(lineage *l, const dw_gguf *parent, dw_err *err) {
    char text[256];
    dw_str by = {0};
    const int weighed = parent ? lineage_weighed_elsewhere(parent, &by, err) : 0;
    if (weighed < 0) return -1;
    if (weighed) { // the key may go with this step
        dw_show(text, sizeof text, by.ptr, by.len);
        if (lineage_fact(l, "unnamed_data", *text ? dw_base_name(text) : "-", err)) return -1;
    }
    if (!parent || dw_gguf_str(parent, LINEAGE_BY_UPSTREAM, &by, NULL) <= 0) return 0;
    dw_show(text, sizeof text, by.ptr, by.len);
    return lineage_fact(l, "parent_quantized_by", text, err);
}

lineage *lineage_new(const opt_program *program, const dw_gguf *parent, dw_err *err) {
    if (check_args(program->rows, err) || (parent && check_text(dw_gguf_path(parent), err))) return NULL;
    lineage *l = dw_alloc(1, sizeof *l, "the lineage", err);
    if (!l) return NULL;
    json_t *args = json_array();
    *l = (lineage){json_array(), json_object(), json_array(), json_array()};
    int rc = !l->steps;
    rc |= json_object_set_new(l->step, "tool", json_string(program->name));
    rc |= json_object_set_new(l->step, "version", json_string(DEADWOOD_VERSION));
    rc |= json_object_set_new(l->step, "commit", json_string(kit_commit()));
    if (args) rc |= add_args(args, program->rows);
    rc |= json_object_set_new(l->step, "args", args);
    if (parent) rc |= json_object_set_new(l->step, "parent", base_name_json(dw_gguf_path(parent)));
    rc |= json_object_set_new(l->step, "inputs", l->inputs);
    rc |= json_object_set_new(l->step, "texts", l->texts);
    if (rc) fail_memory(err);
    if (!rc && !copy_steps(l, parent, err) && !add_upstream(l, parent, err)) return l;
    lineage_free(l);
    return NULL;
}

/* The size of all parts of a split model.  A single file may have the name of a part, so other parts may be missing. */
static int size_of_input(const char *path, size_t *bytes, dw_err *err) {
    const size_t n = dw_split_count(path);
    *bytes = 0;
    for (size_t i = 0; i < n; i++) {
        char *part = dw_split_name(path, i, err);
        size_t size = 0;
        if (!part) return -1;
        const bool there = !i || dw_file_exists(part);
        const int fd = there ? dw_open_input(part, &size, err) : -1;
        free(part);
        if (fd >= 0) close(fd);
        else if (there) return -1;
        *bytes += size;
    }
    return 0;
}

int lineage_input_hashed(lineage *l, const char *path, const char sha256[65], dw_err *err) {
    size_t bytes;
    if (check_text(path, err) || size_of_input(path, &bytes, err)) return -1;
    json_t *input = json_pack("{s:o, s:s, s:I}", "name", base_name_json(path), "sha256", sha256, "bytes",
                              (json_int_t)bytes);
    return json_array_append_new(l->inputs, input) ? fail_memory(err) : 0;
}

int lineage_input(lineage *l, const char *path, dw_err *err) {
    char hex[65];
    return kit_sha256_input(path, hex, err) ? -1 : lineage_input_hashed(l, path, hex, err);
}

int lineage_fact(lineage *l, const char *name, const char *value, dw_err *err) {
    json_t *facts = json_object_get(l->step, "facts");
    if (!value || !*value) return 0;
    if (!facts && json_object_set_new(l->step, "facts", facts = json_object())) return fail_memory(err);
    return json_object_set_new(facts, name, json_string(value)) ? fail_memory(err) : 0;
}

int lineage_unnamed_data(lineage *l, const char *path, dw_err *err) {
    return check_text(path, err) ? -1 : lineage_fact(l, "unnamed_data", dw_base_name(path), err);
}

/* A 32-bit hash of 16 token ids: a multiplicative hash, then the finalizer of MurmurHash3. */
static uint32_t block_hash(const int32_t *ids) {
    uint64_t h = 0x9e3779b97f4a7c15u;
    for (int i = 0; i < BLOCK; i++) h = (h ^ (uint32_t)ids[i]) * 0x100000001b3u;
    h = (h ^ h >> 33) * 0xff51afd7ed558ccdu;
    h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53u;
    return (uint32_t)(h >> 32);
}

size_t lineage_blocks_bytes(size_t n_tokens) {
    return 8 * (n_tokens / BLOCK < LINEAGE_MOST_BLOCKS ? n_tokens / BLOCK : LINEAGE_MOST_BLOCKS);
}

/* The blocks of a long text that are kept are runs of LEAK_BLOCKS, evenly spaced. */
char *lineage_blocks(const int32_t *ids, size_t n, dw_err *err) {
    const size_t n_all = n / BLOCK, n_runs = LINEAGE_MOST_BLOCKS / LEAK_BLOCKS;
    const bool is_long = n_all > LINEAGE_MOST_BLOCKS;
    const size_t n_kept = is_long ? n_runs * LEAK_BLOCKS : n_all;
    char *blocks = dw_alloc(n_kept * 8 + 1, 1, "the hashes of a text", err);
    for (size_t i = 0; blocks && i < n_kept; i++) {
        const size_t at = is_long ? i / LEAK_BLOCKS * n_all / n_runs + i % LEAK_BLOCKS : i;
        snprintf(blocks + 8 * i, 9, "%08x", block_hash(ids + BLOCK * at));
    }
    return blocks;
}

int lineage_text_blocks(lineage *l, const char *name, const char sha256[65], const char *blocks, size_t n,
                        dw_err *err) {
    json_t *text = json_pack("{s:o, s:s, s:I, s:s}", "name", base_name_json(name), "sha256", sha256, "tokens",
                             (json_int_t)n, "blocks", blocks);
    return json_array_append_new(l->texts, text) ? fail_memory(err) : 0;
}

typedef struct text_view {
    const char *name, *sha256, *blocks;
    uint64_t n_tokens;
    bool is_imported; // sums of an imatrix, whose texts are not known
} text_view;

static text_view view_stats(const void *texts, size_t i) {
    const kit_stats_text *t = (const kit_stats_text *)texts + i;
    // an imatrix of the old form counts windows instead of tokens
    const bool is_short = t->n_tokens < BLOCK && t->n_tokens > (uint64_t)t->n_windows;
    return (text_view){t->name, t->sha256, t->blocks, t->n_tokens, !*t->blocks && !is_short};
}

static text_view view_plan(const void *texts, size_t i) {
    const kit_plan_text *t = (const kit_plan_text *)texts + i;
    return (text_view){t->name, t->sha256, t->blocks, t->n_tokens, !*t->blocks && t->n_tokens >= BLOCK};
}

static int add_texts(lineage *l, text_view (*view)(const void *texts, size_t i), const void *texts, size_t n,
                     dw_err *err) {
    for (size_t i = 0; i < n; i++) {
        const text_view t = view(texts, i);
        if (lineage_text_blocks(l, t.name, t.sha256, t.blocks, t.n_tokens, err)) return -1;
        if (t.is_imported && lineage_unnamed_data(l, t.name, err)) return -1;
    }
    return 0;
}

int lineage_texts(lineage *l, const kit_stats_text *text, size_t n, dw_err *err) {
    return add_texts(l, view_stats, text, n, err);
}

int lineage_plan_texts(lineage *l, const kit_plan_text *text, size_t n, dw_err *err) {
    return add_texts(l, view_plan, text, n, err);
}

/* What a lineage has: texts as JSON, and steps. */
typedef struct known {
    dw_set texts, steps;
} known;

static void release_known(known *k) {
    dw_set_free(&k->texts);
    dw_set_free(&k->steps);
}

/* 1: the text is new, of *n bytes; 0: it is known; -1: an error. */
static int know_text(known *k, const json_t *text, size_t *n, dw_err *err) {
    char *bytes = dump(text, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY, n, err);
    const int rc = bytes ? dw_set_add(&k->texts, bytes, *n, err) : -1;
    free(bytes);
    return rc;
}

static int know_own(known *k, const lineage *l, dw_err *err) {
    const json_t *own;
    size_t i, n;
    json_array_foreach(l->texts, i, own) if (know_text(k, own, &n, err) < 0) return -1;
    json_array_foreach(l->steps, i, own)
        if (dw_set_add(&k->steps, json_string_value(own), json_string_length(own), err) < 0) return -1;
    return 0;
}

static int take_texts(lineage *l, known *k, const json_t *step, dw_err *err) {
    json_t *text;
    size_t i, n;
    json_array_foreach(json_object_get(step, "texts"), i, text) {
        const int is_new = know_text(k, text, &n, err);
        if (is_new < 0) return -1;
        if (!is_new) continue;
        l->taken += n;
        if (l->taken > MAX_TAKEN) return dw_fail(err, "%s: it names more than %d MiB of texts", key, MAX_TAKEN >> 20);
        if (json_array_append(l->texts, text)) return fail_memory(err);
    }
    return 0;
}

int lineage_texts_of_model(lineage *l, const dw_gguf *g, dw_err *err) {
    const dw_kv *steps;
    const int found = find_steps(g, &steps, err);
    bool unnamed = false;
    known k = {{0}};
    int rc = found < 0 || lineage_learnt_unnamed(g, &unnamed, err) ? -1 : 0;
    if (!rc && unnamed) rc = lineage_unnamed_data(l, dw_gguf_path(g), err);
    if (!rc) rc = know_own(&k, l, err);
    for (size_t i = 0; found > 0 && i < steps->count && !rc; i++) {
        if (dw_set_has(&k.steps, steps->str[i].ptr, steps->str[i].len)) continue;
        json_t *step = parse_step(steps, i, err);
        rc = step ? take_texts(l, &k, step, err) : -1;
        if (rc) dw_fail_in(err, "'%s'", dw_gguf_path(g));
        json_decref(step);
    }
    release_known(&k);
    return rc;
}

int lineage_check_texts_of_model(const dw_gguf *parent, const dw_gguf *g, dw_err *err) {
    lineage l = {.steps = json_array(), .step = json_object(), .texts = json_array()};
    int rc = l.steps && l.step && l.texts ? copy_steps(&l, parent, err) : fail_memory(err);
    if (!rc) rc = lineage_texts_of_model(&l, g, err);
    json_decref(l.steps);
    json_decref(l.step);
    json_decref(l.texts);
    return rc;
}

int lineage_write(const lineage *l, dw_gguf_writer *w, dw_err *err) {
    const size_t n = json_array_size(l->steps);
    size_t n_last;
    char *last = dump(l->step, JSON_COMPACT, &n_last, err);
    json_t *read_back = last ? parse_text(last, n_last, n, err) : NULL; // no model gets a lineage that cannot be read
    dw_str *steps = read_back ? dw_alloc(n + 1, sizeof *steps, "the lineage", err) : NULL;
    if (steps) {
        for (size_t i = 0; i < n; i++) {
            const json_t *s = json_array_get(l->steps, i);
            steps[i] = (dw_str){json_string_value(s), json_string_length(s)};
        }
        steps[n] = (dw_str){last, n_last};
        dw_gguf_set_strs(w, key, steps, n + 1);
        dw_gguf_unset(w, LINEAGE_BY_UPSTREAM);
    }
    const int rc = steps ? 0 : -1;
    json_decref(read_back);
    free(steps);
    free(last);
    return rc;
}

char *lineage_to_json(const dw_gguf *g, dw_err *err) {
    lineage l = {.steps = json_array(), .step = json_object()};
    char *text = NULL;
    size_t n;
    int rc = l.steps && l.step ? copy_steps(&l, g, err) : fail_memory(err);
    if (!rc && (json_object_set_new(l.step, "parent", base_name_json(dw_gguf_path(g))) ||
                json_object_set(l.step, "steps", l.steps)))
        rc = fail_memory(err);
    if (!rc && json_array_size(l.steps)) text = dump(l.step, JSON_COMPACT, &n, err);
    json_decref(l.steps);
    json_decref(l.step);
    if (!text || n <= MAX_JSON) return text;
    free(text);
    return NULL;
}

static int check_steps(const json_t *steps, dw_err *err) {
    size_t i;
    const json_t *text;
    if (!json_is_array(steps) || json_array_size(steps) >= MAX_STEPS)
        return dw_fail(err, "%s: its steps are not an array of at most %d", key, MAX_STEPS - 1);
    json_array_foreach((json_t *)(uintptr_t)steps, i, text) {
        if (!json_is_string(text)) return dw_fail(err, "%s: step %zu is not a string", key, i + 1);
        json_t *step = parse_text(json_string_value(text), json_string_length(text), i, err);
        if (!step) return -1;
        json_decref(step);
    }
    return 0;
}

int lineage_from_json(lineage *l, const char *json, dw_err *err) {
    json_t *j = dw_json_parse(json, strlen(json), DW_JSON_TREE, key, err);
    json_t *steps = json_object_get(j, "steps"), *parent = json_object_get(j, "parent");
    int rc = !j ? -1 : json_is_string(parent) ? check_steps(steps, err) : dw_fail(err, "%s: it has no parent", key);
    if (!rc && (json_array_extend(l->steps, steps) || json_object_set(l->step, "parent", parent)))
        rc = fail_memory(err);
    json_decref(j);
    return rc;
}

void lineage_free(lineage *l) {
    if (!l) return;
    json_decref(l->steps);
    json_decref(l->step);
    free(l);
}

/* ---- commands --------------------------------------------------------------------------------------------- */

/* A word quoted for a shell. */
static void put_word(FILE *to, const char *before, const char *word) {
    char *quoted = opt_quoted(word);
    fprintf(to, "%s%s", before, quoted);
    free(quoted);
}

/* A text that is written into memory; end_text closes it.  Both end the program when memory is missing. */
static FILE *begin_text(char **text, size_t *size) { return tool_need(open_memstream(text, size), "a command"); }

static void end_text(FILE *f) {
    const bool failed = ferror(f);
    if (fclose(f) || failed) tool_need(NULL, "a command");
}

char *lineage_arguments(const opt_program *program, dw_err *err) {
    json_t *args = json_array(), *arg;
    char *line = NULL;
    size_t i, size;
    if (!args || add_args(args, program->rows)) {
        fail_memory(err);
    } else {
        FILE *f = begin_text(&line, &size);
        json_array_foreach(args, i, arg) put_word(f, i ? " " : "", json_string_value(arg));
        end_text(f);
    }
    json_decref(args);
    return line;
}

/* Programs that write models.  Other programs are not proposed: their options may load code or write files. */
static const char *const makers[] = {"convert", "synth", "cut", "gate", "requant", "train", "heal"};

/* Options that write or copy other files or load code, of these and other programs.  Except --teacher-cache, which heal
 * stores because it changes bytes, deadwood never stores them (OPT_NO_BYTE), so a lineage that has another one is
 * forged. */
static const char *const caches[] = {"teacher-cache"};
static const char *const not_proposed[] = {"out",  "hf",    "checkpoint", "report",  "export-imatrix", "store",
                                           "plot", "stock", "fetch",      "program", "snapshots"};

static bool is_one_of(const char *word, size_t n_word, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strlen(list[i]) == n_word && !memcmp(list[i], word, n_word)) return true;
    return false;
}
#define IS_ONE_OF(word, n_word, list) is_one_of(word, n_word, list, sizeof(list) / sizeof *(list))

/* Why a step is not proposed as a command that writes `output`; NULL: it is proposed. */
static const char *why_not(const json_t *step, const char *output) {
    if (strchr("./", *dw_base_name(output))) return "the file that it writes is hidden or has no name";
    const json_t *args = json_object_get(step, "args"), *arg;
    const char *tool_word = text_of(step, "tool");
    if (!IS_ONE_OF(tool_word, strlen(tool_word), makers)) return "it names no tool that writes models";
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)args, i, arg) {
        const char *word = json_string_value(arg);
        if (!word) return "an argument is not a string";
        if (word[0] != '-') continue;
        const size_t n = word[1] == '-' ? strcspn(word + 2, "=") : 0;
        if (!n) return "an argument is not written as deadwood writes it";
        if (IS_ONE_OF(word + 2, n, caches)) return "it has --teacher-cache, which writes another file";
        if (IS_ONE_OF(word + 2, n, not_proposed)) return "an option names another file to write, or code";
    }
    return NULL;
}

/* Option and the base name of a value that may be a path, without a slash at the end. */
static void put_base_name(FILE *to, const char *option, const char *path) {
    const char *name = dw_base_name(path);
    char *word = tool_need(dw_format(NULL, "%s%.*s", option, (int)strcspn(name, "/"), name), "a command");
    put_word(to, " ", word);
    free(word);
}

/* arg is "--option", "--option=value" or a value. */
static void put_argument(FILE *to, const char *arg) {
    const size_t n = strncmp(arg, "--", 2) ? 0 : strcspn(arg, "=") + (strchr(arg, '=') != NULL);
    char *option = tool_need(dw_format(NULL, "%.*s", (int)n, arg), "a command");
    put_base_name(to, option, arg + n);
    free(option);
}

/* "deadwood TOOL positional.. -o OUTPUT --options.." */
static void put_command(FILE *to, const json_t *step, const char *output) {
    const json_t *args = json_object_get(step, "args");
    const size_t n = json_array_size(args);
    size_t i = 0;
    const char *arg;
    fputs("deadwood", to);
    put_word(to, " ", text_of(step, "tool"));
    for (; i < n && (arg = json_string_value(json_array_get(args, i))) && arg[0] != '-'; i++) put_argument(to, arg);
    fputs(" -o", to);
    put_base_name(to, "", output);
    for (; i < n; i++) put_argument(to, json_string_value(json_array_get(args, i)));
    fputc('\n', to);
}

static void put_fact_of_upstream(FILE *to, const json_t *step) {
    const char *by = json_string_value(json_object_get(json_object_get(step, "facts"), "parent_quantized_by"));
    char text[256];
    if (!by) return;
    dw_show(text, sizeof text, by, strlen(by));
    fprintf(to, "# here upstream quantized the file: %s\n", text);
}

static int put_step(FILE *to, const dw_gguf *g, const dw_kv *steps, size_t i, dw_err *err) {
    json_t *step = parse_step(steps, i, err);
    const bool is_last = i + 1 == steps->count;
    json_t *next = step && !is_last ? parse_step(steps, i + 1, err) : NULL;
    const bool ok = step && (next || is_last);
    if (ok) {
        const char *output = next ? text_of(next, "parent") : dw_gguf_path(g), *why = why_not(step, output);
        put_fact_of_upstream(to, step);
        if (why) fprintf(to, "# step %zu is left out: %s\n", i + 1, why);
        else put_command(to, step, output);
    }
    json_decref(next);
    json_decref(step);
    return ok ? 0 : -1;
}

static void put_upstream(FILE *to, const dw_gguf *g) {
    char text[256];
    dw_str by;
    if (dw_gguf_str(g, LINEAGE_BY_UPSTREAM, &by, NULL) <= 0) return;
    dw_show(text, sizeof text, by.ptr, by.len);
    fprintf(to, "# after these commands upstream quantized the file: %s\n", text);
}

char *lineage_commands(const dw_gguf *g, dw_err *err) {
    const dw_kv *steps;
    const int found = find_steps(g, &steps, err);
    if (found < 0 || (!found && !dw_gguf_find(g, LINEAGE_BY_UPSTREAM))) return NULL;
    char *lines;
    size_t size;
    int rc = 0;
    FILE *f = begin_text(&lines, &size);
    for (size_t i = 0; found && i < steps->count && !rc; i++) rc = put_step(f, g, steps, i, err);
    if (!rc) put_upstream(f, g);
    end_text(f);
    if (!rc) return lines;
    free(lines);
    return NULL;
}

/* ---- leaks ------------------------------------------------------------------------------------------------ */

typedef struct block {
    uint32_t hash[LEAK_BLOCKS], index; // of this block and those that follow
} block;

/* The n hashes of an evaluation text: of the 16 tokens from each position on. */
typedef struct windows {
    uint32_t *hash;
    size_t n;
} windows;

static int compare_hashes(const block *a, const block *b) {
    for (int i = 0; i < LEAK_BLOCKS; i++)
        if (a->hash[i] != b->hash[i]) return a->hash[i] < b->hash[i] ? -1 : 1;
    return 0;
}

static int by_hashes(const void *a, const void *b) {
    const block *x = a, *y = b;
    const int c = compare_hashes(x, y);
    return c ? c : (x->index > y->index) - (x->index < y->index);
}

/* The first block with these hashes, of n that are sorted; NULL: none. */
static const block *find_block(const block *sorted, size_t n, const block *wanted) {
    size_t low = 0, high = n; // find the first block whose hashes are not smaller
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (compare_hashes(&sorted[middle], wanted) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && !compare_hashes(&sorted[low], wanted) ? &sorted[low] : NULL;
}

/* How many blocks in a row, from block j on, the evaluation text has from position p on. */
static size_t run_length(const uint32_t *text, size_t n_block, size_t j, const windows *w, size_t p) {
    size_t n = 0;
    while (j + n < n_block && p + BLOCK * n < w->n && text[j + n] == w->hash[p + BLOCK * n]) n++;
    return n;
}

/* Tokens of the first shared run of at least LEAK_BLOCKS blocks; 0: none; -1: memory is missing.  Blocks are sorted
 * with those that follow, because a text may have the same block thousands of times. */
static long shared_run(const char *blocks, const windows *w, dw_err *err) {
    const size_t n_block = strlen(blocks) / 8, n_run = n_block - LEAK_BLOCKS + 1;
    if (n_block < LEAK_BLOCKS) return 0;
    long run = -1;
    uint32_t *text = dw_alloc(n_block, sizeof *text, "the hashes of a text", err); // in the order of the text
    block *sorted = dw_alloc(n_run, sizeof *sorted, "the hashes of a text", err);
    if (!text || !sorted) goto done;
    for (size_t j = 0; j < n_block; j++) {
        char digits[9] = "";
        memcpy(digits, blocks + 8 * j, 8);
        text[j] = (uint32_t)strtoul(digits, NULL, 16);
    }
    for (size_t j = 0; j < n_run; j++) {
        memcpy(sorted[j].hash, text + j, sizeof sorted[j].hash);
        sorted[j].index = (uint32_t)j;
    }
    qsort(sorted, n_run, sizeof *sorted, by_hashes);
    run = 0;
    for (size_t p = 0; p + (LEAK_BLOCKS - 1) * BLOCK < w->n && !run; p++) {
        block wanted = {.index = 0};
        for (int i = 0; i < LEAK_BLOCKS; i++) wanted.hash[i] = w->hash[p + (size_t)(i * BLOCK)];
        const block *found = find_block(sorted, n_run, &wanted);
        if (found) run = (long)(run_length(text, n_block, found->index, w, p) * BLOCK);
    }
done:
    free(text);
    free(sorted);
    return run;
}

/* free() the hashes. */
static int hash_windows(windows *w, const int32_t *ids, size_t n, dw_err *err) {
    *w = (windows){.n = n >= BLOCK ? n - BLOCK + 1 : 0};
    w->hash = dw_alloc(w->n + 1, sizeof *w->hash, "the hashes of a text", err);
    for (size_t p = 0; w->hash && p < w->n; p++) w->hash[p] = block_hash(ids + p);
    return w->hash ? 0 : -1;
}

long lineage_shared_run(const kit_stats_text *text, size_t n_text, const char sha256[65], const int32_t *ids, size_t n,
                        size_t *which, dw_err *err) {
    windows w;
    long run = 0;
    if (hash_windows(&w, ids, n, err)) return -1;
    for (size_t i = 0; i < n_text && !run; i++) {
        if (!strcmp(text[i].sha256, sha256)) continue;
        run = shared_run(text[i].blocks, &w, err);
        *which = i;
    }
    free(w.hash);
    return run;
}

/* ---- ends that are held out ---------------------------------------------------------------------------------- */

typedef struct end_run { // LEAK_BLOCKS blocks of a text's end
    uint32_t hash[LEAK_BLOCKS];
    uint32_t text, at; // at: of the first token
} end_run;

static int by_end_hashes(const void *pa, const void *pb) {
    const end_run *a = pa, *b = pb;
    return memcmp(a->hash, b->hash, sizeof a->hash);
}

static int by_end_hashes_and_text(const void *pa, const void *pb) {
    const end_run *a = pa, *b = pb;
    const int c = by_end_hashes(a, b);
    return c ? c : (a->text > b->text) - (a->text < b->text);
}

static end_run run_at(const lineage_split *text, size_t t, size_t at) {
    end_run run = {.text = (uint32_t)t, .at = (uint32_t)at};
    for (int i = 0; i < LEAK_BLOCKS; i++) run.hash[i] = block_hash(text[t].id + at + (size_t)(i * BLOCK));
    return run;
}

/* The runs of all ends, sorted.  A run that one end repeats is there once.  *n: how many there are; free(). */
static end_run *list_ends(const lineage_split *text, size_t n_text, size_t *n, dw_err *err) {
    size_t most = 0, n_all = 0;
    for (size_t t = 0; t < n_text; t++) most += text[t].n - text[t].n_train;
    end_run *end = dw_alloc(most, sizeof *end, "the hashes of texts", err);
    *n = 0;
    for (size_t t = 0; end && t < n_text; t++)
        for (size_t at = text[t].n_train; at + LEAK_BLOCKS * BLOCK <= text[t].n; at++)
            end[n_all++] = run_at(text, t, at);
    if (end && n_all) qsort(end, n_all, sizeof *end, by_end_hashes_and_text);
    for (size_t i = 0; i < n_all; i++)
        if (!*n || by_end_hashes_and_text(&end[*n - 1], &end[i])) end[(*n)++] = end[i];
    return end;
}

/* An end of another file that has this run; NULL: there is none. */
static const end_run *find_end(const end_run *end, size_t n, const end_run *run, const lineage_split *text) {
    const end_run *found = n ? bsearch(run, end, n, sizeof *end, by_end_hashes) : NULL;
    if (!found) return NULL;
    while (found > end && !by_end_hashes(found - 1, run)) found--;
    for (; found < end + n && !by_end_hashes(found, run); found++)
        if (strcmp(text[found->text].sha256, text[run->text].sha256)) return found;
    return NULL;
}

long lineage_shared_end(const lineage_split *text, size_t n_text, size_t *learnt, size_t *held, dw_err *err) {
    size_t n;
    long shared = 0;
    end_run *end = list_ends(text, n_text, &n, err);
    if (!end) return -1;
    for (size_t t = 0; t < n_text && !shared; t++)
        for (size_t at = 0; at + LEAK_BLOCKS * BLOCK <= text[t].n_train && !shared; at += BLOCK) {
            const end_run run = run_at(text, t, at), *found = find_end(end, n, &run, text);
            if (!found) continue;
            const lineage_split *other = &text[found->text];
            long before = 0; // tokens of the run: the hit is a whole block of the text that teaches
            while (before < (long)at && before < (long)found->at - (long)other->n_train &&
                   text[t].id[at - (size_t)before - 1] == other->id[found->at - (size_t)before - 1])
                before++;
            while (at + (size_t)shared < text[t].n_train && found->at + (size_t)shared < other->n &&
                   text[t].id[at + (size_t)shared] == other->id[found->at + (size_t)shared])
                shared++;
            shared += before;
            *learnt = t, *held = found->text;
        }
    free(end);
    return shared;
}

/* Why the evaluation text leaks from this calibration text; NULL: it does not. */
static char *leak_of(const json_t *text, const char *tool_name, const char *sha256, const windows *w, dw_err *err) {
    const char *name = text_of(text, "name");
    if (!strcmp(text_of(text, "sha256"), sha256))
        return dw_format(err, "calibration text '%s' of step %s has the same hash", name, tool_name);
    const long run = shared_run(text_of(text, "blocks"), w, err);
    if (run <= 0) return NULL;
    return dw_format(err, "calibration text '%s' of step %s shares a run of %ld tokens or more", name, tool_name, run);
}

char *lineage_leak(const dw_gguf *g, const char sha256[65], const int32_t *ids, size_t n, dw_err *err) {
    const dw_kv *steps;
    dw_err own = {0};
    char *why = NULL;
    windows w = {NULL, 0};
    const int found = find_steps(g, &steps, &own);
    if (found > 0) hash_windows(&w, ids, n, &own);
    for (size_t i = 0; w.hash && i < steps->count && !why && !own.text[0]; i++) {
        json_t *step = parse_step(steps, i, &own), *text;
        size_t k;
        json_array_foreach(json_object_get(step, "texts"), k, text) if (!why && !own.text[0])
            why = leak_of(text, text_of(step, "tool"), sha256, &w, &own);
        json_decref(step);
    }
    free(w.hash);
    if (own.text[0]) dw_fail(err, "%s", own.text);
    return why;
}
