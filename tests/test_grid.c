/* test_grid.c - grids: what they say becomes the jobs that are meant; what is wrong is refused with its line. */
#include "experiments/sweep/costs.h"
#include "experiments/sweep/jobs.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEAD "# deadwood grid 1\n"
#define STEPS                                                                                                          \
    "dense : convert mini -o $out.gguf\n"                                                                              \
    "plan : rank -m $dense --metric $metric --rate $rate --seed $seed -o $out.tsv\n"                                   \
    "score : score -m $dense -p $plan -o $rows\n"

typedef struct asked { // a grid and its jobs
    grid grid;
    jobs jobs;
} asked;

static bool expand(asked *a, const char *text) {
    dw_err err = {0};
    *a = (asked){0};
    if (!CHECK(!grid_parse(&a->grid, text, strlen(text), "test.grid", &err), "%s", err.text)) return false;
    if (CHECK(!jobs_expand(&a->jobs, &a->grid, "test.grid", &err), "%s", err.text)) return true;
    grid_release(&a->grid);
    return false;
}

static void release(asked *a) {
    jobs_release(&a->jobs);
    grid_release(&a->grid);
}

static const char *file_of(void *ctx, size_t i, int output) {
    static char text[4][64];
    static int next;
    char *t = text[next++ % 4];
    const asked *a = ctx;
    snprintf(t, sizeof text[0], "%s%zu%s", a->jobs.job[i].step->name,
             i - a->jobs.first[a->jobs.job[i].step - a->grid.step], a->jobs.job[i].step->output[output].suffix);
    return t;
}

/* The command of job i, words in <>. */
static const char *command(asked *a, size_t i) {
    static char line[1024];
    dw_err err = {0};
    size_t n;
    char **word = jobs_words(&a->jobs, i, file_of, a, &n, &err);
    line[0] = 0;
    for (size_t k = 0; k < n; k++) snprintf(line + strlen(line), sizeof line - strlen(line), "<%s>", word[k]);
    jobs_free_words(word, n);
    return line;
}

/* The job of a step with this variant, or jobs.n. */
static size_t find(const asked *a, const char *step, const char *variant) {
    size_t i = 0;
    for (; i < a->jobs.n; i++) {
        char *own = jobs_variant(&a->jobs, i, NULL);
        const bool found = !strcmp(a->jobs.job[i].step->name, step) && !strcmp(own, variant);
        free(own);
        if (found) break;
    }
    return i;
}

static void combinations(void) {
    asked a;
    REQUIRE(expand(&a, HEAD "metric = energy random\nrate = 0.1 0.2 0.3\nseed = 5 6 if metric = random\n" STEPS));
    CHECK(a.jobs.first[1] == 1 && a.jobs.first[2] == 10 && a.jobs.n == 19, "%zu jobs", a.jobs.n); // 1 + 3 + 3 * 2 twice
    const size_t i = find(&a, "plan", "metric=random rate=0.2 seed=6");
    REQUIRE(i < a.jobs.n);
    CHECK(!strcmp(command(&a, i), "<-m><dense0.gguf><--metric><random><--rate><0.2><--seed><6><-o><plan6.tsv>"), "%s",
          command(&a, i));
    const size_t k = find(&a, "plan", "metric=energy rate=0.2"); // has the seed's first value
    REQUIRE(k < a.jobs.n);
    CHECK(!strcmp(command(&a, k), "<-m><dense0.gguf><--metric><energy><--rate><0.2><--seed><5><-o><plan1.tsv>"), "%s",
          command(&a, k));
    const size_t s = find(&a, "score", "metric=random rate=0.2 seed=6");
    REQUIRE(s < a.jobs.n);
    CHECK(a.jobs.job[s].input[0] == 0 && (size_t)a.jobs.job[s].input[1] == i);
    release(&a);
}

static void words(void) {
    asked a;
    REQUIRE(expand(&a, HEAD "how = '--type Q4_0' \"--mixture Q2_K\"\ntexts := a.txt 'b c.txt'\n"
                            "x : requant $how \"$how\" -f $texts --a=$how.x '$how' \"it's\" ''\n"
                            "   -o ${out}.gguf  # a comment\n"
                            "y : score -m=${x}b --base $x -o $rows\n"));
    CHECK(!strcmp(command(&a, 0),
                  "<--type><Q4_0><--type Q4_0><-f><a.txt><b c.txt><--a=--type Q4_0.x><$how><it's><><-o><x0.gguf>"),
          "%s", command(&a, 0));
    CHECK(!strcmp(command(&a, 3), "<-m=x1.ggufb><--base><x1.gguf><-o><y1.tsv>"), "%s", command(&a, 3));
    release(&a);
}

