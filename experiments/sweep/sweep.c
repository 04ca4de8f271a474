/* sweep.c - deadwood-sweep: runs all variants of a grid; nothing is computed twice, nothing finished is lost.
 *
 *     deadwood sweep experiments/grids/mini.grid -o build/sweep
 *
 * A grid (grid.h) becomes jobs (jobs.h), each a command whose outputs have names that carry its identity: a job whose
 * outputs are there is done.  Files appear whole or not at all, so this holds after any kind of end.  Jobs are child
 * processes (children.h); several sweeps share a folder by claims (claims.h); rows are gathered and judged (judge.h).
 * folder.c says what is in the folder, sweep.h which file does what. */
#include "experiments/sweep/sweep.h"
#include "experiments/report/headings.h"
#include "kit/talk.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct { const char *name; } control_choices[] = {{"auto"}, {"none"}, {0}};
typedef struct base_choice {
    const char *name, *help;
} base_choice;
static const base_choice base_choices[] = {
    {"stored", "evaluate the base once and store its predictions; KL is then a lower bound (kl_kind: top64)"},
    {"exact", "evaluate the base with every model; KL is over the whole vocabulary"},
    {0}};
static const keep_rule keep_rules[] = {{"all", false, false, false},
                                       {"best", false, true, false},
                                       {"none", true, false, false},
                                       {"there", false, false, true},
                                       {0}};

static struct {
    opt_list grid, allow;
    const char *dir, *keep, *controls, *base;
    int jobs;
    size_t memory;
    bool dry_run;
} o;

static const opt_row rows[] = {
    {NULL, 0, OPT_TEXTS, OPT_REQUIRED | OPT_INPUT, &o.grid, NULL, "GRID", "the grid: a text file", .min = 1, .max = 1},
    {"out", 'o', OPT_TEXT, OPT_REQUIRED | OPT_NO_BYTE, &o.dir, NULL, "DIR",
     "the folder for all files; made where it is missing"},
    {"jobs", 'j', OPT_INT, OPT_NO_BYTE, &o.jobs, "0", "N", "at most N jobs at once; 0: as many as threads", .min = 0,
     .max = CHILDREN_MAX},
    {"memory", 0, OPT_BYTES, OPT_NO_BYTE, &o.memory, "0", "SIZE",
     "memory of all jobs together, which bounds the jobs at once; 0: what this machine has left"},
    {"keep", 0, OPT_CHOICE, 0, &o.keep, "best", "WHICH",
     "models that stay when they are scored; best: those whose verdict is keep or -; there: all, and no warning tells "
     "of those that an earlier run removed",
     OPT_CHOICES(keep_rules)},
    {"controls", 0, OPT_CHOICE, 0, &o.controls, "auto", "WHICH", "auto: add the controls that the grid lacks",
     OPT_CHOICES(control_choices)},
    {"base", 0, OPT_CHOICE, 0, &o.base, "stored", "HOW", "how a base that a step makes is compared with",
     OPT_CHOICES_HELP(base_choices, base_choice)},
    {"allow", 0, OPT_TEXTS, 0, &o.allow, NULL, "NAME", "steps may also run deadwood-NAME, whatever its options do"},
    {"dry-run", 0, OPT_FLAG, OPT_NO_BYTE, &o.dry_run, NULL, NULL,
     "check the grid, print the commands that would run and what they would cost; write nothing"},
    OPT_COMMON_HEADING,
    {"threads", 't', OPT_INT, OPT_NO_BYTE, &tool.threads, "0", "N",
     "threads of all jobs together; 0: the physical cores this process may use", .min = 0, .max = 256},
    OPT_QUIET,
    {0}};

