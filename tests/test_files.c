/* test_files.c - the files that programs read and write: identity, kinds of inputs, outputs that replace no input. */
#include "build.h"
#include "kit/hash_cache.h"
#include "kit/kit_own.h"
#include "kit/tsv.h"
#include "test.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- split models ----------------------------------------------------------------------------------- */

static void add_part(const dw_gguf *from, const char *to, uint32_t no, size_t first, size_t end) {
    dw_err err = {0};
    dw_gguf_writer *w = dw_gguf_writer_new(to, &err);
    if (!CHECK(w, "%s", err.text)) exit(1);
    const int32_t n_tensors = (int32_t)dw_gguf_n_tensors(from);
    if (!no) dw_gguf_set_keys(w, from);
    dw_gguf_set_u32(w, "xplit.no", no);
    dw_gguf_set_u32(w, "xplit.count", 2);
    dw_gguf_set_kv(w, "xplit.tensors.count",
                   &(dw_kv){.type = DW_KV_I32, .count = 1, .data = (const uint8_t *)&n_tensors, .n_bytes = 4});
    for (size_t i = first; i < end; i++) {
        const dw_tensor *t = dw_gguf_tensor(from, i);
        dw_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne);
    }
    int rc = dw_gguf_begin(w, &err);
    for (size_t i = first; i < end && !rc; i++)
        rc = dw_gguf_write(w, dw_gguf_tensor(from, i)->data, dw_gguf_tensor(from, i)->n_bytes, &err);
    CHECK(!rc && !dw_gguf_commit(w, &err), "%s", err.text);
    dw_gguf_writer_free(w);
    CHECK(!test_run("LC_ALL=C sed -i 's/xplit[.]/split./g' %s", to)); // keys that the writer keeps to itself
}

/* The model of a seed in two parts: NAME-00001-of-00002.gguf, whose path is returned, and NAME-00002-of-00002.gguf. */
static const char *split(const char *name, int seed) {
    char file[64];
    dw_err err = {0};
    snprintf(file, sizeof file, "whole-%d.gguf", seed);
    const char *whole = test_file(file);
    CHECK(!test_run("deadwood-synth --shape tiny-llama --type F32 --seed %d -o %s -q", seed, whole), "%s",
          test_run_output());
    dw_gguf *g = dw_gguf_open(whole, &err);
    if (!CHECK(g, "%s", err.text)) exit(1);
    const size_t n = dw_gguf_n_tensors(g);
    snprintf(file, sizeof file, "%s-00002-of-00002.gguf", name);
    add_part(g, test_file(file), 1, n / 2, n);
    snprintf(file, sizeof file, "%s-00001-of-00002.gguf", name);
    add_part(g, test_file(file), 0, 0, n / 2);
    dw_gguf_close(g);
    return test_file(file);
}

static void hash_of_parts(void) {
    dw_err err = {0};
    const char *first = split("m", 1), *second = test_file("m-00002-of-00002.gguf"), *whole = test_file("whole-1.gguf");
    char hex[65], expected[65], parts[2][65];
    CHECK(!kit_sha256_input(whole, hex, &err) && !dw_sha256_file(whole, expected, &err) && !strcmp(hex, expected),
          "one file: its SHA-256");

    dw_sha256 h;
    uint8_t digest[2][32], all[32];
    const char *path[] = {first, second};
    for (int i = 0; i < 2; i++) {
        size_t n = 0;
        char *bytes = dw_read_file(path[i], 1 << 26, &n, &err);
        dw_sha256_begin(&h);
        dw_sha256_add(&h, bytes, n);
        dw_sha256_end(&h, digest[i]);
        dw_hex(digest[i], 32, parts[i]);
        free(bytes);
    }
    dw_sha256_begin(&h);
    dw_sha256_add(&h, digest, sizeof digest);
    dw_sha256_end(&h, all);
    dw_hex(all, 32, expected);
    CHECK(!kit_sha256_input(first, hex, &err) && !strcmp(hex, expected), "two: of the digests in order; %s", err.text);
    dw_gguf *g = dw_gguf_open(first, &err);
    REQUIRE(g, "%s", err.text);
    dw_gguf_sha256(g, hex);
    CHECK(!strcmp(hex, expected), "the same of a model that is open");
    dw_gguf_close(g);

    CHECK(dw_split_count("a/m-00001-of-00003.gguf") == 3 && dw_split_count("m-00002-of-00003.gguf") == 1);
    CHECK(dw_split_count("m-00001-of-00001.gguf") == 1 && dw_split_count("-00001-of-00003.gguf") == 3 &&
          dw_split_count("") == 1);
}