static void conditional_steps(void) {
    asked a;
    REQUIRE(expand(&a, HEAD "type = F16 Q4_0 Q2_K\nrate = 1 2\ncut : cut --rate $rate -o $out.gguf\n"
                            "small : requant -m $cut --type $type -o $out.gguf if type = Q4_0 Q2_K and rate = 2\n"
                            "score : score -m $small -o $rows\ncontrol if type = Q2_K\n"));
    CHECK(a.jobs.n == 2 + 2 + 2, "%zu jobs", a.jobs.n);
    const size_t plain = find(&a, "score", "type=Q4_0 rate=2"), control = find(&a, "score", "type=Q2_K rate=2"),
                 cut = find(&a, "cut", "rate=2");
    REQUIRE(plain < a.jobs.n && control < a.jobs.n && cut < a.jobs.n);
    CHECK(jobs_is_control(&a.jobs, control) && !jobs_is_control(&a.jobs, plain) && !jobs_is_control(&a.jobs, cut));
    release(&a);
}

/* Says in which line what is wrong, in one sentence that holds the words. */
static void refused(const char *text, int line, const char *words_wanted) {
    dw_err err = {0};
    grid g;
    jobs j;
    char where[64];
    int rc = grid_parse(&g, text, strlen(text), "test.grid", &err);
    if (!rc) {
        rc = jobs_expand(&j, &g, "test.grid", &err);
        if (!rc) jobs_release(&j);
        grid_release(&g);
    }
    snprintf(where, sizeof where, "'test.grid', line %d: ", line);
    CHECK(rc && (!line || !strncmp(err.text, where, strlen(where))) && strstr(err.text, words_wanted),
          "wanted '%s%s', got '%s'", line ? where : "", words_wanted, err.text);
}

static void errors(void) {
    refused("", 1, "a grid begins with the line '# deadwood grid 1'");
    refused("# deadwood grid 12\n", 1, "a grid begins");
    refused(HEAD, 0, "has no step");
    refused(HEAD "x\n", 2, "a line is NAME");
    refused(HEAD "a b = c\n", 2, "a line is NAME");
    refused(HEAD "2 = 1\n", 2, "'2' is no name");
    refused(HEAD "out = 1\n", 2, "'out' has a meaning of its own");
    refused(HEAD "a = 1\na = 2\n", 3, "two things called 'a'");
    refused(HEAD "a =\n", 2, "'a' has no value");
    refused(HEAD "a :=\n", 2, "'a' has no words");
    refused(HEAD "a = 1 2 1\n", 2, "'a' has the value '1' twice");
    refused(HEAD "a = $b\n", 2, "a value cannot name another");
    refused(HEAD "a = 'b\n", 2, "a quote does not end");
    refused(HEAD "a = 1\nx : cut\n\n  'b\n", 5, "a quote does not end");
    refused(HEAD "a = 1\nx : cut -o $out\n", 2, "no step uses 'a'");
    refused(HEAD "a := 1\nx : cut -o $out\n", 2, "no step uses 'a'");
    refused(HEAD "rate = 1\nx : cut $rat -o $out\n", 3, "nothing above is called 'rat' (did you mean 'rate'?)");
    refused(HEAD "x : cut $plan -o $out\nplan : rank -o $out\n", 2, "nothing above is called 'plan'");
    refused(HEAD "x : cut $x -o $out\n", 2, "'x' reads its own output");
    refused(HEAD "x : cut\n", 2, "does not say what it writes");
    refused(HEAD "x :\n", 2, "'x' has no command");
    refused(HEAD "x : alone\n", 2, "'x' has no command");
    refused(HEAD "x : ../cut -o $out\n", 2, "no name of a program");
    refused(HEAD "x : cut -o $out -o $out\n", 2, "names its output twice");
    refused(HEAD "x : cut -o $rows -o $rows\n", 2, "names $rows twice");
    refused(HEAD "x : cut -o $out.a --report $out.a\n", 2, "several outputs need different suffixes");
    refused(HEAD "a = [1, 2]\n", 2, "'[1,' is no value; values are separated by spaces");
    refused(HEAD "select := a\nx : score -f $select -o $rows\n", 2, "there is a list 'select', but no list 'report'");
    refused(HEAD "select := a\nreport := b\nx : score -f $select $report -o $rows\n", 4, "use two steps");
    refused(HEAD "select := a\nreport := b\nx : gate -f $report -o $out\n", 4, "are for rows of score alone");
    refused(HEAD "x : cut -o $out.12\n", 2, "a suffix like .gguf");
    refused(HEAD "x : cut -o $out/../a\n", 2, "a suffix like .gguf");
    refused(HEAD "x : cut -o $out.part\n", 2, "a suffix like .gguf");
    refused(HEAD "x : cut -o $rows.tsv\n", 2, "$rows ends its word");
    refused(HEAD "x : cut $ -o $out\n", 2, "a $ without a name");
    refused(HEAD "x : cut ${a -o $out\n", 2, "a $ without a name");
    refused(HEAD "x : score -o $rows\ny : cut $x -o $out\n", 3, "'x' makes rows, which no step reads");
    refused(HEAD "l := a b\nx : cut --f=$l -o $out\n", 3, "the list 'l' must stand alone");
    refused(HEAD "a = 1\nb = 1 if a\n", 3, "after 'if' and 'and' comes");
    refused(HEAD "a = 1\nb = 1 if a = 1 and\n", 3, "after 'if' and 'and' comes");
    refused(HEAD "a = 1\nb = 1 if c = 1\n", 3, "no variable above is called so");
    refused(HEAD "a = 1\nb = 1 if a = 2\n", 3, "'a' never has the value '2'");
    refused(HEAD "a = 1 2\nb = 1 if a = 1\nx : cut $a -o $out if a = 1\ny : rank $x $b -o $out if a = 2\n", 5,
            "'y' is never run");
    refused(HEAD "a = \xff\n", 0, "is not UTF-8");
}

