/* test_sweep.c - sweeps: whatever ends one, the next goes on to the same table; failures are rows; nothing is done
 * twice.
 *
 * Most grids here use a program of this test's own, deadwood-stub, a shell script that is found on PATH: it writes
 * its words and its inputs' contents, or a row, and notes each beginning and end in a log. */
#include "experiments/sweep/children.h"
#include "experiments/sweep/claims.h"
#include "experiments/sweep/judge.h"
#include "test.h"
#include "kit/tsv.h"

#include <fcntl.h>
#include <regex.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HEAD "# deadwood grid 1\n"

/* ---- the stub ---------------------------------------------------------------------------------------------------- */

/* Words: fail, die, nothing, sleep=S; rows with ln=, bytes=, ppl=, metric=, speed=, of the first model, or of each, of
 * which the first has ln 0; -o FILE; others are inputs or text. */
static const char stub[] =
    "#!/bin/sh\n"
    "kind= out= ln=0 bytes=1 ppl=1 metric=- speed= model=- models= each= text=a all=$*\n"
    "while [ $# -gt 0 ]; do\n"
    "    case $1 in\n"
    "    -o) out=$2; shift ;;\n"
    "    -t) shift ;;\n"
    "    fail|die|nothing|rows|torn) kind=$1 ;;\n"
    "    sleep=*|ln=*|bytes=*|ppl=*|metric=*|speed=*) eval \"${1%%=*}=${1#*=}\" ;;\n"
    "    each) each=yes ;;\n"
    "    *.gguf) [ \"$model\" != - ] || model=${1##*/}; models=\"$models ${1##*/}\" ;;\n"
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
    "torn) echo half >\"$out\"; sleep 1; echo whole >\"$part\" ;;\n" // writes into its output
    "rows)\n"
    "    [ -z \"$speed\" ] || text=- ln=- ppl=-\n"
    "    printf '# "
    "rows\\nmodel\\tmodel_sha256\\ttext\\tbase\\tln_ratio\\tln_ratio_se\\tfile_bytes\\tbytes_per_token\\tppl\\tbase_"
    "ppl\\tmetric\\tthreads\\tdecode_tok_s\\twindows\\n' >\"$part\"\n"
    "    [ \"$each\" ] || models=$model\n"
    "    for m in $models; do\n"
    "        of=$ln; [ -z \"$each\" ] || [ \"$m\" != \"$model\" ] || of=0\n"
    "        printf \"%s\\t%s\\t%s\\tb\\t%s\\t0.0001\\t%s\\t1\\t%s\\t1\\t%s\\t%s\\t%s\\t100\\n\" \"$m\" \"h$m\" "
    "\"$text\" "
    "\"$of\" \"$bytes\" \"$ppl\" \"$metric\" \"${speed:+2}\" \"${speed:--}\" >>\"$part\"\n"
    "    done ;;\n"
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
    static char path[256][256];
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
    return test_run("deadwood-sweep %s -o %s --allow stub -q %s", file(grid), file(dir), options);
}

/* Names and contents of two folders agree, but for what tells of times and processes. */
static void check_same_folders(const char *a, const char *b) {
    const int rc = test_run("diff -r -x log %s %s || { head %s/claims/*; exit 1; }", file(a), file(b), file(b));
    CHECK(!rc, "%s", test_run_output());
}

static bool has_leftovers(const char *dir) { return !test_run("ls %s | grep '[.]part$'", file(dir)); }

/* ---- ends of every kind ------------------------------------------------------------------------------------------ */

static const char plain_grid[] = HEAD "metric = energy weight random\n"
                                      "rate = 0.1 0.2 0.3\n"
                                      "seed = 1 2 if metric = random\n"
                                      "dense : stub make -o $out.gguf\n"
                                      "plan : stub $dense $metric $rate $seed -o $out.tsv\n"
                                      "cut : stub $plan $dense -o $out.gguf\n"
                                      "score : stub rows $cut metric=$metric ln=$rate bytes=$rate$seed -o $rows\n";
enum { PLAIN_JOBS = 1 + 12 * 3 };

static pid_t sweep_start(const char *grid, const char *dir) {
    const pid_t pid = fork();
    if (pid) return pid;
    char program[1024];
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 16);
    program[n > 0 ? n : 0] = 0;
    strcpy(strrchr(program, '/'), "/deadwood-sweep");
    if (!freopen("/dev/null", "w", stderr)) _exit(127);
    execl(program, program, grid, "-o", dir, "--allow", "stub", "-q", (char *)NULL);
    _exit(127);
}

static void sleep_for(double seconds) {
    nanosleep(&(struct timespec){(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))}, NULL);
}

/* Starts a sweep and sends it a signal after a while; its exit status, 128 + signal, or -1. */
static int sweep_until(const char *grid, const char *dir, int sig, double seconds) {
    const pid_t pid = sweep_start(grid, dir);
    int status;
    sleep_for(seconds);
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

/* A program that is told to end leaves half an output under its final name. */
static void torn_output(void) {
    set_up();
    write_text(file("torn.grid"), HEAD "x : stub torn -o $out.gguf\n");
    CHECK(sweep_until(file("torn.grid"), file("torn"), SIGINT, 0.5) == 128 + SIGINT);
    CHECK(!sweep("torn.grid", "torn", ""), "%s", test_run_output());
    CHECK(!test_run("grep -qx whole %s/x-*.gguf", file("torn")), "half an output is taken for a whole one");
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
          "beside six plain quantizations, which come by themselves, %d controls",
          count_in(file("real/rows.tsv"), "\tcontrol\t"));
    CHECK(compare_ends("real.grid", "real", "real-killed", SIGKILL, 3, seconds / 2) > 0);
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

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
    CHECK(sweep("bad.grid", "bad", "--allow no_such_program") == 1 &&
              strstr(test_run_output(), "line 2: there is no program deadwood-no_such_program"),
          "%s", test_run_output());
    CHECK(
        sweep("bad.grid", "bad", "") == 1 &&
            strstr(test_run_output(), "line 2: 'no_such_program' is not among the programs that steps run: convert, "),
        "%s", test_run_output());
    CHECK(!dw_file_exists(file("bad")), "a grid that is refused makes no folder");
    write_text(file("bad.grid"), HEAD "x : stub $y -o $out\n");
    CHECK(sweep("bad.grid", "bad", "") == 1 && strstr(test_run_output(), "line 2: nothing above is called 'y'"), "%s",
          test_run_output());
    write_text(file("good.grid"), HEAD "x : stub -o $out\n");
    CHECK(sweep("good.grid", "bad.grid", "") == 1 && strstr(test_run_output(), "is no folder"), "%s",
          test_run_output());
}

/* ---- several sweeps on one folder -------------------------------------------------------------------------------- */

static void two_share(void) {
    set_up();
    write_text(file("plain.grid"), plain_grid);
    REQUIRE(!sweep("plain.grid", "alone-there", ""), "%s", test_run_output());
    unlink(file("stub.log"));
    const int rc = test_run(
        "deadwood-sweep %s -o %s --allow stub -q -j 2 & first=$!; "
        "deadwood-sweep %s -o %s --allow stub -q -j 2; second=$?; wait $first; test $? = 0 && test $second = 0",
        file("plain.grid"), file("shared"), file("plain.grid"), file("shared"));
    CHECK(!rc, "%s", test_run_output());
    CHECK(begun() == PLAIN_JOBS, "nothing is done twice: %d", begun());
    check_same_folders("alone-there", "shared");
    CHECK(!has_leftovers("shared") && test_run("ls %s | grep .", file("shared/claims")), "%s", test_run_output());
}

/* Two sweeps on one folder, of which one or the other is killed n times and started again. */
static void share_and_kill(const char *grid, const char *whole, const char *shared, int n, double seconds) {
    dw_rng rng;
    dw_rng_seed(&rng, 7);
    pid_t pid[2];
    int n_killed = 0;
    for (int i = 0; i < 2; i++) pid[i] = sweep_start(file(grid), file(shared));
    for (int k = 0; k < n; k++) {
        const int i = (int)dw_rng_below(&rng, 2);
        int status;
        sleep_for(seconds * dw_rng_uniform(&rng));
        kill(pid[i], SIGKILL);
        CHECK(waitpid(pid[i], &status, 0) == pid[i] && (WIFSIGNALED(status) || !status), "%d", status);
        n_killed += WIFSIGNALED(status);
        pid[i] = sweep_start(file(grid), file(shared));
    }
    for (int i = 0; i < 2; i++) {
        int status;
        CHECK(waitpid(pid[i], &status, 0) == pid[i] && !status, "the last runs end well: %d", status);
    }
    CHECK(n_killed > n / 2, "%d of %d were killed at work", n_killed, n);
    check_same_folders(whole, shared);
    CHECK(!has_leftovers(shared));
}

static void two_killed(void) {
    set_up();
    write_text(file("plain.grid"), plain_grid);
    const double t0 = dw_now();
    REQUIRE(!sweep("plain.grid", "two-whole", ""), "%s", test_run_output());
    share_and_kill("plain.grid", "two-whole", "two-killed", 6, (dw_now() - t0) / 8);
}

static void two_killed_with_names(void) { test_again_with_names("two sweeps of which", ""); }

/* A sweep was killed between the two names of its own files; another one lives. */
static void own_leftovers(void) {
    set_up();
    write_text(file("left.grid"), HEAD "x : stub -o $out.gguf\n");
    REQUIRE(!sweep("left.grid", "left", ""), "%s", test_run_output());
    const char *dead = file("left/grid.dw0123456789abcdef.part"), *living = file("left/grid.dw0123456789abcde0.part");
    write_text(dead, "half");
    write_text(living, "half");
    const int fd = open(living, O_RDONLY);
    REQUIRE(fd >= 0 && !flock(fd, LOCK_EX));
    CHECK(!sweep("left.grid", "left", ""), "%s", test_run_output());
    CHECK(!dw_file_exists(dead) && dw_file_exists(living), "what nobody writes goes, and nothing else");
    close(fd);
    CHECK(!sweep("left.grid", "left", "") && !has_leftovers("left"), "%s", test_run_output());
}

