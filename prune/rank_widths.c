/* rank_widths.c - how many neurons each layer keeps: multiples, times, and allocations that run the model. */
#include "kit/hash_cache.h"
#include "kit/talk.h"
#include "model/model.h"
#include "prune/rank.h"
#include "prune/scores.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- widths --------------------------------------------------------------------------------------------------- */

static int least_common_multiple(int a, int b) {
    int x = a, y = b;
    while (y) {
        const int rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

const prune_allocator *rank_first_rule(const rank_options *o, const char **option) {
    const prune_allocator *allocator = prune_allocator_find(o->allocate);
    const bool is_start = allocator->allocate == search_evolve;
    *option = is_start ? "start" : "allocate";
    return is_start ? prune_allocator_find(o->start) : allocator;
}

int rank_unit(const rank_options *o, int group) {
    return least_common_multiple(group, o->multiple ? o->multiple : 256);
}

double rank_bytes_of_widths(const rank_inputs *in) {
    const rank_options *o = in->o;
    const bool stays_same = !o->as && !o->drop_layers && !(o->heads > 0);
    const prune_task whole = {.model = in->model, .drop = in->drop, .sizes = &in->sizes};
    if (!o->bytes || !stays_same || dw_gguf_file_bytes(dw_model_gguf(in->model)) > o->bytes) return (double)o->bytes;
    return fmax((double)o->bytes, prune_file_bytes(&whole, in->hp->n_ff));
}

/* The largest block of any layer's down, and its type. */
static const dw_qtype_row *largest_block(const dw_model *m) {
    const dw_qtype_row *type = dw_qtype_get(DW_F32);
    for (int l = 0; l < dw_model_hparams(m)->n_layer; l++) {
        const dw_qtype_row *down = m->net.layer[l].down.type;
        if (down && down->block > type->block) type = down;
    }
    return type;
}

int rank_check_rate(const prune_task *t, double wanted, const int *n_keep, dw_err *err) {
    const double reached = prune_rate_of(t, n_keep), step = (double)t->unit / dw_model_hparams(t->model)->n_ff_max;
    if (t->bytes > 0 || t->us > 0 || !(wanted > 0) || reached > 0) return 0;
    if (t->unit >= dw_model_hparams(t->model)->n_ff_max)
        return dw_fail(err,
                       "--rate %g removes no neuron: widths are multiples of %d, and layers have at most %d neurons; "
                       "give a smaller --multiple or --group",
                       wanted, t->unit, dw_model_hparams(t->model)->n_ff_max);
    return dw_fail(
        err,
        "--rate %g removes no neuron: widths are multiples of %d, so a layer loses at least %.4f; give that rate, or a "
        "smaller --multiple or --group",
        wanted, t->unit, step);
}

void rank_warn_of_rate(const prune_task *t, double wanted, const int *n_keep) {
    const double reached = prune_rate_of(t, n_keep);
    if (t->us > 0 || !(wanted > 0) || fabs(reached - wanted) <= 0.01) return;
    if (t->bytes > 0)
        warn("--bytes needs a rate of %.4f, and %.4f goes, because widths are multiples of %d; a smaller --multiple or "
             "--group may keep more neurons in as many bytes",
             wanted, reached, t->unit);
    else
        warn("--rate %g is wanted and %.4f is reached, because widths are multiples of %d; do not compare it with "
             "plans of exactly that rate; a smaller --multiple or --group comes nearer",
             wanted, reached, t->unit);
}

/* Fails unless widths that are multiples of the unit fill the blocks of down, as it is and as --as wants it. */
static int check_unit(const prune_task *t, const char *as, dw_err *err) {
    const dw_qtype_row *down = largest_block(t->model);
    const int block = prune_sizes_block(t->sizes);
    if (t->unit % down->block)
        return dw_fail(
            err, "widths that are multiples of %d do not fill %s blocks of %d, the type of down; --multiple %d does",
            t->unit, down->name, down->block, down->block);
    if (as && !kit_mixture_find(as) && t->unit % block)
        return dw_fail(
            err, "widths that are multiples of %d do not fill %s blocks of %d, as --as wants them; --multiple %d does",
            t->unit, as, block, block);
    return 0;
}

static int allocate_unit(prune_task *t, const prune_allocator *allocator, int multiple, const char *as, int *n_keep,
                         dw_err *err) {
    t->unit = least_common_multiple(t->group, multiple);
    return check_unit(t, as, err) ? -1 : allocator->allocate(t, n_keep, err);
}

/* Widths of superblocks have one multiple; others are tried with 256 and then with 32. */
static bool needs_256(const rank_inputs *in) {
    return largest_block(in->model)->block > 32 || (in->o->as && prune_sizes_block(&in->sizes) > 32);
}

int rank_choose_widths(const rank_inputs *in, prune_task *t, const prune_allocator *allocator, double *wanted,
                       int *n_keep, dw_err *err) {
    const rank_options *o = in->o;
    const dw_qtype_row *down = largest_block(t->model);
    *wanted = t->bytes > 0 ? prune_rate_for_bytes(t) : t->rate;
    dw_err why = {0};
    int rc = allocate_unit(t, allocator, o->multiple ? o->multiple : 256, o->as, n_keep, &why);
    const double reached = rc ? 0 : prune_rate_of(t, n_keep);
    const bool near = !rc && fabs(reached - *wanted) <= 0.01 && (reached > 0 || !(*wanted > 0));
    if (!near && !o->multiple && !needs_256(in)) {
        why = (dw_err){0};
        rc = allocate_unit(t, allocator, 32, o->as, n_keep, &why);
    }
    if (rc) return dw_fail(err, "%s", why.text);
    if (t->group % down->block)
        say("down is %s in blocks of %d and groups are of %d: cut will have to encode it again (--down-type)",
            down->name, down->block, t->group);
    return 0;
}

int rank_print_least_bytes(const rank_inputs *in, dw_err *err) {
    const int multiple = in->o->multiple ? in->o->multiple : needs_256(in) ? 256 : 32;
    const prune_task t = {.model = in->model,
                          .drop = in->drop,
                          .unit = least_common_multiple(in->scorer.group, multiple),
                          .sizes = &in->sizes,
                          .min_width = in->o->min_width,
                          .protect = in->protect};
    if (kit_check_group(in->hp, in->scorer.group, err) || check_unit(&t, in->o->as, err)) return -1;
    int *n_keep = dw_alloc((size_t)in->hp->n_layer, sizeof *n_keep, "widths", err);
    for (int l = 0; n_keep && l < in->hp->n_layer; l++) n_keep[l] = prune_least_width(&t, l);
    char *text = n_keep ? dw_format(err, "%.0f\n", prune_file_bytes(&t, n_keep)) : NULL;
    const int rc = text ? prune_write_text("-", text, err) : -1;
    free(n_keep);
    free(text);
    return rc;
}

/* The calibration texts of the scores may not be those that judge the widths. */
static int check_held_out(const rank_inputs *in, dw_err *err) {
    const calib_text *seen = rank_find_seen(in);
    if (!seen) return 0;
    return dw_fail(err,
                   "tokens of windows %d to %d of '%s' are in the statistics; judge the widths by others (--windows)",
                   seen->first_window, seen->first_window + seen->n_windows - 1, seen->name);
}

/* The hash of STATS.gram, "-" where trials repair nothing. */
static int hash_gram(const rank_inputs *in, char hex[65], dw_err *err) {
    snprintf(hex, 65, "-");
    if (!in->gram.matrix) return 0;
    char *path = kit_gram_path(in->o->stats, err);
    const int rc = path ? kit_sha256_file(path, hex, err) : -1;
    free(path);
    return rc;
}

/* A hash of all that the widths depend on. */
static int make_key(rank_inputs *in, const prune_task *t, dw_err *err) {
    char gram[65], backend[32];
    if (hash_gram(in, gram, err)) return -1;
    tool_backend_text(backend);
    char *text = dw_format(err, "%s %s %s %s %d %d %.17g %.17g %d %.17g %d", in->model_sha256, in->stats_sha256,
                           in->o->metric, in->o->start, t->group, t->unit, t->rate, t->bytes, in->o->seed, in->o->damp,
                           in->o->n_ctx);
    int rc = text ? dw_append(&text, err, " %s %s", in->o->as ? in->o->as : "-", gram) : -1;
    if (!rc) rc = dw_append(&text, err, " %d %s", in->o->evaluations, backend);
    if (!rc && in->o->output_type) rc = dw_append(&text, err, " output %s", in->o->output_type);
    if (!rc && in->o->heads > 0) rc = dw_append(&text, err, " %.17g %s", in->o->heads, in->o->heads_allocate);
    if (!rc && (in->o->protect || in->o->min_width))
        rc = dw_append(&text, err, " %s %d", in->o->protect ? in->o->protect : "-", in->o->min_width);
    for (int l = 0; l < in->hp->n_layer && !rc; l++) rc = dw_append(&text, err, " %d", t->drop[l]);
    for (size_t i = 0; i < in->texts.n_text && !rc; i++)
        rc = dw_append(&text, err, " %s %d %d", in->texts.text[i].sha256, in->texts.text[i].first_window,
                       in->texts.text[i].n_windows);
    if (!rc) dw_sha256_hex(text, strlen(text), in->key);
    free(text);
    return rc;
}

/* A layer's curve needs two widths besides the whole one. */
static int check_evaluations(const rank_inputs *in, const prune_allocator *allocator, dw_err *err) {
    if (allocator->allocate != search_sensitivity || !in->o->evaluations || in->o->evaluations >= 2 * in->hp->n_layer)
        return 0;
    return dw_fail(err, "--evaluations %d is too few: sensitivity needs 2 of each layer, %d in all", in->o->evaluations,
                   2 * in->hp->n_layer);
}

int rank_prepare_search(rank_inputs *in, const prune_allocator *allocator, dw_err *err) {
    if (check_evaluations(in, allocator, err) || rank_read_texts(in, err) || check_held_out(in, err)) return -1;
    if (allocator->allocate == search_evolve)
        rank_warn_of_few(in, "steps of evolve that stay may be no better than those that do not");
    return rank_warn_of_shared(in, err);
}

static int open_search(rank_inputs *in, prune_task *t, const prune_allocator *allocator, dw_err *err) {
    const prune_allocator *start = allocator->allocate == search_evolve ? prune_allocator_find(in->o->start) : NULL;
    if ((in->o->stats && rank_open_gram(in, false, err)) || make_key(in, t, err)) return -1;
    if (!in->gram.matrix) say("there are no Gram matrices (collect --gram): widths are judged without repair");
    const trial_options options = {.model = in->model,
                                   .gram = in->gram.matrix ? &in->gram : NULL,
                                   .damp = in->o->damp,
                                   .texts = &in->texts,
                                   .score = t->score,
                                   .group = t->group,
                                   .drop = t->drop,
                                   .pool = in->scorer.pool};
    if (start && strcmp(in->o->out, "-") != 0) {
        in->state = dw_format(err, "%s.part", in->o->out);
        if (!in->state || !(in->hold = dw_hold_take(in->state, err))) return -1;
    }
    in->search = (prune_search){.trial = trial_new(&options, err),
                                .start = start,
                                .evaluations = in->o->evaluations,
                                .seed = (uint64_t)in->o->seed,
                                .state = in->state,
                                .key = in->key,
                                .tell = rank_say};
    t->search = &in->search;
    return in->search.trial ? 0 : -1;
}

int rank_search_widths(rank_inputs *in, prune_task *t, const prune_allocator *allocator, int *n_keep, dw_err *err) {
    if (open_search(in, t, allocator, err)) return -1;
    in->search.bar = progress_begin("allocating", "evaluations", search_n_evaluations(t, allocator));
    const int rc = allocator->allocate(t, n_keep, err);
    progress_end(in->search.bar);
    if (!rc) {
        dw_hold_remove(in->hold);
        in->hold = NULL;
    }
    return rc;
}

int rank_measure_times(rank_inputs *in, prune_task *t, dw_err *err) {
    timing *m = &in->times;
    if (timing_measure(m, in->model, in->drop, in->scorer.pool, err)) return -1;
    const int width = timing_uniform_width(m, in->o->us), n_ff = m->width[m->n - 1];
    say("a token takes %.0f us with all neurons, %.0f us with %d of %d a layer", m->us[m->n - 1], m->us[0], m->width[0],
        n_ff);
    if (!width)
        return dw_fail(err, "--us %g: a token takes %.0f us without any neuron; allow more, or drop layers", in->o->us,
                       m->rest);
    t->rate = 1 - (double)width / n_ff;
    t->us = in->o->us, t->times = m;
    if (width == n_ff) warn("nothing needs to be cut: the whole model is fast enough; the plan keeps all neurons");
    return 0;
}
