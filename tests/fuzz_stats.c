/* fuzz_stats.c - any bytes as statistics, and any changes to the datasets of a good file behind a right checksum. */
#include "kit/stats.h"
#include "tests/h5_changes.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_file(const char *path) {
    dw_err err = {0};
    dw_stats s;
    const int rc = dw_stats_read(&s, path, &err);
    if (!rc != !err.text[0]) abort();
    if (rc) return;
    for (int l = 0; l < s.n_layer; l++)
        for (size_t i = 0; i < s.n_text * (size_t)s.layer[l].n_ff; i++)
            if (!(s.layer[l].sum_abs[i] >= 0) || !(s.layer[l].max_abs[i] >= 0)) abort();
    dw_stats_release(&s);
}

static void make_good_file(const char *path) {
    const int n_ff[] = {40, 0}, n_mix[] = {8, 8};
    dw_stats s;
    if (dw_stats_init(&s, 2, 8, n_ff, n_mix, 3, NULL)) abort();
    memset(s.model_sha256, 'a', 64);
    for (size_t t = 0; t < 3; t++) {
        memset(s.text[t].sha256, "bcd"[t], 64);
        s.text[t].first_window = s.text[t].n_windows = 1;
        s.text[t].n_tokens = 10;
    }
    if (dw_stats_write(&s, path, NULL)) abort();
    dw_stats_release(&s);
}

static const char *const paths[] = {"texts/name", "texts/sha256", "texts/first_window", "texts/n_windows", "texts/n_tokens", "texts/blocks", "layer/00/ffn/count",
                                    "layer/00/ffn/sum_a", "layer/00/ffn/sum_abs", "layer/00/ffn/sum_square", "layer/00/ffn/max_abs", "layer/00/ffn/hist_a",
                                    "layer/00/ffn/hist_group_64", "layer/01/ffn/count", "layer/01/input/attn_in/sum_square", "layer/00/input/attn_mix/sum_square",
                                    "layer/00/input/ffn_in/hist", "layer/00/influence/sum_cosine", "layer/01/influence/count", "output/sum_square", "layer/00", "texts", "output", NULL};
static const char *const attributes[] = {"format_version", "n_layer", "n_embd", "n_ctx", "skip", "hist_every", NULL};

static const h5_kind kind = {"stats", "deadwood stats 1\n", paths, attributes, make_good_file, read_file};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    h5_try(&kind, data, size);
    return 0;
}
