/* rank_plan.c - the plan and the table of scores, and what they say of how they were made. */
#include "kit/lineage.h"
#include "kit/plan.h"
#include "kit/talk.h"
#include "model/model.h"
#include "prune/rank.h"
#include "prune/scores.h"

#include <stdio.h>
#include <stdlib.h>
#include <limits.h>
#include <string.h>

/* What plans say whose neurons all stay: that layers are dropped, or only heads are cut. */
static const kit_metric heads_metric = {.name = "obs-heads",
                                        .formula = "tr(O_g ([H^-1]_gg)^-1 O_g^T), a KV head at a time, O_g its columns "
                                                   "of o, H = E[x x^T] + damping",
                                        .source = "Kurtic et al. 2023 (arXiv 2302.04089)"};
static const kit_metric layers_metric = {.name = "block-influence",
                                     .formula = "1 - mean cosine of the residuals before and after a layer",
                                     .source = "Men et al. 2024 (arXiv 2403.03853)"};

int rank_describe_inputs(char **comment, const rank_inputs *in, dw_err *err) {
    char name[4 * NAME_MAX + 1]; // a line end in a name would end the comment
    const char *model = dw_base_name(in->o->model);
    dw_show(name, sizeof name, model, strlen(model));
    if (dw_append(comment, err, "model  %s  sha256 %s\n", name, in->model_sha256)) return -1;
    if (!in->o->stats) return 0;
    const char *stats = dw_base_name(in->o->stats);
    dw_show(name, sizeof name, stats, strlen(stats));
    return dw_append(comment, err, "stats  %s  sha256 %s\n", name, in->stats_sha256);
}

static int describe_size(kit_plan *p, const rank_inputs *in, dw_err *err) {
    const rank_options *o = in->o;
    if (!o->bytes && o->as) return dw_append(&p->comment, err, "widths fit %s\n", o->as);
    if (!o->bytes || rank_bytes_of_widths(in) > (double)o->bytes) return 0; // fits as it is
    if (!o->as) return dw_append(&p->comment, err, "bytes  at most %zu\n", o->bytes);
    char types[KIT_TYPES_WORDS];
    return dw_append(&p->comment, err, "bytes  at most %zu as %s\n", o->bytes,
                     kit_types_words(types, o->as, o->output_type));
}

static int describe(kit_plan *p, const rank_inputs *in, const prune_task *t, double wanted, dw_err *err) {
    const kit_metric *metric = in->o->metric      ? rank_find_metric(in->o->metric)
                               : in->o->drop_layers ? &layers_metric
                                                    : &heads_metric;
    if (rank_describe_inputs(&p->comment, in, err)) return -1;
    if (dw_append(&p->comment, err, "metric %s (%s; %s), group %d, allocate %s, seed %d\n", metric->name,
                  metric->formula, metric->source, t->group, in->o->allocate, in->o->seed))
        return -1;
    if (dw_append(&p->comment, err, "rate   wanted %.4f, reached %.4f\n", wanted, p->rate_reached)) return -1;
    if (p->rate_reached > 0 && dw_append(&p->comment, err, "widths are multiples of %d\n", t->unit)) return -1;
    if (describe_size(p, in, err)) return -1;
    if (in->o->min_width && dw_append(&p->comment, err, "widths are at least %d\n", in->o->min_width)) return -1;
    if (in->o->protect && dw_append(&p->comment, err, "layers %s are protected\n", in->o->protect)) return -1;
    for (int l = 0; l < p->n_layer; l++)
        if (in->drop[l] &&
            dw_append(&p->comment, err, "layer %d is dropped, block influence %.6f\n", l, in->influence[l]))
            return -1;
    return 0;
}

/* Takes the blocks. */
static int add_text(kit_plan *p, const char *name, const char *sha256, char *blocks, uint64_t n_tokens, dw_err *err) {
    kit_plan_text *t = &p->text[p->n_text++];
    *t = (kit_plan_text){.name = dw_strdup(name, err), .blocks = blocks, .n_tokens = n_tokens};
    memcpy(t->sha256, sha256, sizeof t->sha256);
    return t->name && t->blocks ? 0 : -1;
}

