/* stock.c - prototypes, offsets and calls of llama.cpp's public C interface, as of release 0.5.0. */
#include "experiments/peer/stock.h"

#include "kit/imatrix.h"
#include "kit/lineage.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- what the library looks like ------------------------------------------------------------------------ */

/* Larger than either parameter struct of any release so far (80 and 160 bytes in 0.5.0).  A struct of this size is
 * returned through a hidden pointer and passed as a copy on the stack, in both calling conventions that matter (System
 * V x86-64, AArch64); the library fills in and reads only its own front part. */
typedef struct opaque_params {
    union {
        uint8_t byte[512];
        int64_t align;
    };
} opaque_params;

typedef struct llama_batch { // this one is stable
    int32_t n_tokens;
    int32_t *token;
    float *embd;
    int32_t *pos;
    int32_t *n_seq_id;
    int32_t **seq_id;
    int8_t *logits;
} llama_batch;

typedef struct imatrix_entry { // the list ends with name NULL
    const char *name;
    const float *data;
    size_t size;
} imatrix_entry;

typedef struct llama_model_kv_override { // a key that the new file gets; the list ends with an empty one
    int32_t tag;
    char key[128];
    union {
        int64_t number;
        char text[128];
    };
} llama_model_kv_override;

typedef struct library {
    void (*ggml_backend_load_all_from_path)(const char *folder);
    void (*llama_log_set)(void (*log)(int level, const char *text, void *ctx), void *ctx);
    void (*llama_backend_init)(void);
    void (*llama_backend_free)(void);
    const char *(*llama_version)(void);
    opaque_params (*llama_model_default_params)(void);
    opaque_params (*llama_context_default_params)(void);
    opaque_params (*llama_model_quantize_default_params)(void);
    void *(*llama_model_load_from_file)(const char *path, opaque_params params);
    void (*llama_model_free)(void *model);
    const void *(*llama_model_get_vocab)(const void *model);
    int32_t (*llama_vocab_n_tokens)(const void *vocab);
    void *(*llama_init_from_model)(void *model, opaque_params params);
    void (*llama_free)(void *context);
    void (*llama_set_n_threads)(void *context, int32_t n_threads, int32_t n_threads_batch);
    int32_t (*llama_decode)(void *context, llama_batch batch);
    void (*llama_synchronize)(void *context);
    float *(*llama_get_logits_ith)(void *context, int32_t i);
    void *(*llama_get_memory)(const void *context);
    bool (*llama_memory_seq_rm)(void *memory, int32_t seq, int32_t first, int32_t end);
    uint32_t (*llama_model_quantize)(const char *in, const char *out, const opaque_params *params);
} library;

#define SYMBOL(name) {#name, offsetof(library, name)}
static const struct { const char *name; size_t at; } symbols[] = {
    SYMBOL(ggml_backend_load_all_from_path), SYMBOL(llama_log_set), SYMBOL(llama_backend_init),
    SYMBOL(llama_backend_free), SYMBOL(llama_version), SYMBOL(llama_model_default_params),
    SYMBOL(llama_context_default_params), SYMBOL(llama_model_quantize_default_params),
    SYMBOL(llama_model_load_from_file), SYMBOL(llama_model_free), SYMBOL(llama_model_get_vocab),
    SYMBOL(llama_vocab_n_tokens), SYMBOL(llama_init_from_model), SYMBOL(llama_free), SYMBOL(llama_set_n_threads),
    SYMBOL(llama_decode), SYMBOL(llama_synchronize), SYMBOL(llama_get_logits_ith), SYMBOL(llama_get_memory),
    SYMBOL(llama_memory_seq_rm), SYMBOL(llama_model_quantize),
};

/* Fields that are set, by byte offset, and the default that release 0.5.0 has there. */
typedef struct field {
    int at, size;
    int64_t initial;
} field;