/* The second part is replaced by that of a model of another seed: every tool notices. */
static void other_second_part(void) {
    const char *m = split("m", 1), *text = test_file("text.txt"), *stats = test_file("m.h5"),
               *plan = test_file("m.plan"), *rows = test_file("rows.tsv");
    REQUIRE(!test_run("head -c 4000 README.md >%s", text));
    REQUIRE(!test_run("deadwood-collect -m %s -f %s -c 64 --windows 2 -o %s -q", m, text, stats), "%s",
            test_run_output());
    REQUIRE(!test_run("deadwood-rank -m %s -s %s --metric energy --rate 0.5 --group 32 -o %s -q", m, stats, plan), "%s",
            test_run_output());
    REQUIRE(!test_run("deadwood-cut -m %s -p %s -o %s -q", m, plan, test_file("cut.gguf")), "%s", test_run_output());
    CHECK(!test_run("deadwood-inspect %s --verify", test_file("cut.gguf")), "%s", test_run_output());
    CHECK(strstr(test_run_output(), "text.txt\tsame"), "%s", test_run_output());
    REQUIRE(!test_run("cp %s %s.kept && echo more >>%s", text, text, text));
    CHECK(test_run("deadwood-inspect %s --verify", test_file("cut.gguf")) == 1 &&
              strstr(test_run_output(), "text.txt\tDIFFERS"),
          "%s", test_run_output());
    REQUIRE(!test_run("mv %s.kept %s", text, text));
    const char *score = "deadwood-score -m %s -f %s -c 64 --windows 2 --no-speed -q -o %s";
    CHECK(!test_run(score, m, text, rows), "%s", test_run_output());

    split("other", 2);
    REQUIRE(!rename(test_file("other-00002-of-00002.gguf"), test_file("m-00002-of-00002.gguf")));
    CHECK(test_run("deadwood-rank -m %s -s %s --metric energy --rate 0.5 --group 32 -o %s -q", m, stats,
                   test_file("no.plan")) == 1);
    CHECK(strstr(test_run_output(), "another model"), "%s", test_run_output());
    CHECK(test_run("deadwood-cut -m %s -p %s -o %s -q", m, plan, test_file("no.gguf")) == 1);
    CHECK(strstr(test_run_output(), "another model"), "%s", test_run_output());
    CHECK(test_run("deadwood-inspect %s --verify", test_file("cut.gguf")) == 1);
    CHECK(strstr(test_run_output(), "m-00001-of-00002.gguf\tDIFFERS"), "%s", test_run_output());

    dw_err err = {0};
    tsv_table t;
    CHECK(!test_run(score, m, text, rows), "%s", test_run_output());
    REQUIRE(!tsv_read(&t, rows, &err) && t.n_rows == 2, "%s", err.text);
    CHECK(strcmp(tsv_cell(&t, 0, "model_sha256"), tsv_cell(&t, 1, "model_sha256")), "two models, one hash");
    tsv_release(&t);
    REQUIRE(!unlink(test_file("m-00002-of-00002.gguf")));
    CHECK(test_run("deadwood-inspect %s --verify", test_file("cut.gguf")) == 1 && strstr(test_run_output(), "DIFFERS"),
          "%s", test_run_output());
    REQUIRE(!unlink(m) && !mkfifo(m, 0600));
    CHECK(!test_run("timeout 10 deadwood-inspect %s --verify", test_file("cut.gguf")), "the plan is the same: %s",
          test_run_output());
    CHECK(strstr(test_run_output(), "m-00001-of-00002.gguf\tnot at hand"), "%s", test_run_output());
}

/* ---- inputs -------------------------------------------------------------------------------------------- */

static void regular_files_only(void) {
    const char *fifo = test_file("fifo"), *link = test_file("link"), *file = test_file("file");
    REQUIRE(!mkfifo(fifo, 0600) && !symlink("file", link) && !test_run("echo words >%s", file));
    const struct {
        const char *path, *words;
    } refused[] = {{fifo, "is a FIFO, not a regular file"},
                   {test_folder(), "is a folder, not a regular file"},
                   {"/dev/null", "is a device, not a regular file"}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        dw_err err = {0};
        dw_map map;
        CHECK(dw_map_file(&map, refused[i].path, &err) && strstr(err.text, refused[i].words), "%s", err.text);
        err = (dw_err){0};
        CHECK(!dw_read_file(refused[i].path, 100, NULL, &err) && strstr(err.text, refused[i].words), "%s", err.text);
        CHECK(!dw_file_begins(refused[i].path, "", 0));
    }
    dw_err err = {0};
    char *text = dw_read_text(link, 100, &(size_t){0}, &err);
    CHECK(text && !strcmp(text, "words\n"), "links are followed: %s", err.text);
    free(text);
}