/* The texts of the scores, and those that judged the widths: the plan has learnt from both. */
static int list_texts(kit_plan *p, const rank_inputs *in, bool judges, dw_err *err) {
    const size_t n_stats = in->has_stats ? in->stats.n_text : 0, n_judges = judges ? in->texts.n_text : 0;
    int rc = 0;
    if (!(p->text = dw_alloc(n_stats + n_judges + 1, sizeof *p->text, "texts", err))) return -1;
    for (size_t i = 0; i < n_stats && !rc; i++) {
        const kit_stats_text *t = &in->stats.text[i];
        rc = add_text(p, t->name, t->sha256, dw_strdup(t->blocks, err), t->n_tokens, err);
    }
    for (size_t i = 0; i < n_judges && !rc; i++) {
        const calib_text *t = &in->texts.text[i];
        const size_t n = (size_t)t->n_windows * (size_t)in->texts.n_ctx;
        rc = add_text(p, t->name, t->sha256, lineage_blocks(t->token, n, err), n, err);
    }
    return rc;
}

static int fill_layer(kit_plan_layer *p, const prune_task *t, int l, int n_keep, bool *keep, dw_err *err) {
    const int n_ff = dw_model_hparams(t->model)->n_ff[l];
    if (t->drop[l]) {
        p->drop = true;
        return 0;
    }
    if (!t->score)
        memset(keep, true, (size_t)n_ff * sizeof *keep);
    else if (prune_choose(t->score[l], n_ff, t->group, n_keep, keep, err))
        return -1;
    return kit_plan_set_layer(p, keep, n_ff, err);
}

static int fill_plan(kit_plan *p, const prune_task *t, const int *n_keep, dw_err *err) {
    const dw_hparams *hp = dw_model_hparams(t->model);
    bool *keep = dw_alloc((size_t)hp->n_ff_max, sizeof *keep, "kept neurons", err);
    p->layer = dw_alloc((size_t)hp->n_layer, sizeof *p->layer, "layers of a plan", err);
    int rc = keep && p->layer ? 0 : -1;
    for (int l = 0; l < hp->n_layer && !rc; l++) {
        p->n_layer = l + 1;
        rc = fill_layer(&p->layer[l], t, l, n_keep[l], keep, err);
    }
    free(keep);
    return rc;
}

static int write_plan(const kit_plan *p, const char *path, dw_err *err) {
    if (strcmp(path, "-") != 0) return kit_plan_write(p, path, err);
    size_t size;
    char *text = kit_plan_format(p, &size, err);
    const int rc = text ? prune_write_text("-", text, err) : -1;
    free(text);
    return rc;
}

static void warn_of_whole(const prune_task *t, const int *n_keep, const rank_options *o) {
    const double file = (double)dw_gguf_file_bytes(dw_model_gguf(t->model)), whole = prune_file_bytes(t, n_keep);
    if (whole <= (double)o->bytes)
        warn("nothing needs to be cut: the whole model takes at most %s, and --bytes allows %s; the plan keeps all "
             "neurons",
             show_bytes(whole).text, show_bytes((double)o->bytes).text);
    else
        warn("nothing needs to be cut: the model has %.0f bytes, and --bytes allows %zu; the plan keeps all neurons; "
             "use the model as it is, because a file that cut writes with this plan may have up to %.0f bytes",
             file, o->bytes, whole);
}

