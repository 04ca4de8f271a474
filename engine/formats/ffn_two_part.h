/* ffn_two_part.h - what requant --cold-rate and --hot write: an FFN in two parts; the less important neurons have
 * fewer bits.
 *
 * Such a layer has its n_ff neurons in another order than the model that it was made from: first the n_hot hot ones,
 * then the n_cold cold ones, each part in its old order.  Tensors of layer N:
 *   blk.N.ffn_gate.weight, ffn_up.weight             (n_hot, n_embd)
 *   blk.N.ffn_gate_cold.weight, ffn_up_cold.weight   (n_cold, n_embd)
 *   blk.N.ffn_down.weight                            (n_embd, n_hot)
 *   blk.N.ffn_down_cold.weight                       (n_embd, n_cold)
 *   blk.N.ffn_gate.bias, ffn_up.bias                 (n_ff), where the architecture has them
 * Each part has its own number format.  feed_forward_length stays n_ff.
 *
 * Keys:
 *   deadwood.cold.length         i32[n_layer]      n_cold; 0: the layer is in one part.  n_hot is a multiple of 32
 *   deadwood.cold.rate           f32               share of cold neurons, of all layers
 *
 * Every neuron is computed for every token.  Upstream llama.cpp refuses such files. */
#ifndef DW_FFN_TWO_PART_H
#define DW_FFN_TWO_PART_H

#define DW_KEY_COLD_LENGTH "deadwood.cold.length"
#define DW_KEY_COLD_RATE "deadwood.cold.rate"

enum { DW_HOT_MULTIPLE = 32 };

#endif
