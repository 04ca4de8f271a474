/* test_sweep.c - sweeps: whatever ends one, the next goes on to the same table; failures are rows; nothing is done twice.
 *
 * Most grids here use a program of this test's own, deadwood-stub, a shell script that is found on PATH: it writes its
 * words and its inputs' contents, or a row, and notes each beginning and end in a log. */
#include "experiments/sweep/children.h"
#include "experiments/sweep/judge.h"
#include "test.h"
#include "kit/tsv.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HEAD "# deadwood grid 1\n"

/* ---- the stub -------------------------------------------------------------------------------------------------------------- */

/* Words: fail, die, nothing, sleep=S; rows with ln=, bytes=, ppl=, metric=, speed=; -o FILE; others are inputs or text. */
static const char stub[] =
    "#!/bin/sh\n"
    "kind= out= ln=0 bytes=1 ppl=1 metric=- speed= model=- text=a all=$*\n"
    "while [ $# -gt 0 ]; do\n"
    "    case $1 in\n"
    "    -o) out=$2; shift ;;\n"
    "    -t) shift ;;\n"
    "    fail|die|nothing|rows) kind=$1 ;;\n"
    "    sleep=*|ln=*|bytes=*|ppl=*|metric=*|speed=*) eval \"${1%%=*}=${1#*=}\" ;;\n"
    "    *.gguf) [ \"$model\" != - ] || model=${1##*/} ;;\n"
    "    esac\n"
    "    last=$1\n"
    "    shift\n"
    "done\n"
    "part=$out.dw$(printf %016x $$).part\n" // as tools name what is not finished
    "echo \"begin ${out##*/}\" >>\"$STUB_LOG\"\n"
    "[ -z \"$sleep\" ] || sleep $sleep\n"
    "case $kind in\n"
    "fail) echo \"deadwood-stub: cannot read '${out%/*}/x': no such thing\" >&2; exit 1 ;;\n"
    "die) kill -9 $$ ;;\n"
    "nothing) exit 0 ;;\n"
    "rows)\n"
    "    [ -z \"$speed\" ] || text=- ln=- ppl=-\n"
    "    printf '# "
    "rows\\nmodel\\tmodel_sha256\\ttext\\tbase\\tln_ratio\\tln_ratio_se\\tfile_bytes\\tbytes_per_token\\tppl\\tbase_"
    "ppl\\tmetric\\tthreads\\tdecode_tok_s\\twindows\\n' >\"$part\"\n"
    "    printf \"%s\\t%s\\t%s\\tb\\t%s\\t0.0001\\t%s\\t1\\t%s\\t1\\t%s\\t%s\\t%s\\t100\\n\" \"$model\" \"h$model\" \"$text\" "
    "\"$ln\" \"$bytes\" \"$ppl\" \"$metric\" \"${speed:+2}\" \"${speed:--}\" >>\"$part\" ;;\n"
    "*)\n"
    "    for word in $all; do echo \"${word##*/}\"; [ ! -f \"$word\" ] || cat \"$word\"; done | grep -v '^[-1-9]' "
    ">\"$part\" ;;\n"
    "esac\n"
    "mv \"$part\" \"$out\"\n"
    "echo \"end ${out##*/}\" >>\"$STUB_LOG\"\n";

static void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    CHECK(f && fputs(text, f) >= 0 && !fclose(f), "%s", path);
}

/* A path in the folder of this test; each name has its own memory. */
static const char *file(const char *name) {
    static char path[64][256];
    int i = 0;
    const char *wanted = test_path(test_folder(), name);
    while (path[i][0] && strcmp(path[i], wanted)) i++;
    return strcpy(path[i], wanted);
}

static void set_up(void) {
    static bool done;
    if (!done) {
        char path[8192];
        write_text(file("deadwood-stub"), stub);
        chmod(file("deadwood-stub"), 0755);
        snprintf(path, sizeof path, "%s:%s", test_folder(), getenv("PATH"));
        setenv("PATH", path, 1);
        setenv("STUB_LOG", file("stub.log"), 1);
        setenv("SOURCE_DATE_EPOCH", "1000000000", 1); // rows made at different times are equal
        done = true;
    }
    unlink(file("stub.log"));
}

static int count_in(const char *path, const char *words) {
    size_t n;
    char *text = dw_file_exists(path) ? dw_read_file(path, 1 << 26, &n, NULL) : NULL;
    int found = 0;
    for (const char *at = text; at && (at = strstr(at, words)); at++) found++;
    free(text);
    return found;
}

