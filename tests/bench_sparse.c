/* bench_sparse.c - how fast a gated FFN decodes, beside the dense one and beside what the bytes alone would take. */
#include "backends/kernels.h"
#include "backends/steps.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char usage[] =
    "build/bench_sparse [-t threads] [-l layers] [-e n_embd] [-f n_ff] [-q TYPE] [-g groups] [-s shares] [-r rounds]\n"
    "\n"
    "Runs the FFN steps of the cpu backend for one token over a few layers of random weights (default: 8 layers of\n"
    "the shape of a 7B model, Q4_0, which no cache holds) and prints a table of tab-separated values for gnuplot:\n"
    "\n"
    "    build/bench_sparse > sparse.tsv                     groups of 64 and single neurons, 0 25 50 75 90 % inactive\n"
    "    build/bench_sparse -g 1,32,64,128 -s 0,10,20,30,40,50,60,70,80,90,95      where the paths break even\n"
    "\n"
    "Groups are open at random, drawn anew for every pass.  All paths and shares take turns in rounds, each share with\n"
    "a dense pass beside it.  A pass is timed right after one like it, not after another path's.\n"
    "Columns: percentage of inactive groups, neurons in a group, path, milliseconds a layer (median of rounds, then the\n"
    "quartiles), the ideal: milliseconds of the dense pass x bytes needed / all bytes, needed being all of gate and the\n"
    "open rows of up and down; the ideal's share of the time, and dense time / time.\n"
    "The last lines, comments, say at which share of inactive groups the fused path takes as long as the dense one.\n";

enum { MAX_CHOICES = 16, MAX_ROUNDS = 256, MAX_LAYERS = 64, MAX_THREADS = 64 };

enum { DENSE, FUSED, LISTED, AUTO, N_PATHS };
static const dw_select path_select[] = {DW_SELECT_DENSE, DW_SELECT_FUSED, DW_SELECT_FUSED, DW_SELECT_AUTO};
static const char *const path_name[] = {"dense", "fused", "listed", "auto"};

typedef struct bench {
    dw_pool *pool;
    dw_net net;
    dw_pages weights;
    const dw_backend *backend;
    dw_state *state[N_PATHS];
    float *residual;
    int group;
    int n_ff[MAX_LAYERS], n_head[MAX_LAYERS];
    float activity[MAX_LAYERS];
    float *x; // what every pass begins with
    int32_t pos[1], seq[1];
    uint64_t n_passes;
} bench;

/* ---- a model of FFNs ---------------------------------------------------------------------------------------- */

/* A matrix without its rows; the layout has room for them (NULL while it counts). */
static dw_tensor matrix(dw_layout *l, const char *name, const dw_qtype_row *type, int n_rows, int n) {
    const size_t n_bytes = (size_t)n_rows * dw_qtype_row_bytes(type, (size_t)n);
    return (dw_tensor){.name = name,
                       .type = type,
                       .n_dims = n_rows > 1 ? 2 : 1,
                       .ne = {(size_t)n, (size_t)n_rows, 1, 1},
                       .data = dw_layout_take(l, n_bytes, 1),
                       .n_bytes = n_bytes};
}

/* Rows of normal numbers: 32 that repeat. */
static int fill(const dw_tensor *t, dw_err *err) {
    const size_t n = t->ne[0], row_bytes = dw_tensor_row_bytes(t);
    uint8_t *data = (uint8_t *)(uintptr_t)t->data;
    float *row = dw_alloc(n, sizeof *row, "a row", err);
    if (!row) return -1;
    dw_rng rng;
    dw_rng_seed(&rng, 1);
    for (size_t r = 0; r < t->ne[1]; r++) {
        if (r >= 32) {
            memcpy(data + r * row_bytes, data + (r - 32) * row_bytes, row_bytes);
            continue;
        }
        for (size_t i = 0; i < n; i++) row[i] = (float)(0.02 * dw_rng_normal(&rng));
        t->type->encode(row, data + r * row_bytes, n, NULL);
    }
    free(row);
    return 0;
}

