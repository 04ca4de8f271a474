/* backends.c - the table of backends. */
#include "backends/backends.h"
#include "backends/backward.h"
#include "backends/steps.h"

#include <string.h>

/* name, help, steps of run_on_pool.c, arithmetic of the training pass; the first is the default. */
#define ON_POOL(X)                                                                                                     \
    X("cpu", "fast: kernels chosen for this CPU", dw_steps_cpu, dw_back_ops_cpu)                                       \
    X("ref", "the definition: plain C, double accumulation", dw_steps_ref, dw_back_ops_ref)

#define ROW(row_name, row_help, row_steps, row_back)                                                                   \
    {.name = row_name, .help = row_help, .own = &row_steps, .back = &row_back, .memory = dw_on_pool_memory,            \
     .open = dw_on_pool_open, .close = dw_on_pool_close, .bind = dw_on_pool_bind, .layers = dw_on_pool_layers,         \
     .head = dw_on_pool_head, .get = dw_on_pool_get, .put = dw_on_pool_put, .coverage = dw_on_pool_coverage,           \
     .reset_coverage = dw_on_pool_reset_coverage},
#define NAME(row_name, row_help, row_steps, row_back) {row_name, row_help},

static const dw_backend backends[] = {ON_POOL(ROW)};
const dw_backend_name dw_backend_names[] = {ON_POOL(NAME){0}};

const dw_backend *dw_backend_find(const char *name) {
    if (!name) return &backends[0];
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
        if (!strcmp(backends[i].name, name)) return &backends[i];
    return NULL;
}
