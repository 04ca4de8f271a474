/* err.c - one sentence for what went wrong. */
#include "base/base.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int dw_fail(dw_err *err, const char *format, ...) {
    if (!err || err->text[0]) return -1;
    va_list args;
    va_start(args, format);
    char text[sizeof err->text];
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    dw_show(err->text, sizeof err->text, text, strlen(text)); // names from files must not steer a terminal
    return -1;
}

int dw_fail_in(dw_err *err, const char *where, ...) {
    if (!err || !err->text[0]) return -1;
    const dw_err inner = *err;
    char text[sizeof inner.text];
    va_list args;
    va_start(args, where);
    vsnprintf(text, sizeof text, where, args);
    va_end(args);
    *err = (dw_err){0};
    return dw_fail(err, "%s: %s", text, inner.text);
}