/* No program waits for a writer that never comes. */
static void fifos(void) {
    const char *fifo = test_file("pipe"), *m = random_model("tiny-llama", "F32", 0);
    REQUIRE(!mkfifo(fifo, 0600));
    const char *commands[] = {"inspect %s",
                              "score -m %s -f README.md -o %s.out",
                              "generate -m %s -p a",
                              "rank -m %s --metric weight --rate 0.5 -o %s.out",
                              "requant -m %s --type Q8_0 -o %s.out",
                              "collect -m %s -f README.md -o %s.out",
                              "table %s",
                              "sweep %s -o %s.dir"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char command[512];
        snprintf(command, sizeof command, commands[i], fifo, fifo);
        const int rc = test_run("timeout 10 deadwood-%s", command);
        CHECK(rc == 1 && strstr(test_run_output(), "is a FIFO, not a regular file"), "%s: status %d: %s", command, rc,
              test_run_output());
    }
    CHECK(test_run("timeout 10 deadwood-requant -m %s -s %s --type Q8_0 -o %s.out", m, fifo, fifo) == 1, "%s",
          test_run_output());
}

/* Of all programs generate alone reads standard input. */
static void no_standard_input(void) {
    const char *m = random_model("tiny-llama", "F32", 0), *out = test_file("none");
    const char *commands[] = {"score -m %s -f - -o %s", "cut -m %s -p - -o %s", "table - %s -o %s"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char command[1024];
        snprintf(command, sizeof command, commands[i], m, out);
        CHECK(test_run("deadwood-%s </dev/null", command) == 2 &&
                  strstr(test_run_output(), "this input cannot come from standard input; give a file name"),
              "%s: %s", command, test_run_output());
    }
}

/* ---- outputs ------------------------------------------------------------------------------------------- */

static char *hash_of(const char *path) {
    static char hex[2][65];
    static int turn;
    char *h = hex[turn ^= 1];
    return dw_sha256_file(path, h, NULL) ? strcpy(h, "gone") : h;
}

/* The command fails in one line with these words, and the file is what it was. */
static void spares(const char *file, const char *words, const char *command) {
    char before[65];
    strcpy(before, hash_of(file));
    const int rc = test_run("%s", command);
    const char *text = test_run_output();
    CHECK(rc == 1 && strstr(text, words) && strchr(text, '\n') == text + strlen(text) - 1, "%s: status %d: %s", command,
          rc, text);
    CHECK(!strcmp(before, hash_of(file)), "%s: '%s' is not what it was", command, file);
}

static void no_output_over_an_input(void) {
    const char *dir = test_folder(), *m = split("in", 1);
    char command[1024];
    REQUIRE(!test_run("cp -r experiments/mini %s/hd && head -c 4000 README.md >%s/t.txt", dir, dir));
    const char *both = "is input and output at once";
    snprintf(command, sizeof command, "deadwood-convert %s/hd -q -o %s/hd/model.safetensors", dir, dir);
    spares(test_path(dir, "hd/model.safetensors"), "is a file of an unknown kind, not a GGUF model", command);
    snprintf(command, sizeof command, "deadwood-convert %s/hd -q -o %s/hd/tokenizer.json", dir, dir);
    spares(test_path(dir, "hd/tokenizer.json"), "is a text, not a GGUF model", command);
    CHECK(!test_run("deadwood-convert %s/hd -q -o %s/hd/new.gguf && deadwood-convert %s/hd -q -o %s/hd/new.gguf", dir,
                    dir, dir, dir),
          "a folder's other files: %s", test_run_output());

    const char *second = test_path(dir, "in-00002-of-00002.gguf");
    snprintf(command, sizeof command, "deadwood-requant -m %s --type Q8_0 -q -o %s", m, second);
    spares(second, both, command);
    snprintf(command, sizeof command,
             "cd %s && deadwood-rank -m in-00001-of-00002.gguf --metric weight --rate 0.5 --group 32 -q -o "
             "./in-00002-of-00002.gguf",
             dir);
    spares(second, both, command);

    REQUIRE(!test_run("cd %s && deadwood-collect -m %s -f t.txt -c 64 --windows 1 -o y.h5.part -q", dir, m), "%s",
            test_run_output());
    snprintf(command, sizeof command, "cd %s && deadwood-collect -m %s -s y.h5.part -q -o y.h5", dir, m);
    spares(test_path(dir, "y.h5.part"), "'y.h5.part' is an input, but --out would store an unfinished run", command);
    REQUIRE(!test_run("cd %s && ln y.h5.part same.h5", dir));
    snprintf(command, sizeof command, "cd %s && deadwood-collect -m %s -s y.h5.part -q -o same.h5", dir, m);
    spares(test_path(dir, "y.h5.part"), both, command);
}

