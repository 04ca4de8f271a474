/* test_heal.c - deadwood-heal: what it learns, what it leaves alone, how it goes on after a death, what it refuses. */
#include "build.h"
#include "formats/ffn_act.h"
#include "model/session.h"
#include "prune/teacher_cache.h"
#include "test.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* ---- models and a text ----------------------------------------------------------------------------------------- */

static const char *const types[] = {"BF16", "F16", "F32", NULL};

static const char a_text[] = "experiments/texts/calib/english-1.txt";

static const char *text(void) {
    const char *path = test_file("text.txt");
    if (!dw_file_exists(path)) CHECK(!test_run("head -c 6000 %s > %s", a_text, path), "%s", test_run_output());
    return path;
}

/* Half of the neurons of a random model, by their norms; made once. */
static const char *cut(const char *shape, const char *type) {
    char name[96];
    const char *parent = random_model(shape, type, 0);
    snprintf(name, sizeof name, "cut-%s-%s.gguf", shape, type);
    const char *path = test_file(name), *plan = test_file("cut.tsv");
    if (dw_file_exists(path)) return path;
    CHECK(!test_run("deadwood-rank -m %s --metric weight --rate 0.5 -o %s -q && deadwood-cut -m %s -p %s -o %s -q",
                    parent, plan, parent, plan, path),
          "%s", test_run_output());
    return path;
}

/* Runs heal on short windows of the text; *out is the healed file. */
static int heal(const char *student, const char *teacher, const char *options, const char *out) {
    return test_run("deadwood-heal -m %s -T %s -f %s -o %s -c 16 --held-out 4 %s -t 1 %s", student, teacher, text(), out,
                    strstr(options, "--batch ") ? "" : "--batch 4", options);
}

/* The number after a word in what the last program printed; NaN: it is not there. */
static double number_after(const char *word) {
    const char *at = test_run_output(), *last = NULL;
    while ((at = strstr(at, word))) last = at += strlen(word);
    return last ? atof(last) : NAN;
}

/* Counts tensors whose bytes differ; those whose names contain `but` may. */
static int n_changed(const char *a, const char *b, const char *but) {
    dw_err err = {0};
    dw_gguf *g = dw_gguf_open(a, &err), *h = dw_gguf_open(b, &err);
    int n = 0;
    CHECK(g && h && dw_gguf_n_tensors(g) == dw_gguf_n_tensors(h), "%s", err.text);
    for (size_t i = 0; g && h && i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i), *u = dw_gguf_find_tensor(h, t->name);
        const bool same = u && u->n_bytes == t->n_bytes && u->type == t->type && !memcmp(t->data, u->data, t->n_bytes);
        if (but && strstr(t->name, but)) continue;
        n += !same;
    }
    dw_gguf_close(g);
    dw_gguf_close(h);
    return n;
}

/* ---- learning -------------------------------------------------------------------------------------------------- */

static void learns(void) {
    static const char *const shapes[] = {"tiny-qwen2", "tiny-qwen3", "tiny-llama", "tiny-openelm"};
    for (int i = 0; i < 4; i++) {
        const char *out = test_file("healed.gguf"), *type = types[i % 3];
        CHECK(!heal(cut(shapes[i], type), random_model(shapes[i], type, 0), "--tokens 1280 --lr 0.001", out), "%s",
              test_run_output());
        const double after = number_after("held-out loss "), before = number_after(", before ");
        CHECK(before > 0.001 && after < 0.9 * before, "%s: held-out KL %g from %g", shapes[i], after, before);
        CHECK(!test_run("deadwood-inspect %s --lineage", out) && strstr(test_run_output(), "deadwood heal"), "%s",
              test_run_output());
    }
}

static void trains_what_is_asked(void) {
    static const struct {
        const char *what, *changed;
    } parts[] = {{"norms", "norm"}, {"ffn", "ffn"}, {"down", NULL}, {"all", ""}, {"lora --rank 3", ""}};
    const char *out = test_file("part.gguf"), *student = cut("tiny-llama", "F32");
    for (int i = 0; i < 5; i++) {
        char options[64];
        snprintf(options, sizeof options, "--tokens 128 --patience 0 --train %s", parts[i].what);
        CHECK(!heal(student, random_model("tiny-llama", "F32", 0), options, out), "%s", test_run_output());
        const int n = n_changed(student, out, NULL);
        if (parts[i].changed)
            CHECK(n > 4 && n_changed(student, out, parts[i].changed) == 0, "--train %s changed other tensors",
                  parts[i].what);
        else
            CHECK(n == 4 + 2 * 4 + 1, "--train down changed %d tensors, not 4 downs and 9 norms", n);
    }
}

/* ---- what stays ------------------------------------------------------------------------------------------------ */

static void itself_stays(void) {
    for (int i = 0; types[i]; i++) {
        const char *m = random_model("tiny-qwen2", types[i], 0), *out = test_file("same.gguf");
        CHECK(!heal(m, m, "--tokens 256 --lr 0.01", out), "%s", test_run_output());
        CHECK(number_after("held-out loss ") == 0 && !n_changed(m, out, NULL), "%s: %d tensors changed, %s", types[i],
              n_changed(m, out, NULL), test_run_output());
    }
}

static void rate_0_changes_nothing(void) {
    for (int i = 0; types[i]; i++) {
        const char *m = cut("tiny-qwen2", types[i]), *out = test_file("rate0.gguf");
        CHECK(!heal(m, random_model("tiny-qwen2", types[i], 0), "--tokens 256 --lr 0", out), "%s", test_run_output());
        CHECK(!n_changed(m, out, NULL), "%s: %d tensors changed", types[i], n_changed(m, out, NULL));
    }
}

/* ---- rounded weights ------------------------------------------------------------------------------------------- */

static const char *embedded(void) { // the model of experiments/mini, with 16 bits
    const char *path = test_file("mini.gguf");
    if (!dw_file_exists(path))
        CHECK(!test_run("deadwood-convert experiments/mini -o %s -q", path), "%s", test_run_output());
    return path;
}

/* Importances of a model; of the embedded one, and of the tiny one with F32. */
static const char *importances(const char *model) {
    char name[96];
    snprintf(name, sizeof name, "%s.h5", dw_base_name(model));
    const char *path = test_file(name);
    if (!dw_file_exists(path))
        CHECK(!test_run("deadwood-collect -m %s -f %s -c 32 --windows 4 -o %s -q", model, text(), path), "%s",
              test_run_output());
    return path;
}

/* The same types, bytes and keys as requant's, without importances and with them. */
static void rounded_as_requant(void) {
    static const struct {
        const char *mixture;
        bool weighed;
        const char *output; // --output-type of heal; of requant, or --tensor
    } cases[] = {{"Q4_0", false},
                 {"Q2_K", false},
                 {"Q3_K_M", true},
                 {"Q4_K_M", false},
                 {"Q2_K", true},
                 {"Q2_K_S", true},
                 {"Q4_K_S", false, "IQ4_NL"},
                 {"Q2_K_S", true, "Q3_K"}};
    const char *healed = test_file("rounded.gguf"), *rounded = test_file("requant.gguf");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bool large = i % 4 == 3; // the tiny model needs fallbacks
        const char *m = large ? embedded() : random_model("tiny-qwen3", "F32", 0);
        char options[160], stats[96] = "", output[48] = "", tensor[64] = "";
        if (cases[i].output) { // the embedded model has no matrix of its own for the output
            snprintf(output, sizeof output, "--output-type %s", cases[i].output);
            if (large) snprintf(tensor, sizeof tensor, "%s", output);
            else snprintf(tensor, sizeof tensor, "--tensor '^output=%s'", cases[i].output);
        }
        if (cases[i].weighed) snprintf(stats, sizeof stats, "-s %s", importances(m));
        snprintf(options, sizeof options, "--tokens 64 --lr 0 --as %s %s %s", cases[i].mixture, output, stats);
        CHECK(!heal(m, m, options, healed), "%s", test_run_output());
        CHECK(!test_run("deadwood-requant -m %s --mixture %s %s %s -o %s -q", m, cases[i].mixture, tensor, stats,
                        rounded),
              "%s", test_run_output());
        const int n = n_changed(rounded, healed, NULL);
        CHECK(!n, "%s: %d tensors differ", cases[i].mixture, n);
        const char *line =
            "for f in %s %s; do deadwood-inspect $f --keys | grep -E 'file_type|quantization_version|imatrix' "
            "> $f.keys; grep -a -o '\"types\": *\"[^\"]*\"' $f >> $f.keys; done; "
            "test $(wc -l < %s.keys) = %d && cmp %s.keys %s.keys";
        CHECK(!test_run(line, rounded, healed, healed, cases[i].weighed ? 7 : 3, rounded, healed), "%s: %s",
              cases[i].mixture, test_run_output());
    }
    const char *m = embedded();
    CHECK(heal(m, m, "--tokens 64 --as Q2_K_S", healed) == 1 &&
              strstr(test_run_output(), "Q2_K_S is not made without importances; give them by -s"),
          "%s", test_run_output());
    CHECK(heal(m, m, "--tokens 64 --output-type Q4_K", healed) == 2 &&
              strstr(test_run_output(), "--output-type belongs to --as"),
          "%s", test_run_output());
    CHECK(heal(m, m, "--tokens 64 -s README.md", healed) == 2 && strstr(test_run_output(), "-s belongs to --as"), "%s",
          test_run_output());
}