static const field ctx_n_ctx = {0, 4, 512}, ctx_n_batch = {4, 4, 2048}, ctx_n_ubatch = {8, 4, 512},
                   ctx_n_seq = {12, 4, 1}, ctx_n_threads = {28, 4, 4}, ctx_n_threads_batch = {32, 4, 4},
                   ctx_flash = {52, 4, -1}, ctx_type_k = {104, 4, 1}, ctx_type_v = {108, 4, 1};
static const field model_extra_buffers = {74, 1, 1}, model_gpu_layers = {16, 4, -1}, model_load_mode = {24, 4, -1};
static const field quant_n_threads = {0, 4, 0}, quant_type = {4, 4, 7}, quant_imatrix = {24, 8, 0},
                   quant_keys = {32, 8, 0};
static const char known_version[] = "0.5.0";

static int64_t get(const opaque_params *p, field f) {
    int64_t wide;
    int32_t narrow;
    if (f.size == 1) return p->byte[f.at];
    memcpy(&narrow, p->byte + f.at, sizeof narrow);
    memcpy(&wide, p->byte + f.at, sizeof wide);
    return f.size == 4 ? narrow : wide;
}

static void set(opaque_params *p, field f, int64_t value) { // little-endian, as both machines are
    memcpy(p->byte + f.at, &value, (size_t)f.size);
}

static bool has_defaults(const opaque_params *p, const field *fields, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (get(p, fields[i]) != fields[i].initial) return false;
    return true;
}

/* ---- opening ------------------------------------------------------------------------------------------------ */

struct stock {
    library lib;
    void *handle;
    bool can_set;
    char cpu_library[64];
    char last_error[256]; // what it logged last as an error
};

/* Takes note of the CPU variant and of errors; says nothing. */
static void listen(int level, const char *text, void *ctx) {
    enum { LEVEL_ERROR = 4 };
    stock *s = ctx;
    const char *loaded = strstr(text, "loaded CPU backend from ");
    if (loaded) {
        const char *slash = strrchr(loaded, '/');
        snprintf(s->cpu_library, sizeof s->cpu_library, "%.*s", (int)strcspn(slash ? slash + 1 : loaded, "\n"),
                 slash ? slash + 1 : loaded);
    }
    if (level == LEVEL_ERROR) snprintf(s->last_error, sizeof s->last_error, "%.*s", (int)strcspn(text, "\n"), text);
}

static const char *why(const stock *s) { return s->last_error[0] ? s->last_error : "no reason given"; }

/* The library's name has its version in it. */
static char *find_library(const char *folder, dw_err *err) {
    DIR *dir = opendir(folder);
    char *path = NULL;
    for (struct dirent *e; dir && !path && (e = readdir(dir));)
        if (!strncmp(e->d_name, "libllama.", 9) && strstr(e->d_name, ".so"))
            path = dw_format(err, "%s/%s", folder, e->d_name);
    if (dir) closedir(dir);
    if (!path) dw_fail(err, "no libllama*.so in '%s'; give the folder of a package of upstream llama.cpp", folder);
    return path;
}

static int load_symbols(stock *s, const char *path, dw_err *err) {
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *f = dlsym(s->handle, symbols[i].name);
        if (!f)
            return dw_fail(err, "'%s' has no function '%s'; version %s is known to work", path, symbols[i].name,
                           known_version);
        memcpy((char *)&s->lib + symbols[i].at, &f, sizeof f);
    }
    return 0;
}

/* Are the fields where they are expected? */
static bool offsets_hold(const stock *s) {
    const field context[] = {ctx_n_ctx,           ctx_n_batch, ctx_n_ubatch, ctx_n_seq, ctx_n_threads,
                             ctx_n_threads_batch, ctx_flash,   ctx_type_k,   ctx_type_v};
    const field model[] = {model_extra_buffers, model_gpu_layers, model_load_mode};
    const field quant[] = {quant_n_threads, quant_type, quant_imatrix, quant_keys};
    const opaque_params c = s->lib.llama_context_default_params(), m = s->lib.llama_model_default_params(),
                        q = s->lib.llama_model_quantize_default_params();
    return !strncmp(s->lib.llama_version(), known_version, strlen(known_version)) &&
           has_defaults(&c, context, sizeof context / sizeof *context) &&
           has_defaults(&m, model, sizeof model / sizeof *model) &&
           has_defaults(&q, quant, sizeof quant / sizeof *quant);
}