/* The acceptance: 60 variants by real programs, two sweeps, of which one or the other is killed 20 times. */
static void sixty_variants(void) {
    if (!test_slow()) SKIP("60 variants by two sweeps, killed 20 times, take minutes: DW_SLOW=1");
    set_up();
    FILE *f = fopen(file("a.txt"), "w");
    for (int i = 0; i < 3000; i++) fprintf(f, "%c%s", 'a' + i * i % 26, i % 7 ? "" : " ");
    fclose(f);
    char text[1024];
    snprintf(text, sizeof text,
             HEAD "metric = weight random\nrate = 0.1 0.15 0.2 0.25 0.3 0.35 0.4 0.45 0.5 0.55\nseed = 1 2 3 4 5 if "
                  "metric = random\n"
                  "dense : synth --shape tiny-llama --type F16 -o $out.gguf\n"
                  "plan : rank -m $dense --metric $metric --rate $rate --seed $seed --multiple 1 -o $out.tsv\n"
                  "cut : cut -m $dense -p $plan -o $out.gguf\n"
                  "own : requant -m $dense --type Q8_0 -o $out.gguf\n"
                  "score : score -m $cut --base $dense -f %s -c 64 --windows 6 --no-speed -o $rows\n",
             file("a.txt"));
    write_text(file("sixty.grid"), text);
    const double t0 = dw_now();
    const int rc = sweep("sixty.grid", "sixty", "");
    REQUIRE(!rc, "%s", test_run_output());
    CHECK(count_in(file("sixty/rows.tsv"), "\tmetric=") == 60, "%d variants",
          count_in(file("sixty/rows.tsv"), "\tmetric="));
    share_and_kill("sixty.grid", "sixty", "sixty-killed", 20, (dw_now() - t0) / 15);
}

/* A claim of this machine whose process is gone, one of a process that lives, and one of another machine. */
static void claims_die(void) {
    set_up();
    write_text(file("claim.grid"), HEAD "n = 1 2\nx : stub $n -o $out.gguf\n");
    REQUIRE(!sweep("claim.grid", "claim", ""), "%s", test_run_output());
    const int n = begun();
    CHECK(!test_run("cd %s && f=$(ls x-1-*) && p=$(sed -n 's/.*//;1p' /dev/null; cat /proc/sys/kernel/random/boot_id | "
                    "cut -c1-36) && "
                    "printf 'deadwood claim 2\n%%s %%s %%s 999999999 5\nbegan\n' $(uname -n) $p \"$(readlink "
                    "/proc/self/ns/pid)\" >claims/$f",
                    file("claim")),
          "%s", test_run_output());
    CHECK(!sweep("claim.grid", "claim", "") && begun() == n + 1, "what a dead process has written is not trusted: %d",
          begun() - n);
    CHECK(!test_run("cd %s && f=$(ls x-1-*) && rm $f && printf 'deadwood claim 2\nelsewhere 1 2 3 4\n' >claims/$f && "
                    "touch -d '1 hour ago' claims/$f", file("claim")), "%s", test_run_output());
    CHECK(!test_run("deadwood-sweep %s -o %s --allow stub", file("claim.grid"), file("claim")) &&
              strstr(test_run_output(), "of elsewhere 1 2 3 4 was not touched for 36"), "%s", test_run_output());
    CHECK(begun() == n + 2);
}

/* What a process on another machine does that takes the claim of one that sleeps too long for dead. */
static void take_over(const char *path) {
    write_text(file("heir"), "deadwood claim 2\nelsewhere 1 2 3 4 5\n");
    CHECK(!rename(file("heir"), path));
}

static void claims_lost(void) {
    set_up();
    dw_err err = {0};
    int n_others;
    claim_taken taken;
    char *reason;
    struct stat before, after;
    const char *path = file("lost/claims/job");
    mkdir(file("lost"), 0777);
    claims *c = claims_open(file("lost"), "grid", &n_others, &err);
    REQUIRE(c && !claims_take(c, "job", &taken, &err) && taken == CLAIM_NEW, "%s", err.text);
    CHECK(claims_holds(c, "job") && claims_look(c, "job", &reason) == CLAIM_FREE);
    take_over(path);
    CHECK(!test_run("touch -d '5 minutes ago' %s", path) && !stat(path, &before));
    CHECK(!claims_holds(c, "job") && claims_look(c, "job", &reason) == CLAIM_OTHER, "the loss is noticed");
    claims_beat(c);
    claims_fail(c, "job", "reason");
    CHECK(!stat(path, &after) && after.st_mtime == before.st_mtime && after.st_size == before.st_size,
          "the other's claim is neither touched nor called failed");
    claims_release(c, "job");
    claims_close(c);
    CHECK(dw_file_exists(path), "nor removed");
}

/* As of two containers that share host name and process ids. */
static void claims_apart(void) {
    set_up();
    dw_err err = {0};
    int n_others;
    claim_taken taken;
    char *reason;
    mkdir(file("apart"), 0777);
    claims *a = claims_open(file("apart"), "grid", &n_others, &err);
    claims *b = claims_open(file("apart"), "grid", &n_others, &err);
    REQUIRE(a && b && n_others == 1, "%s", err.text);
    CHECK(!test_run("test $(ls %s | grep -c sweep) = 2", file("apart/claims")), "each has its presence");
    CHECK(!claims_take(a, "job", &taken, &err) && taken == CLAIM_NEW, "%s", err.text);
    CHECK(claims_look(b, "job", &reason) == CLAIM_OTHER && claims_look(a, "job", &reason) == CLAIM_FREE);
    CHECK(!claims_take(b, "job", &taken, &err) && taken == CLAIM_NOT_MINE, "%s", err.text);
    claims_close(b);
    CHECK(claims_holds(a, "job"), "the end of one leaves the other's claims");
    claims_close(a);
    CHECK(test_run("ls %s | grep .", file("apart/claims")), "%s", test_run_output());
}

/* As one of another user, whose file this process may not read. */
static void claims_unreadable(void) {
    set_up();
    dw_err err = {0};
    int n_others;
    char *reason;
    mkdir(file("unreadable"), 0777);
    claims *c = claims_open(file("unreadable"), "grid", &n_others, &err);
    REQUIRE(c, "%s", err.text);
    CHECK(!test_run("mkdir %s && touch -d '1 minute ago' %s", file("unreadable/claims/job"),
                    file("unreadable/claims/job")));
    CHECK(claims_look(c, "job", &reason) == CLAIM_OTHER, "its owner may live");
    CHECK(!test_run("touch -d '11 minutes ago' %s", file("unreadable/claims/job")));
    CHECK(claims_look(c, "job", &reason) == CLAIM_DEAD, "nobody has touched it");
    claims_close(c);
}

/* A process that ends as if killed: with a job that began, one that did not, and while it took a third one over. */
static pid_t die_with_claims(const char *folder) {
    const pid_t pid = fork();
    if (pid) return pid;
    dw_err err = {0};
    int n_others;
    claim_taken taken;
    claims *c = claims_open(folder, "grid", &n_others, &err);
    const bool ok = c && !claims_take(c, "job", &taken, &err) && !claims_begin(c, "job", &err) &&
                    !claims_take(c, "looked-at", &taken, &err) &&
                    !test_run("cd %s/claims && cp job $(ls | grep sweep$).heir", folder);
    _exit(!ok);
}

/* Another process has the folder's lock for a moment, as if it took a claim over. */
static pid_t lock_for(const char *folder, double seconds) {
    const int lock = open(folder, O_RDONLY | O_DIRECTORY);
    CHECK(lock >= 0 && !flock(lock, LOCK_EX), "%s", folder);
    const pid_t pid = fork();
    if (!pid) {
        sleep_for(seconds);
        _exit(0);
    }
    close(lock);
    return pid;
}

static void claims_forgotten(void) {
    set_up();
    dw_err err = {0};
    int n_others;
    char *reason;
    siginfo_t how;
    mkdir(file("forgotten"), 0777);
    const pid_t dead = die_with_claims(file("forgotten"));
    CHECK(!waitid(P_PID, (id_t)dead, &how, WEXITED | WNOWAIT) && !how.si_status, "its end is left for others to ask");
    const pid_t locker = lock_for(file("forgotten/claims"), 0.05);
    claims *c = claims_open(file("forgotten"), "grid", &n_others, &err);
    REQUIRE(c && !n_others, "%s", err.text);
    CHECK(!test_run("test $(ls %s | grep -c sweep) = 1", file("forgotten/claims")), "its presence and heir are gone");
    CHECK(claims_look(c, "job", &reason) == CLAIM_DEAD && claims_look(c, "looked-at", &reason) == CLAIM_FREE);
    claims_close(c);
    CHECK(!test_run("test \"$(ls %s)\" = job", file("forgotten/claims")), "what began is told to later sweeps: %s",
          test_run_output());
    waitpid(dead, NULL, 0);
    waitpid(locker, NULL, 0);
}

/* The path of the only claim on a job of step x; "": there is none. */
static const char *claim_in(const char *dir) {
    static char path[1024];
    CHECK(!test_run("ls -d %s/claims/x-* >%s", dir, file("claim-path")), "%s", test_run_output());
    FILE *f = fopen(file("claim-path"), "r");
    if (!f || !fgets(path, sizeof path, f)) *path = 0;
    if (f) fclose(f);
    path[strcspn(path, "\n")] = 0;
    return path;
}

static void lost_job(void) {
    set_up();
    write_text(file("lose.grid"), HEAD "x : stub rows sleep=0.5 ln=1 -o $rows\n");
    const pid_t pid = sweep_start(file("lose.grid"), file("lose"));
    for (int i = 0; i < 500 && !begun(); i++) sleep_for(0.01);
    const char *claim = claim_in(file("lose"));
    take_over(claim);
    for (int i = 0; i < 500 && !count_in(file("stub.log"), "end "); i++) sleep_for(0.01);
    sleep_for(1);
    CHECK(waitpid(pid, NULL, WNOHANG) == 0 && !count_in(file("lose/rows.tsv"), "\t1\t"), "it waits for the other");
    unlink(claim); // the other has finished
    int status = -1;
    CHECK(waitpid(pid, &status, 0) == pid && !status, "%d", status);
    CHECK(count_in(file("lose/rows.tsv"), "\t1\t") >= 1 && begun() == 1, "what the other has finished is taken");
}

