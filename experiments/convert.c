/* convert.c - a Hugging Face or MLX checkpoint folder becomes a GGUF file.
 *
 *     deadwood convert experiments/mini -o mini.gguf
 *
 * Without --type every matrix keeps its type, bit for bit.  With it every matrix is encoded, the embeddings too. */
#include "checkpoint.h"
#include "qtypes/encoding.h"
#include "kit/lineage.h"
#include "kit/options.h"
#include "kit/progress.h"
#include "kit/safetensors.h"
#include "kit/talk.h"
#include "kit/tensor_stream.h"

#include <stdlib.h>
#include <string.h>

typedef struct output_type {
    const char *name;
    int id; // a dw_qtype, or -1: as the checkpoint has it
} output_type;

static const output_type types[] = {{"keep", -1},      {"bf16", DW_BF16}, {"f16", DW_F16}, {"f32", DW_F32},
                                    {"q8_0", DW_Q8_0}, {"q4_0", DW_Q4_0}, {0}};

static struct {
    opt_list folder;
    const char *out, *type;
} o;

/* "convert DIR OUT" is what other programs take. */
static void refuse_second_folder(void) {
    if (o.folder.n > 1)
        die_usage("'%s' and '%s' are given, and one checkpoint folder is converted; the output is named with -o FILE",
                  o.folder.item[0], o.folder.item[1]);
}

static const char *hint(const char *word) {
    (void)word;
    return "other types and mixtures are made in two steps: deadwood convert DIR -o M.gguf, then deadwood requant -m "
           "M.gguf -o M2.gguf --type T|--mixture NAME";
}

// clang-format off
static const opt_row rows[] = {
    {NULL, 0, OPT_TEXTS, OPT_REQUIRED | OPT_INPUT, &o.folder, NULL, "DIR", "the checkpoint's folder"},
    {"out", 'o', OPT_PATH,  OPT_REQUIRED | OPT_NO_BYTE, &o.out, NULL, "FILE", "the GGUF file to write",
     .holds = KIT_GGUF},
    {"type", 0, OPT_CHOICE, 0, &o.type, "keep", "TYPE", "type of every matrix", OPT_CHOICES(types), .hint = hint},
    OPT_COMMON, {0}};
// clang-format on

static const opt_program program = {
    .name = "convert",
    .summary = "a Hugging Face or MLX checkpoint folder becomes a GGUF file",
    .usage = "DIR -o M.gguf [--type TYPE]",
    .about =
        "Reads config.json, the safetensors weights (single or sharded) and the tokenizer of Llama, Mistral, Qwen2 and "
        "Qwen3 checkpoints, and of MLX's affine-quantized ones.  Without --type every matrix keeps its bits; MLX's "
        "groups become Q4_1 or Q5_1 blocks where that is exact, and F16 with a warning otherwise.  Vectors become F32.",
    .example =
        "deadwood convert experiments/mini -o mini.gguf\ndeadwood convert experiments/mini -o mini-q4.gguf --type q4_0",
    .rows = rows};

typedef struct encoder { // of one tensor
    const checkpoint_tensor *t;
    const dw_qtype_row *type;
    size_t row_bytes;
    dw_encoding encoding;
} encoder;

static void encode_row(encoder *e, size_t r, float *values, uint8_t *out) {
    const bool is_kept = e->type == e->t->kept;
    if (is_kept && e->t->n_dims == 2) {
        checkpoint_row_kept(e->t, r, out);
        return;
    }
    checkpoint_row_values(e->t, r, values);
    if (is_kept) memcpy(out, values, e->row_bytes); // a vector of F32
    else dw_encode_row(&e->encoding, r, values, out);
}

static void encode_rows(void *encoder_pointer, const kit_piece *p) {
    encoder *e = encoder_pointer;
    for (size_t i = 0; i < p->n; i++) encode_row(e, p->first + i, p->scratch, p->out + i * e->row_bytes);
}

static int check_rows(void *encoder_pointer, dw_err *err) {
    encoder *e = encoder_pointer;
    return dw_encoding_end(&e->encoding, "choose --type bf16 or f32", err);
}

static int write_tensor(kit_stream *s, const checkpoint_tensor *t, const dw_qtype_row *type, dw_err *err) {
    encoder e = {.t = t, .type = type, .row_bytes = dw_qtype_row_bytes(type, t->ne[0]),
                 .encoding = {.tensor = t->name, .type = type, .n = t->ne[0]}};
    const kit_rows r = {.n_rows = t->n_dims == 2 ? t->ne[1] : 1, .row_bytes = e.row_bytes, .n_scratch = t->ne[0],
                        .make = encode_rows, .check = check_rows, .ctx = &e};
    return kit_stream_tensor(s, &r, err);
}

/* The type that a tensor is stored as: F32 for vectors; for matrices the one of --type, or the checkpoint's. */
static const dw_qtype_row *stored_type(const checkpoint_tensor *t, int wished) {
    if (t->n_dims == 1) return dw_qtype_get(DW_F32);
    if (wished >= 0) return dw_qtype_get((uint32_t)wished);
    return t->kept ? t->kept : dw_qtype_get(DW_F16);
}

static int write_tensors(const checkpoint *c, int wished, dw_gguf_writer *w, dw_pool *pool, double total, dw_err *err) {
    progress *bar = progress_begin("writing", "B", total);
    kit_stream *s = kit_stream_new(w, pool, bar, err);
    int rc = s ? 0 : -1;
    for (size_t i = 0; i < c->n_tensor && !rc; i++)
        rc = write_tensor(s, &c->tensor[i], stored_type(&c->tensor[i], wished), err);
    if (!rc) rc = kit_stream_end(s, err);
    kit_stream_free(s);
    progress_end(bar);
    return rc;
}