static int begun(void) { return count_in(file("stub.log"), "begin "); }

static int sweep(const char *grid, const char *dir, const char *options) {
    return test_run("deadwood-sweep %s -o %s -q %s", file(grid), file(dir), options);
}

/* Names and contents of two folders agree, but for what tells of times and processes. */
static void check_same_folders(const char *a, const char *b) {
    CHECK(!test_run("diff -r -x log -x lock -x times.tsv %s %s", file(a), file(b)), "%s", test_run_output());
}

static bool has_leftovers(const char *dir) { return !test_run("ls %s | grep '[.]part$'", file(dir)); }

/* ---- ends of every kind ---------------------------------------------------------------------------------------------------- */

static const char plain_grid[] = HEAD "metric = energy weight random\n"
                                      "rate = 0.1 0.2 0.3\n"
                                      "seed = 1 2 if metric = random\n"
                                      "dense : stub make -o $out.gguf\n"
                                      "plan : stub $dense $metric $rate $seed -o $out.tsv\n"
                                      "cut : stub $plan $dense -o $out.gguf\n"
                                      "score : stub rows $cut metric=$metric ln=$rate bytes=$rate$seed -o $rows\n";
enum { PLAIN_JOBS = 1 + 12 * 3 };

/* Starts a sweep and sends it a signal after a while; its exit status, 128 + signal, or -1. */
static int sweep_until(const char *grid, const char *dir, int sig, double seconds) {
    const pid_t pid = fork();
    if (!pid) {
        char program[1024];
        const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 16);
        program[n > 0 ? n : 0] = 0;
        strcpy(strrchr(program, '/'), "/deadwood-sweep");
        if (!freopen("/dev/null", "w", stderr)) _exit(127);
        execl(program, program, grid, "-o", dir, "-q", (char *)NULL);
        _exit(127);
    }
    int status;
    nanosleep(&(struct timespec){(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))}, NULL);
    kill(pid, sig);
    if (waitpid(pid, &status, 0) != pid) return -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* n ends by a signal at moments of a whole run that takes so many seconds, then a run to the end: the same folder. */
static int compare_ends(const char *grid, const char *whole, const char *ended, int sig, int n, double seconds) {
    int n_ended = 0;
    dw_rng rng;
    dw_rng_seed(&rng, 5);
    for (int i = 0; i < n; i++) {
        const int status = sweep_until(file(grid), file(ended), sig, seconds * dw_rng_uniform(&rng));
        CHECK(status == 0 || status == 128 + sig, "%d", status);
        n_ended += status == 128 + sig;
    }
    CHECK(!sweep(grid, ended, ""), "%s", test_run_output());
    check_same_folders(whole, ended);
    CHECK(!has_leftovers(ended));
    return n_ended;
}

static void killed(void) {
    set_up();
    write_text(file("plain.grid"), plain_grid);
    const double t0 = dw_now();
    REQUIRE(!sweep("plain.grid", "whole", ""), "%s", test_run_output());
    const double seconds = dw_now() - t0;
    CHECK(begun() == PLAIN_JOBS, "%d jobs", begun());
    CHECK(count_in(file("whole/rows.tsv"), "\n") == 3 + 12);
    unlink(file("stub.log"));
    const int n = compare_ends("plain.grid", "whole", "killed", SIGKILL, 5, seconds / 2);
    CHECK(n > 0);
    CHECK(begun() >= PLAIN_JOBS && begun() <= PLAIN_JOBS + n * 4, "%d jobs begun in %d runs", begun(),
          n + 1); // of each end no more than what ran is done again
}

static void interrupted(void) {
    set_up();
    write_text(file("slow.grid"),
               HEAD "n = 1 2 3\nx : stub sleep=0.3 $n -o $out.gguf\ny : stub rows ln=$n bytes=$n $x -o $rows\n");
    REQUIRE(!sweep("slow.grid", "slow-whole", ""), "%s", test_run_output());
    unlink(file("stub.log"));
    CHECK(sweep_until(file("slow.grid"), file("slow"), SIGINT, 0.15) == 128 + SIGINT);
    CHECK(dw_file_exists(file("slow/rows.tsv")) && !count_in(file("stub.log"), "end "));
    CHECK(!sweep("slow.grid", "slow", ""), "%s", test_run_output());
    check_same_folders("slow-whole", "slow");
}