/* The model that d reads stays until d has run, whatever others do with a job that is not needed here. */
static void settled_elsewhere(void) {
    set_up();
    write_text(file("settle.grid"), HEAD "a : stub -o $out.gguf\nb : stub $a -o $out.gguf\n"
                                         "c : stub rows ln=1 $b -o $rows\nd : stub rows sleep=2 ln=2 $a -o $rows\n");
    REQUIRE(!sweep("settle.grid", "settle", "--keep all"), "%s", test_run_output());
    CHECK(!test_run("cd %s && rm d-*.tsv && mkdir -p claims && b=claims/$(ls b-*.gguf) && "
                    "printf 'deadwood claim 2\\nelsewhere 1 2 3 4 5\\n' >$b && "
                    "{ deadwood-sweep %s -o . --allow stub -q --keep none & } && sleep 0.5 && rm $b && sleep 0.8 && "
                    "ls a-*.gguf && wait $! && ! ls a-*.gguf",
                    file("settle"), file("settle.grid")),
          "%s", test_run_output());
    CHECK(count_in(file("stub.log"), "begin d-") == 2);
}

static void parents(void) {
    set_up();
    write_text(file("good.grid"), HEAD "x : stub rows ln=1 -o $rows\n");
    CHECK(!sweep("good.grid", "new/and/deep/", "") && dw_file_exists(file("new/and/deep/rows.tsv")), "%s",
          test_run_output());
    write_text(file("taken"), "a file");
    CHECK(sweep("good.grid", "taken/deep", "") == 1 && strstr(test_run_output(), "taken' is no folder"), "%s",
          test_run_output());
}

static void other_grid(void) {
    set_up();
    write_text(file("long.grid"), HEAD "x : stub sleep=1 -o $out.gguf\n");
    write_text(file("other.grid"), HEAD "y : stub -o $out.gguf\n");
    CHECK(!test_run("deadwood-sweep %s -o %s --allow stub -q & first=$!; "
                    "for i in $(seq 500); do grep -q begin $STUB_LOG 2>/dev/null && break; sleep 0.02; done; rm -f %s; "
                    "deadwood-sweep %s -o %s --allow stub -q; second=$?; wait $first; test $? = 0 && test $second = 1",
                    file("long.grid"), file("long"), file("long/rows.tsv"), file("other.grid"), file("long")),
          "%s", test_run_output());
    CHECK(strstr(test_run_output(), "another sweep (process ") ||
              strstr(test_run_output(), "was not written by a sweep"),
          "%s", test_run_output());
}

static void foreign_files(void) {
    set_up();
    write_text(file("good.grid"), HEAD "x : stub rows ln=1 -o $rows\n");
    static const char *const names[] = {"rows.tsv", "grid"};
    for (int i = 0; i < 2; i++) {
        CHECK(!test_run("rm -rf %s && mkdir %s && echo mine >%s/%s && echo mine >%s/lock", file("mine"), file("mine"),
                        file("mine"), names[i], file("mine")));
        CHECK(sweep("good.grid", "mine", "") == 1 && strstr(test_run_output(), "was not written by a sweep"), "%s",
              test_run_output());
        CHECK(!test_run("test \"$(cat %s/%s %s/lock)\" = \"mine\nmine\" || test \"$(cat %s/%s)\" = mine", file("mine"),
                        names[i], file("mine"), file("mine"), names[i]));
        CHECK(!dw_file_exists(file("mine/claims")) && !begun(), "nothing is made there");
    }
    CHECK(!test_run("rm %s/grid", file("mine")) && !sweep("good.grid", "mine", "") &&
              !test_run("grep -q mine %s/lock", file("mine")),
          "%s", test_run_output());
    write_text(file("second.grid"), HEAD "y : stub rows ln=2 -o $rows\n");
    CHECK(sweep("second.grid", "mine", "") == 1 &&
              strstr(test_run_output(), "is the table of another grid, 'good.grid'"),
          "%s", test_run_output());
    CHECK(count_in(file("mine/rows.tsv"), "\t1\t") >= 1, "its table stays");
    CHECK(!sweep("mine/grid", "mine", ""), "its own copy of the grid can be run: %s", test_run_output());
}

/* ---- what is done, and when -------------------------------------------------------------------------------------- */

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