stock *stock_open(const char *folder, dw_err *err) {
    if (!folder) folder = getenv("DW_STOCK");
    if (!folder) {
        dw_fail(err, "upstream llama.cpp: no folder given; name the one with libllama*.so in $DW_STOCK");
        return NULL;
    }
    stock *s = dw_alloc(1, sizeof *s, "functions of upstream", err);
    char *path = s ? find_library(folder, err) : NULL;
    if (!path) goto fail;
    s->handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!s->handle) {
        dw_fail(err, "cannot load '%s': %s", path, dlerror());
        goto fail;
    }
    if (load_symbols(s, path, err)) goto fail;
    s->lib.llama_log_set(listen, s);
    s->lib.ggml_backend_load_all_from_path(folder);
    s->lib.llama_backend_init();
    s->can_set = offsets_hold(s);
    free(path);
    return s;
fail:
    free(path);
    stock_close(s);
    return NULL;
}

void stock_close(stock *s) {
    if (!s) return;
    if (s->lib.llama_model_quantize) { // the last symbol: all are there
        s->lib.llama_backend_free();
        s->lib.llama_log_set(NULL, NULL);
    }
    free(s); // the library stays mapped: its threads' destructors may still run
}

const char *stock_version(const stock *s) { return s->lib.llama_version(); }
const char *stock_cpu_library(const stock *s) { return s->cpu_library; }
bool stock_can_set(const stock *s) { return s->can_set; }

/* ---- sessions ------------------------------------------------------------------------------------------------- */

struct stock_session {
    stock *s;
    void *model, *context;
    int n_vocab, n_batch, n_seq;
    int n_past; // positions that every sequence of the last batch has filled
    int32_t *pos, *n_seq_id;
    int32_t *seq;     // n_seq: 0, 1, 2, ..
    int32_t **seq_id; // pointers into seq
    int8_t *logits; // n_batch each
};

static opaque_params model_params(const stock *s, const stock_options *o) {
    opaque_params p = s->lib.llama_model_default_params();
    if (!s->can_set) return p;
    enum { LOAD_MAPPED = 1 };
    set(&p, model_load_mode, LOAD_MAPPED);
    set(&p, model_extra_buffers, !o->plain_buffers);
    return p;
}

static opaque_params context_params(const stock *s, const stock_options *o, int n_batch) {
    opaque_params p = s->lib.llama_context_default_params();
    if (!s->can_set) return p;
    const int n_seq = o->n_seq ? o->n_seq : 1;
    set(&p, ctx_n_ctx, (int64_t)n_seq * (o->n_ctx ? o->n_ctx : 512)); // of all sequences
    set(&p, ctx_n_seq, n_seq);
    set(&p, ctx_n_batch, n_batch);
    set(&p, ctx_n_ubatch, 512);
    set(&p, ctx_n_threads, o->n_threads);
    set(&p, ctx_n_threads_batch, o->n_threads);
    set(&p, ctx_flash, o->flash);
    if (o->kv_f32) {
        set(&p, ctx_type_k, 0);
        set(&p, ctx_type_v, 0);
    }
    return p;
}

