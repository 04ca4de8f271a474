/* speeds.c - memory and speed of a run's models, measured in a process that holds one model alone. */
#include "experiments/score/score.h"
#include "kit/talk.h"
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

/* All but the model. */
static exp_speed_options speed_options(const score_run *r) {
    return (exp_speed_options){.backend = tool.backend,
                               .n_threads = tool.threads,
                               .kv = r->kv,
                               .precision = opt_is_given("precision") ? r->o->precision : NULL,
                               .huge_pages = tool.huge_pages,
                               .select = tool_select()->select,
                               .is_listed = tool_select()->is_listed,
                               .inject = r->inject,
                               .n_inject = r->n_inject,
                               .n_prefill = r->o->n_prefill,
                               .n_decode = r->o->n_decode,
                               .depth = r->depth,
                               .n_depths = r->n_depths,
                               .n_seq = r->o->n_seq};
}

/* Without a pass for quality: over the tokens that were decoded. */
static double decoded_coverage(const score_entrant *c, const exp_speed *s) {
    const dw_hparams *hp = dw_model_hparams(c->model);
    double open = 0, all = 0;
    for (int l = 0; l < hp->n_layer; l++) {
        open += s->reading.open[l] * hp->n_ff[l];
        all += hp->n_ff[l];
    }
    return open / all;
}

static void put_speed(exp_result *res, const score_entrant *c, const score_run *r, int d) {
    const exp_speed *s = &c->speed[d];
    const exp_speed_options so = speed_options(r);
    res->depth = r->depth[d];
    res->sequences = r->o->n_seq;
    exp_speed_name(&so, r->depth[d], res->speed_test, sizeof res->speed_test);
    res->peak_rss_bytes = s->peak_rss_bytes;
    res->load_ms = s->load_ms;
    res->prefill_tok_s = s->prefill_tok_s.median;
    res->prefill_spread = s->prefill_tok_s.max - s->prefill_tok_s.min;
    res->decode_tok_s = s->decode_tok_s.median;
    res->decode_spread = s->decode_tok_s.max - s->decode_tok_s.min;
    res->read_gb_s = r->bandwidth;
    if (s->reading.n_layer) res->bytes_per_token = s->reading.bytes_per_token;
    if (s->reading.n_layer && !*res->text) res->coverage = decoded_coverage(c, s);
    res->read_share = res->bytes_per_token * res->decode_tok_s / r->o->n_seq / (1e9 * r->bandwidth);
    snprintf(res->disturbed, sizeof res->disturbed, "%s", s->disturbed);
}

void score_fill_speed(score_entrant *c, const score_run *r) {
    const int n = score_n_rows(r);
    for (int t = 0; t < n; t++) put_speed(&c->result[t], c, r, 0);
    for (int d = 1; d < r->n_depths; d++) put_speed(&c->result[n + d - 1], c, r, d);
}

static void count_round(void *bar) { progress_step(bar, 1); }

/* Ids for the benchmark: of the first text, repeated as far as needed; without texts all over the vocabulary. */
static void speed_ids(const score_entrant *c, bool from_text, int32_t *ids) {
    const uint32_t n_vocab = (uint32_t)dw_model_hparams(c->model)->n_vocab;
    for (uint32_t i = 0; i < EXP_SPEED_TOKENS; i++)
        ids[i] = from_text ? c->ids[0][i % c->n_ids[0]] : (int32_t)(i * 2654435761u % n_vocab);
}

int score_measure_speed(score_run *r, exp_child *children, int n, dw_err *err) {
    int32_t(*ids)[EXP_SPEED_TOKENS] = dw_alloc((size_t)n, sizeof *ids, "ids", err);
    const int32_t **of = dw_alloc((size_t)n, sizeof *of, "ids", err);
    exp_speed *results = dw_alloc((size_t)n * (size_t)r->n_depths, sizeof *results, "speeds", err);
    int rc = ids && of && results ? 0 : -1;
    for (int i = 0, k = 0; i < r->n_models && !rc; i++)
        if (r->all[i].model) {
            speed_ids(&r->all[i], r->n_texts > 0, ids[k]);
            of[k] = ids[k];
            k++;
        }
    const double before = rc ? -1 : exp_read_bandwidth(r->pool, err);
    progress *bar = progress_begin("measuring speed", "rounds", n * r->n_depths * (r->o->n_rounds + 1.0));
    const exp_speed_run all = {.children = children,
                               .ids = of,
                               .n = n,
                               .n_depths = r->n_depths,
                               .n_threads = dw_pool_size(r->pool),
                               .n_rounds = r->o->n_rounds,
                               .step = count_round,
                               .ctx = bar};
    if (before < 0 || exp_speed_measure(&all, results, err)) rc = -1;
    progress_end(bar);
    const double after = rc ? -1 : exp_read_bandwidth(r->pool, err);
    if (after < 0) rc = -1;
    r->bandwidth = (before + after) / 2;
    for (int i = 0, k = 0; i < r->n_models && !rc; i++)
        if (r->all[i].model)
            memcpy(r->all[i].speed, results + r->n_depths * k++, (size_t)r->n_depths * sizeof *results);
    free(ids);
    free(of);
    free(results);
    return rc;
}

int score_start_speed(exp_child *children, int *n, const score_run *r, dw_err *err) {
    *n = 0;
    for (size_t i = 0; i < r->o->models.n; i++) {
        if (measure_is_predictions(r->o->models.item[i])) continue;
        exp_speed_options so = speed_options(r);
        so.path = r->o->models.item[i];
        if (exp_speed_start(&children[*n], &so, err)) return -1;
        ++*n;
    }
    return 0;
}
