/* dry_run.c - the commands that would run, and what they would cost by what such commands took before. */
#include "experiments/sweep/sweep.h"
#include "kit/memory.h"
#include "kit/talk.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool is_to_run(const sweep *s, size_t i) { return s->task[i].needed && s->task[i].state != DONE; }

typedef struct totals {
    size_t n_run, n_known, n_timed; // jobs to run; those of known cost; those whose seconds are known
    size_t n_control;
    double seconds, alone_seconds, bytes, peak; // the largest
} totals;

typedef struct step_sums {
    size_t n, n_there, n_run, n_known, n_timed;
    double bytes_there, seconds, bytes, peak;
} step_sums;

static step_sums sum_step(const sweep *s, size_t k) {
    step_sums sum = {0};
    for (size_t i = s->jobs.first[k]; i < s->jobs.first[k + 1]; i++) {
        const task *t = &s->task[i];
        sum.n++;
        if (t->state == DONE) {
            sum.n_there++;
            sum.bytes_there += t->cost.file_bytes;
        }
        if (!is_to_run(s, i)) continue;
        sum.n_run++;
        sum.n_timed += t->seconds_known;
        sum.seconds += t->seconds_known ? t->cost.seconds : 0;
        if (!t->cost_known) continue;
        sum.n_known++;
        sum.bytes += t->cost.file_bytes;
        if (t->cost.peak_bytes > sum.peak) sum.peak = t->cost.peak_bytes;
    }
    return sum;
}

static void print_number(double x, bool known, int digits) {
    if (known)
        printf(" %10.*f", digits, x);
    else
        printf(" %10s", "-");
}

static void print_step(const sweep *s, size_t k, totals *all) {
    const step_sums t = sum_step(s, k);
    printf("# %-16s %6zu %6zu %6zu", s->grid.step[k].name, t.n, t.n_there, t.n_run);
    print_number(t.bytes_there * 1e-6, t.n_there, 1);
    print_number(t.seconds / (double)t.n_timed, t.n_timed, 2);
    print_number(t.bytes / (double)t.n_known * 1e-6, t.n_known, 1);
    print_number(t.peak * 1e-6, t.n_known, 1);
    printf("\n");
    all->n_run += t.n_run;
    all->n_known += t.n_known;
    all->n_timed += t.n_timed;
    *(s->grid.step[k].alone ? &all->alone_seconds : &all->seconds) += t.seconds;
    all->bytes += t.bytes;
    all->peak = t.peak > all->peak ? t.peak : all->peak;
    if (k >= s->grid.n_own_step) all->n_control += t.n_run;
}

static void print_totals(const sweep *s, const totals *t) {
    printf("# %zu jobs to run, %d at once; ", t->n_run, s->n_at_once);
    if (!t->n_run)
        printf("nothing to do\n");
    else if (!t->n_timed)
        printf("minutes, disk and memory are known when such jobs have run on this machine\n");
    else
        printf("%s %.1f minutes, by what such jobs took on this machine\n",
               t->n_timed < t->n_run ? "more than" : "about", (t->seconds / s->n_at_once + t->alone_seconds) / 60);
    if (t->n_control)
        printf("# %zu of them are for controls that the sweep adds (--controls none leaves them out)\n", t->n_control);
    if (!t->n_known) return;
    const double disk = kit_free_disk(s->dir), memory = s->memory > 0 ? s->memory : kit_free_memory();
    printf("# disk: %s%s written%s, %s free", t->n_known < t->n_run ? "more than " : "", show_bytes(t->bytes).text,
           s->keep->none || s->keep->best ? " in all, before models are removed" : "",
           isnan(disk) ? "an unknown number" : show_bytes(disk).text);
    printf("%s\n", disk < t->bytes ? "; that is too little where all of it stays" : "");
    printf("# memory: up to %s a job", show_bytes(t->peak).text);
    if (!isnan(memory)) {
        const double at_once = floor(memory / (1.1 * t->peak));
        printf(", %s for all: %.0f such job%s at once", show_bytes(memory).text,
               at_once < 1              ? 1
               : at_once < s->n_at_once ? at_once
                                        : s->n_at_once,
               at_once >= 2 && s->n_at_once >= 2 ? "s" : "");
    }
    printf("\n");
}

static void print_notes(const sweep *s) {
    for (const char *at = s->grid.notes; at && *at; at += strcspn(at, "\n"), at += *at == '\n') {
        printf("# ");
        show_text(stdout, at, strcspn(at, "\n"));
        putchar('\n');
    }
}

int dry_run_print(sweep *s, dw_err *err) {
    totals all = {0};
    for (size_t k = 0; k < s->n_order; k++) {
        if (!is_to_run(s, s->order[k])) continue;
        size_t n;
        char **argv = run_command(s, s->order[k], 0, &n, err), *line = argv ? run_line(argv, n, err) : NULL;
        if (line) show_text(stdout, line, strlen(line)), putchar('\n');
        jobs_free_words(argv, argv ? n : 0);
        free(line);
        if (!line) return -1;
    }
    print_notes(s);
    printf("# %-16s %6s %6s %6s %10s %10s %10s %10s\n", "step", "jobs", "there", "to run", "MB there", "s a job",
           "MB a file", "MB memory");
    for (size_t k = 0; k < s->grid.n_step; k++) print_step(s, k, &all);
    print_totals(s, &all);
    return 0;
}