static const opt_program program = {
    .name = "sweep",
    .summary = "run all variants of a grid and make one table of their rows",
    .usage = "GRID -o DIR [-j N] [--memory SIZE] [--keep all|best|none|there] [--controls auto|none] "
             "[--base stored|exact] [--dry-run]",
    .about =
        "A grid is a text file of variables with lists of values and of steps, each a deadwood command:\n"
        "\n"
        "  # deadwood grid 1\n"
        "  eval   := experiments/texts/eval/*.txt\n"
        "  metric  = energy random\n"
        "  rate    = 0.1 0.2 0.3\n"
        "  seed    = 1 2 3                            if metric = random\n"
        "  dense   : convert experiments/mini -o $out.gguf\n"
        "  stats   : collect -m $dense -f experiments/texts/calib/code-1.txt -o $out.h5\n"
        "  plan    : rank -m $dense -s $stats --metric $metric --rate $rate --seed $seed -o $out.tsv\n"
        "  cut     : cut -m $dense -p $plan -o $out.gguf\n"
        "  score   : score -m $cut --base $dense -f $eval --no-speed -o $rows\n"
        "  speed   : alone score -m $cut --speed-only -o $rows\n"
        "\n"
        "NAME = varies over its values, NAME := is a list that is used as a whole, NAME : is a step.  A step runs "
        "once for each combination of the values that decide its output.  $NAME is a value, or the output of a step "
        "above; $out.SUFFIX is a file that the step writes (it may write several with different suffixes, and "
        "$STEP.SUFFIX then reads one of them), $rows the rows that it adds to DIR/rows.tsv.  `if NAME = VALUE .. [and "
        "..]` at the end of a variable's line says when it varies (else it has its first value), at the end of a "
        "step's line when there is one; `control if ..` says which rows are controls, in addition to those of metric "
        "random.  While a step marked `alone` runs, no other does.  Lists called `select` and `report` are texts to "
        "choose variants by and texts to report: steps of score read one or the other, and no text may be in both.  "
        "experiments/sweep/grid.h says it all.\n"
        "\n"
        "Only programs of deadwood that make or measure models are steps (--allow adds others), and they write only "
        "what the grid names as $out or $rows.  All options and patterns of files are checked before the first step "
        "runs; --dry-run does only that, and estimates minutes, disk and memory from what such steps took on this "
        "machine before.\n"
        "\n"
        "Controls: a grid that ranks neurons by no random metric gets every cut with random neurons in three seeds as "
        "well (steps random_..); one that cuts and does not round the uncut model gets it in six mixtures, from the "
        "16-bit model and with the cut's statistics (steps rounded_..); one with gates gets the same neurons for "
        "every token, by energy and at random in three seeds, at the gates' activities (steps fixed_..).  What is "
        "added, and what cannot be, is said at the start.\n"
        "\n"
        "Files are named by the values and by a hash of the command, of all that it reads and of the program's code, "
        "so after any change or any end the same command computes what is missing and nothing else.  Several sweeps "
        "of one grid may share a folder, also from several machines.  A job that fails costs the rows that need it: "
        "they have the verdict failed and the reason; the next run tries again.\n"
        "\n"
        "The base of a comparison is evaluated once, and its predictions are stored; KL is then a lower bound (column "
        "kl_kind: top64).  --base exact evaluates it with every model.\n"
        "\n"
        "Verdicts: control; collapsed (perplexity above ten times the base's, beyond the error); discard (another row "
        "of the same type is no larger, in file size and bytes a token, and its ln_ratio is smaller beyond the error "
        "of the paired difference, corrected for the number of comparisons); keep; - (not judged: the note says why; "
        "of gated models bytes a token are counted only when their speed is measured).  With --keep best the models "
        "of other verdicts than keep and - are deleted as soon as that is known; plan and lineage make them again.",
    .example = "deadwood sweep experiments/grids/mini.grid -o build/sweep --dry-run\n"
               "deadwood sweep experiments/grids/mini.grid -o build/sweep -j 2",
    .rows = rows};

/* Such a variable fills no column, so two variants may look alike in a table. */
static void warn_of_names(const grid *g) {
    for (size_t v = 0; v < g->n_variable; v++)
        if (exp_heading_of(g->variable[v].name).role != EXP_TREATMENT)
            warn("the variable '%s' has the name of a column that does not tell what was done to a model; its values are "
                 "in the column variant alone, so rename it",
                 g->variable[v].name);
}

/* Everything before the first file is written: what is wrong in the grid or in the folder is said here. */
static int open_sweep(sweep *s, dw_err *err) {
    const char *slash = strrchr(s->grid_path, '/');
    const grid_options wanted = {.controls = !strcmp(o.controls, "auto"), .stored_bases = !strcmp(o.base, "stored")};
    s->n_threads = tool.threads ? tool.threads : dw_cpu_count();
    s->n_at_once = o.jobs ? o.jobs : s->n_threads;
    s->memory = (double)o.memory;
    if (grid_read(&s->grid, s->grid_path, &wanted, err) || jobs_expand(&s->jobs, &s->grid, s->grid_path, err) ||
        programs_find(s, &o.allow, err) || dw_sha256_file(s->grid_path, s->grid_sha256, err))
        return -1;
    warn_of_names(&s->grid);
    s->comment = dw_format(err, "%s%s', sha256 %s", sweep_comment, slash ? slash + 1 : s->grid_path, s->grid_sha256);
    s->peak = dw_alloc(s->grid.n_step, sizeof *s->peak, "steps", err);
    s->costs = costs_open(err);
    if (!s->comment || !s->peak || !s->costs || folder_check(s, err) || programs_check(s, err)) return -1;
    return 0;
}