static void lay_out(bench *b, dw_layout *l, const dw_qtype_row *type, int n_embd, int n_ff) {
    for (int i = 0; i < b->net.hp.n_layer; i++) {
        dw_layer *w = &b->net.layer[i];
        w->n_ff = n_ff;
        w->sparse.group = 1; // the most of scratch
        w->ffn_norm = matrix(l, "ffn_norm", dw_qtype_get(DW_F32), 1, n_embd);
        w->gate = matrix(l, "ffn_gate", type, n_ff, n_embd);
        w->up = matrix(l, "ffn_up", type, n_ff, n_embd);
        w->down = matrix(l, "ffn_down", type, n_embd, n_ff);
        w->sparse.down_t = matrix(l, "ffn_down_t", type, n_ff, n_embd);
    }
}

/* The weights of all layers, one behind the other and in huge pages, as in a file of the tools. */
static int make_weights(bench *b, const dw_qtype_row *type, int n_embd, int n_ff, dw_err *err) {
    dw_layout l = {0};
    lay_out(b, &l, type, n_embd, n_ff);
    if (dw_pages_new(&b->weights, l.used, true, err)) return -1;
    b->net.from_memory = l.used > DW_CACHED;
    l = (dw_layout){.base = b->weights.data};
    lay_out(b, &l, type, n_embd, n_ff);
    for (int i = 0; i < b->net.hp.n_layer; i++) {
        const dw_layer *w = &b->net.layer[i];
        const dw_tensor *const t[] = {&w->ffn_norm, &w->gate, &w->up, &w->down, &w->sparse.down_t};
        for (int k = 0; k < 5; k++)
            if (fill(t[k], err)) return -1;
    }
    return 0;
}

static int make(bench *b, const dw_qtype_row *type, int n_layer, int n_embd, int n_ff, dw_err *err) {
    b->net.layer = dw_alloc((size_t)n_layer, sizeof *b->net.layer, "layers", err);
    if (!b->net.layer) return -1;
    for (int l = 0; l < n_layer; l++) b->n_ff[l] = n_ff;
    b->net.hp = (dw_hparams){.n_layer = n_layer,
                             .n_embd = n_embd,
                             .n_vocab = 1,
                             .head_dim = 64,
                             .n_ff = b->n_ff,
                             .n_head = b->n_head,
                             .n_head_kv = b->n_head,
                             .n_ff_max = n_ff,
                             .norm_eps = 1e-6f};
    if (make_weights(b, type, n_embd, n_ff, err)) return -1;
    b->backend = dw_backend_find("cpu");
    for (int i = 0; i < N_PATHS; i++) {
        const dw_session_options o = {.pool = b->pool,
                                      .n_ctx = 64,
                                      .n_seq = 1,
                                      .n_batch = 1,
                                      .n_out = 1,
                                      .precision = DW_PRECISION_ROUNDED,
                                      .select = path_select[i]};
        b->state[i] = b->backend->open(b->backend, &b->net, &o, err);
        if (!b->state[i]) return -1;
    }
    b->x = dw_alloc((size_t)n_embd, sizeof(float), "residual", err);
    b->residual = dw_alloc((size_t)n_embd, sizeof(float), "residual", err);
    if (!b->x || !b->residual) return -1;
    dw_rng rng;
    dw_rng_seed(&rng, 2);
    for (int i = 0; i < n_embd; i++) b->x[i] = (float)dw_rng_normal(&rng);
    return 0;
}

static void unmake(bench *b) {
    for (int i = 0; i < N_PATHS; i++)
        if (b->state[i]) b->backend->close(b->state[i]);
    free(b->net.layer), free(b->x), free(b->residual);
    dw_pages_free(&b->weights);
    dw_pool_free(b->pool);
}

/* ---- measuring ---------------------------------------------------------------------------------------------- */

typedef struct cell { // a path at a share, in one round
    double ms, ideal;
} cell;

