/* bench_peer_gemm.c - oneDNN's matrix products (bench_peer_gemm.h). */
#include "bench_peer_gemm.h"

#if defined(HAS_DNNL)
#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>

void omp_set_num_threads(int n); // oneDNN's threads are OpenMP's

enum { KINDS = 3, SIDE = 4096 };

/* C (m, n) = A (m, k) B (k, n) */
typedef struct multiplication {
    int m, n, k, times; // in a step
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c;
} multiplication;

struct peer_gemm {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    multiplication of[STEP_MATRICES * KINDS], square;
    int n;
    void *a, *b, *c; // memory of the largest
};

static void check(dnnl_status_t status, const char *what) {
    if (status == dnnl_success) return;
    fprintf(stderr, "bench_backward: oneDNN cannot %s (status %d)\n", what, (int)status);
    exit(1);
}

static dnnl_memory_t matrix(const peer_gemm *p, dnnl_memory_desc_t *d, int rows, int columns, dnnl_data_type_t type,
                            bool turned, void *data) {
    dnnl_memory_t memory;
    check(dnnl_memory_desc_init_by_tag(d, 2, (dnnl_dims_t){rows, columns}, type, turned ? dnnl_ba : dnnl_ab),
          "describe a matrix");
    check(dnnl_memory_create(&memory, d, p->engine, data), "take a matrix");
    return memory;
}

/* a_turned, b_turned: it is stored transposed. */
static multiplication make(const peer_gemm *p, multiplication j, bool a_turned, bool b_turned) {
    dnnl_memory_desc_t a, b, c;
    dnnl_matmul_desc_t d;
    dnnl_primitive_desc_t made;
    j.a = matrix(p, &a, j.m, j.k, dnnl_bf16, a_turned, p->a);
    j.b = matrix(p, &b, j.k, j.n, dnnl_bf16, b_turned, p->b);
    j.c = matrix(p, &c, j.m, j.n, dnnl_f32, false, p->c);
    check(dnnl_matmul_desc_init(&d, &a, &b, NULL, &c), "describe a product");
    check(dnnl_primitive_desc_create(&made, &d, NULL, p->engine, NULL), "make a product");
    check(dnnl_primitive_create(&j.primitive, made), "make a product");
    dnnl_primitive_desc_destroy(made);
    return j;
}

/* The forward product counts twice: teacher and net. */
static void add_matrix(peer_gemm *p, const step_matrix *s) {
    const int n = s->n, n_out = s->n_out, n_in = s->n_in;
    p->of[p->n++] = make(p, (multiplication){.m = n, .n = n_out, .k = n_in, .times = 2 * s->times}, false, true);
    p->of[p->n++] = make(p, (multiplication){.m = n, .n = n_in, .k = n_out, .times = s->times}, false, false);
    p->of[p->n++] = make(p, (multiplication){.m = n_out, .n = n_in, .k = n, .times = s->times}, true, false);
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* n BF16 numbers between 0.5 and 2. */
static void *numbers(size_t n) {
    uint16_t *x = malloc(n * sizeof *x);
    for (size_t i = 0; x && i < n; i++) x[i] = (uint16_t)(0x3f00 + dw_splitmix(i) % 256);
    return x;
}

/* Values of the largest matrix. */
static size_t most_values(const step_matrix *of, int n) {
    size_t most = (size_t)SIDE * SIDE;
    for (const step_matrix *s = of; s < of + n; s++) {
        const size_t in = (size_t)s->n_in, out = (size_t)s->n_out;
        most = larger(most, larger(in * out, (size_t)s->n * larger(in, out)));
    }
    return most;
}

peer_gemm *peer_gemm_new(const dw_net *net, int n_tokens, int n_rows, int n_threads) {
    step_matrix of[STEP_MATRICES];
    const int n = step_matrices(net, n_tokens, n_rows, of);
    const size_t most = most_values(of, n);
    if ((dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) != dnnl_cpu_isa_avx512_core_bf16) return NULL;
    peer_gemm *p = calloc(1, sizeof *p);
    check(p ? dnnl_success : dnnl_out_of_memory, "get memory");
    omp_set_num_threads(n_threads);
    p->a = numbers(most);
    p->b = numbers(most);
    p->c = malloc(most * sizeof(float));
    check(p->a && p->b && p->c ? dnnl_success : dnnl_out_of_memory, "get memory");
    check(dnnl_engine_create(&p->engine, dnnl_cpu, 0), "start");
    check(dnnl_stream_create(&p->stream, p->engine, dnnl_stream_default_flags), "start");
    for (int i = 0; i < n; i++) add_matrix(p, &of[i]);
    p->square = make(p, (multiplication){.m = SIDE, .n = SIDE, .k = SIDE}, false, false);
    peer_gemm_rate(p), peer_gemm_square_rate(p); // warms up
    return p;
}

static double seconds_of(const peer_gemm *p, const multiplication *j) {
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, j->a}, {DNNL_ARG_WEIGHTS, j->b}, {DNNL_ARG_DST, j->c}};
    const double began = dw_now();
    check(dnnl_primitive_execute(j->primitive, p->stream, 3, args), "multiply");
    check(dnnl_stream_wait(p->stream), "multiply");
    return dw_now() - began;
}

static double operations_of(const multiplication *j) { return 2.0 * j->m * j->n * j->k; }

double peer_gemm_rate(peer_gemm *p) {
    double operations = 0, seconds = 0;
    for (const multiplication *j = p->of; j < p->of + p->n; j++) {
        seconds += j->times * seconds_of(p, j);
        operations += j->times * operations_of(j);
    }
    return operations / seconds;
}

double peer_gemm_square_rate(peer_gemm *p) { return operations_of(&p->square) / seconds_of(p, &p->square); }

static void release(const multiplication *j) {
    dnnl_primitive_destroy(j->primitive);
    dnnl_memory_destroy(j->a), dnnl_memory_destroy(j->b), dnnl_memory_destroy(j->c);
}

void peer_gemm_free(peer_gemm *p) {
    if (!p) return;
    for (const multiplication *j = p->of; j < p->of + p->n; j++) release(j);
    release(&p->square);
    dnnl_stream_destroy(p->stream);
    dnnl_engine_destroy(p->engine);
    free(p->a), free(p->b), free(p->c);
    free(p);
}

#else
peer_gemm *peer_gemm_new(const dw_net *net, int n_tokens, int n_rows, int n_threads) {
    (void)net, (void)n_tokens, (void)n_rows, (void)n_threads;
    return NULL;
}
double peer_gemm_rate(peer_gemm *p) { return (void)p, 0; }
double peer_gemm_square_rate(peer_gemm *p) { return (void)p, 0; }
void peer_gemm_free(peer_gemm *p) { (void)p; }
#endif