static int find_work(sweep *s, dw_err *err) {
    if ((!o.dry_run && folder_open(s, err)) || jobs_identify(&s->jobs, s->program, err)) return -1;
    if (!o.dry_run && folder_clean(s, err)) return -1;
    if (tasks_find(s, err) || (!o.dry_run && folder_bury(s, err))) return -1;
    tasks_estimate(s);
    tasks_warn_of_gone(s);
    return 0;
}

static void tell_controls(const sweep *s) {
    for (const char *at = s->grid.notes; at && *at; at += strcspn(at, "\n"), at += *at == '\n')
        say("%.*s", (int)strcspn(at, "\n"), at);
}

static void close_sweep(sweep *s) {
    for (size_t i = 0; s->task && i < s->jobs.n; i++) {
        for (int k = 0; k < GRID_MAX_OUTPUTS; k++) free(s->task[i].path[k]);
        free(s->task[i].reader);
        free(s->task[i].reason);
    }
    for (size_t i = 0; s->program && i < s->grid.n_step; i++) free(s->program[i]);
    for (size_t i = 0; i < s->n_failure; i++) free(s->failure[i].reason);
    if (s->alone_lock >= 0) close(s->alone_lock);
    claims_close(s->claims);
    costs_free(s->costs);
    judge_free(s->judge);
    jobs_release(&s->jobs);
    grid_release(&s->grid);
    for (size_t i = 0; i < s->n_warning; i++) free(s->warning[i].text);
    free(s->warning);
    free(s->failure);
    free(s->program);
    free(s->comment);
    free(s->task);
    free(s->order);
    free(s->peak);
}

/* Runs all jobs and writes the table; returns the signal that ended it, 0: none, or -1. */
static int run(sweep *s, dw_err *err) {
    judge_counts counts = {0};
    tell_controls(s);
    children_on_signals();
    if (tasks_table(s, &counts, err)) return -1; // from now on the folder can be told from others
    const int rc = run_jobs(s, err), sig = rc ? 0 : children_signal();
    if (tasks_table(s, &counts, err) || rc) return -1;
    if (sig) {
        say("interrupted; what is finished stays, and the same command goes on from there");
        return sig;
    }
    say("%s/rows.tsv: %zu to keep, %zu dominated, %zu control%s, %zu collapsed, %zu failed%s", s->dir, counts.keep,
        counts.discard, counts.control, plural((double)counts.control), counts.collapsed, counts.failed,
        counts.other ? "; the others are not judged, and their notes say why" : "");
    return 0;
}

int main(int argc, char **argv) {
    opt_parse(&program, argc, argv);
    dw_err err = {0};
    size_t n = strlen(o.dir);
    while (n > 1 && o.dir[n - 1] == '/') n--;
    char *dir = dw_format(&err, "%.*s", (int)n, o.dir);
    sweep s = {.dir = dir, .grid_path = o.grid.item[0], .keep = keep_rules, .written = dw_now(), .alone_lock = -1};
    while (strcmp(s.keep->name, o.keep)) s.keep++;
    int rc = dir ? open_sweep(&s, &err) : -1;
    if (!rc) rc = find_work(&s, &err);
    if (!rc) rc = o.dry_run ? dry_run_print(&s, &err) : run(&s, &err);
    const size_t n_failed = s.n_failed, n_failed_files = s.n_failed_files;
    close_sweep(&s);
    free(dir);
    if (rc < 0) die_err(&err);
    if (rc) children_end_by(rc);
    if (n_failed_files && !n_failed)
        die("%zu file%s could not be made; the log says why, and the same command tries again", n_failed_files,
            plural((double)n_failed_files));
    if (n_failed)
        die("%zu row%s failed; rows.tsv says why, and the same command tries again", n_failed,
            plural((double)n_failed));
    return 0;
}