static void learns_to_be_rounded(void) {
    const char *m = embedded(), *out = test_file("learned.gguf");
    CHECK(!test_run("deadwood-heal -m %s -T %s -f %s -o %s -c 64 --held-out 1 --batch 2 --tokens 1024 --lr 3e-4 "
                    "--as Q2_K",
                    m, m, text(), out),
          "%s", test_run_output());
    const double after = number_after("held-out loss "), before = number_after(", before ");
    CHECK(before > 0.05 && after < 0.9 * before, "held-out KL %g from %g", after, before);
    CHECK(test_run("deadwood-heal -m %s -T %s -f %s -o %s --tokens 64 --as Q2_K --train ffn", m, m, text(), out) == 2 &&
              strstr(test_run_output(), "--as rounds every matrix; it needs --train all"),
          "%s", test_run_output());
}

/* Tokens and minutes of all steps of heal; no minutes where a step was planned by tokens. */
static void rows_count_all_steps(void) {
    const char *first = test_file("first.gguf"), *second = test_file("second.gguf"), *third = test_file("third.gguf"),
               *rows = test_file("rows.tsv"), *m = random_model("tiny-qwen2", "BF16", 0);
    CHECK(!heal(m, m, "--minutes 0.01", first) && !heal(first, m, "--minutes 0.02", second) &&
              !heal(second, m, "--tokens 128 --as Q4_0 --output-type Q8_0", third),
          "%s", test_run_output());
    CHECK(!test_run("deadwood-score -m %s %s %s -f %s -c 16 --no-speed -o %s -q >%s && deadwood-table %s --text "
                    "text.txt --columns tokens_trained,minutes_trained,type --format tsv -q | cut -f1-3",
                    first, second, third, text(), rows, test_file("short"), rows),
          "%s", test_run_output());
    double tokens[3], minutes[2];
    char type[32];
    const char *line = strstr(test_run_output(), "type\n");
    const int n = line ? sscanf(line, "type %lf %lf %*s %lf %lf %*s %lf - %31[^\n]", &tokens[0], &minutes[0],
                                &tokens[1], &minutes[1], &tokens[2], type)
                       : 0;
    CHECK(n == 6 && tokens[1] > tokens[0] && tokens[2] == tokens[1] + 128, "%s", test_run_output());
    CHECK(!strcmp(type, "Q4_0, output Q8_0"), "%s", test_run_output());
    CHECK(minutes[1] > 1.5 * minutes[0], "%g minutes, and %g more", minutes[0], minutes[1] - minutes[0]);
}

static const char other_text[] = "experiments/texts/calib/german-1.txt";

/* Whether score says that a model has learnt from the other text. */
static bool leaks(const char *model) {
    CHECK(!test_run("deadwood-score -m %s -f %s -c 16 --windows 4 --no-speed --json -q", model, other_text), "%s",
          test_run_output());
    return strstr(test_run_output(), "german-1.txt' of step heal has the same hash");
}

static void one_step(void) {
    const char *m = random_model("tiny-qwen2", "BF16", 0), *out = test_file("short.gguf");
    CHECK(!heal(m, m, "--tokens 20", out) &&
              strstr(test_run_output(), "--tokens 20 is less than half a step of 64 tokens, and one step is taken"),
          "%s", test_run_output());
    CHECK(!heal(m, m, "--tokens 32", out) && !strstr(test_run_output(), "half a step"), "%s", test_run_output());
}

static void teacher_taught(void) {
    const char *m = random_model("tiny-qwen2", "BF16", 0), *small = cut("tiny-qwen2", "BF16"),
               *teacher = test_file("teacher.gguf"), *student = test_file("student.gguf"),
               *own = test_file("own.gguf");
    CHECK(!test_run("deadwood-heal -m %s -T %s -f %s -o %s -c 16 --held-out 4 --batch 4 -t 1 --tokens 64", m, m,
                    other_text, teacher),
          "%s", test_run_output());
    CHECK(!heal(small, teacher, "--tokens 64", student) && !heal(small, m, "--tokens 64", own), "%s",
          test_run_output());
    CHECK(leaks(student), "%s", test_run_output());
    CHECK(!leaks(own), "%s", test_run_output());
}

/* Texts of this name in the lineage of a file. */
static int n_texts(const char *model, const char *name) {
    CHECK(!test_run("grep -a -o '{\"name\":\"%s\",\"sha256\":\"[0-9a-f]*\",\"tokens\"' %s | wc -l", name, model),
          "%s", test_run_output());
    return atoi(test_run_output());
}

/* A teacher that is an ancestor adds nothing; one that learnt from the same texts adds none of them twice. */
static void taught_once(void) {
    const char *m = random_model("tiny-qwen2", "BF16", 0), *small = cut("tiny-qwen2", "BF16"),
               *first = test_file("first.gguf"), *twin = test_file("twin.gguf"), *last = test_file("last.gguf");
    CHECK(!heal(small, m, "--tokens 64", first) && !heal(first, first, "--tokens 64", last), "%s", test_run_output());
    CHECK(n_texts(last, "text.txt") == 2, "%d texts after two steps", n_texts(last, "text.txt"));
    CHECK(!heal(small, m, "--tokens 64 --seed 1", twin) && !heal(first, twin, "--tokens 64", last), "%s",
          test_run_output());
    CHECK(n_texts(last, "text.txt") == 2, "%d texts after two steps", n_texts(last, "text.txt"));
}

/* A lineage that the healed file could not have is refused before learning. */
static void full_lineage(void) {
    const char *m = random_model("tiny-qwen2", "BF16", 0), *full = test_file("full.gguf"), *out = test_file("x.gguf");
    enum { MOST = 1024 };
    dw_err err = {0};
    dw_str *step = calloc(MOST, sizeof *step);
    static const char a_step[] = "{\"tool\":\"heal\",\"args\":[]}";
    for (int i = 0; step && i < MOST; i++) step[i] = (dw_str){a_step, sizeof a_step - 1};
    dw_gguf *g = dw_gguf_open(m, &err);
    dw_gguf_writer *w = g ? dw_gguf_writer_new(full, &err) : NULL;
    REQUIRE(w && step, "%s", err.text);
    dw_gguf_set_keys(w, g);
    dw_gguf_set_strs(w, "deadwood.lineage", step, MOST);
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        dw_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne);
    }
    int rc = dw_gguf_begin(w, &err);
    for (size_t i = 0; !rc && i < dw_gguf_n_tensors(g); i++)
        rc = dw_gguf_write(w, dw_gguf_tensor(g, i)->data, dw_gguf_tensor(g, i)->n_bytes, &err);
    if (!rc) rc = dw_gguf_commit(w, &err);
    CHECK(!rc, "%s", err.text);
    dw_gguf_writer_free(w);
    dw_gguf_close(g);
    free(step);
    CHECK(heal(full, m, "--tokens 64", out) == 1 &&
              strstr(test_run_output(), "has 1024 steps, and no file can have more") &&
              !strstr(test_run_output(), "recipe"),
          "%s", test_run_output());
}

/* ---- going on -------------------------------------------------------------------------------------------------- */

enum { N_STEPS = 40 }; // enough that the signal comes before the end

/* Ends a run by a signal as soon as it has a checkpoint.  (Without `set -m` a job ignores SIGINT.) */
static void begin(const char *out, const char *options, const char *signal_name) {
    const char *line = "bash -c 'set -m; deadwood-heal -m %s -T %s -f %s -o %s -c 16 --held-out 4 --batch 4 %s "
                       "--checkpoint-minutes 0 -t 1 2> %s.log & p=$!; "
                       "while ! test -s %s.checkpoint && kill -0 $p; do sleep 0.01; done; kill -%s $p; wait $p'";
    test_run(line, cut("tiny-qwen2", "BF16"), random_model("tiny-qwen2", "BF16", 0), text(), out, options, out, out,
             signal_name);
    CHECK(dw_file_exists(test_file("broken.gguf.checkpoint")) && !dw_file_exists(out),
          "%s: no checkpoint is left, or there is a model: %s", signal_name, test_run_output());
}

