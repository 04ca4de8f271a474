/* disk.h - how much room there is for what will be written. */
#ifndef KIT_DISK_H
#define KIT_DISK_H

#include "base/base.h"

/* Bytes that are free where this file or folder is or will be; NaN: unknown. */
double kit_free_disk(const char *path);
/* Fails when a file of so many bytes has no room there. */
int kit_need_disk(const char *path, double n_bytes, dw_err *err);

#endif