stock_session *stock_session_new(stock *s, const char *path, const stock_options *o, dw_err *err) {
    stock_session *ss = dw_alloc(1, sizeof *ss, "a session of upstream", err);
    if (!ss) return NULL;
    const size_t n = o->n_batch ? (size_t)o->n_batch : 512;
    ss->s = s;
    ss->n_batch = (int)n;
    ss->n_seq = o->n_seq ? o->n_seq : 1;
    ss->seq = dw_alloc((size_t)ss->n_seq, sizeof *ss->seq, "a batch", err);
    ss->pos = dw_alloc(n, sizeof *ss->pos, "a batch", err);
    ss->n_seq_id = dw_alloc(n, sizeof *ss->n_seq_id, "a batch", err);
    ss->seq_id = dw_alloc(n, sizeof *ss->seq_id, "a batch", err);
    ss->logits = dw_alloc(n, sizeof *ss->logits, "a batch", err);
    if (!ss->pos || !ss->n_seq_id || !ss->seq_id || !ss->logits || !ss->seq) goto fail;
    for (int k = 0; k < ss->n_seq; k++) ss->seq[k] = k;
    if ((ss->n_seq > 1 || o->kv_f32) && !s->can_set) {
        dw_fail(err, "upstream %s: where its %s is set is not known; version %s is known to work", stock_version(s),
                o->kv_f32 ? "KV cache's type" : "number of sequences", known_version);
        goto fail;
    }
    s->last_error[0] = 0;
    ss->model = s->lib.llama_model_load_from_file(path, model_params(s, o));
    if (!ss->model) {
        dw_fail(err, "upstream cannot load '%s': %s", path, why(s));
        goto fail;
    }
    ss->context = s->lib.llama_init_from_model(ss->model, context_params(s, o, ss->n_batch));
    if (!ss->context) {
        dw_fail(err, "upstream cannot make a session over '%s': %s", path, why(s));
        goto fail;
    }
    s->lib.llama_set_n_threads(ss->context, o->n_threads, o->n_threads);
    ss->n_vocab = s->lib.llama_vocab_n_tokens(s->lib.llama_model_get_vocab(ss->model));
    return ss;
fail:
    stock_session_free(ss);
    return NULL;
}

void stock_session_free(stock_session *ss) {
    if (!ss) return;
    if (ss->context) ss->s->lib.llama_free(ss->context);
    if (ss->model) ss->s->lib.llama_model_free(ss->model);
    free(ss->pos);
    free(ss->n_seq_id);
    free(ss->seq);
    free(ss->seq_id);
    free(ss->logits);
    free(ss);
}

int stock_session_n_vocab(const stock_session *ss) { return ss->n_vocab; }

int stock_session_eval(stock_session *ss, const stock_tokens *t, dw_err *err) {
    const int n_all = t->n * t->n_seq;
    if (n_all > ss->n_batch) return dw_fail(err, "upstream: %d tokens in a batch of %d", n_all, ss->n_batch);
    if (t->n_seq > ss->n_seq) return dw_fail(err, "upstream: %d sequences in a session of %d", t->n_seq, ss->n_seq);
    for (int i = 0; i < n_all; i++) {
        ss->pos[i] = t->pos0 + i % t->n;
        ss->n_seq_id[i] = 1;
        ss->seq_id[i] = &ss->seq[i / t->n];
        ss->logits[i] = i % t->n >= t->n - t->n_out;
    }
    void *memory = ss->s->lib.llama_get_memory(ss->context);
    for (int k = 0; k < ss->n_seq && t->pos0 < ss->n_past; k++)
        if (!ss->s->lib.llama_memory_seq_rm(memory, k, t->pos0, -1))
            return dw_fail(err, "upstream cannot forget the positions from %d on", t->pos0);
    const llama_batch b = {n_all, (int32_t *)(uintptr_t)t->token, NULL, ss->pos, ss->n_seq_id, ss->seq_id, ss->logits};
    ss->s->last_error[0] = 0;
    const int rc = ss->s->lib.llama_decode(ss->context, b);
    if (rc) ss->n_past = t->pos0 + t->n; // some of it may have been stored
    if (rc) return dw_fail(err, "upstream: llama_decode returned %d: %s", rc, why(ss->s));
    ss->s->lib.llama_synchronize(ss->context);
    ss->n_past = t->pos0 + t->n;
    return 0;
}

