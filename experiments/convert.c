/* convert.c - a Hugging Face or MLX checkpoint folder becomes a GGUF file.
 *
 *     deadwood convert experiments/mini -o mini.gguf
 *
 * Without --type every matrix keeps its type, bit for bit; with it every matrix (the embeddings too) is encoded. */
#include "checkpoint.h"
#include "kit/lineage.h"
#include "kit/options.h"
#include "kit/progress.h"
#include "kit/safetensors.h"
#include "kit/talk.h"

#include <stdlib.h>
#include <string.h>

typedef struct output_type {
    const char *name;
    int id; // a dw_qtype, or -1: as the checkpoint has it
} output_type;

static const output_type types[] = {{"keep", -1}, {"bf16", DW_BF16}, {"f16", DW_F16}, {"f32", DW_F32}, {"q8_0", DW_Q8_0}, {"q4_0", DW_Q4_0}, {0}};

static struct {
    opt_list folder;
    const char *out, *type;
} o;

// clang-format off
static const opt_row rows[] = {
    {NULL, 0, OPT_TEXTS, OPT_REQUIRED | OPT_INPUT, &o.folder, NULL, "DIR", "the checkpoint's folder"},
    {"out", 'o', OPT_PATH,  OPT_REQUIRED | OPT_NO_BYTE, &o.out, NULL, "FILE", "the GGUF file to write"},
    {"type", 0, OPT_CHOICE, 0, &o.type, "keep", "TYPE", "type of every matrix", OPT_CHOICES(types)},
    OPT_COMMON, {0}};
// clang-format on

static const opt_program program = {
    .name = "convert",
    .summary = "a Hugging Face or MLX checkpoint folder becomes a GGUF file",
    .usage = "DIR -o M.gguf [--type TYPE]",
    .about = "Reads config.json, the safetensors weights (single or sharded) and the tokenizer of Llama, Mistral, Qwen2 and "
             "Qwen3 checkpoints, and of MLX's affine-quantized ones.  Without --type every matrix keeps its bits; MLX's groups become "
             "Q4_1 or Q5_1 blocks where that is exact, and F16 otherwise, which is said.  Vectors become F32.",
    .example = "deadwood convert experiments/mini -o mini.gguf\ndeadwood convert experiments/mini -o mini-q4.gguf --type q4_0",
    .rows = rows};

typedef struct job { // rows of one tensor, encoded by all threads
    const checkpoint_tensor *t;
    const dw_qtype_row *type;
    size_t first, n, row_bytes, rows_per_piece;
    float *values; // a row for each piece
    uint8_t *out;
} job;

static void encode_rows(void *job_pointer, size_t piece) {
    const job *j = job_pointer;
    const size_t end = (piece + 1) * j->rows_per_piece < j->n ? (piece + 1) * j->rows_per_piece : j->n;
    float *row = j->values + piece * j->t->ne[0];
    for (size_t i = piece * j->rows_per_piece; i < end; i++) {
        uint8_t *out = j->out + i * j->row_bytes;
        if (j->type == j->t->kept && j->t->n_dims == 2) {
            checkpoint_row_kept(j->t, j->first + i, out);
        } else {
            checkpoint_row_values(j->t, j->first + i, row);
            j->type->encode(row, out, j->t->ne[0], NULL);
        }
    }
}

enum { SLAB_BYTES = 16 << 20, MAX_PIECES = 64 };

static int write_tensor(dw_gguf_writer *w, const checkpoint_tensor *t, const dw_qtype_row *type, dw_pool *pool, progress *p, dw_err *err) {
    const size_t row_bytes = dw_qtype_row_bytes(type, t->ne[0]), n_rows = t->n_dims == 2 ? t->ne[1] : 1;
    size_t slab = SLAB_BYTES / row_bytes;
    slab = slab < 1 ? 1 : slab > n_rows ? n_rows : slab;
    uint8_t *out = dw_alloc(slab, row_bytes, "encoded rows", err);
    float *values = out ? dw_alloc(MAX_PIECES * t->ne[0], sizeof *values, "rows to encode", err) : NULL;
    int rc = values ? 0 : -1;
    for (size_t first = 0; first < n_rows && !rc; first += slab) {
        const size_t n = n_rows - first < slab ? n_rows - first : slab;
        job j = {t, type, first, n, row_bytes, (n + MAX_PIECES - 1) / MAX_PIECES, values, out};
        dw_pool_each(pool, (n + j.rows_per_piece - 1) / j.rows_per_piece, encode_rows, &j);
        rc = dw_gguf_write(w, out, n * row_bytes, err);
        progress_step(p, (double)(n * row_bytes));
    }
    free(values);
    free(out);
    return rc;
}

