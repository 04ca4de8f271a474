/* disk.c - how much room there is for what will be written. */
#include "kit/disk.h"
#include "kit/talk.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

double kit_free_disk(const char *path) {
    struct statvfs v;
    char *at = dw_strdup(path, NULL);
    while (at && statvfs(at, &v)) {
        char *slash = strrchr(at, '/');
        if (!slash || slash == at) {
            const int rc = statvfs(slash ? "/" : ".", &v);
            free(at);
            return rc ? NAN : (double)v.f_bavail * (double)v.f_frsize;
        }
        *slash = 0;
    }
    const double n_free = at ? (double)v.f_bavail * (double)v.f_frsize : NAN;
    free(at);
    return n_free;
}

int kit_need_disk(const char *path, double n_bytes, dw_err *err) {
    const double n_free = kit_free_disk(path);
    if (isnan(n_free) || n_free >= n_bytes) return 0;
    return dw_fail(err, "cannot write '%s': it needs %s, and the disk has %s free", path, show_bytes(n_bytes).text,
                   show_bytes(n_free).text);
}