static void real_programs(void) {
    set_up();
    write_text(file("a.txt"), "");
    FILE *f = fopen(file("a.txt"), "w");
    for (int i = 0; i < 3000; i++) fprintf(f, "%c%s", 'a' + i * i % 26, i % 7 ? "" : " ");
    fclose(f);
    char text[2048];
    snprintf(text, sizeof text,
             HEAD "text := %s\n"
                  "metric = weight random\nrate = 0.25 0.5\nseed = 1 2 if metric = random\n"
                  "dense : synth --shape tiny-llama --type F16 -o $out.gguf\n"
                  "plan : rank -m $dense --metric $metric --rate $rate --seed $seed -o $out.tsv\n"
                  "cut : cut -m $dense -p $plan -o $out.gguf\n"
                  "score : score -m $cut --base $dense -f $text -c 64 --windows 2 --no-speed -o $rows\n",
             file("a.txt"));
    write_text(file("real.grid"), text);
    const double t0 = dw_now();
    REQUIRE(!sweep("real.grid", "real", ""), "%s", test_run_output());
    const double seconds = dw_now() - t0;
    CHECK(count_in(file("real/rows.tsv"), "\n") == 3 + 6 + 6 && count_in(file("real/rows.tsv"), "\tcontrol\t") == 4,
          "beside six plain quantizations, which come by themselves, %d controls", count_in(file("real/rows.tsv"), "\tcontrol\t"));
    CHECK(compare_ends("real.grid", "real", "real-killed", SIGKILL, 3, seconds / 2) > 0);
}

/* The acceptance: 60 variants of the embedded model, ended 20 times. */
static void sixty_variants(void) {
    if (!test_slow()) SKIP("60 variants of the embedded model take minutes: DW_SLOW=1");
    set_up();
    CHECK(!test_run("sed 's/--no-speed/--windows 1 --no-speed/' experiments/grids/mini.grid >%s", file("mini.grid")));
    const double t0 = dw_now();
    REQUIRE(!sweep("mini.grid", "mini", ""), "%s", test_run_output());
    const double seconds = dw_now() - t0;
    CHECK(count_in(file("mini/rows.tsv"), "\t*\t") == 61);
    const int n = compare_ends("mini.grid", "mini", "mini-killed", SIGKILL, 20, seconds / 15);
    CHECK(n == 20, "%d of 20 ended by the signal; a whole run took %.0f s", n, seconds);
}

/* ---- failures ---------------------------------------------------------------------------------------------------------------- */

static void failures(void) {
    set_up();
    write_text(file("fail.grid"), HEAD "how = fail die nothing good\n"
                                       "rate = 1 2\n"
                                       "x : stub $how $rate -o $out.gguf\n"
                                       "score : stub rows $x $how -o $rows if how = good\n"
                                       "other : stub rows $x -o $rows if how = fail die nothing\n");
    CHECK(sweep("fail.grid", "fail", "-j 2") == 1);
    CHECK(strstr(test_run_output(), "6 rows failed"), "%s", test_run_output());
    const char *rows = file("fail/rows.tsv");
    CHECK(count_in(rows, "\tfailed\t") == 6 && count_in(rows, "\tkeep\t") == 2);
    CHECK(count_in(rows, "\thow=fail rate=2\t-\tfailed\tdeadwood-stub: cannot read 'x': no such thing\n") == 1);
    CHECK(count_in(rows, "\thow=die rate=1\t-\tfailed\tdeadwood-stub: ended by signal 9 (Killed)\n") == 1);
    CHECK(count_in(rows, "\thow=nothing rate=1\t-\tfailed\tdeadwood-stub: wrote no output\n") == 1);
    CHECK(begun() == 8 + 2, "%d", begun());
    CHECK(strstr(test_run_output(), "/log/x-fail-"), "the log is named: %s", test_run_output());
    unlink(file("stub.log"));
    CHECK(sweep("fail.grid", "fail", "-j 2") == 1);
    CHECK(begun() == 6, "what failed is tried again, and nothing else: %d", begun());
}

static void refusals(void) {
    set_up();
    write_text(file("bad.grid"), HEAD "x : no_such_program -o $out\n");
    CHECK(sweep("bad.grid", "bad", "") == 1 &&
              strstr(test_run_output(), "line 2: there is no program deadwood-no_such_program"),
          "%s", test_run_output());
    CHECK(!dw_file_exists(file("bad")), "a grid that is refused makes no folder");
    write_text(file("bad.grid"), HEAD "x : stub $y -o $out\n");
    CHECK(sweep("bad.grid", "bad", "") == 1 && strstr(test_run_output(), "line 2: nothing above is called 'y'"), "%s",
          test_run_output());
    write_text(file("good.grid"), HEAD "x : stub -o $out\n");
    CHECK(sweep("good.grid", "bad.grid", "") == 1 && strstr(test_run_output(), "is no folder"), "%s",
          test_run_output());
}