/* Groups of that size in all layers; what was measured for others is forgotten. */
static void set_group(bench *b, int group) {
    for (int l = 0; l < b->net.hp.n_layer; l++) {
        b->net.layer[l].sparse.group = group;
        for (int i = 0; i < N_PATHS; i++) dw_on_pool_pass(b->state[i])->layer[l].is_measured = false;
    }
    b->group = group;
}

/* Milliseconds a layer of the second of two passes, and the share of the FFN's bytes that it needed. */
static double time_pass(bench *b, int path, double inactive, int group, double *needed) {
    const int n_layer = b->net.hp.n_layer;
    dw_state *state = b->state[path];
    dw_random_groups lots = {b->activity, 0};
    const dw_ffn_experiment e = {
        .decide = dw_open_random, .ctx = &lots, .activity = b->activity, .gathered = path == LISTED};
    const dw_work w = {.n_tokens = 1, .seq = b->seq, .pos = b->pos, .x = b->residual};
    if (group != b->group) set_group(b, group);
    for (int l = 0; l < n_layer; l++) b->activity[l] = (float)(1 - inactive);
    b->backend->bind(state, &(dw_binding){.experiment = &e}, NULL);
    double seconds = 0;
    for (int i = 0; i < 2; i++) { // the first finds the caches as another path left them, and AUTO measures in it
        memcpy(b->residual, b->x, (size_t)b->net.hp.n_embd * sizeof *b->residual);
        b->pos[0] = (b->pos[0] + 1) % 64;
        lots.seed = b->n_passes++ * MAX_LAYERS; // a layer's is added
        b->backend->reset_coverage(state);
        const double start = dw_now();
        b->backend->layers(state, &w, 0, n_layer, NULL);
        seconds = dw_now() - start;
    }
    double n_computed = 0, n_all = 0, gate = 0, all = 0;
    for (int l = 0; l < n_layer; l++) {
        const dw_layer *layer = &b->net.layer[l];
        n_computed += (double)b->backend->coverage(state, l).n_computed;
        n_all += layer->n_ff, gate += (double)layer->gate.n_bytes;
        all += (double)(layer->gate.n_bytes + layer->up.n_bytes + layer->down.n_bytes);
    }
    *needed = (gate + n_computed / n_all * (all - gate)) / all;
    return 1e3 * seconds / n_layer;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct summary {
    double median, low, high; // quartiles
} summary;

static summary summary_of(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_size);
    return (summary){v[n / 2], v[n / 4], v[3 * n / 4]};
}

static void run_round(bench *b, double inactive, int group, cell at[N_PATHS]) {
    double needed, dense = 0;
    for (int path = 0; path < N_PATHS; path++) {
        at[path].ms = time_pass(b, path, inactive, group, &needed);
        if (path == DENSE) dense = at[path].ms;
        at[path].ideal = dense * needed;
    }
}

/* Prints a path's row; returns the median of time / dense time. */
static double print_row(const cell (*round)[N_PATHS], int n_rounds, int path, double inactive, int group) {
    double ms[MAX_ROUNDS], ideal[MAX_ROUNDS], share[MAX_ROUNDS], ratio[MAX_ROUNDS];
    for (int r = 0; r < n_rounds; r++) {
        ms[r] = round[r][path].ms, ideal[r] = round[r][path].ideal;
        share[r] = ideal[r] / ms[r], ratio[r] = ms[r] / round[r][DENSE].ms;
    }
    const summary m = summary_of(ms, n_rounds), relative = summary_of(ratio, n_rounds);
    printf("%g\t%d\t%s\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\n", 100 * inactive, group, path_name[path], m.median, m.low,
           m.high, summary_of(ideal, n_rounds).median, summary_of(share, n_rounds).median, 1 / relative.median);
    return relative.median;
}

/* Where time / dense time falls through 1, between two shares. */
static void print_break_even(const double *share, const double *ratio, int n, int group) {
    for (int i = 0; i + 1 < n; i++)
        if (ratio[i] > 1 && ratio[i + 1] <= 1) {
            const double at = share[i] + (share[i + 1] - share[i]) * (ratio[i] - 1) / (ratio[i] - ratio[i + 1]);
            printf("# group %d: fused takes as long as dense with %.0f %% inactive, %.2f open\n", group, 100 * at,
                   1 - at);
        }
}