static void tell(const prune_task *t, const int *n_keep, double wanted, const rank_options *o) {
    int least = INT32_MAX, most = 0;
    char multiples[40] = "", types[KIT_TYPES_WORDS];
    for (int l = 0; l < dw_model_hparams(t->model)->n_layer; l++) {
        if (t->drop[l]) continue;
        if (n_keep[l] < least) least = n_keep[l];
        if (n_keep[l] > most) most = n_keep[l];
    }
    rank_warn_of_rate(t, wanted, n_keep);
    if (t->bytes > 0 && !(prune_rate_of(t, n_keep) > 0)) warn_of_whole(t, n_keep, o);
    if (prune_rate_of(t, n_keep) > 0) snprintf(multiples, sizeof multiples, ", multiples of %d", t->unit);
    say("rate %s %.4f, reached %.4f; widths %d to %d%s; the file will have at most %s%s%s",
        t->bytes > 0 || t->us > 0 ? "needed" : "wanted", wanted, prune_rate_of(t, n_keep), least, most, multiples,
        show_bytes(prune_file_bytes(t, n_keep)).text, o->as ? " as " : "",
        o->as ? kit_types_words(types, o->as, o->output_type) : "");
}

static int plan_heads(kit_plan *p, const rank_inputs *in, dw_err *err) {
    int kept = 0, all = 0;
    for (int l = 0; l < p->n_layer && in->kv; l++) {
        if (in->drop[l]) continue;
        kept += rank_n_kv_kept(in, l), all += in->hp->n_head_kv[l];
        if (in->kv[l] && kit_plan_set_kv_heads(&p->layer[l], in->kv[l], in->hp->n_head_kv[l], err)) return -1;
    }
    if (!in->kv) return 0;
    say("heads: %d of %d KV heads stay", kept, all);
    return dw_append(&p->comment, err,
                     "heads  %d of %d KV heads stay (obs on the inputs of o), allocate %s, wanted %.4f, reached %.4f\n",
                     kept, all, in->o->heads_allocate, in->o->heads, in->heads_reached);
}

static int write_scores(const rank_inputs *in, double *const *score, dw_err *err) {
    const kit_metric *metric = rank_find_metric(in->o->metric);
    char *comment = NULL, *text = NULL;
    int rc = rank_describe_inputs(&comment, in, err);
    if (!rc)
        rc = dw_append(&comment, err, "metric %s (%s; %s), group %d, seed %d\n", metric->name, metric->formula,
                       metric->source, in->scorer.group, in->o->seed);
    if (!rc) rc = (text = prune_scores_table(in->hp, comment, in->scorer.group, score, err)) ? 0 : -1;
    if (!rc) rc = prune_write_text(in->o->scores, text, err);
    free(comment);
    free(text);
    return rc;
}

/* The table of times, and what the widths take by it. */
static int describe_times(kit_plan *p, const rank_inputs *in, const prune_task *t, const int *n_keep, dw_err *err) {
    const timing *m = &in->times;
    char backend[32];
    if (!(t->us > 0)) return 0;
    tool_backend_text(backend);
    int rc = dw_append(&p->comment, err,
                       "time   at most %g us a token wanted, %.1f by this table (decoding, %s, %d threads)\n",
                       t->us, prune_token_us(t, n_keep), backend, dw_pool_size(in->scorer.pool));
    if (!rc) rc = dw_append(&p->comment, err, "width:us of a token with all layers so wide:");
    for (int k = 0; k < m->n && !rc; k++) rc = dw_append(&p->comment, err, " %d:%.1f", m->width[k], m->us[k]);
    return rc ? rc : dw_append(&p->comment, err, "\n");
}

/* How many neurons stay, and by what rule. */
typedef struct draft {
    prune_task t;
    const prune_allocator *allocator, *first; // first: the rule without runs of the model
    int *n_keep;
    double wanted;
} draft;

static bool reads_scores(const prune_allocator *a) { return a->allocate != prune_allocator_find("uniform")->allocate; }