/* What a tensor is stored as: vectors as F32, matrices as wished, or kept. */
static const dw_qtype_row *stored_type(const checkpoint_tensor *t, int wished) {
    if (t->n_dims == 1) return dw_qtype_get(DW_F32);
    if (wished >= 0) return dw_qtype_get((uint32_t)wished);
    return t->kept ? t->kept : dw_qtype_get(DW_F16);
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
            return dw_fail(err, "tensor '%s': rows of %zu values do not fit %s blocks of %d; choose another --type", t->name, t->ne[0], type->name, type->block);
        n_inexact += wished < 0 && !t->kept;
        *total += (double)(dw_qtype_row_bytes(type, t->ne[0]) * t->ne[1]);
        dw_gguf_add_tensor(w, t->name, type, t->n_dims, t->ne);
    }
    if (n_inexact) warn("%zu quantized matrices have no exact GGUF block format (bits, or scales beyond F16) and are stored as F16", n_inexact);
    return 0;
}

static int add_input(lineage *l, const char *folder, const char *file, bool optional, dw_err *err) {
    char *path = dw_format(err, "%s/%s", folder, file);
    const int rc = !path ? -1 : optional && !dw_file_exists(path) ? 0 : lineage_input(l, path, err);
    free(path);
    return rc;
}

static int stamp(const checkpoint *c, dw_gguf_writer *w, dw_err *err) {
    lineage *l = lineage_new(&program, NULL, err);
    int rc = l ? 0 : -1;
    static const char *const beside[] = {"config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "generation_config.json",
                                        "chat_template.jinja", "model.safetensors.index.json", NULL};
    for (int i = 0; beside[i] && !rc; i++) rc = add_input(l, c->folder, beside[i], true, err);
    for (size_t i = 0; i < dw_safetensors_n_files(c->weights) && !rc; i++)
        rc = add_input(l, c->folder, dw_safetensors_file(c->weights, i), false, err);
    if (!rc) rc = lineage_write(l, w, err);
    lineage_free(l);
    return rc;
}

static int convert(const checkpoint *c, int wished, dw_pool *pool, dw_err *err) {
    int rc = -1;
    progress *p = NULL;
    dw_gguf_writer *w = dw_gguf_writer_new(o.out, err);
    if (!w) return -1;
    double total = 0;
    const double began = dw_now();
    checkpoint_write_keys(c, w);
    dw_gguf_set_u32(w, "general.file_type", (uint32_t)file_type(c, wished));
    if (stored_type(&c->tensor[0], wished)->block > 1) dw_gguf_set_u32(w, "general.quantization_version", 2);
    if (stamp(c, w, err) || add_tensors(c, wished, w, &total, err) || dw_gguf_begin(w, err)) goto done;
    p = progress_begin("writing", "B", total);
    for (size_t i = 0; i < c->n_tensor; i++)
        if (write_tensor(w, &c->tensor[i], stored_type(&c->tensor[i], wished), pool, p, err)) goto done;
    rc = dw_gguf_commit(w, err);
done:
    progress_end(p);
    if (!rc) say("%zu tensors, %s in %.1f s", c->n_tensor, show_bytes(total).text, dw_now() - began);
    dw_gguf_writer_free(w);
    return rc;
}

int main(int argc, char **argv) {
    opt_parse(&program, argc, argv);
    if (o.folder.n != 1) die_usage("give one checkpoint folder");
    dw_err err = {0};
    checkpoint c;
    if (checkpoint_open(&c, o.folder.item[0], &err)) die_err(&err);
    int wished = -1;
    for (const output_type *t = types; t->name; t++)
        if (!strcmp(t->name, o.type)) wished = t->id;
    if (c.config.sliding_window > 0 && c.config.sliding_window < c.config.n_ctx)
        warn("the model attends to the last %d positions only; here and in llama.cpp all are seen, so longer texts differ", c.config.sliding_window);
    dw_pool *pool = dw_pool_new(tool.threads, &err);
    if (!pool || convert(&c, wished, pool, &err)) die_err(&err);
    dw_pool_free(pool);
    checkpoint_close(&c);
    return 0;
}
