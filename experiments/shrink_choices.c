/* shrink_choices.c - the metric and the widths of shrink_choices.h. */
#include "experiments/shrink_choices.h"

#include <math.h>
#include <string.h>

const shrink_metric shrink_metrics[] = {
    {"obs-gradient", "error of the output, weighted by what the loss says of it; a backward pass over the texts"},
    {"obs", "error of the output when the rest is repaired"},
    {0}};

const char *shrink_choose_metric(const dw_model *m, bool is_narrow, double n_tokens) {
    const double backward = 4 * (double)dw_model_n_params(m) * n_tokens;
    return is_narrow || backward > SHRINK_MOST_BACKWARD ? "obs" : "obs-gradient";
}

/* The largest block that the mixture wants for any down. */
static int block_of_down(const dw_model *m, const kit_mixture *mixture) {
    const dw_gguf *g = dw_model_gguf(m);
    const kit_mixture_use use = {.mixture = mixture, .model = m, .weighted = true};
    int block = 1;
    for (size_t i = 0; i < dw_gguf_n_tensors(g) && mixture; i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        if (!kit_is_matrix(t) || !strstr(t->name, ".ffn_down.")) continue;
        const dw_qtype_row *type = kit_mixture_wanted(&use, t);
        if (type->block > block) block = type->block;
    }
    return block;
}

/* Of n neurons: the multiple of a block that is nearest to `wanted`, the larger of two, at least one block. */
static double nearest_width(double n, double wanted, double block) {
    return fmin(n, fmax(1, floor(wanted / block + 0.5)) * block);
}

static double reached_rate(const dw_model *m, double block, double rate, bool vary) {
    const dw_hparams *hp = dw_model_hparams(m);
    double all = 0, kept = 0;
    for (int l = 0; l < hp->n_layer; l++) {
        all += hp->n_ff[l];
        kept += nearest_width(hp->n_ff[l], (1 - rate) * hp->n_ff[l], block);
    }
    if (vary && fabs(kept - (1 - rate) * all) > 0.01 * all)
        kept = fmax(hp->n_layer, floor((1 - rate) * all / block + 1e-9)) * block;
    return all > 0 ? fmax(0, 1 - kept / all) : 0;
}

/* What rank takes without --as: 256 where that comes near, or the blocks of the model's own type of down, or 32. */
static int unit_of(const dw_model *m, double rate, bool vary) {
    const dw_gguf *g = dw_model_gguf(m);
    const double reached = reached_rate(m, 256, rate, vary);
    int unit = reached > 0 && fabs(reached - rate) <= 0.01 ? 256 : 32;
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        if (strstr(t->name, ".ffn_down.") && t->type->block > unit) unit = t->type->block;
    }
    return unit;
}

shrink_widths shrink_choose_widths(const dw_model *m, const kit_mixture *mixture, double rate, bool vary) {
    shrink_widths w = {.block = block_of_down(m, mixture)};
    const double fitting = reached_rate(m, w.block, rate, vary);
    w.fit = w.block > 32 && fitting > 0 && fabs(fitting - rate) <= SHRINK_MOST_OFF;
    w.unit = w.fit ? w.block : unit_of(m, rate, vary);
    w.reached = reached_rate(m, w.unit, rate, vary);
    return w;
}

int shrink_check_rate(const dw_model *m, const shrink_widths *w, double rate, dw_err *err) {
    if (w->reached > 0) return 0;
    return dw_fail(err,
                   "--rate %g removes no neuron: widths are multiples of %d, so a layer loses at least %.4f; give "
                   "that rate or more",
                   rate, w->unit, (double)w->unit / dw_model_hparams(m)->n_ff_max);
}