/* Gram matrices beside a file that is read are read, too. */
static void changed_gram(void) {
    set_up();
    char text[512];
    snprintf(text, sizeof text, HEAD "a : stub %s -o $out.tsv\nb : stub --stats=%s -o $out.tsv\n", file("ext.h5"),
             file("ext.h5"));
    write_text(file("gram.grid"), text);
    write_text(file("ext.h5"), "one");
    CHECK(!sweep("gram.grid", "gram", "") && begun() == 2, "%d: %s", begun(), test_run_output());
    write_text(file("ext.h5.gram"), "one");
    CHECK(!sweep("gram.grid", "gram", "") && begun() == 4, "they are new: %d", begun());
    CHECK(!sweep("gram.grid", "gram", "") && begun() == 4, "they are the same: %d", begun());
    write_text(file("ext.h5.gram"), "two");
    CHECK(!sweep("gram.grid", "gram", "") && begun() == 6, "they are others: %d", begun());
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

/* ---- programs, inputs, options ----------------------------------------------------------------------------------- */

static const char real_grid[] = HEAD "rate = 0.25 0.5\n"
                                     "dense : synth --shape tiny-llama --type F16 -o $out.gguf\n"
                                     "plan : rank -m $dense --metric weight --rate $rate --group 32 -o $out.tsv\n"
                                     "cut : cut -m $dense -p $plan -o $out.gguf\n";

/* The steps whose commands a dry run of the copied programs would run: "plan cut ". */
static const char *to_run(void) {
    static char steps[256];
    *steps = 0;
    CHECK(!test_run("PATH=%s:$PATH %s/deadwood-sweep %s -o %s --controls none --dry-run -q", file("bin"), file("bin"),
                    file("real.grid"), file("real-programs")),
          "%s", test_run_output());
    static const char *const names[] = {"synth", "rank", "cut"};
    for (int i = 0; i < 3; i++) {
        char line[64];
        snprintf(line, sizeof line, "deadwood %s ", names[i]);
        if (strstr(test_run_output(), line)) strcat(strcat(steps, names[i]), " ");
    }
    return steps;
}

static void changed_program(void) {
    set_up();
    write_text(file("real.grid"), real_grid);
    REQUIRE(!test_run("mkdir -p %s && for t in sweep synth rank cut; do cp $(command -v deadwood-$t) %s; done",
                      file("bin"), file("bin")));
    CHECK(!strcmp(to_run(), "synth rank cut "), "%s", to_run());
    REQUIRE(!test_run("PATH=%s:$PATH %s/deadwood-sweep %s -o %s --controls none --keep all -q", file("bin"),
                      file("bin"), file("real.grid"), file("real-programs")),
            "%s", test_run_output());
    CHECK(!*to_run(), "%s", to_run());
    REQUIRE(!test_run("LC_ALL=C sed -i 's/deadwood-commit:...../deadwood-commit:other/' %s/deadwood-rank && ! cmp -s "
                      "%s/deadwood-rank $(command -v deadwood-rank)",
                      file("bin"), file("bin")));
    CHECK(!*to_run(), "the commit that a program was built from is not its code: %s", to_run());
    REQUIRE(!test_run("echo x >>%s/deadwood-cut", file("bin")));
    CHECK(!strcmp(to_run(), "cut "), "%s", to_run());
    REQUIRE(!test_run("echo x >>%s/deadwood-rank", file("bin")));
    CHECK(!strcmp(to_run(), "rank cut "), "%s", to_run());
    REQUIRE(
        !test_run("echo x >>%s/deadwood-sweep && cp $(command -v deadwood-rank) %s && cp $(command -v deadwood-cut) %s",
                  file("bin"), file("bin"), file("bin")));
    CHECK(!*to_run(), "the same programs again, the sweep itself another: %s", to_run());
}

/* An input that changes while a job reads it: the output is not filed under what the input was. */
static void changing_input(void) {
    set_up();
    write_text(file("moving.txt"), "one");
    char text[512];
    snprintf(text, sizeof text, HEAD "x : stub sleep=0.5 %s -o $out.gguf\ny : stub rows ln=1 $x -o $rows\n",
             file("moving.txt"));
    write_text(file("moving.grid"), text);
    CHECK(test_run("(sleep 0.3; echo two >%s) & deadwood-sweep %s -o %s --allow stub -q --keep all", file("moving.txt"),
                   file("moving.grid"), file("moving")) == 1,
          "%s", test_run_output());
    CHECK(strstr(test_run_output(), "changed while the sweep ran; run the same command again"), "%s",
          test_run_output());
    CHECK(test_run("ls %s/*.gguf", file("moving")), "its output is gone");
    CHECK(!sweep("moving.grid", "moving", "--keep all") && !test_run("grep -q two %s/x-*.gguf", file("moving")), "%s",
          test_run_output());
}

static void refuse(const char *steps, const char *words_wanted) {
    char text[1024];
    snprintf(text, sizeof text, "%s%s", HEAD "dense : synth --shape tiny-llama --type F16 -o $out.gguf\n", steps);
    write_text(file("refused.grid"), text);
    CHECK(test_run("deadwood-sweep %s -o %s --dry-run -q", file("refused.grid"), file("refused")) == 1 &&
              strstr(test_run_output(), words_wanted),
          "wanted '%s', got '%s'", words_wanted, test_run_output());
    CHECK(test_run("deadwood-sweep %s -o %s -q", file("refused.grid"), file("refused")) == 1 &&
              !dw_file_exists(file("refused")),
          "nothing is made");
}

static void options_checked(void) {
    refuse("p : rank -m $dense --metric weight --rate 20 -o $out.tsv\n", "line 3: rank: --rate: '20' is not between");
    refuse("p : rank -m $dense --metric waight --rate 0.2 -o $out.tsv\n",
           "line 3: rank: --metric: 'waight' is not one of");
    refuse("p : rank -m $dense --metrik weight --rate 0.2 -o $out.tsv\n", "did you mean '--metric'?");
    refuse("p : rank -m $dense --metric weight -s $out.tsv --rate 0.2 -o x\n",
           "would write 'x', which is no output of the step");
    refuse("p : collect -m $dense -f a.txt --export-imatrix /tmp/x -o $out.h5\n",
           "would write '/tmp/x', which is no output of the step");
    refuse("how = '--rate 0.2 --scores /tmp/x'\np : rank -m $dense --metric weight -o $out.tsv $how\n",
           "line 4: rank: the command of 'p' would write '/tmp/x'");
    refuse("p : versus -m $dense --stock evil -o $out.tsv\n",
           "line 3: 'versus' is not among the programs that steps run");
    refuse("p : collect -m $dense -f nowhere/*.txt -o $out.h5\n", "line 3: no file matches 'nowhere/*.txt'");
    refuse("p : collect -m $dense -f nowhere.txt -o $out.h5\n",
           "line 3: collect: there is no 'nowhere.txt', and no step makes it");
    refuse("p : score -m$dense -f a.txt -o $rows\n", "line 3: score: '-m' and what follows it are one word");
    refuse("p : score -m $dense -f a.txt -qo $rows\n", "'-q' and what follows it are one word");
    refuse("p : convert no-such-folder -o $out.gguf\n", "line 3: convert: there is no 'no-such-folder'");
    refuse("p : rank -m mini-typo.gguf --metric weight --rate 0.2 -o $out.tsv\n", "rank: there is no 'mini-typo.gguf'");
}

/* The patterns among a list's words stand for files, and quoted bytes for themselves. */
static void globs_in_lists(void) {
    set_up();
    write_text(file("list[1].txt"), "first");
    write_text(file("list1.txt"), "second");
    char text[1024];
    snprintf(text, sizeof text, HEAD "all := %s/'list[1]'.t?t '*.quoted' '%s'\nx : stub $all -o $out.gguf\n",
             test_folder(), file("list[1].txt"));
    write_text(file("list.grid"), text);
    CHECK(!sweep("list.grid", "list", "--dry-run"), "%s", test_run_output());
    snprintf(text, sizeof text, " '%s' '*.quoted' '%s' -o ", file("list[1].txt"), file("list[1].txt"));
    CHECK(count_in(file("log"), text) == 1, "%s", test_run_output());
}

static void globs_in_steps(void) {
    set_up();
    write_text(file("glob-1.txt"), "first");
    write_text(file("glob-2.txt"), "second");
    char text[512];
    snprintf(text, sizeof text, HEAD "x : stub %s '*.quoted' -o $out.gguf\n", file("glob-*.txt"));
    write_text(file("glob.grid"), text);
    CHECK(!sweep("glob.grid", "glob", ""), "%s", test_run_output());
    CHECK(!test_run("cd %s && grep -q first x-*.gguf && grep -q second x-*.gguf && grep -q '[*].quoted' x-*.gguf",
                    file("glob")),
          "%s", test_run_output());
}

/* ---- what it takes ----------------------------------------------------------------------------------------------- */

/* The most stubs that ran together, by the log. */
static int most_together(void) {
    char *text = dw_read_file(file("stub.log"), 1 << 20, NULL, NULL), *rest = text;
    int running = 0, most = 0;
    for (char *line; rest && (line = strsep(&rest, "\n")) && *line;) {
        running += !strncmp(line, "begin ", 6) ? 1 : -1;
        if (running > most) most = running;
    }
    free(text);
    return most;
}

static void memory_bounds(void) {
    set_up();
    write_text(file("memory.grid"), HEAD "n = 1 2 3 4 5 6\nx : stub sleep=0.1 $n -o $out.gguf\n");
    CHECK(!sweep("memory.grid", "memory-1", "-j 4 --memory 1MB"), "%s", test_run_output());
    CHECK(most_together() == 1, "%d jobs with memory for none", most_together());
    unlink(file("stub.log"));
    CHECK(!sweep("memory.grid", "memory-2", "-j 4 --memory 1TB"), "%s", test_run_output());
    CHECK(most_together() > 1, "%d jobs with memory for all", most_together());
}

static void costs_remembered(void) {
    set_up();
    write_text(file("real.grid"), real_grid);
    REQUIRE(!test_run("deadwood-sweep %s -o %s --keep all -q --controls none", file("real.grid"), file("cost-1")), "%s",
            test_run_output());
    CHECK(!test_run("deadwood-sweep %s -o %s --dry-run -q --controls none", file("real.grid"), file("cost-2")), "%s",
          test_run_output());
    CHECK(strstr(test_run_output(), "# 5 jobs to run") &&
              strstr(test_run_output(), " minutes, by what such jobs took on this machine") &&
              strstr(test_run_output(), "# disk: ") && strstr(test_run_output(), "# memory: up to "),
          "a sweep elsewhere on this machine knows: %s", test_run_output());
}

/* Disk counts what tools write beside their outputs; heal --minutes says its minutes itself. */
static void costs_beside(void) {
    set_up();
    char steps[2048], text[4096];
    FILE *f = fopen(file("a.txt"), "w");
    for (int i = 0; i < 3000; i++) fprintf(f, "%c%s", 'a' + i * i % 26, i % 7 ? "" : " ");
    fclose(f);
    snprintf(steps, sizeof steps,
             "dense : synth --shape tiny-llama --type F16 -o $out.gguf\n"
             "stats : collect -m $dense -f %s -c 64 --windows 2 --gram down -o $out.h5\n",
             file("a.txt"));
    snprintf(text, sizeof text, HEAD "%s", steps);
    write_text(file("gram.grid"), text);
    snprintf(text, sizeof text,
             HEAD "minutes = 30 90\n%shealed : heal -m $dense -T $dense -f %s -c 64 --minutes $minutes -o $out.gguf\n",
             steps, file("a.txt"));
    write_text(file("heal.grid"), text);
    setenv("XDG_CACHE_HOME", file("cache-beside"), 1);
    REQUIRE(!test_run("deadwood-sweep %s -o %s -q --controls none", file("gram.grid"), file("beside")), "%s",
            test_run_output());
    CHECK(!test_run("a=$(cat %s/stats-*.h5 %s/stats-*.h5.gram | wc -c); "
                    "grep ^collect %s/deadwood/times.tsv | cut -f9 | grep -qx $a",
                    file("beside"), file("beside"), file("cache-beside")),
          "%s", test_run_output());
    CHECK(!test_run("deadwood-sweep %s -o %s -q --controls none --dry-run -j 1", file("heal.grid"), file("beside-2")) &&
              strstr(test_run_output(), " 3600.00") && strstr(test_run_output(), "about 120."),
          "30 and 90 minutes: %s", test_run_output());
    setenv("XDG_CACHE_HOME", file("cache"), 1); // as before
}

/* What a dry run says of a step that reads a folder with one file of so many bytes. */
static const char *estimate(const char *folder, int bytes) {
    char text[1024];
    mkdir(file(folder), 0777);
    CHECK(!test_run("truncate -s %d %s/model", bytes, file(folder)), "%s", test_run_output());
    snprintf(text, sizeof text, HEAD "x : stub %s -o $out.gguf\ny : stub $x -o $out.gguf\n", file(folder));
    write_text(file("folder.grid"), text);
    CHECK(!sweep("folder.grid", "folder-out", "--controls none --dry-run"), "%s", test_run_output());
    return test_run_output();
}

/* A job read 1 MB in 10 s, had 1 GB of memory and wrote 1 MB. */
static void costs_scaled(void) {
    set_up();
    setenv("XDG_CACHE_HOME", file("cache-scaled"), 1);
    mkdir(file("cache-scaled"), 0700);
    mkdir(file("cache-scaled/deadwood"), 0700);
    write_text(file("cache-scaled/deadwood/times.tsv"), "stub\t1\t1\t1000000\t1\t10\t10\t1000000000\t1000000\n");
    const char *out = estimate("half", 500000);
    CHECK(strstr(out, "       5.00        0.5      500.0\n# y"), "a folder of half as many bytes: %s", out);
    out = estimate("small", 100000);
    CHECK(strstr(out, "       1.00        0.1      100.0\n"), "a tenth: %s", out);
    out = estimate("large", 20000000);
    CHECK(strstr(out, "          -          -          -\n# y") && strstr(out, "are known when such jobs have run"),
          "twenty times as much, and what reads it: %s", out);
    setenv("XDG_CACHE_HOME", file("cache"), 1); // as before
}

/* Warnings of jobs that succeed are told at the end, each once. */
static void warnings_told(void) {
    set_up();
    write_text(file("deadwood-warner"),
               "#!/bin/sh\nfor out; do :; done\n"
               "echo \"deadwood-warner: warning: '$1' is short\" >&2\necho 'deadwood-warner: no warning: x' >&2\n"
               "while [ $1 != -o ]; do shift; done\necho x >\"$2\"\n");
    chmod(file("deadwood-warner"), 0755);
    write_text(file("warned.grid"), HEAD "n = 1 2 3\nx : stub $n -o $out.gguf\ny : warner $x $n -o $out.txt\n");
    CHECK(!test_run("deadwood-sweep %s -o %s --allow stub warner -q --controls none --keep all", file("warned.grid"),
                    file("warned")),
          "%s", test_run_output());
    CHECK(!strcmp(test_run_output(), "deadwood-sweep: warning: 3 jobs of step 'y': 'x..' is short\n"), "%s",
          test_run_output());
}

/* A row is in the table while later jobs run. */
static void rows_come(void) {
    set_up();
    write_text(file("come.grid"), HEAD "n = 1 2\nx : stub $n -o $out.gguf\nfast : stub rows ln=$n $x -o $rows\nslow : "
                                       "stub rows sleep=4 ln=$n $x -o $rows\n");
    const pid_t pid = sweep_start(file("come.grid"), file("come"));
    bool came = false;
    for (int i = 0; i < 150 && !came; i++) {
        sleep_for(0.02);
        came = count_in(file("come/rows.tsv"), "\tn=1\t") > 0 && !count_in(file("stub.log"), "end slow");
    }
    CHECK(came);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void several_outputs(void) {
    set_up();
    write_text(file("several.grid"), HEAD "x : both -o $out.model --report $out.report\ny : stub rows $x.report ln=1 "
                                          "-o $rows\nz : stub $x -o $out.txt\n");
    write_text(file("deadwood-both"), "#!/bin/sh\nwhile [ $# -gt 1 ]; do case $1 in -o) echo model >$2 ;; --report) "
                                      "echo report >$2 ;; esac; shift; done\n");
    chmod(file("deadwood-both"), 0755);
    CHECK(!sweep("several.grid", "several", "--allow both --keep all"), "%s", test_run_output());
    CHECK(
        !test_run("cd %s && grep -q model z-*.txt && cat x-*.model x-*.report | tr '\\n' ' ' | grep -q 'model report'",
                  file("several")),
        "%s", test_run_output());
    CHECK(!test_run("rm %s/x-*.report %s/y-*.tsv", file("several"), file("several")) &&
          !sweep("several.grid", "several", "--allow both --keep all"));
    CHECK(!test_run("cat %s/x-*.report", file("several")), "a job of which one output is missing runs again");
    CHECK(!sweep("several.grid", "several", "--allow both --keep none") &&
              test_run("ls %s/x-*.model", file("several")) && !test_run("ls %s/x-*.report", file("several")),
          "a model goes, a report stays");
}

static void alike(void) {
    set_up();
    write_text(file("alike.grid"), HEAD
               "n = 1 2 3 4 5\nx : stub $n -o $out.gguf\ny : stub fail $x -o $out.gguf\nz : stub rows $y -o $rows\n");
    CHECK(sweep("alike.grid", "alike", "-j 1") == 1);
    CHECK(strstr(test_run_output(), "5 jobs of step 'y' failed alike: deadwood-stub: cannot read 'x': no such thing"),
          "%s", test_run_output());
    CHECK(count_in(file("log"), "warning: ") == 2, "one for the first, one for all: %s", test_run_output());
}

/* ---- bases, roles, controls -------------------------------------------------------------------------------------- */

static void write_texts(void) {
    static const char *const names[] = {"a.txt", "b.txt"};
    for (int k = 0; k < 2; k++) {
        FILE *f = fopen(file(names[k]), "w");
        for (int i = 0; i < 3000; i++) fprintf(f, "%c%s", 'a' + (i * i + k * i) % 26, i % (7 - k) ? "" : " ");
        fclose(f);
    }
}

static void stored_base(void) {
    set_up();
    write_texts();
    char text[1024];
    snprintf(text, sizeof text,
             HEAD "rate = 0.25 0.5\ndense : synth --shape tiny-llama --type F16 -o $out.gguf\n"
                  "plan : rank -m $dense --metric weight --rate $rate --group 32 -o $out.tsv\ncut : cut -m $dense -p "
                  "$plan -o $out.gguf\n"
                  "itself : score -m $dense --base $dense -f %s -c 64 --windows 6 --no-speed -o $rows\n"
                  "score : score -m $cut --base=${dense} -f %s -c 64 --windows 6 --no-speed -o $rows\n",
             file("a.txt"), file("a.txt"));
    write_text(file("base.grid"), text);
    REQUIRE(!test_run("deadwood-sweep %s -o %s -q --controls none", file("base.grid"), file("base-stored")), "%s",
            test_run_output());
    REQUIRE(!test_run("deadwood-sweep %s -o %s -q --controls none --base exact", file("base.grid"), file("base-exact")),
            "%s", test_run_output());
    CHECK(!test_run("ls %s/dense_stored-*.base | wc -l | grep -qx 1", file("base-stored")),
          "evaluated once for all steps");
    CHECK(test_run("ls %s/*.base", file("base-exact")), "and not at all");
    tsv_table a, b;
    dw_err err = {0};
    REQUIRE(!tsv_read(&a, file("base-stored/rows.tsv"), &err) && !tsv_read(&b, file("base-exact/rows.tsv"), &err), "%s",
            err.text);
    CHECK(a.n_rows == 3 && b.n_rows == 3);
    static const char *const equal[] = {"ppl", "base_ppl", "ln_ratio", "ln_ratio_se", "top1_agree", "nll_nats"};
    for (size_t i = 0; i < a.n_rows && i < b.n_rows; i++) {
        for (size_t k = 0; k < sizeof equal / sizeof *equal; k++)
            CHECK(!strcmp(tsv_cell(&a, i, equal[k]), tsv_cell(&b, i, equal[k])), "row %zu, %s: %s and %s", i, equal[k],
                  tsv_cell(&a, i, equal[k]), tsv_cell(&b, i, equal[k]));
        CHECK(!strcmp(tsv_cell(&a, i, "kl_kind"), "top64") && !strcmp(tsv_cell(&b, i, "kl_kind"), "full"));
        CHECK(atof(tsv_cell(&a, i, "kl_mean")) <= atof(tsv_cell(&b, i, "kl_mean")) + 1e-12, "a lower bound");
    }
    tsv_release(&a);
    tsv_release(&b);
}

/* score refuses options of speed beside --no-speed, and the step that stores a base measures no speed. */
static void stored_base_and_speed(void) {
    static const char text[] = HEAD "dense : synth --shape tiny-llama --type F16 -o $out.gguf\n"
                                    "plain : score -m $dense --base $dense -f a.txt --no-speed -o $rows\n"
                                    "deep : score -m $dense --base $dense -f a.txt --depth 0,64 -o $rows\n"
                                    "joined : score -m $dense --base $dense -f a.txt --depth=0,32 -o $rows\n"
                                    "four : score -m $dense --base $dense -f a.txt --sequences 4 -o $rows\n"
                                    "huge : score -m $dense --base $dense -f a.txt --huge-pages -o $rows\n";
    set_up();
    write_texts();
    write_text(file("deep.grid"), text);
    CHECK(!test_run("cd %s && deadwood-sweep %s -o %s --dry-run -q", test_folder(), file("deep.grid"), file("deep")),
          "%s", test_run_output());
    CHECK(count_in(file("log"), " --store ") == 1 && count_in(file("log"), " -f a.txt --no-speed --store ") == 1,
          "one base for all steps, without options of speed: %s", test_run_output());
    CHECK(count_in(file("log"), " --depth") == 2 && count_in(file("log"), " --sequences 4 ") == 1 &&
              count_in(file("log"), " --huge-pages ") == 1,
          "which the steps keep: %s", test_run_output());
}

static void roles(void) {
    set_up();
    write_texts();
    char text[1024];
    static const char format[] = HEAD
        "select := %s\nreport := %s\ndense : synth --shape tiny-llama --type F16 -o $out.gguf\n"
        "chosen : score -m $dense -f $select -c 64 --windows 6 --no-speed -o $rows\n"
        "told : score -m $dense -f $report -c 64 --windows 6 --no-speed -o $rows\n";
    snprintf(text, sizeof text, format, file("a.txt"), file("b.txt"));
    write_text(file("roles.grid"), text);
    REQUIRE(!test_run("deadwood-sweep %s -o %s -q", file("roles.grid"), file("roles")), "%s", test_run_output());
    tsv_table t;
    dw_err err = {0};
    REQUIRE(!tsv_read(&t, file("roles/rows.tsv"), &err) && t.n_rows == 2, "%s", err.text);
    CHECK(!strcmp(tsv_cell(&t, 0, "role"), "select") && !strcmp(tsv_cell(&t, 0, "text"), "a.txt"));
    CHECK(!strcmp(tsv_cell(&t, 1, "role"), "report") && !strcmp(tsv_cell(&t, 1, "text"), "b.txt"));
    tsv_release(&t);
    CHECK(!test_run("cp %s %s", file("a.txt"), file("c.txt"))); // another name, the same text
    snprintf(text, sizeof text, format, file("a.txt"), file("c.txt"));
    write_text(file("roles.grid"), text);
    CHECK(test_run("deadwood-sweep %s -o %s -q --dry-run", file("roles.grid"), file("roles-2")) == 1 &&
              strstr(test_run_output(), "of report is the same text as"), "%s", test_run_output());
}

/* The control of a cut model that was quantized before: from the 16-bit model, with the same statistics. */
static void controls_made(void) {
    set_up();
    write_texts();
    char text[1024];
    snprintf(
        text, sizeof text,
        HEAD
        "wide : synth --shape tiny-llama --type F16 -o $out.gguf\nstats : collect -m $wide -f %s -c 64 -o $out.h5\n"
        "plan : rank -m $wide -s $stats --metric energy --rate 0.5 --group 32 -o $out.tsv\ncut : cut -m $wide -p $plan "
        "-o $out.gguf\n"
        "small : requant -m $cut --type Q8_0 -o $out.gguf\nscore : score -m $small -f %s -c 64 --windows 6 --no-speed "
        "-o $rows\n",
        file("a.txt"), file("b.txt"));
    write_text(file("controlled.grid"), text);
    CHECK(!test_run("deadwood-sweep %s -o %s --dry-run", file("controlled.grid"), file("controlled")), "%s",
          test_run_output());
    const char *said = test_run_output();
    CHECK(strstr(said,
                 "# controls: random neurons in three seeds (steps random_plan random_cut random_small random_score)"),
          "%s", said);
    CHECK(
        strstr(said, "# controls: $wide in six mixtures, with the statistics $stats (steps rounded_cut rounded_score)"),
        "%s", said);
    CHECK(strstr(said, "--mixture Q4_K_M -o ") && strstr(said, "/stats-") && !strstr(said, "--lossy-twice"), "%s",
          said);
    CHECK(count_in(file("log"), "deadwood requant -m ") == 1 + 3 + 6 && strstr(said, "# 24 of them are for controls"),
          "%s", said);

    snprintf(text, sizeof text,
             HEAD "cut : cut -m %s -p %s -o $out.gguf\nscore : score -m $cut -f %s --no-speed -o $rows\n",
             file("narrow.gguf"), file("a.tsv"), file("a.txt"));
    write_text(file("a.tsv"), "# no plan, but a file\n");
    CHECK(!test_run("deadwood-synth --shape tiny-llama --type Q8_0 -o %s -q", file("narrow.gguf")), "%s",
          test_run_output());
    write_text(file("narrow.grid"), text);
    CHECK(!test_run("deadwood-sweep %s -o %s --dry-run", file("narrow.grid"), file("narrow")) &&
              strstr(test_run_output(), "# no control: plain rounding for step cut: ") &&
              strstr(test_run_output(), "narrow.gguf is Q8_0 already"),
          "%s", test_run_output());
}

static void gates_controlled(void) {
    static const char text[] = HEAD "activity = 0.75 0.5\ndense : synth --shape tiny-llama --type F16 -o "
                                    "$out.gguf\nstats : collect -m $dense -f a.txt -o $out.h5\n"
                                    "gated : gate -m $dense -s $stats --rule cats --activity $activity -o $out.gguf\n"
                                    "score : score -m $gated --base $dense -f a.txt --no-speed -o $rows\n";
    set_up();
    write_texts();
    write_text(file("gates.grid"), text);
    CHECK(!test_run("cd %s && deadwood-sweep %s -o %s --dry-run", test_folder(), file("gates.grid"), file("gates")),
          "%s", test_run_output());
    const char *said = test_run_output();
    CHECK(strstr(said, "by energy and at random in three seeds (steps fixed_gated fixed_score)"), "%s", said);
    CHECK(!strstr(said, "requant"), "rounding is a control of cuts: %s", said);
    CHECK(count_in(file("log"), "--rule static --seed 1 --activity 0.75") == 1 &&
              count_in(file("log"), "--rule random --seed 3 --activity 0.5") == 1 &&
              count_in(file("log"), "deadwood gate -m ") == 2 + 8,
          "%s", said);
    CHECK(count_in(file("log"), "deadwood score -m ") == 2 + 8 + 1, "%s", said); // gated, fixed, the stored base
    CHECK(!test_run("cd %s && deadwood-sweep -q %s -o %s", test_folder(), file("gates.grid"), file("gates")), "%s",
          test_run_output());
    CHECK(!test_run("grep -c 'control' %s/rows.tsv", file("gates")) && atoi(test_run_output()) >= 8, "%s",
          test_run_output());
    CHECK(!test_run("deadwood-table %s/rows.tsv --join seed", file("gates")) &&
              strstr(test_run_output(), "random, activity 0.5 (mean of 3)"),
          "the seeds of a control are joined: %s", test_run_output());
    CHECK(
        !test_run("deadwood-sweep --help | tr -s '\n ' ' ' | grep 'one that cuts and does not round the uncut model'"),
        "and the help says so");
    write_text(file("open.grid"), HEAD "dense : synth --shape tiny-llama --type F16 -o $out.gguf\n"
                                       "stats : collect -m $dense -f a.txt -o $out.h5\n"
                                       "gated : gate -m $dense -s $stats --rule group-max --activity 0.5 -o $out.gguf\n"
                                       "score : score -m $gated --base $dense -f a.txt --no-speed -o $rows\n");
    CHECK(!test_run("cd %s && deadwood-sweep %s -o %s --dry-run", test_folder(), file("open.grid"), file("open")) &&
              strstr(test_run_output(), "write --group into the step"),
          "%s", test_run_output());
}

/* What a token reads of a gated model is counted with its speed: without it a row has no verdict, and says how to get
 * one. */
static void gates_judged(void) {
    static const char text[] = HEAD "dense : synth --shape tiny-llama --type F16 -o $out.gguf\n"
                                    "stats : collect -m $dense -f a.txt -o $out.h5\n"
                                    "gated : gate -m $dense -s $stats --rule cats --activity 0.5 -o $out.gguf\n"
                                    "score : score -m $gated --base $dense -f a.txt --no-speed -o $rows\n";
    char more[1024];
    set_up();
    write_texts();
    write_text(file("judged.grid"), text);
    CHECK(!test_run("cd %s && deadwood-sweep %s -o judged --controls none", test_folder(), file("judged.grid")), "%s",
          test_run_output());
    CHECK(strstr(test_run_output(), "0 failed; the others are not judged, and their notes say why"), "%s",
          test_run_output());
    CHECK(count_in(file("judged/rows.tsv"), "add a step 'alone score -m MODEL --speed-only'") == 1);
    CHECK(count_in(file("judged/rows.tsv"), "\tkeep\t") == 0);
    snprintf(more, sizeof more, "%sspeed : alone score -m $gated --speed-only -o $rows\n", text);
    write_text(file("judged.grid"), more);
    CHECK(!test_run("cd %s && deadwood-sweep %s -o judged --controls none", test_folder(), file("judged.grid")), "%s",
          test_run_output());
    CHECK(strstr(test_run_output(), "1 to keep, 0 dominated") && !strstr(test_run_output(), "not judged"), "%s",
          test_run_output());
    CHECK(count_in(file("judged/rows.tsv"), "\tkeep\t") >= 1 && count_in(file("judged/rows.tsv"), "not judged") == 0);
}

/* Statistics of a model that was cut say nothing of the whole one, whose second control would be the first. */
static void iterative_cuts(void) {
    static const char text[] = HEAD
        "dense : synth --shape tiny-llama --type F16 -o $out.gguf\n"
        "stats : collect -m $dense -f a.txt -o $out.h5\n"
        "plan : rank -m $dense -s $stats --metric random --rate 0.25 --multiple 32 -o $out.tsv\n"
        "cut : cut -m $dense -p $plan -o $out.gguf\n"
        "again : collect -m $cut -f a.txt -o $out.h5\n"
        "plan2 : rank -m $cut -s $again --metric random --rate 0.25 --multiple 32 -o $out.tsv\n"
        "cut2 : cut -m $cut -p $plan2 -o $out.gguf\n"
        "score : score -m $cut2 --base $dense -f a.txt --no-speed -o $rows\n";
    set_up();
    write_texts();
    write_text(file("twice.grid"), text);
    CHECK(!test_run("cd %s && deadwood-sweep %s -o %s --dry-run", test_folder(), file("twice.grid"), file("twice")),
          "%s", test_run_output());
    CHECK(strstr(test_run_output(), "with the statistics $stats (steps rounded_cut rounded_score)") &&
              !strstr(test_run_output(), "rounded_cut2"),
          "%s", test_run_output());
}

/* A dry run of a grid with a cut and two gates, which ends in these steps. */
static const char *with_cut_and_gates(const char *steps) {
    static const char made[] = HEAD "dense : synth --shape tiny-llama --type F16 -o $out.gguf\n"
                                    "stats : collect -m $dense -f a.txt -o $out.h5\n"
                                    "plan : rank -m $dense --metric random --rate 0.5 -o $out.tsv\n"
                                    "cut : cut -m $dense -p $plan -s $stats -o $out.gguf\n"
                                    "one : gate -m $dense -s $stats --rule cats --activity 0.5 -o $out.gguf\n"
                                    "two : gate -m $dense -s $stats --rule cats --activity 0.3 -o $out.gguf\n";
    char text[2048];
    snprintf(text, sizeof text, "%s%s", made, steps);
    write_text(file("models.grid"), text);
    CHECK(!test_run("cd %s && deadwood-sweep %s -o made --dry-run", test_folder(), file("models.grid")), "%s",
          test_run_output());
    return test_run_output();
}

/* Lines of a dry run that match. */
static int n_lines(const char *said, const char *pattern) {
    regex_t expression;
    int n = 0;
    CHECK(!regcomp(&expression, pattern, REG_NOSUB));
    for (const char *at = said; *at; at += strcspn(at, "\n"), at += *at == '\n') {
        char line[4096];
        snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
        n += !regexec(&expression, line, 0, NULL, 0);
    }
    regfree(&expression);
    return n;
}

/* The order of the models decides nothing, and the control stands in the place of all of them. */
static void controls_of_several_models(void) {
    static const char *const steps[] = {"score : score -m $dense $cut -f a.txt -o $rows\n",
                                        "score : score -m $cut $dense -f a.txt -o $rows\n",
                                        "score : score -m $dense -m $cut -f a.txt -o $rows\n",
                                        "score : score -f a.txt --model=$dense --model $cut -o $rows\n"};
    set_up();
    write_texts();
    for (int i = 0; i < 4; i++) {
        const char *said = with_cut_and_gates(steps[i]);
        CHECK(strstr(said, "with the statistics $stats (steps rounded_cut rounded_score)"), "%s%s", steps[i], said);
        CHECK(n_lines(said, "^deadwood score .*/rounded_score-") == 6 &&
                  n_lines(said, "^deadwood score .*/dense-.*/rounded_score-") == 0 &&
                  n_lines(said, "^deadwood score .*/rounded_cut-.*/rounded_score-") == 6,
              "%s%s", steps[i], said);
    }
}

static void controls_of_several_gates(void) {
    set_up();
    write_texts();
    const char *said = with_cut_and_gates("score : score -m $dense $one $two -f a.txt -o $rows\n");
    CHECK(strstr(said, "(steps fixed_one fixed_score fixed_two fixed_score_two)"), "%s", said);
    CHECK(count_in(file("log"), "/fixed_score-") == 4 && count_in(file("log"), "/fixed_score_two-") == 4,
          "by energy, and at random in three seeds: %s", said);
    said = with_cut_and_gates("heal : heal -m $cut -T $dense -f a.txt --minutes 1 -o $out.gguf\n"
                              "score : score -m $cut $heal -f a.txt -o $rows\n");
    CHECK(strstr(said, "(steps rounded_cut rounded_score)"), "%s", said);
}

/* ---- verdicts and models ----------------------------------------------------------------------------------------- */

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
             "model\tmodel_sha256\ttext\tbase\tfile_bytes\tbytes_per_token\twindows\tbase_repeats\trepeats\tln_"
             "ratio\tln_ratio_se\n"
             "m\thash\ta\tb\t1\t1\t5\t0\t1\t%s\t%s\n",
             ln_ratio, se);
    write_text(file("one.tsv"), row);
    judge *j = judge_new(1, &err);
    REQUIRE(j && !judge_add(j, 0, file("one.tsv"), "-", false, &err), "%s", err.text);
    REQUIRE(!judge_write(j, file("one.judged"), "#", &counts, &err), "%s", err.text);
    REQUIRE(!tsv_read(&t, file("one.judged"), &err), "%s", err.text);
    CHECK(!strcmp(tsv_cell(&t, 0, "verdict"), verdict) && !strncmp(tsv_cell(&t, 0, "note"), note, strlen(note)),
          "ln ratio %s +- %s: %s, %s", ln_ratio, se, tsv_cell(&t, 0, "verdict"), tsv_cell(&t, 0, "note"));
    CHECK(counts.collapsed == !strcmp(verdict, "collapsed") && judge_keeps(j, 0, "m") == !counts.collapsed);
    tsv_release(&t);
    judge_free(j);
}