static int measure(bench *b, const int *group, int n_groups, const double *share, int n_shares, int n_rounds,
                   dw_err *err) {
    cell(*at)[MAX_ROUNDS][N_PATHS] = dw_alloc((size_t)(n_groups * n_shares), sizeof *at, "figures", err);
    if (!at) return -1;
    for (int round = -1; round < n_rounds; round++) // one to warm up
        for (int i = 0; i < n_groups * n_shares; i++)
            run_round(b, share[i % n_shares], group[i / n_shares], at[i][round < 0 ? 0 : round]);
    printf("inactive\tgroup\tpath\tms\tms_low\tms_high\tideal_ms\tshare_of_ideal\tspeedup\n");
    double ratio[MAX_CHOICES][MAX_CHOICES];
    for (int i = 0; i < n_groups * n_shares; i++)
        for (int path = 0; path < N_PATHS; path++) {
            const double r = print_row(at[i], n_rounds, path, share[i % n_shares], group[i / n_shares]);
            if (path == FUSED) ratio[i / n_shares][i % n_shares] = r;
        }
    for (int g = 0; g < n_groups; g++) print_break_even(share, ratio[g], n_shares, group[g]);
    free(at);
    return 0;
}

/* "1,32,64": how many; 0 when there are too many. */
static int numbers(const char *text, double *to) {
    for (int n = 0; n < MAX_CHOICES;) {
        char *end;
        to[n++] = strtod(text, &end);
        if (end == text || to[n - 1] < 0) return 0;
        if (!*end) return n;
        text = end + 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    int n_threads = 2, n_layer = 8, n_embd = 3584, n_ff = 18944, n_rounds = 20;
    const char *type_name = "Q4_0", *groups = "64,1", *shares = "0,25,50,75,90";
    for (int o; (o = getopt(argc, argv, "t:l:e:f:q:g:s:r:h")) != -1;) {
        int *to = o == 't'   ? &n_threads
                  : o == 'l' ? &n_layer
                  : o == 'e' ? &n_embd
                  : o == 'f' ? &n_ff
                  : o == 'r' ? &n_rounds
                             : NULL;
        const char **word = o == 'q' ? &type_name : o == 'g' ? &groups : o == 's' ? &shares : NULL;
        if (o == 'h') return fputs(usage, stdout), 0;
        if (word)
            *word = optarg;
        else if (!to || (*to = atoi(optarg)) < 1)
            return fputs(usage, stderr), 2;
    }
    double group_value[MAX_CHOICES], share[MAX_CHOICES];
    int group[MAX_CHOICES];
    const int n_groups = numbers(groups, group_value), n_shares = numbers(shares, share);
    const dw_qtype_row *type = dw_qtype_by_name(type_name);
    if (!type || !n_groups || !n_shares || n_embd % 256 || n_ff % 256 || n_layer > MAX_LAYERS || n_rounds > MAX_ROUNDS)
        return fputs(usage, stderr), 2;
    for (int i = 0; i < n_groups; i++) group[i] = (int)group_value[i] < 1 ? 1 : (int)group_value[i];
    for (int i = 0; i < n_shares; i++) share[i] /= 100;
    static bench b;
    dw_err err = {0};
    b.pool = dw_pool_new(n_threads, &err);
    printf("# %d threads, %s, %d layers of %d x %d %s, median of %d rounds\n", n_threads, dw_cpu_level(&err), n_layer,
           n_ff, n_embd, type->name, n_rounds);
    const bool failed = !b.pool || make(&b, type, n_layer, n_embd, n_ff, &err) ||
                        measure(&b, group, n_groups, share, n_shares, n_rounds, &err);
    unmake(&b);
    return failed ? fprintf(stderr, "bench_sparse: %s\n", err.text), 1 : 0;
}
