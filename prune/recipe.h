/* recipe.h - how a model heals where nobody says: results/heal.md, "A better recipe".
 *
 * Steps of two windows; in addition to the KL the relative squared error of the residuals after each layer, with weight
 * 10; a cosine that ends at a tenth of its highest rate
 *
 *     rate = (0.025 + 0.2 C) / n_embd,    C = 1 - (weights of the cut model's layers) / (of the teacher's layers).
 *
 * The more was cut, the farther the weights have to go.  The rate of AdamW falls with the width (Yang et al. 2022, Tensor
 * Programs V: 1 / width for matrices).  With other activations as much changes as if half were cut. */
#ifndef PRUNE_RECIPE_H
#define PRUNE_RECIPE_H

#include "engine.h"

double recipe_rate(const dw_model *cut, const dw_model *teacher, bool other_activation);
double recipe_hidden(const dw_model *cut, const dw_model *teacher); // 0: no layers to compare

#endif