static void two_outputs(void) {
    const char *dir = test_folder(), *m = random_model("tiny-llama", "F32", 0);
    REQUIRE(!test_run("cd %s && head -c 4000 $OLDPWD/README.md >t.txt && mkdir -p sub", dir), "%s", test_run_output());
    CHECK(test_run("cd %s && deadwood-collect -m %s -f t.txt -c 64 --windows 1 -q -o z --export-imatrix sub/../z", dir,
                   m) == 1);
    CHECK(strstr(test_run_output(), "given for both --out and --export-imatrix"), "%s", test_run_output());
    CHECK(test_run("cd %s && deadwood-train -m %s -x t.txt -q -o z --report z", dir, m) == 1);
    CHECK(strstr(test_run_output(), "given for both --out and --report"), "%s", test_run_output());
    CHECK(test_run("cd %s && deadwood-train -m %s -x t.txt -q -o z --report z.part", dir, m) == 1);
    CHECK(strstr(test_run_output(), "given for both --out and --report"), "%s", test_run_output());
    CHECK(access(test_path(dir, "z"), F_OK), "nothing is made");

    /* Files that a program writes beside its output. */
    REQUIRE(!test_run("cd %s && cp %s z.windows", dir, m), "%s", test_run_output());
    const struct {
        const char *command, *words;
    } beside[] = {
        {"collect -m %s -f t.txt -c 64 --windows 1 --gram down -q -o z --export-imatrix z.gram",
         "'z.gram' is given for both --out and --export-imatrix"},
        {"score -m %s -f t.txt -c 64 --no-speed -q -o z --store z.windows",
         "'z.windows' is given for both --store and --out"},
        {"heal -m %1$s -T %1$s -f t.txt -c 64 --tokens 64 -q -o z --teacher-cache z.checkpoint",
         "'z.checkpoint' is given for both --out and --teacher-cache"},
        {"score -m z.windows %s -f t.txt -c 64 --no-speed -q -o z",
         "'z.windows' is an input, but --out would write a file of that name"},
    };
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
        char command[PATH_MAX + 200];
        snprintf(command, sizeof command, beside[i].command, m);
        CHECK(test_run("cd %s && deadwood-%s", dir, command) == 1, "%s", command);
        CHECK(strstr(test_run_output(), beside[i].words), "%s: %s", command, test_run_output());
        CHECK(access(test_path(dir, "z"), F_OK), "nothing is made");
    }
}

/* An empty file is replaced, as mktemp makes such files. */
static void replaces_its_kind(const char *file, const char *kind, const char *command) {
    char words[100];
    snprintf(words, sizeof words, "is %s, not ", kind);
    spares(file, words, command);
    for (int again = 0; again < 2; again++) {
        if (!again) REQUIRE(!truncate(file, 0));
        CHECK(!test_run("%s", command), "%s: %s", command, test_run_output());
    }
}