/* 18 variables of two values: 262,144 combinations. */
static void too_many(void) {
    char text[4096] = HEAD;
    for (int i = 0; i < 18; i++) sprintf(text + strlen(text), "v%d = 1 2\n", i);
    strcat(text, "x : cut");
    for (int i = 0; i < 18; i++) sprintf(text + strlen(text), " $v%d", i);
    strcat(text, " -o $out\n");
    refused(text, 20, "more than 100000 combinations");
}

/* ---- identities -------------------------------------------------------------------------------------------------- */

static const char *write_text(const char *name, const char *text) {
    const char *path = test_file(name);
    FILE *f = fopen(path, "w");
    CHECK(f && fputs(text, f) >= 0 && !fclose(f), "%s", path);
    return path;
}

/* The name of the output of a step of a grid in which %s is a path. */
static const char *name_of(const char *format, const char *path, const char *step) {
    static char name[16][256];
    static int next;
    char text[2048], *own = name[next++ % 16];
    dw_err err = {0};
    asked a;
    snprintf(text, sizeof text, format, path, path, path);
    *own = 0;
    if (!expand(&a, text)) return own;
    CHECK(!jobs_identify(&a.jobs, NULL, &err), "%s", err.text);
    for (size_t i = 0; i < a.jobs.n; i++)
        if (!strcmp(a.jobs.job[i].step->name, step)) snprintf(own, sizeof name[0], "%s", a.jobs.job[i].file[0]);
    release(&a);
    return own;
}

static void identities(void) {
    static const char before[] = HEAD
        "rate = 0.1\na : collect -f %s -o $out.h5\nb : rank -s $a --rate $rate -o $out.tsv\n";
    static const char more_rates[] = HEAD
        "rate = 0.2 0.1\na : collect -f %s -o $out.h5\nb : rank -s $a --rate $rate -o $out.tsv\n";
    static const char other_option[] = HEAD
        "rate = 0.1\na : collect -f %s --skip 1 -o $out.h5\nb : rank -s $a --rate $rate -o $out.tsv\n";
    static const char other_step[] = HEAD
        "rate = 0.1\na : collect -f %s -o $out.h5\nb : rank -s $a --rate $rate --group 32 -o $out.tsv\n";
    const char *path = write_text("calib.txt", "one");
    const char *a = name_of(before, path, "a"), *b = name_of(before, path, "b");
    CHECK(strlen(a) == strlen("a-0123456789.h5") && strlen(b) == strlen("b-0.1-0123456789.tsv") &&
              !strncmp(b, "b-0.1-", 6),
          "%s %s", a, b);
    CHECK(!strcmp(b, name_of(more_rates, path, "b")), "another value of a variable changes no job of this one");
    CHECK(strcmp(a, name_of(other_option, path, "a")), "a changed command");
    CHECK(strcmp(b, name_of(other_option, path, "b")), "what reads its output");
    CHECK(!strcmp(a, name_of(other_step, path, "a")), "a change of a later step");
    CHECK(strcmp(b, name_of(other_step, path, "b")));
    write_text("calib.txt", "two");
    CHECK(strcmp(a, name_of(before, path, "a")), "a changed input");
    CHECK(strcmp(b, name_of(before, path, "b")), "a changed input of an input");
    static const char folder[] = HEAD "a : convert --from=%s -o $out\n";
    char dir[256];
    snprintf(dir, sizeof dir, "%s", test_folder());
    const char *one = name_of(folder, dir, "a");
    write_text("another", "file");
    CHECK(strcmp(one, name_of(folder, dir, "a")), "a changed folder");
}