/* The model of `judged` only repeats itself on five prompts; that decides nothing. */
static void collapses(void) {
    judged("2.30", "-", "keep", "-");
    judged("2.31", "-", "collapsed", "ln ratio 2.31, above ln 10");
    judged("2.70", "0.2", "keep", "-"); // 2.13 standard errors below it is 2.27
    judged("2.75", "0.2", "collapsed", "ln ratio 2.75 ± 0.2, above ln 10");
    judged("1", "0.01", "keep", "-");
    judged("-", "-", "-", "not judged: it has no ln ratio, which score --base gives");
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
        CHECK(!strcmp(tsv_cell(&t, 0, "verdict"), i < 2 ? "control" : "keep"), "rule %s: %s", rule[i],
              tsv_cell(&t, 0, "verdict"));
        tsv_release(&t);
        judge_free(j);
    }
}

/* The table of sources of one row each, whose cells are separated by spaces. */
static void judge_rows_of(const char *head, const char *const *row, size_t n, tsv_table *t) {
    dw_err err = {0};
    judge_counts counts;
    judge *j = judge_new(n, &err);
    *t = (tsv_table){0};
    REQUIRE(j, "%s", err.text);
    for (size_t i = 0; i < n; i++) {
        char text[1024];
        snprintf(text, sizeof text, "%s\n%s\n", head, row[i]);
        for (char *c = text; *c; c++)
            if (*c == ' ') *c = '\t';
        write_text(file("source.tsv"), text);
        CHECK(!judge_add(j, i, file("source.tsv"), "-", false, &err), "%s", err.text);
    }
    CHECK(!judge_write(j, file("source.judged"), "#", &counts, &err), "%s", err.text);
    CHECK(!tsv_read(t, file("source.judged"), &err), "%s", err.text);
    judge_free(j);
}