static void other_kinds(void) {
    const char *dir = test_folder(), *m = random_model("tiny-llama", "F32", 0);
    REQUIRE(!test_run("cd %s && head -c 4000 $OLDPWD/README.md >t.txt && mkdir kinds && cp t.txt kinds/a-text && "
                      "deadwood-score -m %s -f t.txt -c 64 --windows 1 --no-speed -q -o kinds/rows &&"
                      "deadwood-collect -m %s -f t.txt -c 64 --windows 1 -q -o kinds/stats --export-imatrix old.dat",
                      dir, m, m),
            "%s", test_run_output());
    const struct {
        const char *kind, *file, *command; // the command ends with the output
    } outputs[] = {
        {"a table of results", "rows", "rank -m %s --metric weight --rate 0.5 --group 32 -q -o "},
        {"a table of results", "rows", "rank -m %s --metric weight --group 32 -q --scores "},
        {"a table of results", "rows", "table kinds/rows -o t.tsv -q --plot "}, // of two outputs, too
        {"a file of statistics", "stats", "gate -m %s --rule random --activity 0.5 -q -o "},
        {"a file of statistics", "stats", "score -m %s -f t.txt -c 64 --windows 1 --no-speed -q --store "},
        {"a file of statistics", "stats", "table kinds/rows -q -o "},
        {"a text", "a-text", "requant -m %s --type Q8_0 -q -o "},
        {"a text", "a-text", "collect -m %s -f t.txt -c 64 --windows 1 -q -o "},
        {"a text", "a-text", "collect -m %s -f t.txt -c 64 --windows 1 -q -o c.h5 --export-imatrix "},
    };
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        char command[PATH_MAX + 200], name[40];
        const char *end = strstr(outputs[i].command, "--plot") ? ".svg" : ".tsv";
        snprintf(name, sizeof name, "%zu%s", i, end);
        REQUIRE(!test_run("cd %s && cp kinds/%s %s", dir, outputs[i].file, name));
        int n = snprintf(command, sizeof command, "cd %s && deadwood-", dir);
        n += snprintf(command + n, sizeof command - (size_t)n, outputs[i].command, m);
        snprintf(command + n, sizeof command - (size_t)n, "%s", name);
        replaces_its_kind(test_path(dir, name), outputs[i].kind, command);
    }
    CHECK(!test_run("cd %s && deadwood-collect -m %s -s kinds/stats -q -o c.h5 --export-imatrix old.dat", dir, m),
          "the old form of an imatrix: %s", test_run_output());
    CHECK(!test_run("cd %s && cp t.txt t.md && deadwood-table kinds/rows -o t.md", dir), "a text by a text: %s",
          test_run_output());
    CHECK(test_run("cd %s && cp t.txt c.h5.gram && deadwood-collect -m %s -s kinds/stats -q -o c.h5", dir, m) == 1 &&
              strstr(test_run_output(), "'c.h5.gram' is a text, not a file of Gram matrices; choose another name for "
                                        "--out, or remove that file first\n"),
          "%s", test_run_output());
}