static void check_resumed(const char *more, const char *signal_name) {
    const char *whole = test_file("whole.gguf"), *out = test_file("broken.gguf"), *student = cut("tiny-qwen2", "BF16"),
               *teacher = random_model("tiny-qwen2", "BF16", 0);
    char options[64];
    snprintf(options, sizeof options, "--tokens %d %s", N_STEPS * 64, more);
    test_run("rm -f %s", out);
    CHECK(!heal(student, teacher, options, whole), "%s", test_run_output());
    begin(out, options, signal_name);
    CHECK(!heal(student, teacher, options, out) && strstr(test_run_output(), "going on after step"), "%s",
          test_run_output());
    CHECK(same_files(whole, out), "%s %s: another file than that of an uninterrupted run", signal_name, more);
    CHECK(!dw_file_exists(test_file("broken.gguf.checkpoint")), "the checkpoint stays after the end");
}

static void resumed_is_uninterrupted(void) {
    check_resumed("--as Q4_0", "KILL");
    check_resumed("", "KILL");
    check_resumed("", "INT");
}

/* Runs a command that is interrupted after its first tenth, before any checkpoint is due; `before` comes before that. */
static int interrupt_early(const char *out, const char *before) {
    const char *line = "bash -c 'set -m; deadwood-heal -m %s -T %s -f %s -o %s -c 16 --held-out 4 --batch 4 --tokens 12800 "
                       "-t 1 2> %s.log & p=$!; while ! grep -q \"10 %%\" %s.log && kill -0 $p; do sleep 0.01; done; "
                       "%s; kill -INT $p; wait $p; status=$?; cat %s.log; exit $status'";
    return test_run(line, cut("tiny-qwen2", "BF16"), random_model("tiny-qwen2", "BF16", 0), text(), out, out, out, before,
                    out);
}

static void an_interrupt_stores_the_step(void) {
    const char *out = test_file("early-end.gguf"), *checkpoint = test_file("early-end.gguf.checkpoint");
    CHECK(interrupt_early(out, "true") == 128 + SIGINT && dw_file_exists(checkpoint) && !dw_file_exists(out) &&
              strstr(test_run_output(), "finishing and storing the current step") &&
              strstr(test_run_output(), "checkpoint' has the finished part"),
          "%s", test_run_output());
    CHECK(!heal(cut("tiny-qwen2", "BF16"), random_model("tiny-qwen2", "BF16", 0), "--tokens 12800", out) &&
              strstr(test_run_output(), "going on after step"),
          "%s", test_run_output());
}

static void one_run_has_a_checkpoint(void) {
    dw_err err = {0};
    const char *out = test_file("taken.gguf"), *checkpoint = test_file("taken.gguf.checkpoint");
    dw_hold *other = dw_hold_take(checkpoint, &err);
    REQUIRE(other, "%s", err.text);
    CHECK(heal(cut("tiny-qwen2", "BF16"), random_model("tiny-qwen2", "BF16", 0), "--tokens 64", out) == 1 &&
              strstr(test_run_output(), "taken.gguf.checkpoint' is in use by another run") && !dw_file_exists(out),
          "%s", test_run_output());
    dw_hold_free(other);
    CHECK(!heal(cut("tiny-qwen2", "BF16"), random_model("tiny-qwen2", "BF16", 0), "--tokens 64", out) &&
              !dw_file_exists(checkpoint),
          "%s", test_run_output());
}

static void a_step_that_cannot_be_stored_is_told(void) {
    char before[600];
    snprintf(before, sizeof before, "rm %1$s; mkdir %1$s", test_file("no-place.gguf.checkpoint"));
    CHECK(interrupt_early(test_file("no-place.gguf"), before) == 1 && strstr(test_run_output(), "no-place.gguf.checkpoint") &&
              !strstr(test_run_output(), "interrupted"),
          "%s", test_run_output());
}

static void checkpoints_are_checked(void) {
    const char *out = test_file("broken.gguf"), *checkpoint = test_file("broken.gguf.checkpoint"),
               *student = cut("tiny-qwen2", "BF16");
    const char *teacher = random_model("tiny-qwen2", "BF16", 0);
    char before[65], after[65];
    test_run("rm -f %s", out);
    begin(out, "--tokens 2560", "KILL");
    dw_sha256_file(checkpoint, before, NULL);
    CHECK(heal(student, teacher, "--tokens 2560 --lr 0.001", out) == 1 &&
              strstr(test_run_output(), "is of another run"),
          "%s", test_run_output());
    dw_sha256_file(checkpoint, after, NULL);
    CHECK(!strcmp(before, after), "the checkpoint of another run has changed");
    CHECK(heal(cut("tiny-qwen2", "F32"), teacher, "--tokens 2560", out) == 1 &&
              strstr(test_run_output(), "is of another run (other models"),
          "another model: %s", test_run_output());
    dw_sha256_file(checkpoint, after, NULL);
    CHECK(!strcmp(before, after), "the checkpoint of another model has changed");
    CHECK(!test_run("printf x | dd of=%s bs=1 seek=5000 conv=notrunc status=none", checkpoint), "%s",
          test_run_output());
    CHECK(heal(student, teacher, "--tokens 2560", out) == 1 && strstr(test_run_output(), "is damaged"), "%s",
          test_run_output());
    CHECK(!test_run("echo hello > %s", checkpoint), "%s", test_run_output());
    CHECK(heal(student, teacher, "--tokens 2560", out) == 1 && strstr(test_run_output(), "is not a checkpoint"), "%s",
          test_run_output());
    test_run("rm -f %s", checkpoint);
}

/* A limit of the size of files stands for a full disk: it has room for a text of messages, not for a checkpoint. */
static void full_disk_keeps_the_checkpoint(void) {
    const char *whole = test_file("whole.gguf"), *out = test_file("broken.gguf"),
               *checkpoint = test_file("broken.gguf.checkpoint"), *student = cut("tiny-qwen2", "BF16"),
               *teacher = random_model("tiny-qwen2", "BF16", 0);
    char before[65], after[65], options[64];
    snprintf(options, sizeof options, "--tokens %d", N_STEPS * 64);
    test_run("rm -f %s", out);
    begin(out, options, "KILL");
    test_run("find %s -name '*.part' -delete", test_folder()); // a kill just before a rename leaves one
    dw_sha256_file(checkpoint, before, NULL);
    CHECK(test_run("bash -c 'trap \"\" XFSZ; ulimit -f 64; deadwood-heal -m %s -T %s -f %s -o %s -c 16 --held-out 4 "
                   "--batch 4 -t 1 %s --checkpoint-minutes 0'",
                   student, teacher, text(), out, options) == 1 &&
              strstr(test_run_output(), "cannot write"),
          "%s", test_run_output());
    dw_sha256_file(checkpoint, after, NULL);
    CHECK(!strcmp(before, after) && !dw_file_exists(out), "the last checkpoint has changed, or there is a model");
    CHECK(!test_run("! find %s -name '*.part' | grep .", test_folder()), "something unfinished is left: %s",
          test_run_output());
    if (!dw_file_exists(whole)) CHECK(!heal(student, teacher, options, whole), "%s", test_run_output());
    CHECK(!heal(student, teacher, options, out) && same_files(whole, out),
          "with room it does not go on to the same: %s", test_run_output());
}

/* One text has room for one held-out window, the other for none; it only teaches. */
static void short_texts_only_teach(void) {
    const char *student = cut("tiny-qwen2", "BF16"), *teacher = random_model("tiny-qwen2", "BF16", 0);
    int32_t id[56];
    random_tokens(id, 56, 100, 1);
    distil_text text[2] = {{.name = "longer", .id = id, .n = 56}, {.name = "short", .id = id, .n = 31}};
    const distil_options o = {.n_ctx = 16, .batch = 2, .n_held = 2};
    dw_err err = {0};
    CHECK(!distil_hold_out(text, 1, &o, &err) && text[0].n_train == 56 - 32, "%s", err.text);
    CHECK(distil_n_held(text, 1, 16) == 2);
    CHECK(distil_hold_out(text, 2, &o, &err) && strstr(err.text, "the texts have room for 1"), "%s", err.text);
    const char *first = test_file("longer.txt"), *second = test_file("short.txt"), *out = test_file("short.gguf");
    CHECK(!test_run("head -c 2000 %s >%s && head -c 60 %s >%s", a_text, first, a_text, second), "%s",
          test_run_output());
    CHECK(!test_run("deadwood-heal -m %s -T %s -f %s %s -o %s -c 32 --held-out 1 --batch 2 --tokens 64 -t 1", student,
                    teacher, first, second, out),
          "%s", test_run_output());
    CHECK(strstr(test_run_output(), "held out: 2 windows at the ends of 2 texts"), "%s", test_run_output());
    const double after = number_after("held-out loss ");
    CHECK(after > 0, "the held-out loss is %g: the last text holds nothing out, and the first one's window counts",
          after);
}

/* ---- refusals -------------------------------------------------------------------------------------------------- */

static void refused(const char *student, const char *teacher, const char *options, int status, const char *words) {
    const char *out = test_file("refused.gguf");
    const int rc = heal(student, teacher, options, out);
    CHECK(rc == status && strstr(test_run_output(), words) && !dw_file_exists(out), "exit status %d: %s", rc,
          test_run_output());
}

