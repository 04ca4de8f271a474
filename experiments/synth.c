/* synth.c - deadwood-synth: a model file of a known shape with random weights.
 *
 *     deadwood-synth --shape qwen2.5-7b --type Q4_0 -o 7b.gguf */
#include "experiments/random_model.h"
#include "kit/lineage.h"
#include "kit/options.h"
#include "kit/progress.h"
#include "kit/talk.h"
#include "text/tokenizers.h"

#include <stdlib.h>

static const struct { const char *name; } groups[] = {{"1"}, {"32"}, {"64"}, {"128"}, {"256"}, {0}};

static struct {
    const char *shape, *type, *out, *vocab, *group;
    int seed, predictors, layers;
    double dead;
    bool gate;
} o;

static const opt_row options[] = {
    {"shape", 0, OPT_CHOICE, OPT_REQUIRED, &o.shape, NULL, "NAME", "the shape",
     OPT_CHOICES_HELP(exp_shapes, exp_shape)},
    {"type", 0, OPT_CHOICE, 0, &o.type, "Q4_0", "TYPE", "number type of every matrix, the embeddings too",
     OPT_CHOICES(dw_encodable_names)},
    {"out", 'o', OPT_PATH, OPT_REQUIRED | OPT_NO_BYTE, &o.out, NULL, "FILE", .help = "the GGUF file to write",
     .holds = KIT_GGUF},
    {"layers", 0, OPT_INT, 0, &o.layers, NULL, "N", "only the first N layers of the shape; default: all", .min = 1,
     .max = DW_MAX_LAYERS},
    {"seed", 0, OPT_INT, 0, &o.seed, "1", "N", "seed of all random numbers", .min = 0, .max = 2147483647},
    {"dead", 0, OPT_REAL, 0, &o.dead, "0", "F", "plant this fraction of every layer's neurons dead", .min = 0,
     .max = 1},
    {"gate", 0, OPT_FLAG, 0, &o.gate, NULL, NULL,
     "add transposed copies of down and a gate, for measuring run-time sparsity"},
    {"group", 0, OPT_CHOICE, 0, &o.group, NULL, "N",
     "with --gate: neurons that are open or closed together; default: 1", OPT_CHOICES(groups)},
    {"predictors", 0, OPT_INT, 0, &o.predictors, NULL, "R", "with --gate: add predictors of that rank in F16", .min = 1,
     .max = 65536},
    {"vocab", 0, OPT_PATH, OPT_INPUT, &o.vocab, NULL, "DIR",
     .help = "take the vocabulary of this folder with a tokenizer.json; default: an invented one"},
    OPT_COMMON,
    {0},
};

static const opt_program program = {
    .name = "synth",
    .summary = "write a model of a known shape with random weights",
    .usage = "--shape NAME [--type T] -o M.gguf [--layers N] [--seed S] [--dead F] [--gate [--group N] [--predictors R]]",
    .about =
        "Writes a GGUF file that has the tensors, sizes and types of a real model and random "
        "weights of sane size, for\n"
        "measurements of speed and memory and for tests.  Activations stay finite and of order one in every layer.\n"
        "Rows that are not a whole number of blocks of the type become Q8_0.\n"
        "\n"
        "--dead plants dead neurons: their rows of gate and up are zero, so the neurons are zero for every token.  "
        "The file\n"
        "lists them under the key deadwood.synth.dead as pairs of layer and neuron.\n"
        "\n"
        "--gate makes a gated model whose threshold every neuron reaches; "
        "score --inject then sets how many are open.  The\n"
        "transposed copies of down have random values of their own, not those of down: "
        "skipping costs the right time, but\n"
        "changes results.  --predictors adds predictors that open about half of the groups.  "
        "All other tensors are those of the\n"
        "model without a gate.\n"
        "\n"
        "The same shape, type, seed and fraction give the same bytes.",
    .example = "deadwood synth --shape qwen2.5-7b --type Q4_0 -o 7b.gguf\n"
               "deadwood synth --shape qwen2.5-7b --type Q4_0 --gate --group 64 -o 7b-gated.gguf",
    .rows = options,
};

static int add_vocab_input(lineage *l, dw_err *err) {
    char *path = dw_format(err, "%s/tokenizer.json", o.vocab);
    const int rc = path ? lineage_input(l, path, err) : -1;
    free(path);
    return rc;
}

static int write_model(const exp_random_options *model, const lineage *l, dw_gguf_writer *w, dw_err *err) {
    dw_gguf_hash_writes(w);
    if (lineage_write(l, w, err) || exp_random_write(w, model, err)) return -1;
    return dw_gguf_commit_read_back(w, dw_model_opens, NULL, err);
}

static int write_file(const exp_random_options *model, dw_err *err) {
    lineage *l = lineage_new(&program, NULL, err);
    const bool ready = l && (!o.vocab || !add_vocab_input(l, err));
    dw_gguf_writer *w = ready ? dw_gguf_writer_new(o.out, err) : NULL;
    const int rc = w ? write_model(model, l, w, err) : -1;
    dw_gguf_writer_free(w);
    lineage_free(l);
    return rc;
}

int main(int argc, char **argv) {
    opt_parse(&program, argc, argv);
    if (!o.gate && (o.group || o.predictors)) die_usage("--group and --predictors belong to --gate");
    dw_err err = {0};
    dw_pool *pool = dw_pool_new(tool.threads, &err);
    if (!pool) die_err(&err);
    exp_shape shape = *exp_shape_find(o.shape);
    if (o.layers > shape.n_layer)
        die_usage("--layers %d: '%s' has only %d layers", o.layers, shape.name, shape.n_layer);
    if (o.layers) shape.n_layer = o.layers;
    exp_random_options model = {.shape = &shape, .type = dw_qtype_by_name(o.type), .pool = pool};
    model.seed = (uint64_t)o.seed;
    model.dead = o.dead;
    model.gate = o.gate;
    model.group = o.group ? atoi(o.group) : 1;
    model.predictor_rank = o.predictors;
    dw_vocab vocab;
    if (o.vocab) {
        if (dw_vocab_from_hf(&vocab, o.vocab, (size_t)model.shape->n_vocab, &err)) die_err(&err);
        model.vocab = &vocab;
    }
    const double bytes = exp_random_bytes(&model), t0 = dw_now();
    model.bar = progress_begin("writing", "B", bytes);
    const int rc = write_file(&model, &err);
    progress_end(model.bar);
    if (rc) die_err(&err);
    const double seconds = dw_now() - t0;
    say("%s of tensors in %s, %s/s", show_bytes(bytes).text, show_duration(seconds).text,
        show_bytes(bytes / seconds).text);
    if (o.vocab) dw_vocab_release(&vocab);
    dw_pool_free(pool);
    return 0;
}