/* A name that no file can have is refused before the work. */
static void impossible_outputs(void) {
    const char *dir = test_folder(), *m = random_model("tiny-llama", "F32", 0);
    char name[301];
    memset(name, 'n', 300);
    name[300] = 0;
    REQUIRE(!test_run("cd %s && echo words >t.txt && touch file", dir));
    const char *names[][3] = {{"new/", "does not end in '/'", "does not end in '/'"}, // what a program says; a writer
                              {name, "File name too long", "File name too long"},
                              {"file/x", "Not a directory", "Not a directory"},
                              {"file/", "Not a directory", "Not a directory"},
                              {"gone/x", "there is no folder 'gone'; make it first", "No such file"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const int rc = test_run("cd %s && deadwood-heal -m %s -T %s -f t.txt --tokens 1 -o %s", dir, m, m, names[i][0]);
        const char *text = test_run_output();
        CHECK(rc == 1 && !strncmp(text, "deadwood-heal: cannot write '", 29) && strstr(text, names[i][1]), "%s", text);
        CHECK(strchr(text, '\n') == text + strlen(text) - 1, "the first line: %s", text);
        dw_err err = {0};
        CHECK(!dw_out_open(test_path(dir, names[i][0]), &err) && strstr(err.text, names[i][2]), "%s", err.text);
    }
}

/* Files that an option makes in addition are outputs. */
static void derived_outputs(void) {
    const char *dir = test_folder(), *m = random_model("tiny-llama", "F32", 0);
    REQUIRE(!test_run("cd %s && echo words >t.txt && cp %s h-30.gguf", dir, m));
    char command[1024];
    snprintf(command, sizeof command, "cd %s && deadwood-heal -m h-30.gguf -T %s -f t.txt --tokens 1 -o h.gguf", dir,
             m);
    CHECK(!test_run("%s --check-options", command) && !strstr(test_run_output(), "-10"), "%s", test_run_output());
    strcat(command, " --snapshots");
    CHECK(!test_run("%s --check-options", command), "%s", test_run_output());
    for (int tenth = 10; tenth < 100; tenth += 10) {
        char line[32];
        snprintf(line, sizeof line, "output h-%d.gguf\n", tenth);
        CHECK(strstr(test_run_output(), line), "%s", test_run_output());
    }
    spares(test_path(dir, "h-30.gguf"), "'h-30.gguf' is an input, but --snapshots would write", command);
}

/* In a child, whose inputs are kept in mind from here on; the checks that fail are its exit status. */
static int wrong_at_commit(void) {
    dw_err err = {0};
    dw_map map;
    const char *a = test_file("a"), *b = test_file("b"), *kept = test_file("kept");
    dw_inputs_keep();
    if (dw_map_file(&map, a, &err) || dw_map_file(&map, kept, &err)) return 1;
    if (dw_out_open(a, &err) || !strstr(err.text, "input and output at once")) return 2;
    err = (dw_err){0};
    dw_out *out = dw_out_open(b, &err);
    if (!out || link(a, b)) return 3; // now b is an input too
    if (!dw_out_commit(out, &err) || !strstr(err.text, "input and output at once")) return 4;
    dw_out_free(out);
    err = (dw_err){0};
    if (dw_out_open(kept, &err)) return 5;
    err = (dw_err){0};
    out = dw_out_open_kept(kept, &err);
    if (!out || dw_out_commit(out, &err)) return 6;
    dw_out_free(out);
    if (dw_map_file(&map, kept, &err) || dw_input_named(kept, &err)) return 7;
    return dw_out_open_kept(kept, &err) != NULL;
}

static int status_of(int (*fn)(void)) {
    fflush(stdout);
    const pid_t pid = fork();
    if (!pid) _exit(fn());
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void checked_at_commit(void) {
    REQUIRE(!test_run("cd %s && echo a >a && echo k >kept", test_folder()));
    const int wrong = status_of(wrong_at_commit);
    CHECK(!wrong, "step %d", wrong);
}

/* What a stranger has put under names that can be guessed is neither followed nor replaced. */
static void random_names(void) {
    dw_err err = {0};
    const char *path = test_file("out.bin"), *victim = test_file("victim");
    char guessed[512];
    snprintf(guessed, sizeof guessed, "%s.%ld.part", path, (long)getpid());
    REQUIRE(!test_run("echo precious >%s", victim) && !symlink(victim, guessed));
    dw_out *a = dw_out_open(path, &err), *b = dw_out_open(path, &err);
    REQUIRE(a && b, "%s", err.text);
    const char *names[] = {dw_out_temporary(a, &err), dw_out_temporary(b, &err)};
    REQUIRE(names[0] && names[1], "%s", err.text);
    CHECK(strcmp(names[0], names[1]) && dw_out_is_temporary(dw_base_name(names[0])), "%s, %s", names[0], names[1]);
    CHECK(!dw_out_write(a, "a", 1, &err) && !dw_out_commit(a, &err), "%s", err.text);
    dw_out_free(a);
    dw_out_free(b);
    CHECK(!test_run("grep -q precious %s && ! ls %s.dw*", victim, path), "%s", test_run_output());
    CHECK(dw_out_is_temporary("x.gguf.dw0123456789abcdef.part"));
    const char *others[] = {
        "data.1.part", "x.h5.part", ".dw0123456789abcdef.part", "x.dw0123456789abcdeF.part", "x.dw0123456789abcdef.par",
        "part",        ""};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) CHECK(!dw_out_is_temporary(others[i]), "%s", others[i]);
}

/* What a killed process left goes with the next output that is named early; what somebody writes, and what only has
 * such a name, stays. */
static void left_files_go(void) {
    dw_err err = {0};
    const char *path = test_file("out.bin");
    REQUIRE(
        !test_run("cd %s && touch out.bin.dw0123456789abcdef.part out.bin.dw0123.part xout.bin.dw0123456789abcdef.part",
                  test_folder()));
    dw_out *other = dw_out_open(test_file("other.bin"), &err), *out = dw_out_open(path, &err);
    REQUIRE(out && other && dw_out_temporary(out, &err), "%s", err.text);
    CHECK(!test_run("cd %s && ! test -e out.bin.dw0123456789abcdef.part && test -e out.bin.dw0123.part && "
                    "test -e xout.bin.dw0123456789abcdef.part && test $(ls | grep -c '^out.bin.dw') = 2",
                    test_folder()),
          "%s", test_run_output());
    dw_out_free(out);
    dw_out_free(other);
}

static atomic_bool stop_removing;

/* Removes all that nobody writes, again and again; counts it. */
static void *remove_all_left(void *count) {
    const char *folder = test_file("busy");
    while (!stop_removing) {
        DIR *d = opendir(folder);
        for (struct dirent *entry; d && (entry = readdir(d));) {
            char *path = dw_format(NULL, "%s/%s", folder, entry->d_name);
            if (path && dw_out_remove_left(path)) ++*(int *)count;
            free(path);
        }
        if (d) closedir(d);
    }
    return NULL;
}

static void written_files_stay(void) {
    dw_err err = {0};
    int n_removed = 0, n_failed = 0;
    pthread_t remover;
    const char *out_path = test_file("busy/out"), *left = test_file("busy/x.dw0123456789abcdef.part");
    REQUIRE(!mkdir(test_file("busy"), 0777) && !test_run("touch %s", left));
    REQUIRE(!pthread_create(&remover, NULL, remove_all_left, &n_removed));
    for (int i = 0; i < 300 || dw_file_exists(left); i++) {
        dw_out *out = dw_out_open(out_path, &err);
        n_failed += !out || dw_out_write(out, "a", 1, &err) || dw_out_commit(out, &err);
        dw_out_free(out);
    }
    stop_removing = true;
    CHECK(!pthread_join(remover, NULL));
    CHECK(!n_failed && n_removed, "%d failed, %d were removed: %s", n_failed, n_removed, err.text);
}

/* Removers meet the name between its creation and its lock. */
static void written_files_stay_with_names(void) { test_again_with_names("what nobody writes", "FAULT_LATE_LOCK=1"); }

/* ---- held paths ------------------------------------------------------------------------------------------ */

static bool commits(const char *path) {
    dw_out *out = dw_out_open_kept(path, NULL);
    const bool ok = out && !dw_out_write(out, "a", 1, NULL) && !dw_out_commit(out, NULL);
    dw_out_free(out);
    return ok;
}

static void held_paths(void) {
    dw_err err = {0};
    const char *path = test_file("held");
    dw_hold *h = dw_hold_take(path, &err);
    REQUIRE(h && !dw_hold_is_kept(h), "%s", err.text);
    CHECK(!dw_hold_take(path, &err) && strstr(err.text, "in use by another run"), "%s", err.text);
    CHECK(commits(path) && dw_hold_is_kept(h), "a new file at the path is kept");
    CHECK(!dw_hold_take(path, NULL) && commits(path) && !dw_hold_take(path, NULL), "and held");
    dw_hold_free(h);
    h = dw_hold_take(path, NULL);
    REQUIRE(h && dw_hold_is_kept(h));
    dw_hold_keep(h, false);
    dw_hold_free(h);
    CHECK(access(path, F_OK), "what is not kept goes");
    h = dw_hold_take(path, NULL);
    REQUIRE(h);
    dw_hold_keep(h, true);
    dw_hold_remove(h);
    CHECK(access(path, F_OK));
    err = (dw_err){0};
    CHECK(!dw_hold_take(test_file("no/such"), &err) && strstr(err.text, "cannot open"), "%s", err.text);
}

static int ends_with_a_hold(void) {
    signals_catch();
    dw_hold *empty = dw_hold_take(test_file("empty"), NULL), *full = dw_hold_take(test_file("full"), NULL);
    if (!empty || !full || !commits(test_file("full"))) return 2;
    raise(SIGTERM);
    return 3;
}

static void signals_remove_empty_holds(void) {
    const int status = status_of(ends_with_a_hold);
    CHECK(status == 128 + SIGTERM && access(test_file("empty"), F_OK) && !access(test_file("full"), F_OK), "status %d",
          status);
}

/* A process that tries to take the path while another one commits to it again and again. */
static int takes_never(void) {
    dw_hold *h = NULL;
    for (int i = 0; i < 20000 && !h; i++) h = dw_hold_take(test_file("busy-hold"), NULL);
    return h ? 1 : 0;
}

static void a_hold_follows_the_path(void) {
    dw_hold *h = dw_hold_take(test_file("busy-hold"), NULL);
    REQUIRE(h);
    fflush(stdout);
    const pid_t pid = fork();
    if (!pid) _exit(takes_never());
    int status = -1;
    while (!waitpid(pid, &status, WNOHANG))
        if (!CHECK(commits(test_file("busy-hold")), "a commit fails")) break;
    CHECK(!status, "another process took the path");
    dw_hold_remove(h);
}

static void a_hold_follows_the_path_with_names(void) {
    test_again_with_names("a held path stays so while", "FAULT_LATE_LOCK=1");
}

/* ---- small files that must be new ---------------------------------------------------------------------- */

enum { WRITERS = 4, NEW_FILES = 50 };
static atomic_int n_new, n_refused;

/* Writers want the same names; who gets one finds its own text there. */
static void *write_new(void *number) {
    dw_err err = {0};
    char text[64], name[32];
    snprintf(text, sizeof text, "writer %d\n", *(int *)number);
    for (int i = 0; i < NEW_FILES; i++) {
        size_t n;
        snprintf(name, sizeof name, "new/%d", i);
        char *path = dw_format(NULL, "%s/%s", test_folder(), name);
        const int rc = dw_write_new(path, text, strlen(text), &err);
        char *got = dw_read_file(path, 64, &n, &err);
        if (!rc && got && !strcmp(got, text)) n_new++;
        if (rc == 1 && got && !strncmp(got, "writer ", 7) && strchr(got, '\n')) n_refused++;
        free(got);
        free(path);
    }
    return NULL;
}

static void new_files(void) {
    pthread_t writer[WRITERS];
    int number[WRITERS];
    REQUIRE(!mkdir(test_file("new"), 0777));
    for (int i = 0; i < WRITERS; i++) {
        number[i] = i;
        REQUIRE(!pthread_create(&writer[i], NULL, write_new, &number[i]));
    }
    for (int i = 0; i < WRITERS; i++) CHECK(!pthread_join(writer[i], NULL));
    CHECK(n_new == NEW_FILES && n_refused == NEW_FILES * (WRITERS - 1), "%d and %d", n_new, n_refused);
    CHECK(!test_run("test $(ls -A %s | wc -l) = %d", test_file("new"), NEW_FILES), "%s", test_run_output());
}

static void new_files_with_names(void) { test_again_with_names("a small file", ""); }

/* ---- faults and signals ---------------------------------------------------------------------------------- */

static int shrinking(void) {
    dw_err err = {0};
    dw_map map;
    const char *path = test_file("shrinks");
    dw_out *out = dw_out_open(test_file("made"), &err);
    if (dup2(open(test_file("said"), O_WRONLY | O_CREAT, 0600), STDERR_FILENO) < 0 || !out ||
        !dw_out_temporary(out, &err))
        return 2;
    signals_catch();
    if (dw_map_file(&map, path, &err) || truncate(path, 0)) return 3;
    return map.data[100000]; // the fault
}

static void bus_error(void) {
    REQUIRE(!test_run("head -c 200000 /dev/zero >%s", test_file("shrinks")));
    const int status = status_of(shrinking);
    CHECK(status == 1, "status %d", status);
    CHECK(!test_run("cat %s", test_file("said")) &&
              strstr(test_run_output(), "shrinks': it became shorter while it was in use"),
          "%s", test_run_output());
    CHECK(strchr(test_run_output(), '\n') == test_run_output() + strlen(test_run_output()) - 1, "one line");
    CHECK(test_run("ls %s.dw*", test_file("made")), "left: %s", test_run_output());
}

static const test_case cases[] = {
    {"the hash of a model is that of its file, or of the digests of all its parts", hash_of_parts},
    {"another second part is noticed by rank, cut, inspect and score", other_second_part},
    {"only regular files are read; links are followed", regular_files_only},
    {"a FIFO in place of an input is refused at once by every program", fifos},
    {"an input '-' is refused by programs that do not read standard input", no_standard_input},
    {"no output replaces an input, a part of one, or a file inside one", no_output_over_an_input},
    {"two outputs of one name are refused before any work", two_outputs},
    {"an output replaces a file of its own kind or an empty one, and no other", other_kinds},
    {"a name that no file can have is refused before any work", impossible_outputs},
    {"files that an option makes in addition are outputs, and never replace an input", derived_outputs},
    {"an output that has become an input is refused at commit", checked_at_commit},
    {"temporary names cannot be guessed, and are told from other files", random_names},
    {"what killed processes left of an output goes with the next one", left_files_go},
    {"what nobody writes is removed, what is written never", written_files_stay},
    {"the same where a file has its name from the beginning", written_files_stay_with_names},
    {"a held path has one holder; its file goes when nothing is kept in it", held_paths},
    {"a signal removes the empty file at a held path", signals_remove_empty_holds},
    {"a held path stays so while files are committed to it", a_hold_follows_the_path},
    {"a held path stays so, too, where a file has its name from the beginning", a_hold_follows_the_path_with_names},
    {"a small file that must be new has one writer and appears with its text", new_files},
    {"so it does where a file has its name from the beginning", new_files_with_names},
    {"a mapped file that becomes shorter ends the program with a sentence", bus_error},
    {0}};
TEST_MAIN(cases)
