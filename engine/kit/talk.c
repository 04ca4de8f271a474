/* talk.c - messages on stderr, and how a program ends. */
#include "kit/kit_own.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

tool_common tool = {.backend = "cpu", .kv = "f16", .select = "auto"};
const opt_program *tool_program;

const char *tool_name(void) {
    static char name[64];
    if (!tool_program) return program_invocation_short_name;
    snprintf(name, sizeof name, "deadwood%s%s", *tool_program->name ? "-" : "", tool_program->name);
    return name;
}

/* Prints "deadwood-cut: KIND TEXT END" as one line without control bytes; allocates no memory. */
static void line(const char *kind, const char *end, const char *format, va_list args) {
    char text[2 * sizeof(dw_err)], shown[2 * sizeof text];
    vsnprintf(text, sizeof text, format, args);
    dw_show(shown, sizeof shown, text, strlen(text));
    progress_hide();
    fprintf(stderr, "%s: %s%s%s\n", tool_name(), kind, shown, end);
}

void die_err(const dw_err *err) { die("%s", err->text[0] ? err->text : "failed, but no reason was recorded"); }

void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    line("", "", format, args);
    va_end(args);
    exit(1);
}

void die_usage(const char *format, ...) {
    char end[128];
    snprintf(end, sizeof end, "; see '%s --help'", tool_name());
    va_list args;
    va_start(args, format);
    line("", end, format, args);
    va_end(args);
    exit(2);
}

void say(const char *format, ...) {
    if (tool.quiet) return;
    va_list args;
    va_start(args, format);
    line("", "", format, args);
    va_end(args);
}

void warn(const char *format, ...) {
    va_list args;
    va_start(args, format);
    line("warning: ", "", format, args);
    va_end(args);
}

static bool writes_files(void) {
    const opt_row *row = tool_program->rows;
    while (!opt_is_end(row) && row->letter != 'o') row++;
    return !opt_is_end(row);
}

/* The texts are static, because the handler reads them later.  On a terminal they begin with "\n", because ^C, a bar or
 * unfinished text may be in the line. */
void say_if_interrupted(const char *kept) {
    static char nothing[128], something[1024];
    char name[768];
    if (tool.quiet) return;
    const char *begin = isatty(STDERR_FILENO) ? "\n" : "";
    if (!kept) {
        snprintf(nothing, sizeof nothing, "%s%s: interrupted%s\n", begin, tool_name(),
                 writes_files() ? "; nothing unfinished is left" : "");
        signals_on_interrupt(nothing);
        return;
    }
    dw_show(name, sizeof name, kept, strlen(kept));
    snprintf(something, sizeof something,
             "%s%s: interrupted; '%s' has the finished part, the same command continues it\n", begin, tool_name(),
             name);
    signals_on_interrupt(something);
}

shown_text show_bytes(double n) {
    static const struct {
        double bytes;
        const char *format;
    } units[] = {{1e9, "%.3f GB"}, {1e6, "%.1f MB"}, {1e3, "%.1f kB"}, {1, "%.0f B"}};
    size_t i = 0;
    while (units[i].bytes > 1 && n < units[i].bytes) i++;
    shown_text s;
    snprintf(s.text, sizeof s.text, units[i].format, n / units[i].bytes);
    return s;
}

shown_text show_duration(double seconds) {
    const long s = lrint(fmin(fmax(seconds, 0), 1e8));
    shown_text text;
    if (s >= 3600)
        snprintf(text.text, sizeof text.text, "%ld:%02ld:%02ld h", s / 3600, s / 60 % 60, s % 60);
    else if (s >= 60)
        snprintf(text.text, sizeof text.text, "%ld:%02ld min", s / 60, s % 60);
    else
        snprintf(text.text, sizeof text.text, "%.2g s", seconds);
    return text;
}

void show_text(FILE *to, const char *text, size_t n) {
    enum { PIECE = 1000 };
    char shown[4 * PIECE + 1];
    while (n) {
        size_t piece = n < PIECE ? n : PIECE; // ends before a character, unless the bytes are not UTF-8
        while (piece < n && piece > PIECE - 4 && (text[piece] & 0xc0) == 0x80) piece--;
        fwrite(shown, 1, dw_show(shown, sizeof shown, text, piece), to);
        text += piece;
        n -= piece;
    }
}

void show_lines(FILE *to, const char *text) {
    while (*text) {
        const size_t n = strcspn(text, "\n\t");
        show_text(to, text, n);
        text += n;
        if (*text) putc(*text++, to);
    }
}

void *tool_need(void *p, const char *what) {
    if (!p) die("out of memory: %s", what);
    return p;
}