static void strangers_are_told(void) {
    const char *student = cut("tiny-qwen2", "BF16"), *parent = random_model("tiny-qwen2", "BF16", 0),
               *rounded = test_file("rounded.gguf"), *out = test_file("of-stranger.gguf");
    CHECK(!test_run("deadwood-requant -m %s --type Q8_0 -o %s -q", parent, rounded), "%s", test_run_output());
    const struct {
        const char *teacher;
        bool told;
    } cases[] = {{parent, false}, {rounded, false}, {student, false}, {random_model("tiny-qwen2", "F32", 0), true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK(!heal(student, cases[i].teacher, "--tokens 64", out), "%s", test_run_output());
        CHECK(!strstr(test_run_output(), "is that the original?") == !cases[i].told &&
                  !strstr(test_run_output(), "swapped"),
              "%s: %s", cases[i].teacher, test_run_output());
    }
    CHECK(!heal(parent, student, "--tokens 64", out) && strstr(test_run_output(), "are -m and -T swapped?"), "%s",
          test_run_output());
}

/* Two checkpoints that share their tokenizer are strangers. */
static void tokenizers_are_no_kin(void) {
    const char *a = test_file("kin-a.gguf"), *b = test_file("kin-b.gguf"), *half = test_file("kin-cut.gguf"),
               *folder = test_file("kin"), *plan = test_file("kin.tsv"), *out = test_file("kin-healed.gguf");
    REQUIRE(!test_run("cp -r experiments/mini %s && printf x | dd of=%s/model.safetensors bs=1 seek=2000000 "
                      "conv=notrunc 2>&1 && deadwood-convert experiments/mini -o %s -q && deadwood-convert %s -o %s -q",
                      folder, folder, a, folder, b),
            "%s", test_run_output());
    REQUIRE(!test_run("deadwood-rank -m %s --metric weight --rate 0.5 -o %s -q && deadwood-cut -m %s -p %s -o %s -q", a,
                      plan, a, plan, half),
            "%s", test_run_output());
    const char *const teachers[] = {a, b};
    for (int stranger = 0; stranger < 2; stranger++) {
        CHECK(!heal(half, teachers[stranger], "--tokens 64", out), "%s", test_run_output());
        CHECK(!strstr(test_run_output(), "is that the original?") == !stranger, "%s", test_run_output());
    }
}

static void set_inputs(dw_gguf_writer *w, const void *word) {
    enum { N = 10000 };
    char *step = NULL;
    size_t size;
    FILE *f = open_memstream(&step, &size);
    fprintf(f, "{\"tool\":\"cut\",\"args\":[],\"inputs\":[");
    for (int i = 0; i < N; i++)
        fprintf(f, "%s{\"name\":\"%d.gguf\",\"sha256\":\"%s %d\"}", i ? "," : "", i, (const char *)word, i);
    fprintf(f, "]}");
    fclose(f);
    dw_gguf_set_strs(w, "deadwood.lineage", &(dw_str){step, strlen(step)}, 1);
    free(step);
}

/* Student and teacher name ten thousand files, none of which both have. */
static void many_inputs(void) {
    const char *m = random_model("tiny-qwen2", "BF16", 0), *student = test_file("many-student.gguf"),
               *teacher = test_file("many-teacher.gguf"), *out = test_file("many.gguf");
    write_with_keys(m, student, set_inputs, "student");
    write_with_keys(m, teacher, set_inputs, "teacher");
    CHECK(!test_run("timeout 30 deadwood-heal -m %s -T %s -f %s -o %s -c 16 --batch 4 --tokens 64 -t 1", student,
                    teacher, text(), out) &&
              strstr(test_run_output(), "is that the original?"),
          "%s", test_run_output());
}

static void refusals(void) {
    const char *student = cut("tiny-qwen2", "BF16"), *teacher = random_model("tiny-qwen2", "BF16", 0),
               *out = test_file("refused.gguf");
    refused(student, random_model("mini", "Q4_0", 0), "--tokens 100", 1, "has another vocabulary");
    refused(random_model("tiny-qwen2", "Q8_0", 0), teacher, "--tokens 100", 1,
            "heal a 16-bit file first, then requant");
    refused(student, teacher, "", 2, "give --tokens N or --minutes M");
    refused(student, teacher, "--tokens 100 --minutes 1", 2, "give --tokens or --minutes");
    const char *gated = test_file("gated.gguf");
    CHECK(!test_run("deadwood-synth --shape tiny-qwen2 --type BF16 --gate --group 32 -o %s -q", gated), "%s",
          test_run_output());
    refused(gated, teacher, "--tokens 100", 1, "is gated");
    CHECK(!test_run(": > %s", test_file("empty.txt")), "%s", test_run_output());
    CHECK(test_run("deadwood-heal -m %s -T %s -f %s -o %s --tokens 100 -q", student, teacher, test_file("empty.txt"),
                   out) == 1 &&
              strstr(test_run_output(), "has 0 tokens"),
          "%s", test_run_output());
    CHECK(!test_run("xz -k -f %s || printf '\\3757zXZ\\0' > %s.xz", text(), text()), "%s", test_run_output());
    CHECK(test_run("deadwood-heal -m %s -T %s -f %s.xz -o %s --tokens 100 -q", student, teacher, text(), out) == 1 &&
              strstr(test_run_output(), "unpack it first"),
          "%s", test_run_output());
}

static bool any_weight(dw_weight w) { return w != DW_W_DOWN_T; }

typedef struct lesson { // a student and a teacher, on a text of random tokens
    dw_model *model, *teacher;
    int32_t id[400];
    distil_text text;
    distil d;
} lesson;

static distil_options small_options(void) {
    return (distil_options){.pool = two_threads(),
                            .n_ctx = 16,
                            .batch = 4,
                            .n_held = 2,
                            .bos = -1,
                            .temperature = 1,
                            .trained = {.wanted = any_weight},
                            .adamw = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .clip = 1}};
}

static bool begin_lesson(lesson *l, const char *student, int n_tokens, const distil_options *o) {
    dw_err err = {0};
    *l = (lesson){.model = dw_model_open(student, &err),
                  .teacher = dw_model_open(random_model("tiny-qwen2", "F32", 0), &err)};
    if (!CHECK(l->model && l->teacher, "%s", err.text)) return false;
    random_tokens(l->id, n_tokens, dw_model_hparams(l->model)->n_vocab, 1);
    l->text = (distil_text){.name = "t", .id = l->id, .n = (size_t)n_tokens};
    l->d = (distil){.text = &l->text, .n_text = 1};
    return CHECK(!distil_hold_out(&l->text, 1, o, &err) && !distil_open(&l->d, l->model, l->teacher, o, &err), "%s",
                 err.text);
}

static void end_lesson(lesson *l) {
    distil_close(&l->d);
    dw_model_close(l->model);
    dw_model_close(l->teacher);
}

/* A norm that is NaN makes the loss NaN. */
static void nan_is_named(void) {
    static lesson l;
    dw_err err = {0};
    double loss;
    const distil_options o = small_options();
    if (!begin_lesson(&l, cut("tiny-qwen2", "F32"), 400, &o)) return;
    distil *d = &l.d;
    CHECK(l.text.n_train == 400 - 32 && distil_memory(l.model, l.teacher, &o) > 100000, "%zu", l.text.n_train);
    CHECK(!distil_step(d, 1e-3, &loss, &err) && loss > 0 && d->plan.steps == 1, "%s", err.text);
    const float kept = d->p.value[0];
    d->p.value[0] = NAN;
    const float neighbour = d->p.value[1], moment = d->p.mean[1];
    CHECK(distil_step(d, 1e-3, &loss, &err) && strstr(err.text, "step 2 is refused, because its loss is nan"), "%s",
          err.text);
    CHECK(d->plan.steps == 1 && d->p.value[1] == neighbour && d->p.mean[1] == moment,
          "a refused step has changed something");
    err.text[0] = 0;
    CHECK(distil_held_out(d, &loss, &err) && strstr(err.text, "held-out loss"), "%s", err.text);
    err.text[0] = 0;
    d->p.value[0] = kept;
    CHECK(!distil_step(d, 1e-3, &loss, &err) && d->plan.steps == 2, "%s", err.text);
    end_lesson(&l);
}

/* ---- speed ----------------------------------------------------------------------------------------------------- */

static bool only_down(dw_weight w) { return w == DW_W_DOWN; }