static void judge_rows(const char *const *row, size_t n, tsv_table *t) {
    judge_rows_of("model model_sha256 text base file_bytes windows ln_ratio ln_ratio_se kv select activity "
                  "bytes_per_token threads decode_tok_s depth sequences",
                  row, n, t);
}

/* Rows of another precision differ by its rounding.  How neurons are selected is part of what is compared. */
static void frames(void) {
    static const char *const row[] = {"m1 h1 a b 9 9 9 0.01 0.001 f32 split auto",
                                      "m2 h2 a b 9 9 9 1 0.001 f32 int8 auto",
                                      "m3 h3 a b 9 9 9 1 0.001 f32 split fused"};
    tsv_table t;
    judge_rows_of(
        "model model_sha256 text base file_bytes bytes_per_token windows ln_ratio ln_ratio_se kv precision select", row,
        3, &t);
    REQUIRE(t.n_rows == 3);
    CHECK(!strcmp(tsv_cell(&t, 1, "verdict"), "keep"), "another precision: %s", tsv_cell(&t, 1, "verdict"));
    CHECK(!strcmp(tsv_cell(&t, 2, "verdict"), "discard"), "the same: %s", tsv_cell(&t, 2, "verdict"));
    tsv_release(&t);
}

static bool has_cells(const tsv_table *t, size_t row, const char *bytes_per_token, const char *decode_tok_s) {
    return row < t->n_rows && !strcmp(tsv_cell(t, row, "bytes_per_token"), bytes_per_token) &&
           !strcmp(tsv_cell(t, row, "decode_tok_s"), decode_tok_s);
}

