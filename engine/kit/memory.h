/* memory.h - how much memory is free, and whether a copy of a model has room in it. */
#ifndef KIT_MEMORY_H
#define KIT_MEMORY_H

#include "engine.h"

double kit_free_memory(void); // bytes that new processes may use, within the limit of the control group; NaN: unknown

/* dw_model_to_huge_pages; it also fails when the copies have no room. */
int kit_huge_pages(dw_model *m, dw_pool *pool, dw_err *err);

#endif