static void lists_of_files(void) {
    dw_err err = {0};
    grid g;
    write_text("glob-b.txt", "b");
    write_text("glob-a.txt", "a");
    char text[1024];
    snprintf(text, sizeof text, HEAD "l := %s/glob-*.txt end\nx : cut $l -o $out\n", test_folder());
    REQUIRE(!grid_read(&g, write_text("files.grid", text), &(grid_options){0}, &err), "%s", err.text);
    CHECK(g.list[0].n_word == 3 && strstr(g.list[0].word[0], "glob-a.txt") && strstr(g.list[0].word[1], "glob-b.txt") &&
          !strcmp(g.list[0].word[2], "end"));
    grid_release(&g);
    snprintf(text, sizeof text, HEAD "l := %s/none-*.txt\nx : cut $l -o $out\n", test_folder());
    CHECK(grid_read(&g, write_text("files.grid", text), &(grid_options){0}, &err) &&
              strstr(err.text, "line 2: no file matches"),
          "%s", err.text);
}

/* The step called `name` as "tool word word", variables and outputs as $NAME; "" for none. */
static const char *step_text(const grid *g, const char *name) {
    static char text[512];
    *text = 0;
    for (size_t i = 0; i < g->n_step; i++) {
        const grid_step *s = &g->step[i];
        if (strcmp(s->name, name)) continue;
        size_t n = (size_t)snprintf(text, sizeof text, "%s", s->tool);
        for (size_t k = 0; k < s->n_word; k++) {
            n += (size_t)snprintf(text + n, sizeof text - n, " ");
            for (size_t p = 0; p < s->word[k].n; p++) {
                const grid_piece *piece = &s->word[k].piece[p];
                n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", piece->kind == GRID_TEXT ? "" : "$",
                                      piece->kind == GRID_TEXT     ? piece->text
                                      : piece->kind == GRID_OUTPUT ? "out"
                                      : piece->kind == GRID_STEP   ? g->step[piece->index].name
                                                                   : g->variable[piece->index].name);
            }
        }
    }
    return text;
}

static void check_step(const grid *g, const char *name, const char *wanted) {
    const char *got = step_text(g, name);
    CHECK(!strcmp(got, wanted), "%s: '%s', expected '%s'", name, got, wanted);
}

static void controls_come(void) {
    static const char *const chain = "cut : cut -m $dense -p ${plan} -o $out.gguf\n"
                                     "score : alone score -m $cut -o $rows --base $dense\n";
    char text[1024];
    dw_err err = {0};
    grid g;
    snprintf(text, sizeof text,
             HEAD "metric = energy flap\nrate = 0.1 0.2\ndense : synth -o $out.gguf\nplan : rank -m $dense --metric "
                  "$metric --rate $rate -o $out.tsv\n%s",
             chain);
    REQUIRE(!grid_parse_with(&g, text, strlen(text), "test.grid", &(grid_options){.controls = true}, &err), "%s",
            err.text);
    CHECK(g.n_own_step < g.n_step && g.n_step == 4 + 3 + 2, "%zu steps", g.n_step);
    check_step(&g, "random_plan", "rank -m $dense --metric random --seed $seed --rate $rate -o $out");
    check_step(&g, "random_cut", "cut -m $dense -p $random_plan -o $out");
    check_step(&g, "random_score", "score -m $random_cut -o $out --base $dense");
    check_step(&g, "rounded_cut", "requant -m $dense --mixture $mixture -o $out");
    check_step(&g, "rounded_score", "score -m $rounded_cut -o $out --base $dense");
    CHECK(g.step[6].alone && g.step[8].alone && g.step[6].makes_rows);
    grid_release(&g);

    snprintf(
        text, sizeof text,
        HEAD
        "metric = energy random\ndense : synth -o $out.gguf\nplan : rank -m $dense --metric $metric -o $out.tsv\n%s"
        "q : requant -m $dense --type Q4_0 -o $out.gguf\n",
        chain);
    REQUIRE(!grid_parse_with(&g, text, strlen(text), "test.grid", &(grid_options){.controls = true}, &err), "%s",
            err.text);
    CHECK(g.n_own_step == g.n_step && g.n_step == 5, "a grid with its own has %zu steps", g.n_step);
    grid_release(&g);

    snprintf(text, sizeof text,
             HEAD "dense : synth -o $out.gguf\nplan : rank -m $dense --metric energy -o $out.tsv\ncut : cut -m $dense "
                  "-p $plan -o $out.gguf\n");
    REQUIRE(!grid_parse_with(&g, text, strlen(text), "test.grid", &(grid_options){.controls = true}, &err), "%s",
            err.text);
    CHECK(g.n_own_step == g.n_step && g.n_step == 3, "a grid without rows has %zu steps", g.n_step);
    grid_release(&g);
}

