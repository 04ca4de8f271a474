/* fuzz_grid.c - any bytes as a grid: refused with a sentence, or jobs whose commands can all be written. */
#include "experiments/sweep/jobs.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *number(void *ctx, size_t i, int output) {
    char *text = ctx;
    text[0] = (char)('a' + (i + (size_t)output) % 26);
    return text;
}

static void check_job(const jobs *j, size_t i) {
    char text[2] = "";
    dw_err err = {0};
    size_t n;
    for (size_t k = 0; k < j->job[i].step->n_read; k++)
        if (j->job[i].input[k] < 0 || (size_t)j->job[i].input[k] >= i) abort(); // inputs come before what reads them
    char **word = jobs_words(j, i, number, text, &n, &err), *variant = jobs_variant(j, i, &err);
    if (!word || !variant || (n && !word[n - 1])) abort();
    jobs_is_control(j, i);
    jobs_free_words(word, n);
    free(variant);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char head[] = "# deadwood grid 1\n"; // else few inputs come beyond the first line
    const bool with_head = size && data[0] == '+';
    const size_t n_head = with_head ? strlen(head) : 0, skip = with_head;
    char *text = malloc(n_head + size - skip + 1);
    memcpy(text, head, n_head);
    if (size > skip) memcpy(text + n_head, data + skip, size - skip);
    dw_err err = {0};
    grid g;
    jobs j;
    int rc = grid_parse_with(&g, text, n_head + size - skip, "fuzz", &(grid_options){true, true}, &err);
    free(text);
    if ((rc != 0) != (err.text[0] != 0)) abort(); // a sentence exactly when it failed
    if (rc) return 0;
    rc = jobs_expand(&j, &g, "fuzz", &err);
    if ((rc != 0) != (err.text[0] != 0)) abort();
    for (size_t i = 0; !rc && i < j.n && i < 1000; i++) check_job(&j, i);
    if (!rc) jobs_release(&j);
    grid_release(&g);
    return 0;
}
