/* results.c - from the numbers of every token to sums of windows, rows, and the row of all texts. */
#include "experiments/score/score.h"
#include "kit/lineage.h"
#include "kit/talk.h"
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a text ----------------------------------------------------------------------------------------------- */

/* Adds a leak to those that are known, once; a list that is too long ends in "others". */
static void add_leak(exp_result *res, const char *leak) {
    static const char others[] = "; others";
    const size_t n = strlen(res->leak), last = sizeof res->leak - sizeof others; // that "others" can begin at
    if (!n || !strcmp(res->leak, "no"))
        snprintf(res->leak, sizeof res->leak, "%s", leak);
    else if (strstr(res->leak, leak) || strstr(res->leak, others))
        return;
    else if (n + 2 + strlen(leak) < last)
        snprintf(res->leak + n, sizeof res->leak - n, "; %s", leak);
    else
        memcpy(res->leak + (n < last ? n : last), others, sizeof others);
}

/* Beside a base that has seen the text a model looks worse than it is.  What a base without lineage has seen is
 * unknown, as it is of the parents of any model; only what is known of a base counts.  The model itself as base adds
 * nothing. */
static void fill_leak(exp_result *res, const score_entrant *c, const score_entrant *base, int t) {
    char of_base[sizeof res->leak];
    if (!c->model) return;
    if (base && !strcmp(base->sha256, c->sha256)) base = NULL;
    const bool has_lineage = dw_gguf_find(dw_model_gguf(c->model), LINEAGE_KEY) != NULL;
    if (has_lineage && !c->learnt_unnamed && !(base && base->learnt_unnamed))
        snprintf(res->leak, sizeof res->leak, "no");
    if (c->leak[t]) add_leak(res, c->leak[t]);
    if (!base || !base->leak[t]) return;
    snprintf(of_base, sizeof of_base, "of the base: %s", base->leak[t]);
    add_leak(res, of_base);
}

static void fill_quality(exp_result *q, measure_mean nll, const measure_paired *paired, const measure_mean *kl,
                         const measure_mean *agree) {
    q->nll = nll.mean;
    q->nll_se = nll.se;
    q->nll_ci90 = measure_half_width(&nll, 0.9);
    q->ppl = exp(nll.mean);
    q->ppl_se = q->ppl * nll.se;
    if (paired) {
        q->ln_ratio = paired->of.mean;
        q->ln_ratio_se = paired->of.se;
        q->ln_ratio_ci90 = measure_half_width(&paired->of, 0.9);
        q->ln_ratio_se_blocks = paired->se_blocks;
        q->resolvable = paired->resolvable;
        q->base_ppl = exp(nll.mean - paired->of.mean);
    }
    if (kl) {
        q->kl_mean = kl->mean;
        q->kl_se = kl->se;
        q->kl_ci90 = measure_half_width(kl, 0.9);
        q->top1_agree = agree->mean;
        q->top1_se = agree->se;
        q->top1_ci90 = measure_half_width(agree, 0.9);
    }
}

/* From the numbers of every token to the sums of every window of text t. */
static void sum_windows(score_entrant *c, const score_entrant *base, int t, const measure_windows *w) {
    const measure_entrant *m = &c->of;
    const size_t first = measure_sums_at(&c->sums, c->place[t]);
    for (size_t k = 0, i = 0; k < w->n; k++) {
        double *const *sum = c->sums.sum;
        const size_t at = first + k, end = i + (size_t)measure_window_n_scored(&w->window[k]);
        sum[MEASURE_TOKENS][at] = (double)(end - i);
        sum[MEASURE_IDS][at] = measure_ids_number(c->ids_sha256[t]);
        for (; i < end; i++) {
            sum[MEASURE_NLL][at] += m->nll[i];
            if (base) sum[MEASURE_BASE_NLL][at] += base->of.nll[i];
            if (m->kl) sum[MEASURE_KL][at] += m->kl[i];
            if (m->kl) sum[MEASURE_AGREE][at] += m->agree[i];
        }
    }
}

/* The base is compared token by token: its differences are summed, not its sums subtracted. */
static int pair_windows(measure_paired *p, const measure_windows *w, const double *nll, const double *base,
                        dw_err *err) {
    double *sum = dw_alloc(w->n, sizeof *sum, "windows", err), *n = dw_alloc(w->n, sizeof *n, "windows", err);
    int rc = sum && n ? 0 : -1;
    for (size_t k = 0, at = 0; !rc && k < w->n; k++) {
        n[k] = measure_window_n_scored(&w->window[k]);
        for (int i = 0; i < (int)n[k]; i++, at++) sum[k] += nll[at] - base[at];
    }
    if (!rc) rc = measure_paired_of(p, sum, n, w->n, err);
    free(sum);
    free(n);
    return rc;
}