const float *stock_session_logits(stock_session *ss, int i) { return ss->s->lib.llama_get_logits_ith(ss->context, i); }

/* ---- quantizing -------------------------------------------------------------------------------------------------- */

// clang-format off
static const struct { const char *name; int number; } file_types[] = {
    {"F32", 0}, {"F16", 1}, {"Q4_0", 2}, {"Q4_1", 3}, {"Q8_0", 7}, {"Q5_0", 8}, {"Q5_1", 9}, {"Q2_K", 10},
    {"Q3_K_S", 11}, {"Q3_K_M", 12}, {"Q3_K_L", 13}, {"Q4_K_S", 14}, {"Q4_K_M", 15}, {"Q5_K_S", 16}, {"Q5_K_M", 17},
    {"Q6_K", 18}, {"Q2_K_S", 21}, {"IQ4_NL", 25}, {"BF16", 32},
    // which this engine does not read
    {"IQ2_XXS", 19}, {"IQ2_XS", 20}, {"IQ3_XS", 22}, {"IQ3_XXS", 23}, {"IQ3_S", 26}, {"IQ3_M", 27},
    {"IQ2_S", 28}, {"IQ2_M", 29}, {"IQ4_XS", 30},
};
// clang-format on

static int type_row(const char *name) {
    for (size_t i = 0; i < sizeof file_types / sizeof *file_types; i++)
        if (!strcasecmp(name, file_types[i].name)) return (int)i;
    return -1;
}

/* The library's view of importances, which it borrows; free(). */
static imatrix_entry *list_importances(const kit_imatrix *im, dw_err *err) {
    imatrix_entry *list = dw_alloc(im->n_entry + 1, sizeof *list, "importances", err);
    for (size_t i = 0; list && i < im->n_entry; i++)
        list[i] = (imatrix_entry){im->entry[i].name, im->entry[i].mean, (size_t)im->entry[i].n};
    return list;
}

static llama_model_kv_override text_key(const char *key, const char *text) {
    enum { TEXT = 3 };
    llama_model_kv_override k = {.tag = TEXT};
    snprintf(k.key, sizeof k.key, "%s", key);
    snprintf(k.text, sizeof k.text, "%s", text);
    return k;
}

int stock_quantize(stock *s, const char *in, const char *out, const char *type, const char *imatrix_path, int n_threads,
                   dw_err *err) {
    const int row = type_row(type);
    if (row < 0) return dw_fail(err, "upstream quantizes to no type '%s'; try Q4_K_M", type);
    if (!s->can_set)
        return dw_fail(err, "upstream %s: where its quantizer's parameters are is not known", stock_version(s));
    kit_imatrix im = {0};
    imatrix_entry *list = NULL;
    int rc = -1;
    if (imatrix_path && (kit_imatrix_read(&im, imatrix_path, err) || !(list = list_importances(&im, err)))) goto done;
    char how[128];
    snprintf(how, sizeof how, "llama.cpp %.40s, %s", stock_version(s), file_types[row].name);
    /* What the file says of itself, since its lineage ends before this step. */
    const llama_model_kv_override keys[3] = {
        text_key(LINEAGE_BY_UPSTREAM, how),
        imatrix_path ? text_key("quantize.imatrix.file", dw_base_name(imatrix_path)) : (llama_model_kv_override){0}};
    opaque_params p = s->lib.llama_model_quantize_default_params();
    set(&p, quant_keys, (int64_t)(intptr_t)keys);
    set(&p, quant_n_threads, n_threads);
    set(&p, quant_type, file_types[row].number);
    if (list) set(&p, quant_imatrix, (int64_t)(intptr_t)list);
    s->last_error[0] = 0;
    rc = s->lib.llama_model_quantize(in, out, &p)
             ? dw_fail(err, "upstream cannot quantize '%s' to %s: %s", in, type, why(s))
             : 0;
done:
    free(list);
    kit_imatrix_release(&im);
    return rc;
}