/* Multiply-adds count twice.  A token's keys and values: half a window in the mean. */
static double operations_by_hand(const dw_model *m, const dw_model *teacher, bool all, bool kept, double n_ctx) {
    const dw_hparams *s = dw_model_hparams(m), *t = dw_model_hparams(teacher);
    const double d = s->n_embd, head = 2 * d * s->n_vocab;
    double sum = head + head + (all ? 2 : 1) * head; // the teacher's, the student's, its gradients
    for (int l = 0; l < s->n_layer; l++) {
        const double D = s->head_dim, attention = 2 * 2 * s->n_head[l] * D * n_ctx / 2,
                     projections = 2 * d * D * 2 * (s->n_head[l] + s->n_head_kv[l]), ffn = 2 * d * s->n_ff[l];
        sum += attention + projections + 3 * 2 * d * t->n_ff[l];
        sum += attention + projections + 3 * ffn;                        // forward
        if (!kept && l + 1 < s->n_layer) sum += attention + projections + 2 * ffn; // once more
        sum += 2.5 * attention + projections + 3 * ffn;                  // dx
        sum += all ? projections + 3 * ffn : ffn;                        // dW
    }
    return sum;
}

static void operations_are_counted(void) {
    static lesson l;
    for (int k = 0; k < 4; k++) {
        const bool all = k & 1, kept = k & 2;
        distil_options o = small_options();
        o.trained.wanted = all ? any_weight : only_down;
        o.keeps_values = kept;
        if (!begin_lesson(&l, cut("tiny-qwen2", "F32"), 400, &o)) return;
        const double by_hand = operations_by_hand(l.model, l.teacher, all, kept, 16), got = distil_operations(&l.d);
        CHECK(fabs(got - by_hand) < 1, "%g operations, by hand %g", got, by_hand);
        CHECK(dw_train_rate(l.d.train) > 1e8, "%g operations a second", dw_train_rate(l.d.train));
        end_lesson(&l);
    }
}

/* A pass holds as many windows as a step; windows that measure go through it one pass after the other. */
static void memory_is_of_a_step(void) {
    dw_err err = {0};
    dw_model *m = dw_model_open(random_model("tiny-qwen2", "BF16", 0), &err);
    REQUIRE(m, "%s", err.text);
    distil_options o = small_options();
    o.batch = 1, o.n_held = 1;
    const size_t one = distil_memory(m, m, &o);
    o.n_held = 64;
    CHECK(one > 0 && distil_memory(m, m, &o) == one, "%zu and %zu", one, distil_memory(m, m, &o));
    o.batch = 64;
    CHECK(distil_memory(m, m, &o) > one);
    dw_model_close(m);
}

static void speed_is_told(void) {
    char words[160];
    distil_speed_words(words, 30, 40);
    CHECK(strstr(words, "30 tokens/s, 75 % of the rate that"), "%s", words);
    distil_speed_words(words, 54, 40);
    CHECK(strstr(words, "54 tokens/s; other work disturbed") && !strchr(words, '%'), "%s", words);
    const char *out = test_file("told.gguf");
    CHECK(!heal(cut("tiny-qwen2", "BF16"), random_model("tiny-qwen2", "BF16", 0), "--tokens 128", out) &&
              number_after("steps: ") > 0 && strstr(test_run_output(), "% of the rate that their operations"),
          "%s", test_run_output());
    CHECK(!heal(cut("tiny-qwen2", "BF16"), random_model("tiny-qwen2", "BF16", 0), "--tokens 128 --backend ref", out) &&
              !strstr(test_run_output(), "steps: "),
          "ref has no measured rate: %s", test_run_output());
}

/* The same with low-rank additions, whose W is another array. */
static void best_values_come_back(void) {
    for (int rank = 0; rank <= 4; rank += 4) {
        static lesson l;
        dw_err err = {0};
        double loss, first = 0, worse = 0, again = 0;
        distil_options o = small_options();
        o.keeps_best = true;
        o.trained.rank = rank;
        if (!begin_lesson(&l, cut("tiny-qwen2", "F32"), 400, &o)) return;
        CHECK(!distil_step(&l.d, 1e-3, &loss, &err) && !distil_held_out(&l.d, &first, &err), "%s", err.text);
        distil_keep_best(&l.d);
        CHECK(!distil_step(&l.d, 0.3, &loss, &err) && !distil_held_out(&l.d, &worse, &err), "%s", err.text);
        distil_take_best(&l.d);
        CHECK(!distil_held_out(&l.d, &again, &err) && again == first && worse > first, "%g, then %g, then %g", first,
              worse, again);
        end_lesson(&l);
    }
}

/* ---- terms of the loss ----------------------------------------------------------------------------------------- */