/* What the session has counted of a gated model since the text began. */
static void fill_coverage(exp_result *res, score_entrant *c) {
    double open = 0, seen = 0;
    if (!c->model || !dw_model_is_gated(c->model)) return;
    for (int l = 0; l < dw_model_hparams(c->model)->n_layer; l++) {
        const dw_coverage counts = dw_session_coverage(c->of.session, l);
        const double n = (double)counts.n_tokens * dw_model_hparams(c->model)->n_ff[l];
        open += (double)counts.n_open;
        seen += n;
        c->n_open[l] += (double)counts.n_open;
        c->n_seen[l] += n;
    }
    if (seen > 0) res->coverage = open / seen;
}

int score_fill_text(score_entrant *c, const score_run *r, int t, const measure_windows *w, dw_err *err) {
    exp_result *res = &c->result[t];
    const measure_entrant *m = &c->of, *base = r->base ? &r->base->of : NULL;
    const size_t at = measure_sums_at(&c->sums, c->place[t]);
    double *const *sum = c->sums.sum, *n = sum[MEASURE_TOKENS] + at;
    res->tokens_scored = (double)w->n_scored;
    sum_windows(c, r->base, t, w);
    c->nll[t] = measure_mean_of_windows(sum[MEASURE_NLL] + at, n, w->n);
    if (base && pair_windows(&c->paired[t], w, m->nll, base->nll, err)) return -1;
    c->ratio[t] = c->paired[t].of;
    if (m->kl) {
        c->kl[t] = measure_mean_of_windows(sum[MEASURE_KL] + at, n, w->n);
        c->agree[t] = measure_mean_of_windows(sum[MEASURE_AGREE] + at, n, w->n);
        measure_sort(m->kl, w->n_scored);
        res->kl_median = measure_quantile(m->kl, w->n_scored, 0.5);
        res->kl_p99 = measure_quantile(m->kl, w->n_scored, 0.99);
    }
    fill_quality(res, c->nll[t], base ? &c->paired[t] : NULL, m->kl ? &c->kl[t] : NULL, &c->agree[t]);
    fill_coverage(res, c);
    fill_leak(res, c, r->base, t);
    return 0;
}

/* ---- rows ------------------------------------------------------------------------------------------------- */

int score_n_rows(const score_run *r) { return r->o->speed_only ? 1 : r->n_texts + (r->n_texts > 1); }
/* Rows that tell of the speed at a further depth come after them.  A row a depth, because then each cell of the table
 * is one number, and a plot of speed over depth is one of its columns over another. */
int score_n_all_rows(const score_entrant *c, const score_run *r) {
    return score_n_rows(r) + (r->o->no_speed || !c->model ? 0 : r->n_depths - 1);
}

static const char *bos_text(const score_entrant *c) {
    if (c->bos >= 0) return "window";
    if (!c->model) return "-";
    return dw_tokenizer_vocab(c->tok)->add_bos ? "text" : "no";
}

static void put_range(exp_result *res, const measure_sums_text *part) {
    snprintf(res->window_range, sizeof res->window_range, "%d-%d", part->first, part->first + part->n_windows - 1);
}

static void name_texts(score_entrant *c, const score_run *r) {
    for (int t = 0; t < r->n_texts; t++) {
        exp_result *res = &c->result[t];
        const measure_sums_text *part = &c->sums.text[c->place[t]];
        snprintf(res->text, sizeof res->text, "%s", dw_base_name(r->texts[t].path));
        snprintf(res->text_sha256, sizeof res->text_sha256, "%s", r->texts[t].sha256);
        put_range(res, part);
        res->windows = part->n_windows;
    }
}

/* The row of all texts. */
static int name_mean(score_entrant *c, const score_run *r, dw_err *err) {
    exp_result *res = &c->result[r->n_texts];
    const measure_sums *s = &c->sums;
    bool same = true;
    snprintf(res->text, sizeof res->text, "*");
    res->texts = r->n_texts;
    for (int t = 1; t < s->n_texts; t++)
        same &= s->text[t].first == s->text[0].first && s->text[t].n_windows == s->text[0].n_windows;
    if (same) put_range(res, &s->text[0]);
    return measure_sums_set_hash(s->text, s->n_texts, res->text_sha256, err);
}