static void one_at_a_time(void) {
    set_up();
    write_text(file("long.grid"), HEAD "x : stub sleep=1 -o $out.gguf\n");
    CHECK(!test_run("deadwood-sweep %s -o %s -q & first=$!; "
                    "until grep -q begin $STUB_LOG 2>/dev/null; do sleep 0.02; done; "
                    "deadwood-sweep %s -o %s -q; second=$?; wait $first; test $? = 0 && test $second = 1",
                    file("long.grid"), file("long"), file("long.grid"), file("long")),
          "%s", test_run_output());
    CHECK(strstr(test_run_output(), "another sweep (process "), "%s", test_run_output());
    CHECK(begun() == 1);
}

/* ---- what is done, and when -------------------------------------------------------------------------------------------------- */

static void changes(void) {
    set_up();
    char text[1024];
    static const char format[] = HEAD
        "rate = %s\na : stub %s -o $out.h5\nb : stub $a %s $rate -o $out.tsv\nscore : stub rows $b ln=$rate -o $rows\n";
    write_text(file("input.txt"), "one");
    snprintf(text, sizeof text, format, "1 2", file("input.txt"), "x");
    write_text(file("change.grid"), text);
    CHECK(!sweep("change.grid", "change", "") && begun() == 1 + 2 + 2, "%d: %s", begun(), test_run_output());
    CHECK(!sweep("change.grid", "change", "") && begun() == 5, "nothing is done twice: %d", begun());
    snprintf(text, sizeof text, format, "3 1 2", file("input.txt"), "x");
    write_text(file("change.grid"), text);
    CHECK(!sweep("change.grid", "change", "") && begun() == 5 + 2, "one more value: %d", begun());
    snprintf(text, sizeof text, format, "3 1 2", file("input.txt"), "y");
    write_text(file("change.grid"), text);
    CHECK(!sweep("change.grid", "change", "") && begun() == 7 + 6, "another command of b: %d", begun());
    write_text(file("input.txt"), "two");
    CHECK(!sweep("change.grid", "change", "") && begun() == 13 + 7, "another input: %d", begun());
    CHECK(count_in(file("change/rows.tsv"), "\trate=") == 3);
}

static void at_once(void) {
    set_up();
    write_text(file("plain.grid"), plain_grid);
    CHECK(!sweep("plain.grid", "one", "-j 1"), "%s", test_run_output());
    CHECK(!sweep("plain.grid", "three", "-j 3"), "%s", test_run_output());
    check_same_folders("one", "three");
}

static void alone(void) {
    set_up();
    write_text(file("alone.grid"), HEAD "n = 1 2 3 4\nx : stub sleep=0.05 $n -o $out.gguf\ny : alone stub rows "
                                        "speed=$n $x -o $rows\nz : stub rows sleep=0.05 ln=$n $x -o $rows\n");
    CHECK(!sweep("alone.grid", "alone", "-j 3"), "%s", test_run_output());
    size_t n;
    dw_err err = {0};
    char *text = dw_read_file(file("stub.log"), 1 << 20, &n, &err), *rest = text;
    REQUIRE(text, "%s", err.text);
    int running = 0, together = 0, n_alone = 0;
    for (char *line; rest && (line = strsep(&rest, "\n")) && *line;) {
        const bool begins = !strncmp(line, "begin ", 6), is_alone = strstr(line, " y-") != NULL;
        if (begins && is_alone) {
            n_alone++;
            CHECK(!running, "'%s' beside %d others", line, running);
            CHECK(rest && !strncmp(rest, "end", 3) && !strncmp(rest + 3, line + 5, strcspn(rest, "\n") - 3),
                  "'%s' and then '%.40s'", line, rest);
        }
        running += begins ? 1 : -1;
        if (running > together) together = running;
    }
    CHECK(n_alone == 4 && together == 3, "%d alone, %d together", n_alone, together);
    free(text);
    /* Speed came into the rows of quality. */
    CHECK(count_in(file("alone/rows.tsv"), "\n") == 3 + 4 && count_in(file("alone/rows.tsv"), "\t2\t") >= 4);
}

