/* heal_recipe.h - how heal learns where its options do not say: results/heal.md, "A better recipe".
 *
 *     rate = (0.025 + 0.2 C) / n_embd,    C = 1 - (weights of the cut model's layers) / (of the teacher's layers)
 *
 * The more was cut, the farther the weights have to go.  AdamW's rate falls with the width (Yang et al. 2022, Tensor
 * Programs V: 1 / width for matrices).  Another activation counts as if half of the weights were cut.
 *
 * hidden = 10 is the weight of the relative squared error of the residuals after each layer.  A model that lacks layers
 * could be compared, too (distil.h), but that was not measured. */
#ifndef PRUNE_HEAL_RECIPE_H
#define PRUNE_HEAL_RECIPE_H

#include "engine.h"

double heal_recipe_rate(const dw_model *cut, const dw_model *teacher, bool other_activation);
double heal_recipe_hidden(const dw_model *cut, const dw_model *teacher); // 0: other layers or another width

#endif