/* Mean cross entropy of the n - 1 next tokens of a window, by the session. */
static double cross_entropy(const dw_model *m, const int32_t *token, int n) {
    dw_err err = {0};
    double sum = 0;
    static uint8_t out[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const int n_vocab = dw_model_hparams(m)->n_vocab;
    float *z = malloc(16 * (size_t)n_vocab * sizeof *z);
    const dw_session_options o = {
        .pool = two_threads(), .n_ctx = 16, .n_batch = 16, .n_out = 16, .kv = DW_KV_CACHE_F32, .exact = true};
    dw_session *s = dw_session_new(m, &o, &err);
    CHECK(s && !dw_session_eval(s, &(dw_batch){.n_tokens = n, .token = token, .out = out}, &err) &&
              !dw_session_logits(s, 0, n, z, &err),
          "%s", err.text);
    for (int t = 0; t + 1 < n; t++) {
        double all = 0;
        for (int i = 0; i < n_vocab; i++) all += exp(z[t * n_vocab + i]);
        sum += log(all) - z[t * n_vocab + token[t + 1]];
    }
    dw_session_free(s);
    free(z);
    return sum / (n - 1);
}

/* The text has one window to learn from, so the loss of a step is known. */
static void means_of_the_terms(void) {
    static lesson l;
    dw_err err = {0};
    double kl = 0, ce = 0, both = 0;
    static const double shares[] = {0, 1, 0.25};
    double *loss[] = {&kl, &ce, &both};
    for (int i = 0; i < 3; i++) {
        distil_options o = small_options();
        o.n_held = 1;
        o.ce = shares[i];
        if (!begin_lesson(&l, cut("tiny-qwen2", "F32"), 32, &o)) return;
        CHECK(!distil_step(&l.d, 0, loss[i], &err), "%s", err.text);
        if (i == 1) {
            const double wanted = cross_entropy(l.model, l.id, 16);
            CHECK(fabs(ce - wanted) < 1e-3 * wanted, "cross entropy %.7g, by the session %.7g", ce, wanted);
        }
        end_lesson(&l);
    }
    CHECK(fabs(both - (0.75 * kl + 0.25 * ce)) < 1e-6 * both, "%.9g of KL %.9g and CE %.9g", both, kl, ce);
}

/* A model without its second layer is compared with the teacher's layers 0, 2 and 3. */
static void hidden_states_of_kept_layers(void) {
    const char *parent = random_model("tiny-qwen2", "F32", 0), *plan = test_file("drop.tsv"),
               *student = test_file("dropped.gguf"), *out = test_file("hidden.gguf");
    static lesson l;
    dw_err err = {0};
    double loss = 0, plain = 0;
    CHECK(!test_run("deadwood-rank -m %s --metric weight --rate 0.25 -o %s -q && "
                    "sed -i 's/^1\t.*/1\t0\tdrop/' %s && deadwood-cut -m %s -p %s -o %s -q",
                    parent, plan, plan, parent, plan, student),
          "%s", test_run_output());
    distil_options o = small_options();
    if (!begin_lesson(&l, student, 400, &o)) return;
    CHECK(!distil_step(&l.d, 0, &plain, &err) && !l.d.residual, "%s", err.text);
    end_lesson(&l);
    o.hidden = 0.5;
    if (!begin_lesson(&l, student, 400, &o)) return;
    CHECK(l.d.residual[0] == 2 && l.d.residual[1] == 3 && l.d.residual[2] == 4, "compared with %d, %d, %d",
          l.d.residual[0], l.d.residual[1], l.d.residual[2]);
    CHECK(!distil_step(&l.d, 0, &loss, &err) && loss > plain, "%g with hidden states, %g without: %s", loss, plain,
          err.text);
    end_lesson(&l);
    CHECK(!heal(student, parent, "--tokens 640 --lr 0.001 --hidden-states 0.3 --ce 0.1", out), "%s", test_run_output());
    CHECK(number_after("held-out loss ") < number_after(", before "), "%s", test_run_output());
    CHECK(!test_run("deadwood-heal -m %s -T %s -f %s -o %s -c 16 --held-out 4 --batch 4 --tokens 128 -q", out, parent,
                    text(), test_file("refused.gguf")),
          "%s", test_run_output());
    CHECK(test_run("rm -f %s; deadwood-heal -m %s -T %s -f %s -o %s -c 16 --batch 4 --tokens 128 --hidden-states 1",
                   test_file("refused.gguf"), out, parent, text(), test_file("refused.gguf")) == 1 &&
              strstr(test_run_output(), "has the FFN norm of no layer of the teacher"),
          "%s", test_run_output());
}

/* ---- the recipe --------------------------------------------------------------------------------------------------- */

/* What heal says that it does with these options. */
static void check_recipe(const char *student, const char *teacher, const char *options, const char *wanted) {
    const char *out = test_file("recipe.gguf");
    CHECK(!test_run("rm -f %s.checkpoint; deadwood-heal -m %s -T %s -f %s -o %s -c 16 --held-out 4 --tokens 32 -t 1 %s",
                    out, student, teacher, text(), out, options) &&
              strstr(test_run_output(), wanted),
          "wanted '%s': %s", wanted, test_run_output());
}

/* tiny-llama has width 64 and 36,992 weights a layer.  Half of its neurons are 3 x 64 x 64 of them: C = 0.3322, and
 * (0.025 + 0.2 C) / 64 = 0.001429.  Nothing cut: 0.000391.  Another activation: C = 0.5, 0.00195. */
static void recipe_follows_the_cut(void) {
    const char *whole = random_model("tiny-llama", "F32", 0), *half = cut("tiny-llama", "F32"),
               *plan = test_file("drop.tsv"), *dropped = test_file("dropped-llama.gguf");
    char options[160];
    check_recipe(whole, whole, "", "recipe: --lr 0.000391 --batch 2 --hidden-states 10 --last 0.1\n");
    check_recipe(half, whole, "", "recipe: --lr 0.00143 --batch 2 --hidden-states 10 --last 0.1\n");
    CHECK(!test_run("deadwood-inspect %s --lineage | grep -q -- '--lr 0.00143 .*--hidden-states 10 '",
                    test_file("recipe.gguf")),
          "the lineage does not tell the recipe: %s", test_run_output());
    check_recipe(half, whole, "--train norms", "recipe: --lr 0.0005 --batch 2 --hidden-states 10 --last 0.1\n");
    check_recipe(whole, whole, "--activation relu", "recipe: --lr 0.00195 --batch 2 --hidden-states 10 --last 0.1\n");
    check_recipe(half, whole, "--lr 0 --batch 1 --hidden-states 0 --last 0",
                 "recipe: --lr 0 --batch 1 --hidden-states 0 --last 0\n");
    snprintf(options, sizeof options, "--teacher-cache %s", test_file("recipe.cache"));
    check_recipe(half, whole, options, " --hidden-states 0 --last 0.1\n");
    CHECK(!test_run("deadwood-rank -m %s --metric weight --rate 0.25 -o %s -q && "
                    "sed -i 's/^1\t.*/1\t0\tdrop/' %s && deadwood-cut -m %s -p %s -o %s -q",
                    whole, plan, plan, whole, plan, dropped),
          "%s", test_run_output());
    check_recipe(dropped, whole, "", " --hidden-states 0 --last 0.1\n");
}

/* ---- stored predictions of the teacher ------------------------------------------------------------------------- */

/* Heals with a file of predictions; *out is the healed file. */
static int heal_by(const char *cache, const char *options, const char *out) {
    char all[256];
    snprintf(all, sizeof all, "--teacher-cache %s %s", cache, options);
    return heal(cut("tiny-qwen2", "BF16"), random_model("tiny-qwen2", "BF16", 0), all, out);
}

static void set_space_prefix(dw_gguf_writer *w, const void *ctx) {
    (void)ctx;
    dw_gguf_set_bool(w, "tokenizer.ggml.add_space_prefix", false);
}

/* tokens x (64 x (2 + 2) + 4) bytes, a head of 72 and a hash of 32. */
static void teacher_is_stored(void) {
    const char *cache = test_file("teacher.cache"), *first = test_file("first.gguf"), *out = test_file("second.gguf"),
               *other = test_file("other-ids.gguf");
    char by_cache[256];
    char before[65], after[65];
    CHECK(!heal_by(cache, "--tokens 1280", first) && strstr(test_run_output(), "teacher cache: 332.9 kB in") &&
              number_after("held-out loss ") < 0.9 * number_after(", before "),
          "%s", test_run_output());
    dw_sha256_file(cache, before, NULL);
    CHECK(!test_run("test $(wc -c < %s) = %d", cache, 72 + 1280 * (64 * 4 + 4) + 32), "another size");
    CHECK(!heal_by(cache, "--tokens 1280", out) && !strstr(test_run_output(), "teacher cache"), "%s",
          test_run_output());
    dw_sha256_file(cache, after, NULL);
    CHECK(n_changed(first, out, NULL) == 0 && !strcmp(before, after), "the second student differs, or the file");
    CHECK(!heal_by(cache, "--tokens 640 --train ffn", out), "another student, a shorter run: %s", test_run_output());
    static const char *const others[] = {"--tokens 1280 --seed 1", "--tokens 1280 --temperature 2",
                                         "--tokens 1280 --batch 2"};
    for (int i = 0; i < 3; i++)
        CHECK(heal_by(cache, others[i], out) == 1 && strstr(test_run_output(), "is of another teacher, or of other"),
              "%s: %s", others[i], test_run_output());
    write_with_keys(cut("tiny-qwen2", "BF16"), other, set_space_prefix, NULL); // the same tokens, other ids of a text
    snprintf(by_cache, sizeof by_cache, "--teacher-cache %s --tokens 1280", cache);
    CHECK(heal(other, random_model("tiny-qwen2", "BF16", 0), by_cache, out) == 1 &&
              strstr(test_run_output(), "is of another teacher, or of other"),
          "%s", test_run_output());
    CHECK(heal_by(cache, "--tokens 1920", out) == 1 && strstr(test_run_output(), "has 20 steps, the run 30"), "%s",
          test_run_output());
    CHECK(heal_by(cache, "--minutes 1", out) == 2 && strstr(test_run_output(), "--teacher-cache needs --tokens"), "%s",
          test_run_output());
    CHECK(heal_by(cache, "--tokens 1280 --hidden-states 1", out) == 2 &&
              strstr(test_run_output(), "stores no hidden states"),
          "%s", test_run_output());
    CHECK(!test_run("printf xyz | dd of=%s bs=1 seek=9000 conv=notrunc status=none", cache), "%s", test_run_output());
    CHECK(heal_by(cache, "--tokens 1280", out) == 1 && strstr(test_run_output(), "is damaged; remove it"), "%s",
          test_run_output());
    CHECK(!test_run("head -c 5000 %s > %s", cut("tiny-qwen2", "BF16"), cache), "%s", test_run_output());
    CHECK(heal_by(cache, "--tokens 1280", out) == 1 &&
              strstr(test_run_output(), "is not a file of a teacher's predictions"),
          "%s", test_run_output());
}

/* The predictions of the file are the teacher's, by its session; and its loss is near the full one. */
static void stored_is_the_teacher(void) {
    static lesson l;
    dw_err err = {0};
    double full = 0, stored = 0;
    const uint8_t identity[32] = {1};
    const char *path = test_file("direct.cache");
    const distil_options o = small_options();
    if (!begin_lesson(&l, cut("tiny-qwen2", "F32"), 400, &o)) return;
    CHECK(!teacher_cache_make(&l.d, path, identity, 3, &err) && !teacher_cache_open(&l.d, path, identity, 3, &err),
          "%s", err.text);
    teacher_cache *c = l.d.cache;
    distil_draw(&l.d, 3);
    const int n_vocab = dw_model_hparams(l.teacher)->n_vocab;
    float *z = malloc(16 * (size_t)n_vocab * sizeof *z);
    CHECK(!teacher_cache_read(c, 3, 1, 2, &err) && !dw_train_forward(l.d.teacher, l.d.token + 16, 2, &err), "%s",
          err.text);
    dw_train_logits(l.d.teacher, 16, 16, z); // of the step's third window
    const dw_coarse_teacher *k = teacher_cache_coarse(c);
    for (int t = 0; t < 16; t++) {
        double all = 0, rest = 0, worst = 0;
        for (int i = 0; i < n_vocab; i++) all += exp(z[t * n_vocab + i]);
        for (int i = 0; i < 64; i++) {
            const size_t at = (size_t)(16 + t) * 64 + (size_t)i;
            worst = fmax(worst, fabs(k->logprob[at] - (z[t * n_vocab + k->token[at]] - log(all))));
            rest += exp(z[t * n_vocab + k->token[at]]) / all;
        }
        CHECK(k->k == 64 && worst < 3e-4 && fabs(exp(k->rest[16 + t]) - (1 - rest)) < 1e-5,
              "token %d: ln p is off by %g, the rest is %g and not %g", t, worst, exp(k->rest[16 + t]), 1 - rest);
    }
    l.d.cache = NULL;
    CHECK(!distil_step(&l.d, 0, &full, &err), "%s", err.text);
    l.d.plan.steps = 0;
    l.d.cache = c;
    CHECK(!distil_step(&l.d, 0, &stored, &err) && stored < full && stored > 0.3 * full, "KL %g over bins, %g in full",
          stored, full);
    free(z);
    end_lesson(&l);
}

/* Dividing by a temperature of NaN makes every logit NaN.  No file stays. */
static void teacher_without_numbers(void) {
    static lesson l;
    dw_err err = {0};
    const uint8_t identity[32] = {1};
    const char *path = test_file("damaged-teacher.cache");
    const distil_options o = small_options();
    if (!begin_lesson(&l, cut("tiny-qwen2", "F32"), 400, &o)) return;
    l.d.o.temperature = NAN;
    CHECK(teacher_cache_make(&l.d, path, identity, 3, &err) &&
              strstr(err.text, "step 1: a logit of the teacher is NaN or infinite") && !dw_file_exists(path),
          "%s", err.text);
    end_lesson(&l);
}

/* ---- another activation ---------------------------------------------------------------------------------------- */

typedef struct gates { // values of act(gate)
    int n, n_negative, n_zero;
} gates;

static void count_gates(void *ctx, const dw_tap_event *e) {
    gates *g = ctx;
    for (int i = 0; i < e->n * e->n_tokens; i++) {
        g->n++;
        g->n_negative += e->values[i] < 0;
        g->n_zero += e->values[i] == 0;
    }
}

static gates gates_of(const char *path) {
    dw_err err = {0};
    gates g = {0};
    int32_t token[16];
    dw_model *m = dw_model_open(path, &err);
    const dw_session_options o = {.pool = two_threads(), .n_ctx = 16, .n_batch = 16};
    dw_session *s = m ? dw_session_new(m, &o, &err) : NULL;
    if (CHECK(s, "%s", err.text)) {
        random_tokens(token, 16, dw_model_hparams(m)->n_vocab, 2);
        dw_session_set_tap(s, &(dw_tap){.points = 1u << DW_TAP_FFN_GATE, .fn = count_gates, .ctx = &g});
        CHECK(!dw_session_eval(s, &(dw_batch){.n_tokens = 16, .token = token}, &err), "%s", err.text);
    }
    dw_session_free(s);
    dw_model_close(m);
    return g;
}

/* The same file whose activation has another name. */
static const char *with_activation(const char *path, const char *name) {
    dw_err err = {0};
    const char *out = test_file("activation.gguf");
    dw_gguf *g = dw_gguf_open(path, &err);
    dw_gguf_writer *w = g ? dw_gguf_writer_new(out, &err) : NULL;
    if (!CHECK(w, "%s", err.text)) return out;
    dw_gguf_set_keys(w, g);
    dw_gguf_set_text(w, DW_KEY_FFN_ACTIVATION, name);
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        dw_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne);
    }
    CHECK(!dw_gguf_begin(w, &err), "%s", err.text);
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++)
        CHECK(!dw_gguf_write(w, dw_gguf_tensor(g, i)->data, dw_gguf_tensor(g, i)->n_bytes, &err), "%s", err.text);
    CHECK(!dw_gguf_commit(w, &err), "%s", err.text);
    dw_gguf_writer_free(w);
    dw_gguf_close(g);
    return out;
}