static void dry_run(void) {
    set_up();
    write_text(file("plain.grid"), plain_grid);
    CHECK(!sweep("plain.grid", "dry", "--dry-run"), "%s", test_run_output());
    CHECK(!dw_file_exists(file("dry")) && !begun());
    CHECK(count_in(file("log"), "deadwood stub") == PLAIN_JOBS, "%s", test_run_output());
    CHECK(strstr(test_run_output(), "37 jobs to run"), "%s", test_run_output());
    CHECK(!sweep("plain.grid", "dry", "") && !sweep("plain.grid", "dry", "--dry-run"));
    CHECK(!count_in(file("log"), "deadwood stub") && strstr(test_run_output(), "# 0 jobs to run"), "%s",
          test_run_output());
}

/* ---- verdicts and models ------------------------------------------------------------------------------------------------------- */

static const char judged_grid[] = HEAD "row = 'ln=0.1 bytes=10' 'ln=0.2 bytes=20' 'ln=0.15 bytes=9' 'ln=0.11 bytes=10' "
                                       "'ln=0.05 bytes=5 metric=random' 'ln=3 ppl=20 bytes=2' 'ln=1 bytes=1'\n"
                                       "dense : stub make -o $out.gguf\n"
                                       "cut : stub $dense $row -o $out.gguf\n"
                                       "score : stub rows $cut $dense $row -o $rows\n"
                                       "control if row = 'ln=1 bytes=1'\n";

static void verdicts(void) {
    set_up();
    write_text(file("judged.grid"), judged_grid);
    REQUIRE(!sweep("judged.grid", "judged", "--keep all"), "%s", test_run_output());
    static const struct {
        const char *ln, *bytes, *verdict, *dominator;
    } expected[] = {{"0.1", "10", "discard", "0.05"}, // the random control is better in both
                    {"0.2", "20", "discard", "0.05"},  {"0.15", "9", "discard", "0.05"},
                    {"0.11", "10", "discard", "0.05"}, {"0.05", "5", "control", NULL},
                    {"3", "2", "collapsed", "1"},      {"1", "1", "control", NULL}};
    dw_err err = {0};
    tsv_table t;
    REQUIRE(!tsv_read(&t, file("judged/rows.tsv"), &err), "%s", err.text);
    CHECK(t.n_rows == 7);
    for (size_t i = 0; i < t.n_rows; i++) {
        const char *by = tsv_cell(&t, i, "dominated_by"), *ln = NULL;
        for (size_t k = 0; k < t.n_rows; k++)
            if (!strcmp(by, tsv_cell(&t, k, "model"))) ln = tsv_cell(&t, k, "ln_ratio");
        CHECK(!strcmp(tsv_cell(&t, i, "ln_ratio"), expected[i].ln) &&
                  !strcmp(tsv_cell(&t, i, "verdict"), expected[i].verdict),
              "row %zu: %s", i, tsv_cell(&t, i, "verdict"));
        CHECK(expected[i].dominator ? ln && !strcmp(ln, expected[i].dominator) : !ln, "row %zu is dominated by %s", i,
              by);
    }
    tsv_release(&t);
}

/* The verdict on one row, and what its note begins with. */
static void judged(const char *ln_ratio, const char *se, const char *verdict, const char *note) {
    dw_err err = {0};
    char row[512];
    judge_counts counts;
    tsv_table t;
    snprintf(row, sizeof row,
             "model\tmodel_sha256\ttext\tbase\tfile_bytes\tbytes_per_token\twindows\tbase_repeats\trepeats\tln_ratio\tln_ratio_se\n"
             "m\thash\ta\tb\t1\t1\t5\t0\t1\t%s\t%s\n", ln_ratio, se);
    write_text(file("one.tsv"), row);
    judge *j = judge_new(1, &err);
    REQUIRE(j && !judge_add(j, 0, file("one.tsv"), "-", false, &err), "%s", err.text);
    REQUIRE(!judge_write(j, file("one.judged"), "#", &counts, &err), "%s", err.text);
    REQUIRE(!tsv_read(&t, file("one.judged"), &err), "%s", err.text);
    CHECK(!strcmp(tsv_cell(&t, 0, "verdict"), verdict) && !strncmp(tsv_cell(&t, 0, "note"), note, strlen(note)),
          "ln ratio %s +- %s: %s, %s", ln_ratio, se, tsv_cell(&t, 0, "verdict"), tsv_cell(&t, 0, "note"));
    CHECK(counts.collapsed == !strcmp(verdict, "collapsed") && judge_keeps(j, 0) == !counts.collapsed);
    tsv_release(&t);
    judge_free(j);
}

