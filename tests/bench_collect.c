/* bench_collect.c - what collect's statistics cost: its own passes beside passes that nobody looks into. */
int collect_main(int argc, char **argv);
#define main collect_main
#include "prune/collect.c"
#undef main

static const char usage[] =
    "make build/bench_collect && build/bench_collect PAIRS -m M.gguf -f TEXT -o UNUSED [options of collect]\n"
    "\n"
    "Evaluates windows of the first text by turns with and without statistics, both without the output matrix, and prints the\n"
    "median time of each and the ratio of speeds, collect / bare: the median of pairs and its quartiles.\n";

enum { MAX_PAIRS = 4096 };

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double time_window(run *r, const dw_tap *tap, int w) {
    dw_err err = {0};
    const calib_text *text = &r->texts.text[0];
    dw_session_set_tap(r->session, tap);
    memset(r->out, 1, (size_t)r->n_batch); // rows of all tokens: else the last layer of a pass without a tap ends early
    const double began = dw_now();
    if (eval_windows(r, text, w % text->n_windows, 1, &err)) die_err(&err);
    return dw_now() - began;
}

static void measure(run *r, int n) {
    static double seconds[2][MAX_PAIRS], ratio[MAX_PAIRS];
    const dw_tap tap = collector_tap(&r->c);
    for (int i = -1; i < n; i++) { // the first pair warms up
        double pair[2];
        for (int k = 0; k < 2; k++) {
            const int with = (i + k) & 1;
            pair[with] = time_window(r, with ? &tap : NULL, i + 1);
        }
        if (i >= 0) seconds[0][i] = pair[0], seconds[1][i] = pair[1], ratio[i] = pair[0] / pair[1];
    }
    for (int k = 0; k < 2; k++) qsort(seconds[k], (size_t)n, sizeof **seconds, compare);
    qsort(ratio, (size_t)n, sizeof *ratio, compare);
    printf("bare %.1f ms, collect %.1f ms a window of %d; speed %.3f [%.3f, %.3f] of bare, %d pairs\n",
           1e3 * seconds[0][n / 2], 1e3 * seconds[1][n / 2], o.n_ctx, ratio[n / 2], ratio[n / 4], ratio[3 * n / 4], n);
}

int main(int argc, char **argv) {
    const int n = argc > 1 ? atoi(argv[1]) : 0;
    if (n < 1 || n > MAX_PAIRS) return fputs(usage, stderr), 2;
    argv[1] = argv[0];
    opt_parse(&program, argc - 1, argv + 1);
    dw_err err = {0};
    kit_stats s = {0};
    run r = {0};
    dw_model *m = dw_model_open(o.model, &err);
    r.model = m;
    r.pool = dw_pool_new(tool.threads, &err);
    const calib_request wanted = {&o.texts, o.windows, o.n_ctx, o.text_windows};
    if (!m || !r.pool || calib_read(&r.texts, m, &wanted, &err) || prepare(&s, &r, "", NULL, &err) ||
        open_run(&r, &s, &err))
        die_err(&err);
    r.bar = progress_begin("measuring", "tokens", 2.0 * (n + 1) * o.n_ctx);
    measure(&r, n);
    progress_end(r.bar);
    close_run(&r);
    kit_stats_release(&s);
    dw_model_close(m);
    return 0;
}