static void learns_relu(void) {
    const char *student = cut("tiny-qwen2", "BF16"), *teacher = random_model("tiny-qwen2", "BF16", 0),
               *out = test_file("relu.gguf"), *again = test_file("relu-2.gguf");
    CHECK(!heal(student, teacher, "--tokens 1280 --lr 0.001 --activation relu", out) &&
              strstr(test_run_output(), "cannot run") && strstr(test_run_output(), "with silu instead of relu"),
          "%s", test_run_output());
    const double after = number_after("held-out loss "), before = number_after(", before ");
    CHECK(after < 0.9 * before, "held-out KL %g from %g", after, before);
    const gates silu = gates_of(student), relu = gates_of(out);
    CHECK(silu.n_negative > silu.n / 4 && relu.n_negative == 0 && relu.n_zero > relu.n / 4,
          "of %d gates %d are negative and %d are 0", relu.n, relu.n_negative, relu.n_zero);
    CHECK(!test_run("deadwood-inspect %s", out) && strstr(test_run_output(), "activation        relu"), "%s",
          test_run_output());
    CHECK(!heal(out, teacher, "--tokens 128", again) && gates_of(again).n_negative == 0, "healed once more: %s",
          test_run_output());
    CHECK(!test_run("deadwood-collect -m %s -f %s -c 16 --windows 8 -o %s -q && "
                    "deadwood-gate -m %s -s %s -o %s --rule cats --activity 0.3 -q && deadwood-inspect %s",
                    out, text(), test_file("relu.h5"), out, test_file("relu.h5"), test_file("relu-gate.gguf"),
                    test_file("relu-gate.gguf")) &&
              strstr(test_run_output(), "activation        relu"),
          "%s", test_run_output());
    CHECK(test_run("deadwood-inspect %s", with_activation(out, "tanh")) == 1 &&
              strstr(test_run_output(), "is 'tanh', which is not supported (silu, gelu_pytorch_tanh and relu are)"),
          "%s", test_run_output());
}

static void learns_sparsity(void) {
    const char *student = cut("tiny-qwen2", "BF16"), *teacher = random_model("tiny-qwen2", "BF16", 0),
               *plain = test_file("relu-plain.gguf"), *sparse = test_file("relu-sparse.gguf");
    CHECK(!heal(student, teacher, "--tokens 6400 --lr 0.002 --activation relu", plain), "%s", test_run_output());
    CHECK(!heal(student, teacher, "--tokens 6400 --lr 0.002 --activation relu --sparsity 100 --patience 0", sparse), "%s",
          test_run_output());
    const char *at = strstr(test_run_output(), "in this step ");
    const double first = at ? atof(at + 13) : NAN, last = number_after("in this step ");
    CHECK(first > 20 && last < first / 2, "after a tenth %g %% of the gates are open, at the end %g %%", first, last);
    const gates a = gates_of(plain), b = gates_of(sparse);
    const double open_a = 1 - (double)a.n_zero / a.n, open_b = 1 - (double)b.n_zero / b.n;
    CHECK(open_b < 0.85 * open_a, "%.3f of the gates are open with sparsity, %.3f without", open_b, open_a);
    refused(student, teacher, "--tokens 100 --sparsity 1 --patience 0", 1, "--sparsity needs relu; use --activation relu");
    refused(student, teacher, "--tokens 100 --sparsity 1", 2, "add --patience 0");
}

/* ---- the plan of a run ----------------------------------------------------------------------------------------- */

/* Plays a run by the seconds of a step and of a measurement; returns when its command ends. */
static double play(schedule *s, double step, double measurement, int *n_measured) {
    const double before = 2.5; // the first measurement
    double now = 0;
    s->budget -= before;
    for (*n_measured = 0; !schedule_ends(s);) {
        schedule_rate(s);
        s->steps++;
        now += step;
        schedule_clock(s, now, step);
        if (!schedule_is_due(s)) continue;
        ++*n_measured;
        now += measurement;
        schedule_measure(s, 1.0 / *n_measured);
        schedule_clock(s, now, 0);
    }
    return now + before;
}

static void minutes_are_planned(void) {
    schedule s = {.budget = 60, .reserve = 0.5, .rate = 1, .warm = 0.05};
    int n;
    const double ended = play(&s, 0.7, 0.5, &n);
    CHECK(ended <= 60 && ended > 58 && n == 10, "it ended after %g s with %d measurements", ended, n);
    s.steps--;
    s.seconds -= 1.4;
    CHECK(schedule_done(&s) < 1 && schedule_rate(&s) < 0.01, "the last rate was %g of the highest", schedule_rate(&s));
    schedule slow = {.budget = 10, .reserve = 0.5, .rate = 1, .warm = 0.05};
    CHECK(play(&slow, 30, 0.5, &n) == 33 && slow.steps == 1 && n == 1, "a step longer than the budget: %llu steps",
          (unsigned long long)slow.steps);
    /* The rates of steps by time are those of as many steps by tokens, nearly; also the first. */
    schedule same = {.budget = 62, .reserve = 2, .expected = 1, .rate = 1, .warm = 0.05}, steps = same;
    steps.n_steps = 60;
    for (int i = 0; i < 60; i++) {
        CHECK(fabs(schedule_rate(&same) - schedule_rate(&steps)) < 1e-4, "step %d: %g by time, %g by tokens", i,
              schedule_rate(&same), schedule_rate(&steps));
        same.steps++, steps.steps++;
        schedule_clock(&same, i + 1, 1);
    }
    schedule by_tokens = {.n_steps = 25, .rate = 1, .warm = 0.05};
    play(&by_tokens, 0.7, 0.5, &n);
    CHECK(by_tokens.steps == 25 && n == 10, "%llu steps, %d measurements", (unsigned long long)by_tokens.steps, n);
}

/* A measurement is no part of the longest step: the run does not end earlier by it. */
static void measurements_are_slow(void) {
    schedule s = {.budget = 60, .reserve = 3, .rate = 1, .warm = 0.05};
    int n;
    const double ended = play(&s, 0.7, 3, &n);
    CHECK(s.longest == 0.7, "the longest step took %g s", s.longest);
    CHECK(ended <= 60 && ended > 60 - 0.7 - 1e-9 && n == 10, "it ended after %g s with %d measurements", ended, n);
}