int score_begin_rows(score_entrant *c, const score_run *r, dw_err *err) {
    exp_result common = exp_result_unknown();
    dw_err ignored = {0};
    const char *level = dw_cpu_level(&ignored);
    if (exp_fill_place(&common, err)) return -1;
    snprintf(common.protocol, sizeof common.protocol, "%s", r->protocol->name);
    snprintf(common.bos, sizeof common.bos, "%s", bos_text(c));
    if (r->base) snprintf(common.base, sizeof common.base, "%s", dw_base_name(r->base->path));
    if (r->base) snprintf(common.base_sha256, sizeof common.base_sha256, "%s", r->base->sha256);
    if (r->o->role) snprintf(common.role, sizeof common.role, "%s", r->o->role);
    if (r->base && c->model && !r->o->speed_only)
        snprintf(common.kl_kind, sizeof common.kl_kind, "%s", r->base->model ? "full" : "top64");
    common.n_ctx = r->o->n_ctx;
    if (c->model) {
        if (exp_fill_model(&common, c->path, c->sha256, c->model, err)) return -1;
        common.threads = dw_pool_size(r->pool);
        const bool is_cpu = !strcmp(tool.backend, "cpu");
        snprintf(common.backend, sizeof common.backend, "%s%s%s", tool.backend, is_cpu ? "-" : "",
                 is_cpu && level ? level : "");
        snprintf(common.kv, sizeof common.kv, "%s", tool.kv);
        if (is_cpu && !r->o->speed_only) snprintf(common.precision, sizeof common.precision, "%s", r->o->precision);
        snprintf(common.select, sizeof common.select, "%s", tool.select);
        if (r->o->inject && dw_model_is_gated(c->model))
            snprintf(common.activity, sizeof common.activity, "%s", r->o->inject);
        if (dw_model_is_gated(c->model) && tool_select()->select != DW_SELECT_DENSE)
            common.bytes_per_token = NAN; // until it is counted
    } else {
        snprintf(common.model, sizeof common.model, "%s", measure_predictions_head(c->stored)->model);
        snprintf(common.model_sha256, sizeof common.model_sha256, "%s", c->sha256);
    }
    for (int t = 0; t < r->n_texts + 1 + EXP_SPEED_MAX_DEPTHS; t++) c->result[t] = common;
    // Nothing is chosen by speed alone.
    for (int d = 1; d < r->n_depths; d++) {
        exp_result *res = &c->result[score_n_rows(r) + d - 1];
        *res->role = *res->precision = 0;
    }
    if (!r->o->speed_only) name_texts(c, r);
    return r->o->speed_only || r->n_texts < 2 ? 0 : name_mean(c, r, err);
}

/* The row of all texts: means of logarithms, so perplexity is the geometric mean; quantiles have no such mean. */
static void fill_mean(score_entrant *c, const score_run *r) {
    exp_result *res = &c->result[r->n_texts];
    const size_t n = (size_t)r->n_texts;
    const bool with_kl = c->model && r->base;
    const measure_mean kl = measure_mean_of_texts(c->kl, n), agree = measure_mean_of_texts(c->agree, n);
    const measure_paired paired = measure_paired_of_texts(c->paired, n);
    if (n < 2) return;
    res->windows = res->tokens_scored = 0;
    if (isfinite(c->result[0].coverage)) res->coverage = 0;
    snprintf(res->leak, sizeof res->leak, "%s", c->result[0].leak);
    for (size_t t = 0; t < n; t++) {
        res->coverage += c->result[t].coverage / (double)n;
        res->windows += c->result[t].windows;
        res->tokens_scored += c->result[t].tokens_scored;
        if (*c->result[t].leak && strcmp(c->result[t].leak, "no")) add_leak(res, c->result[t].leak);
    }
    res->nll_texts_sd = measure_between_texts(c->nll, n);
    if (r->base) res->ln_ratio_texts_sd = measure_between_texts(c->ratio, n);
    fill_quality(res, measure_mean_of_texts(c->nll, n), r->base ? &paired : NULL, with_kl ? &kl : NULL, &agree);
}

/* ---- a finished model ------------------------------------------------------------------------------------- */

/* Sums of quantities that were not measured are none. */
static void drop_unknown_sums(score_entrant *c, const score_run *r) {
    bool unknown[MEASURE_N_SUMS] = {
        [MEASURE_BASE_NLL] = !r->base, [MEASURE_KL] = !r->base || !c->model, [MEASURE_AGREE] = !r->base || !c->model};
    for (int t = 0; t < r->n_texts; t++) unknown[MEASURE_IDS] |= !score_knows_ids(c, t);
    for (int k = 0; k < MEASURE_N_SUMS; k++) {
        if (!unknown[k]) continue;
        free(c->sums.sum[k]);
        c->sums.sum[k] = NULL;
    }
}

int score_finish(score_entrant *c, score_run *r, dw_err *err) {
    if (!r->o->speed_only) fill_mean(c, r);
    if (!r->o->no_speed && c->model) score_fill_speed(c, r);
    for (int t = 0; t < score_n_rows(r) && !r->o->speed_only; t++) {
        c->result[t].repeats = c->repeats;
        if (r->base) c->result[t].base_repeats = r->base->repeats;
    }
    if (!r->o->out) return 0;
    size_t n_again;
    drop_unknown_sums(c, r);
    free(c->sums.how);
    c->sums.how = exp_sums_how_of(&c->result[0], err);
    if (!c->sums.how || exp_append_results(r->o->out, c->result, (size_t)score_n_all_rows(c, r),
                                           r->o->speed_only ? NULL : &c->sums, &n_again, err))
        return -1;
    r->n_again += n_again;
    return 0;
}
