/* scores.c - the table of scores, and texts that go to a file or to standard output. */
#include "prune/scores.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put_comment(FILE *f, const char *comment) {
    while (*comment) {
        const int n = (int)strcspn(comment, "\n");
        fprintf(f, "# %.*s\n", n, comment);
        comment += n + (comment[n] == '\n');
    }
}

char *prune_scores_table(const dw_hparams *hp, const char *comment, int group, double *const *score, dw_err *err) {
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    bool failed = !f;
    if (f) {
        fprintf(f, "# deadwood scores 1\n");
        put_comment(f, comment);
        fprintf(f, "layer\tgroup\tfirst\tlast\tscore\n");
        for (int l = 0; l < hp->n_layer; l++)
            for (int g = 0; g < hp->n_ff[l] / group; g++)
                fprintf(f, "%d\t%d\t%d\t%d\t%.9g\n", l, g, g * group, (g + 1) * group - 1, score[l][g]);
        failed = ferror(f);
        failed |= fclose(f) != 0;
    }
    if (!failed) return text;
    free(text);
    dw_fail(err, "out of memory: a table of scores");
    return NULL;
}

int prune_write_whole(const char *path, const void *data, size_t size, dw_err *err) {
    dw_out *out = dw_out_open(path, err);
    dw_out_pieces whole = {&(dw_out_piece){data, size}, 1};
    int rc = out ? dw_out_write(out, data, size, err) : -1;
    if (!rc) rc = dw_out_commit_checked(out, dw_out_holds, &whole, err);
    dw_out_free(out);
    return rc;
}

int prune_write_text(const char *path, const char *text, dw_err *err) {
    if (strcmp(path, "-") != 0) return prune_write_whole(path, text, strlen(text), err);
    fputs(text, stdout); // whether all of it was written is checked at the end (kit/options.c)
    return 0;
}
