/* progress.c - shows progress: a bar on a terminal, a line every 30 s in a log. */
#include "kit/kit_own.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const double bar_after = 1, bar_every = 0.1, line_every = 30; // seconds

struct progress {
    const char *what, *unit;
    double total, done;
    double began, next; // seconds: time of the beginning, time to draw next
    bool silent;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // protects every progress and the screen
static progress_screen screen;
static bool is_test_screen, bar_is_drawn;

void progress_set_screen(const progress_screen *s) {
    is_test_screen = s != NULL;
    screen = s ? *s : (progress_screen){0};
}

static void find_screen(void) {
    if (is_test_screen) return;
    struct winsize size;
    const char *kind = getenv("TERM");
    const bool can_draw = isatty(STDERR_FILENO) && kind && strcmp(kind, "dumb");
    screen = (progress_screen){dw_now, stderr, can_draw ? 80 : 0};
    if (can_draw && !ioctl(STDERR_FILENO, TIOCGWINSZ, &size) && size.ws_col >= 40) screen.columns = size.ws_col;
}

static void wipe(void) {
    if (bar_is_drawn) fputs("\r\033[K", screen.to);
    bar_is_drawn = false;
}

void progress_hide(void) {
    pthread_mutex_lock(&lock);
    wipe();
    pthread_mutex_unlock(&lock);
}

progress *progress_begin(const char *what, const char *unit, double total) {
    progress *p = tool_need(calloc(1, sizeof *p), "progress");
    find_screen();
    const double now = screen.now();
    *p = (progress){what, unit, total, 0, now, now + (screen.columns ? bar_after : line_every), tool.quiet};
    return p;
}

/* "0.25 pairs", "12.5 tokens", "12345 tokens", "24.7 MB" */
static void amount(double x, const char *unit, char *text, size_t size) {
    if (!strcmp(unit, "B")) snprintf(text, size, "%s", show_bytes(x).text);
    else snprintf(text, size, x < 100 ? "%.3g %s" : "%.0f %s", x, unit);
}

/* "42 %  1234 tokens/s  1:23 min left"; without a known total "5678 tokens  1234 tokens/s". */
static void state_text(const progress *p, double now, char *text, size_t size) {
    const double elapsed = now - p->began, rate = elapsed > 0 ? p->done / elapsed : 0;
    char speed[48], done[48];
    amount(rate, p->unit, speed, sizeof speed);
    amount(p->done, p->unit, done, sizeof done);
    if (p->total > 0 && rate > 0) {
        const double left = rint(fmax(p->total - p->done, 0) / rate);
        snprintf(text, size, "%3.0f %%  %s/s  %s left", floor(100 * fmin(p->done / p->total, 1)), speed,
                 show_duration(left).text);
    } else {
        snprintf(text, size, "%s  %s/s", done, speed);
    }
}

static void draw(progress *p, double now) {
    char state[160], bar[41] = "";
    state_text(p, now, state, sizeof state);
    if (!screen.columns) {
        fprintf(screen.to, "%s: %s: %s\n", tool_name(), p->what, state);
        p->next = now + line_every;
        return;
    }
    const int room = screen.columns - (int)(strlen(p->what) + strlen(state)) - 7;
    const int width = room < 10 || p->total <= 0 ? 0 : room < 40 ? room : 40;
    const int full = (int)(width * fmin(p->done / (p->total > 0 ? p->total : 1), 1));
    for (int i = 0; i < width; i++) bar[i] = i < full ? '#' : '.';
    fprintf(screen.to, "\r%s  %s%s%s%s\033[K", p->what, width ? "[" : "", bar, width ? "]  " : "", state);
    fflush(screen.to);
    bar_is_drawn = true;
    p->next = now + bar_every;
}

void progress_step(progress *p, double done) {
    if (!p) return;
    pthread_mutex_lock(&lock);
    p->done += done;
    const double now = screen.now();
    if (!p->silent && now >= p->next) draw(p, now);
    pthread_mutex_unlock(&lock);
}

void progress_end(progress *p) {
    if (!p) return;
    progress_hide();
    free(p);
}