/* Refuses before the scores are made, which may take an hour, what does not depend on them. */
static int begin_draft(draft *d, rank_inputs *in, double *const *score, dw_err *err) {
    const prune_allocator *allocator = prune_allocator_find(in->o->allocate);
    *d = (draft){.allocator = allocator,
                 .first = allocator->runs_model ? prune_allocator_find("uniform") : allocator,
                 .n_keep = dw_alloc((size_t)in->hp->n_layer, sizeof *d->n_keep, "widths", err)};
    d->t = (prune_task){.model = in->model,
                        .drop = in->drop,
                        .group = in->scorer.group,
                        .score = score,
                        .inverse = in->inverse,
                        .is_energy = in->o->metric && rank_find_metric(in->o->metric)->scale == KIT_SCALE_ENERGY,
                        .sizes = &in->sizes,
                        .rate = in->o->rate,
                        .bytes = rank_bytes_of_widths(in),
                        .min_width = in->o->min_width,
                        .protect = in->protect};
    if (!d->n_keep || (allocator->runs_model && rank_prepare_search(in, allocator, err))) return -1;
    if (in->o->us > 0 && rank_measure_times(in, &d->t, err)) return -1;
    if (reads_scores(d->first)) return 0;
    if (rank_choose_widths(in, &d->t, d->first, &d->wanted, d->n_keep, err)) return -1;
    return allocator->runs_model ? 0 : rank_check_rate(&d->t, d->wanted, d->n_keep, err);
}

static int end_draft(draft *d, rank_inputs *in, dw_err *err) {
    if (reads_scores(d->first) && rank_choose_widths(in, &d->t, d->first, &d->wanted, d->n_keep, err)) return -1;
    if (d->allocator->runs_model && rank_search_widths(in, &d->t, d->allocator, d->n_keep, err)) return -1;
    return reads_scores(d->allocator) ? rank_check_rate(&d->t, d->wanted, d->n_keep, err) : 0;
}

/* Whether --rate 0 is all that was asked for. */
static bool is_whole(const rank_inputs *in, const draft *d) {
    const rank_options *o = in->o;
    return !(d->t.rate > 0) && !o->bytes && !(o->us > 0) && !o->drop_layers && !(o->heads > 0);
}

static int make_plan(rank_inputs *in, draft *d, dw_err *err) {
    kit_plan plan = {0};
    int rc = end_draft(d, in, err);
    if (!rc) {
        plan.rate_reached = prune_rate_of(&d->t, d->n_keep);
        rc = fill_plan(&plan, &d->t, d->n_keep, err);
    }
    if (!rc) rc = describe(&plan, in, &d->t, d->wanted, err);
    if (!rc) rc = plan_heads(&plan, in, err);
    if (!rc) rc = describe_times(&plan, in, &d->t, d->n_keep, err);
    if (!rc) rc = list_texts(&plan, in, d->allocator->runs_model, err);
    if (!rc) rc = write_plan(&plan, in->o->out, err);
    if (!rc) tell(&d->t, d->n_keep, d->wanted, in->o);
    if (!rc && is_whole(in, d)) warn("nothing is cut: --rate 0 keeps all neurons");
    kit_plan_release(&plan);
    return rc;
}

int rank_score_and_plan(rank_inputs *in, dw_err *err) {
    const size_t n_layer = (size_t)in->hp->n_layer;
    draft d = {.n_keep = NULL};
    double **score = in->o->metric ? dw_alloc(n_layer, sizeof *score, "scores", err) : NULL;
    int rc = score || !in->o->metric ? 0 : -1;
    if (!rc && in->o->metric) rc = kit_check_group(in->hp, in->scorer.group, err) ? -1 : rank_measure_residual(in, err);
    if (!rc && in->o->out) rc = begin_draft(&d, in, score, err);
    if (!rc && score) rc = rank_make_scores(in, rank_find_metric(in->o->metric), score, err);
    if (!rc && in->o->scores) rc = write_scores(in, score, err);
    if (!rc && in->o->out) rc = make_plan(in, &d, err);
    for (size_t l = 0; score && l < n_layer; l++) free(score[l]);
    free(score);
    free(d.n_keep);
    return rc;
}