static int file_type(const checkpoint *c, int wished) {
    return stored_type(&c->tensor[0], wished)->file_type; // the embeddings' type stands for the file's
}

static int add_tensors(const checkpoint *c, int wished, dw_gguf_writer *w, double *total, dw_err *err) {
    size_t n_inexact = 0;
    for (size_t i = 0; i < c->n_tensor; i++) {
        const checkpoint_tensor *t = &c->tensor[i];
        const dw_qtype_row *type = stored_type(t, wished);
        if (t->ne[0] % (size_t)type->block)
            return dw_fail(err, "tensor '%s': rows of %zu values do not fit %s blocks of %d; choose another --type",
                           t->name, t->ne[0], type->name, type->block);
        n_inexact += wished < 0 && !t->kept;
        *total += (double)(dw_qtype_row_bytes(type, t->ne[0]) * t->ne[1]);
        dw_gguf_add_tensor(w, t->name, type, t->n_dims, t->ne);
    }
    if (n_inexact)
        warn(
            "%zu quantized matrices have no exact GGUF block format (bits, or scales beyond F16) and are stored as F16",
            n_inexact);
    return 0;
}

static bool has_file(const char *folder, const char *file) {
    char *path = dw_format(NULL, "%s/%s", folder, file);
    const bool has = path && dw_file_exists(path);
    free(path);
    return has;
}

static int add_input(lineage *l, const char *folder, const char *file, bool optional, dw_err *err) {
    char *path = dw_format(err, "%s/%s", folder, file);
    const int rc = !path ? -1 : optional && !dw_file_exists(path) ? 0 : lineage_input(l, path, err);
    free(path);
    return rc;
}

/* Of a folder that cut has written.  Another program that wrote the weights may have trained them. */
static int take_lineage(lineage *l, const checkpoint *c, dw_err *err) {
    const char *file = kit_safetensors_file(c->weights, 0), *json = kit_safetensors_metadata(c->weights, LINEAGE_KEY);
    if (!json && !c->had_lineage) return 0;
    if (json) return lineage_from_json(l, json, err) ? dw_fail_in(err, "'%s/%s'", c->folder, file) : 0;
    warn("'%s' was made by cut, but its weights have lost their lineage (another program wrote them, or it was too "
         "long); which texts they have seen is unknown",
         c->folder);
    return lineage_unnamed_data(l, file, err);
}

static int stamp(const checkpoint *c, dw_gguf_writer *w, dw_err *err) {
    lineage *l = lineage_new(&program, NULL, err);
    int rc = l ? take_lineage(l, c, err) : -1;
    static const char *const optional[] = {"config.json",
                                           "tokenizer.json",
                                           "tokenizer.model",
                                           "tokenizer_config.json",
                                           "generation_config.json",
                                           "chat_template.jinja",
                                           "model.safetensors.index.json",
                                           NULL};
    for (int i = 0; optional[i] && !rc; i++) rc = add_input(l, c->folder, optional[i], true, err);
    if (!rc && !has_file(c->folder, "tokenizer.json")) rc = add_input(l, c->folder, "added_tokens.json", true, err);
    for (size_t i = 0; i < kit_safetensors_n_files(c->weights) && !rc; i++)
        rc = add_input(l, c->folder, kit_safetensors_file(c->weights, i), false, err);
    if (!rc) rc = lineage_write(l, w, err);
    lineage_free(l);
    return rc;
}

static int write_file(const checkpoint *c, int wished, dw_gguf_writer *w, dw_pool *pool, dw_err *err) {
    double total = 0;
    const double began = dw_now();
    checkpoint_write_keys(c, w);
    dw_gguf_set_u32(w, "general.file_type", (uint32_t)file_type(c, wished));
    if (stored_type(&c->tensor[0], wished)->block > 1) dw_gguf_set_u32(w, "general.quantization_version", 2);
    dw_gguf_hash_writes(w);
    if (stamp(c, w, err) || add_tensors(c, wished, w, &total, err) || dw_gguf_begin(w, err)) return -1;
    if (write_tensors(c, wished, w, pool, total, err)) return -1;
    if (dw_gguf_commit_read_back(w, dw_model_opens, NULL, err)) return -1;
    const double seconds = dw_now() - began;
    char took[40] = "";
    if (seconds >= 0.1) snprintf(took, sizeof took, " in %s", show_duration(seconds).text);
    say("%zu tensors, %s%s", c->n_tensor, show_bytes((double)dw_file_bytes(o.out)).text, took);
    return 0;
}

static int convert(const checkpoint *c, int wished, dw_pool *pool, dw_err *err) {
    dw_gguf_writer *w = dw_gguf_writer_new(o.out, err);
    const int rc = w ? write_file(c, wished, w, pool, err) : -1;
    dw_gguf_writer_free(w);
    return rc;
}

int main(int argc, char **argv) {
    opt_parse(&program, argc, argv);
    refuse_second_folder();
    dw_err err = {0};
    checkpoint c;
    if (checkpoint_open(&c, o.folder.item[0], &err)) die_err(&err);
    int wished = -1;
    for (const output_type *t = types; t->name; t++)
        if (!strcmp(t->name, o.type)) wished = t->id;
    if (c.config.sliding_window > 0 && c.config.sliding_window < c.config.n_ctx)
        warn("the model attends to the last %d positions only; this engine and llama.cpp attend to all, "
             "so longer texts differ",
             c.config.sliding_window);
    dw_pool *pool = dw_pool_new(tool.threads, &err);
    if (!pool || convert(&c, wished, pool, &err)) die_err(&err);
    dw_pool_free(pool);
    checkpoint_close(&c);
    return 0;
}