/* What the sweep says of controls of a grid: `how` is the variable, `step` makes $made from $dense. */
static void noted(const char *how, const char *step, const char *wanted) {
    char text[1024];
    dw_err err = {0};
    grid g;
    snprintf(text, sizeof text,
             HEAD "how = %s\ndense : synth -o $out.gguf\n%s\nscore : score -m $made -o $rows --base $dense\n"
                  "q : requant -m $dense --type Q4_0 -o $out.gguf\n",
             how, step);
    REQUIRE(!grid_parse_with(&g, text, strlen(text), "test.grid", &(grid_options){.controls = true}, &err), "%s",
            err.text);
    CHECK(g.n_own_step == g.n_step && !strcmp(g.notes, wanted), "%s: '%s', expected '%s'", how, g.notes, wanted);
    grid_release(&g);
}

static void controls_hidden(void) {
    static const char cut[] = "plan : rank -m $dense $how -o $out.tsv\nmade : cut -m $dense -p $plan -o $out.gguf",
                      gate[] = "made : gate -m $dense $how -o $out.gguf";
    noted("'--metric energy --rate 0.1' '--metric flap --rate 0.1'", cut,
          "no control: random neurons for step plan: its --metric stands in a value of 'how'; write --metric into the "
          "step\n");
    noted("'--metric energy --rate 0.1' '--metric random --rate 0.1'", cut, "");
    noted("'--rule cats --activity 0.5'", gate,
          "no control: fixed neurons for step made: its --rule stands in a value of 'how'; write --rule into the step\n");
    noted("'--rule cats --activity 0.5' '--rule static --activity 0.5'", gate, "");
    noted("'--drop-layers 2'", cut, "");
}

static void seed_reads(void) {
    dw_err err = {0};
    asked a;
    size_t n;
    char *text = dw_read_file("tests/seeds/sweep.grid", 1 << 20, &n, &err);
    REQUIRE(text, "%s", err.text);
    REQUIRE(expand(&a, text));
    CHECK(a.jobs.n == 19, "%zu jobs", a.jobs.n);
    release(&a);
    free(text);
}

/* A program may have any name that a grid allows: up to 32 letters, digits and _. */
static void costs_of_names(void) {
    static const char *const names[] = {"stub", "My_Stub2", "a_name_of_exactly_32_characters_"};
    dw_err err = {0};
    setenv("XDG_CACHE_HOME", test_file("cache-of-names"), 1);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const grid_step step = {.tool = (char *)(uintptr_t)names[i]};
        const job j = {.step = &step, .options = i, .words = i};
        const job_cost cost = {.seconds = 7, .threads = 1};
        job_cost found = {0};
        costs *c = costs_open(&err);
        REQUIRE(c, "%s", err.text);
        costs_note(c, &j, 10, &cost);
        costs_free(c);
        c = costs_open(&err);
        CHECK(c && costs_find(c, &j, 10, &found) && found.seconds == 7, "'%s' is read back", names[i]);
        costs_free(c);
    }
    setenv("XDG_CACHE_HOME", test_file("cache"), 1); // as before
}

static const test_case cases[] = {
    {"a step has a job for each combination of the values that decide its output", combinations},
    {"words are split, quoted and joined as the head of grid.h says", words},
    {"a step with a condition has jobs where it holds, and so have those that read it", conditional_steps},
    {"what is wrong in a grid is refused with its line", errors},
    {"too many combinations are refused before they are made", too_many},
    {"a change of value, command or input changes the names of what depends on it and of nothing else", identities},
    {"patterns in lists stand for files in order; without a match the line is named", lists_of_files},
    {"random neurons and plain quantizations are added where a grid has none", controls_come},
    {"a metric or rule that stands in a variable's value gets no control, and that is said", controls_hidden},
    {"the grid of every kind of line reads as it did", seed_reads},
    {"times of programs of every name that a grid allows are remembered", costs_of_names},
    {0}};
TEST_MAIN(cases)