/* The model of `judged` only repeats itself on five prompts; that decides nothing. */
static void collapses(void) {
    judged("2.30", "-", "keep", "-");
    judged("2.31", "-", "collapsed", "ln ratio 2.31, above ln 10");
    judged("2.70", "0.2", "keep", "-"); // 2.13 standard errors below it is 2.27
    judged("2.75", "0.2", "collapsed", "ln ratio 2.75 ± 0.43, above ln 10");
    judged("1", "0.01", "keep", "-");
    judged("-", "-", "-", "-");
}

/* Gates that open the same neurons for every token are controls, whatever the grid calls them. */
static void gate_controls(void) {
    static const char *const rule[] = {"static", "random", "cats"};
    for (int i = 0; i < 3; i++) {
        dw_err err = {0};
        char row[512];
        judge_counts counts;
        tsv_table t;
        snprintf(row, sizeof row,
                 "model\tmodel_sha256\ttext\tbase\tfile_bytes\tbytes_per_token\twindows\tln_ratio\tln_ratio_se\trule\n"
                 "m\thash\ta\tb\t1\t1\t5\t1\t0.01\t%s\n", rule[i]);
        write_text(file("rule.tsv"), row);
        judge *j = judge_new(1, &err);
        REQUIRE(j && !judge_add(j, 0, file("rule.tsv"), "-", false, &err), "%s", err.text);
        REQUIRE(!judge_write(j, file("rule.judged"), "#", &counts, &err), "%s", err.text);
        REQUIRE(!tsv_read(&t, file("rule.judged"), &err), "%s", err.text);
        CHECK(!strcmp(tsv_cell(&t, 0, "verdict"), i < 2 ? "control" : "keep"), "rule %s: %s", rule[i], tsv_cell(&t, 0, "verdict"));
        tsv_release(&t);
        judge_free(j);
    }
}

static int n_models(const char *dir) {
    test_run("ls %s | grep -c gguf", file(dir));
    return atoi(test_run_output());
}

static void kept_models(void) {
    set_up();
    write_text(file("kept.grid"), HEAD "row = 'ln=0.1 bytes=10' 'ln=0.2 bytes=20' 'ln=0.3 bytes=9'\n"
                                       "dense : stub make -o $out.gguf\n"
                                       "cut : stub $dense $row -o $out.gguf\n"
                                       "small : stub $cut -o $out.gguf\n"
                                       "score : stub rows $small $dense $row -o $rows\n");
    CHECK(!sweep("kept.grid", "all", "--keep all") && n_models("all") == 7, "%s", test_run_output());
    CHECK(!sweep("kept.grid", "best", "") && n_models("best") == 3, "dense and two small ones: %s", test_run_output());
    CHECK(!sweep("kept.grid", "none", "--keep none") && n_models("none") == 0, "%s", test_run_output());
    CHECK(!test_run("diff %s/rows.tsv %s/rows.tsv && diff %s/rows.tsv %s/rows.tsv", file("all"), file("best"),
                    file("all"), file("none")),
          "%s", test_run_output());
    const int n = begun();
    CHECK(!sweep("kept.grid", "none", "") && begun() == n, "what was deleted and scored is not made again");
    CHECK(!sweep("kept.grid", "all", "") && n_models("all") == 3 && begun() == n,
          "what need not stay goes later, too: %s", test_run_output());
}

static const test_case cases[] = {
    {"a sweep that is killed at random moments and run again ends as one that was not", killed},
    {"so does one of real programs", real_programs},
    {"so do 60 variants of the embedded model, killed at 20 moments", sixty_variants},
    {"SIGINT ends all jobs, leaves nothing half-written, and the next run goes on", interrupted},
    {"a job that fails costs the rows that need it, which say why; the next run tries it again", failures},
    {"a grid that cannot be run is refused with its line before anything is made", refusals},
    {"two sweeps on one folder: the second is refused", one_at_a_time},
    {"a changed value, command or input computes what depends on it, and nothing twice", changes},
    {"the number of jobs at once changes no byte", at_once},
    {"a job that runs alone has nothing beside it, and its speeds come into the rows of its model", alone},
    {"a dry run prints what would run and makes nothing", dry_run},
    {"verdicts follow from size and quality, whatever comes first", verdicts},
    {"rows of the gates' controls, static and random, are controls", gate_controls},
    {"a variant is collapsed when its perplexity is above ten times the base's beyond the error, whatever five prompts say", collapses},
    {"models go when they are scored, as --keep says, and are not made again", kept_models},
    {0}};
TEST_MAIN(cases)