static void patience_ends_a_run(void) {
    static const double losses[] = {5, 4, 3, 3.5, 3, 3.1, 2};
    schedule s = {.n_steps = 10, .patience = 3};
    for (int i = 0; i < 6; i++) {
        s.steps++;
        CHECK(schedule_is_due(&s) && !schedule_ends(&s), "measurement %d", i);
        CHECK(schedule_measure(&s, losses[i]) == (i < 3), "measurement %d: %g", i, losses[i]);
    }
    CHECK(schedule_ends(&s) && schedule_gives_up(&s) && s.best_step == 3 && s.best == 3, "best at step %llu: %g",
          (unsigned long long)s.best_step, s.best);
    s.patience = 0;
    CHECK(!schedule_ends(&s), "without patience it goes on");
}

/* With a rate of 0 the loss does not fall. */
static void stops_early(void) {
    const char *out = test_file("early.gguf"), *student = cut("tiny-qwen2", "BF16");
    CHECK(!heal(student, random_model("tiny-qwen2", "BF16", 0), "--tokens 1280 --lr 0 --patience 2", out) &&
              strstr(test_run_output(), "stopped early: the held-out loss has not fallen in 2 tenths") &&
              strstr(test_run_output(), "the values after step 2 win"),
          "%s", test_run_output());
    CHECK(!test_run("deadwood-inspect %s --json", out), "%s", test_run_output());
    CHECK(!heal(student, random_model("tiny-qwen2", "BF16", 0), "--tokens 1280 --lr 0 --patience 0", out) &&
              !strstr(test_run_output(), "stopped early"),
          "%s", test_run_output());
}

/* A rate that is too high. */
static void the_start_can_win(void) {
    const char *out = test_file("worse.gguf"), *student = cut("tiny-qwen2", "BF16"),
               *teacher = random_model("tiny-qwen2", "BF16", 0);
    static const char *const trained[] = {"all", "lora --rank 3"};
    for (int i = 0; i < 2; i++) {
        char options[64];
        snprintf(options, sizeof options, "--tokens 640 --lr 0.5 --train %s", trained[i]);
        CHECK(!heal(student, teacher, options, out) && strstr(test_run_output(), "has the weights of before") &&
                  !n_changed(student, out, NULL),
              "%s", test_run_output());
    }
    CHECK(!heal(student, teacher, "--tokens 640 --lr 0.5 --patience 0", out) &&
              strstr(test_run_output(), "warning: the model has got worse") && n_changed(student, out, NULL),
          "%s", test_run_output());
}

/* Ten special tokens are ten tokens; as text they would be many more. */
static void special_tokens_count(void) {
    const char *m = test_file("mini.gguf"), *few = test_file("few.txt");
    CHECK(!test_run("deadwood-convert experiments/mini -o %s -q", m), "%s", test_run_output());
    CHECK(!test_run("printf '<|endoftext|>%%.0s' 1 2 3 4 5 6 7 8 9 10 > %s", few), "%s", test_run_output());
    CHECK(test_run("deadwood-heal -m %s -T %s -f %s -o %s --tokens 100 -q", m, m, few, test_file("refused.gguf")) ==
                  1 &&
              strstr(test_run_output(), "has 10 tokens"),
          "%s", test_run_output());
}

static void minutes_end(void) {
    const double began = dw_now();
    CHECK(!heal(cut("tiny-qwen2", "BF16"), random_model("tiny-qwen2", "BF16", 0), "--minutes 0.02",
                test_file("timed.gguf")),
          "%s", test_run_output());
    CHECK(dw_now() - began < 60, "1.2 seconds took %.0f", dw_now() - began);
}

static void snapshots_show_the_way(void) {
    const char *student = cut("tiny-qwen2", "BF16"), *teacher = random_model("tiny-qwen2", "BF16", 0);
    const char *plain = test_file("plain.gguf"), *out = test_file("way.gguf");
    CHECK(!heal(student, teacher, "--tokens 640 --patience 0", plain), "%s", test_run_output());
    CHECK(!heal(student, teacher, "--tokens 640 --patience 0 --snapshots", out), "%s", test_run_output());
    CHECK(!n_changed(plain, out, NULL), "--snapshots changes the healed model");
    const char *before = student;
    for (int tenth = 1; tenth < 10; tenth++) {
        char name[32];
        snprintf(name, sizeof name, "way-%d0.gguf", tenth);
        const char *now = test_file(name);
        CHECK(dw_file_exists(now) && n_changed(before, now, NULL), "%s: not there, or as one tenth before", name);
        CHECK(!test_run("grep -a -q 'tokens_trained\\W*%d\\b' %s", 64 * tenth, now), "%s: other tokens", name);
        before = now;
    }
    CHECK(n_changed(before, out, NULL), "the last step changes nothing");
    CHECK(!dw_file_exists(test_file("way-100.gguf")), "the end is written twice");
    CHECK(!heal(student, teacher, "--tokens 320 --snapshots", out) &&
              strstr(test_run_output(), "way-10.gguf' is of a run before"),
          "a run of five steps is silent about files that an earlier run wrote: %s", test_run_output());
}

static const test_case cases[] = {
    {"a cut model learns: held-out KL falls by a tenth or more, in four architectures", learns},
    {"--train changes what it names and nothing else", trains_what_is_asked},
    {"a model healed against itself keeps every byte of its tensors", itself_stays},
    {"with --lr 0 no byte of a tensor changes", rate_0_changes_nothing},
    {"with --as and --lr 0 tensors, types and keys are those of requant --mixture, with importances too",
     rounded_as_requant},
    {"with --as a model learns to be rounded; it needs --train all", learns_to_be_rounded},
    {"rows count the tokens and minutes of all steps of heal, and name the mixture of --as", rows_count_all_steps},
    {"fewer tokens than half a step are told", one_step},
    {"a text that the teacher has learnt from is a leak of the student", teacher_taught},
    {"a text of the teacher's is in the lineage once", taught_once},
    {"a lineage that cannot be continued is refused before learning", full_lineage},
    {"a run that was killed or interrupted goes on, and its file is that of an uninterrupted one",
     resumed_is_uninterrupted},
    {"two runs do not write one checkpoint", one_run_has_a_checkpoint},
    {"an interrupt stores the current step, before any checkpoint was due", an_interrupt_stores_the_step},
    {"an interrupted step that cannot be stored is an error", a_step_that_cannot_be_stored_is_told},
    {"checkpoints of another run or damaged ones are refused and stay", checkpoints_are_checked},
    {"a full disk ends the run in one line; the last checkpoint stays, and with room the run goes on",
     full_disk_keeps_the_checkpoint},
    {"a text too short to hold a window out only teaches; too few held-out windows in all are refused",
     short_texts_only_teach},
    {"a teacher that the cut was not made of is told, and one that was made of it; the parent in other types, and "
     "itself, are not",
     strangers_are_told},
    {"checkpoints that share a tokenizer are no kin for that", tokenizers_are_no_kin},
    {"lineages that name ten thousand files are compared in seconds", many_inputs},
    {"refused: another vocabulary, quantized or gated students, no length, empty or compressed texts", refusals},
    {"a step whose loss is NaN is refused, named, and changes nothing", nan_is_named},
    {"the values with the lowest held-out loss come back bit for bit, with low-rank additions, too",
     best_values_come_back},
    {"KL is a mean over the positions of a window, cross entropy over its next tokens", means_of_the_terms},
    {"by default the rate follows from what was cut, and hidden states are compared where layers match",
     recipe_follows_the_cut},
    {"--hidden-states compares kept layers with the same layers of the teacher", hidden_states_of_kept_layers},
    {"--teacher-cache: a second student reads what the first wrote; files of other runs and damaged ones are refused",
     teacher_is_stored},
    {"--teacher-cache: the file has the teacher's predictions", stored_is_the_teacher},
    {"--teacher-cache: logits that are NaN are refused, and no file stays", teacher_without_numbers},
    {"--sparsity: fewer neurons are open, and how many is told; it needs relu", learns_sparsity},
    {"--activation relu: the file says so, computes so, keeps it through heal and gate", learns_relu},
    {"--minutes: a run of known steps ends in time, measured ten times, at a low rate", minutes_are_planned},
    {"--minutes: slow measurements do not end a run early", measurements_are_slow},
    {"--patience: which values win, and when a run stops", patience_ends_a_run},
    {"a run whose held-out loss does not fall stops early and says so", stops_early},
    {"where learning only makes it worse, the weights of before are written", the_start_can_win},
    {"special tokens in a text count as such", special_tokens_count},
    {"--minutes ends in time", minutes_end},
    {"--snapshots writes the model after each tenth and does not change the run", snapshots_show_the_way},
    {"a step's operations are those by hand, for all weights and for some", operations_are_counted},
    {"memory grows with --batch, not with --held-out", memory_is_of_a_step},
    {"the speed of the steps is told beside what matrix products allow", speed_is_told},
    {0}};
TEST_MAIN(cases)
