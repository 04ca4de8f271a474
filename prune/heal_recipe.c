/* heal_recipe.c - the rate and the terms of the loss that suit a cut. */
#include "prune/heal_recipe.h"

#include "formats/formats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static double weights_of_layers(const dw_model *m) {
    const dw_gguf *g = dw_model_gguf(m);
    double n = 0;
    for (size_t i = 0; i < dw_gguf_n_tensors(g); i++) {
        const dw_tensor *t = dw_gguf_tensor(g, i);
        if (dw_layer_of(t->name, NULL) >= 0) n += (double)dw_tensor_n_values(t);
    }
    return n;
}

/* To three digits: a rate that can be typed. */
double heal_recipe_rate(const dw_model *cut, const dw_model *teacher, bool other_activation) {
    const double was_cut = fmax(0, 1 - weights_of_layers(cut) / weights_of_layers(teacher));
    const double rate = (0.025 + 0.2 * (other_activation ? fmax(was_cut, 0.5) : was_cut)) /
                        dw_model_hparams(cut)->n_embd;
    char text[32];
    snprintf(text, sizeof text, "%.3g", rate);
    return strtod(text, NULL);
}

double heal_recipe_hidden(const dw_model *cut, const dw_model *teacher) {
    const dw_hparams *own = dw_model_hparams(cut), *teachers = dw_model_hparams(teacher);
    return own->n_layer == teachers->n_layer && own->n_embd == teachers->n_embd ? 10 : 0;
}