#define DENSE_QUALITY "m hash a b 9 5 1 0.01 f32 auto - 7 -"
#define GATED_QUALITY "m hash a b 9 5 1 0.01 f32 fused 0.3 - 2"

static void speeds_of_sequences(void) {
    static const char *const row[] = {"m hash - - 9 - - - f32 auto - 7 2 150 0 2",
                                      "m hash - - 9 - - - f32 auto - 7 2 100 0 1", DENSE_QUALITY " - - -",
                                      "m hash - - 9 - - - f32 auto - 7 2 180 0 4",
                                      "m hash - - 9 - - - f32 auto - 7 2 90 64 1"};
    tsv_table t;
    judge_rows(row, 5, &t);
    CHECK(t.n_rows == 4 && has_cells(&t, 0, "7", "150") && has_cells(&t, 1, "7", "100") &&
              has_cells(&t, 2, "7", "180") && has_cells(&t, 3, "7", "90"),
          "x2, the model itself, x4 and depth 64: %zu rows", t.n_rows);
    CHECK(t.n_rows < 2 || !strcmp(tsv_cell(&t, 1, "threads"), "2"), "with the threads of its speed");
    tsv_release(&t);
}

/* What a row of quality says of its cost was measured with its own cache, its own kernels and its own gates. */
static void speeds_of_others(void) {
    static const char *const row[] = {GATED_QUALITY " - - -",
                                      "m hash - - 9 - - - f32 listed 0.05 3 2 400 0 1",
                                      "m hash - - 9 - - - f32 fused 0.05 3 2 500 0 1",
                                      "m hash - - 9 - - - q8_0 fused 0.3 4 2 300 0 1",
                                      "m hash - - 9 - - - f32 listed 0.3 6 2 200 0 1",
                                      "m hash - - 9 - - - f32 fused 0.3 5 2 100 0 1"};
    tsv_table t;
    judge_rows(row, 5, &t);
    CHECK(t.n_rows == 5 && has_cells(&t, 0, "-", "-") && !strcmp(tsv_cell(&t, 0, "verdict"), "-"),
          "planted gates, another cache and other kernels say nothing of it: %zu rows", t.n_rows);
    tsv_release(&t);
    judge_rows(row, 6, &t);
    CHECK(t.n_rows == 5 && has_cells(&t, 0, "5", "100") && !strcmp(tsv_cell(&t, 0, "verdict"), "keep"),
          "the last row does: %zu rows", t.n_rows);
    tsv_release(&t);
}

/* A row of speed goes only into others: of two that fit the first, and none where speed is known. */
static void speeds_not_used(void) {
    static const char *const row[] = {DENSE_QUALITY " - - -", "m hash - - 9 - - - f32 auto - 7 1 100 0 1",
                                      "m hash - - 9 - - - f32 auto - 7 2 190 0 1"};
    tsv_table t;
    judge_rows(row, 3, &t);
    CHECK(t.n_rows == 2 && has_cells(&t, 0, "7", "100") && has_cells(&t, 1, "7", "190"), "%zu rows", t.n_rows);
    tsv_release(&t);
    const char *const measured[] = {"m hash a b 9 5 1 0.01 f32 auto - 7 4 120 0 1", row[1]};
    judge_rows(measured, 2, &t);
    CHECK(t.n_rows == 2 && has_cells(&t, 0, "7", "120") && has_cells(&t, 1, "7", "100"), "%zu rows", t.n_rows);
    CHECK(t.n_rows < 1 || !strcmp(tsv_cell(&t, 0, "threads"), "4"), "its speed keeps its threads");
    tsv_release(&t);
}

/* A variable fills a column of what was done; one that only shares its name with a measure fills nothing. */
static void variables_in_columns(void) {
    dw_err err = {0};
    judge_counts counts;
    tsv_table t;
    write_text(file("named.tsv"), "model\tmodel_sha256\ttext\tbase\tfile_bytes\tbytes_per_token\twindows\tln_ratio\t"
                                  "ln_ratio_se\nm\thash\t-\t-\t1\t1\t-\t-\t-\n");
    judge *j = judge_new(2, &err);
    static const char variant[] = "text=calib.txt texts=some depth=deep windows=4 kl_mean=x metric=energy rate=0.2";
    REQUIRE(j && !judge_add(j, 0, file("named.tsv"), variant, false, &err), "%s", err.text);
    REQUIRE(!judge_fail(j, 1, "n", variant, "a reason", &err), "%s", err.text);
    REQUIRE(!judge_write(j, file("named.judged"), "#", &counts, &err), "%s", err.text);
    REQUIRE(!tsv_read(&t, file("named.judged"), &err), "%s", err.text);
    static const char *const measured[] = {"text", "texts", "depth", "windows", "kl_mean"};
    CHECK(t.n_rows == 2);
    for (size_t i = 0; i < t.n_rows; i++) {
        for (size_t k = 0; k < sizeof measured / sizeof *measured; k++)
            CHECK(!strcmp(tsv_cell(&t, i, measured[k]), "-"), "row %zu: %s %s", i, measured[k],
                  tsv_cell(&t, i, measured[k]));
        CHECK(!strcmp(tsv_cell(&t, i, "metric"), "energy") && !strcmp(tsv_cell(&t, i, "rate"), "0.2") &&
              !strcmp(tsv_cell(&t, i, "variant"), variant));
    }
    tsv_release(&t);
    judge_free(j);
    CHECK(!test_run("deadwood-table %s", file("named.judged")), "%s", test_run_output());
    set_up();
    write_text(file("named.grid"), HEAD "depth = 1 2\nrate = 3 4\nx : stub $depth $rate -o $out.gguf\n"
                                        "y : stub rows $x -o $rows\n");
    CHECK(!sweep("named.grid", "named", "--dry-run") &&
              strstr(test_run_output(), "the variable 'depth' has the name") &&
              !strstr(test_run_output(), "the variable 'rate'"),
          "%s", test_run_output());
}

