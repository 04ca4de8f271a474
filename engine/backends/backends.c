/* backends.c - the backends by name. */
#include "backends/backends.h"

#include <string.h>

static const dw_backend *const backends[] = {&dw_backend_cpu, &dw_backend_ref};

const dw_backend_name dw_backend_names[] = {
    {"cpu", "fast: kernels chosen for this CPU"},
    {"ref", "the definition: plain C, double accumulation"},
    {0}};

const dw_backend *dw_backend_find(const char *name) {
    if (!name) return &dw_backend_cpu;
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
        if (!strcmp(backends[i]->name, name)) return backends[i];
    return NULL;
}