/* Rows of n models.  The second model is a little worse than the first. */
static void write_models(const char *path, int first, int n) {
    FILE *f = fopen(path, "w");
    REQUIRE(f);
    fprintf(f, "date\tmodel\tmodel_sha256\ttext\ttext_sha256\tbase\tbase_sha256\twindows\tln_ratio\tln_ratio_se\t"
               "file_bytes\tbytes_per_token\n");
    for (int i = first; i < first + n; i++)
        fprintf(f, "d\tm%d.gguf\th%d\tt\tth\tb\tbh\t1000\t%g\t0.01\t%d\t%d\n", i, i, i == 1 ? 0.14 : 0.1 + 0.0001 * i,
                i < 2 ? 1000 : 2000 + i, i < 2 ? 1000 : 2000 + i);
    fclose(f);
}

/* A model is not removed for a difference that is none when all rows are there. */
static void expected_rows(void) {
    dw_err err = {0};
    write_models(file("first.tsv"), 0, 2);
    write_models(file("second.tsv"), 2, 6);
    judge *j = judge_new(2, &err);
    REQUIRE(j, "%s", err.text);
    judge_expect(j, 8);
    CHECK(!judge_add(j, 0, file("first.tsv"), "-", false, &err) && judge_keeps(j, 0, "m1.gguf"), "%s", err.text);
    CHECK(!judge_add(j, 1, file("second.tsv"), "-", false, &err) && judge_keeps(j, 0, "m1.gguf"), "%s", err.text);
    judge_free(j);
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
    CHECK(!sweep("kept.grid", "all", "") && !strstr(test_run_output(), "are gone"),
          "what went for its verdict is not missed: %s", test_run_output());
}

static void gone_models(void) {
    set_up();
    write_text(file("gone.grid"), HEAD "row = 'ln=0.1 bytes=10' 'ln=0.2 bytes=20' 'ln=0.3 bytes=9'\n"
                                       "dense : stub make -o $out.gguf\n"
                                       "cut : stub $dense $row -o $out.gguf\n"
                                       "score : stub rows $cut $dense $row -o $rows\n");
    CHECK(!sweep("gone.grid", "gone", "--keep none") && n_models("gone") == 0);
    CHECK(!sweep("gone.grid", "gone", "--keep none") && !strstr(test_run_output(), "are gone"), "%s",
          test_run_output());
    const char *const ways[][2] = {{"", "3 models that --keep best keeps are gone, such as '"},
                                   {"--keep all", "4 models that --keep all keeps are gone, such as '"},
                                   {"--keep all --dry-run", "4 models that --keep all keeps are gone, such as '"}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        CHECK(!sweep("gone.grid", "gone", ways[i][0]) && strstr(test_run_output(), ways[i][1]), "%s: %s", ways[i][0],
              test_run_output());
    CHECK(!sweep("gone.grid", "gone", "--keep there") && !strstr(test_run_output(), "gone, such as"), "%s",
          test_run_output());
    CHECK(!test_run("rm %s/score-*.tsv", file("gone")) && !sweep("gone.grid", "gone", "--keep all") &&
              !strstr(test_run_output(), "are gone") && n_models("gone") == 4,
          "without their rows they are made again: %s", test_run_output());
    CHECK(!sweep("gone.grid", "gone", "--keep there") && n_models("gone") == 4, "what is there stays: %s",
          test_run_output());
}

/* One step tells of two models. */
static void kept_each(void) {
    set_up();
    write_text(file("each.grid"), HEAD "dense : stub make -o $out.gguf\n"
                                       "cut : stub $dense -o $out.gguf\n"
                                       "score : stub rows each $dense $cut ln=3 -o $rows\n");
    CHECK(!sweep("each.grid", "each", ""), "%s", test_run_output());
    CHECK(count_in(file("each/rows.tsv"), "\tkeep\t") == 1 && count_in(file("each/rows.tsv"), "\tcollapsed\t") == 1);
    CHECK(!test_run("ls %s/dense-*.gguf", file("each")) && test_run("ls %s/cut-*.gguf", file("each")),
          "the collapsed cut goes, whatever its neighbour is worth: %s", test_run_output());
}

/* Rows hold 127 bytes of a name. */
static void kept_long_name(void) {
    static const char rows[] = "model\ttext\tbase\tfile_bytes\tbytes_per_token\twindows\tln_ratio\n"
                               "dense.gguf\ta\tb\t2\t2\t5\t0\n%.127s\ta\tb\t1\t1\t5\t9\n";
    char text[512], name[256];
    dw_err err = {0};
    snprintf(name, sizeof name, "cut-%0120d-8c5e0f12ab.gguf", 1);
    snprintf(text, sizeof text, rows, name);
    write_text(file("long.tsv"), text);
    judge *j = judge_new(1, &err);
    REQUIRE(j && !judge_add(j, 0, file("long.tsv"), "-", false, &err), "%s", err.text);
    CHECK(!judge_keeps(j, 0, name), "its own row is found");
    CHECK(judge_keeps(j, 0, "base.gguf"), "a file without a row stays while dense.gguf does");
    judge_free(j);
}

static const test_case cases[] = {
    {"a sweep that is killed at random moments and run again ends as one that was not", killed},
    {"so does one of real programs", real_programs},
    {"so do 60 variants of real programs by two sweeps, of which one or the other is killed 20 times", sixty_variants},
    {"SIGINT ends all jobs, leaves nothing half-written, and the next run goes on", interrupted},
    {"half an output of a program that SIGINT ended is not trusted", torn_output},
    {"a job that fails costs the rows that need it, which say why; the next run tries it again", failures},
    {"a grid that cannot be run is refused with its line before anything is made", refusals},
    {"two sweeps share a folder: each job is done once, the table is that of one", two_share},
    {"what a sweep that was killed left of its own files goes, what a living one writes stays", own_leftovers},
    {"two sweeps of which one or the other is killed, again and again, end as one that was not", two_killed},
    {"so do they where a file has its name from the beginning", two_killed_with_names},
    {"the claim of a dead process is taken over, that of another machine when it is old, and this is told", claims_die},
    {"a process that lost its claim while it slept notices it, and leaves the other's claim alone", claims_lost},
    {"two processes of equal host name and id are told apart", claims_apart},
    {"a claim that cannot be read is believed as long as somebody touches it", claims_unreadable},
    {"a process that was killed is forgotten, whoever holds the lock just then", claims_forgotten},
    {"a sweep that lost a job waits for the one that has it, and takes the outputs then", lost_job},
    {"a job that is done elsewhere and not needed here does not free the model that another job reads",
     settled_elsewhere},
    {"folders above the output folder are made", parents},
    {"a sweep of another grid does not share the folder", other_grid},
    {"files of somebody else, and another grid's table, are not replaced", foreign_files},
    {"a changed value, command or input computes what depends on it, and nothing twice", changes},
    {"so do changed Gram matrices beside an input", changed_gram},
    {"the number of jobs at once changes no byte", at_once},
    {"a job that runs alone has nothing beside it, and its speeds come into the rows of its model", alone},
    {"a dry run prints what would run and makes nothing", dry_run},
    {"a changed program computes what depends on it, and nothing else; its commit is not its code", changed_program},
    {"an input that changes while a job reads it makes the job fail, and leaves no output", changing_input},
    {"options, values and outputs are checked before anything is made; only own programs are steps", options_checked},
    {"a pattern in a step stands for files, in quotes for itself", globs_in_steps},
    {"so does one in a list", globs_in_lists},
    {"memory bounds the jobs at once", memory_bounds},
    {"what jobs took is known to later sweeps: minutes, disk, memory", costs_remembered},
    {"disk counts the files beside outputs, and minutes those that heal is told", costs_beside},
    {"warnings of jobs that succeed are told at the end, each once", warnings_told},
    {"costs follow the bytes that are read, of folders, too, and are unknown far from all that ran", costs_scaled},
    {"rows come into the table while other jobs run", rows_come},
    {"a step has several outputs; all of them must be there", several_outputs},
    {"failures that are alike are told once, with their number", alike},
    {"a base is evaluated once; only KL is another, and the row says so", stored_base},
    {"a stored base is made without options of speed, and steps that differ in them share it", stored_base_and_speed},
    {"rows say whether their texts are for choosing or for reporting, and no text is for both", roles},
    {"controls come from the 16-bit model with the same statistics, and are refused aloud where they cannot",
     controls_made},
    {"gates get fixed neurons at their activities as controls", gates_controlled},
    {"gated models are judged by the bytes that their speed counts, and rows without them say so", gates_judged},
    {"a verdict counts the rows that are still to come", expected_rows},
    {"a model that is cut twice gets plain roundings once, with statistics of its own", iterative_cuts},
    {"a model gets its controls wherever it stands in a step of several models", controls_of_several_models},
    {"so do several models of a step, each its own", controls_of_several_gates},
    {"verdicts follow from size and quality, whatever comes first", verdicts},
    {"rows of the gates' controls, static and random, are controls", gate_controls},
    {"a variant is collapsed when its perplexity is above ten times the base's beyond the error, whatever five prompts "
     "say",
     collapses},
    {"rows of another precision are not compared, those of another selection are", frames},
    {"speed of one sequence goes into the rows of its model, that of several has rows of its own", speeds_of_sequences},
    {"a row takes no cost from planted gates, nor from another cache or other kernels", speeds_of_others},
    {"a row of speed that no other row uses stays", speeds_not_used},
    {"a variable that is called as a measure fills no column of measures", variables_in_columns},
    {"models go when they are scored, as --keep says, and are not made again", kept_models},
    {"a run that keeps models which an earlier one removed says so, and how to have them", gone_models},
    {"of two models in one step each stays or goes by its own verdict", kept_each},
    {"so does one whose name is longer than a row holds", kept_long_name},
    {0}};
TEST_MAIN(cases)
