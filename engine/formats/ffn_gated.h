/* ffn_gated.h - what gate and train add to a GGUF file, so that the engine may skip neurons at run time.
 *
 * Tensors of layer N, in addition to those of the architecture (a layer without them has no gate):
 *   blk.N.ffn_down_t.weight      (n_ff, n_embd)    ffn_down transposed: a neuron's column as a row
 *   blk.N.ffn_pred_a.weight      (rank, n_embd)    predictor, optional: all four tensors or none
 *   blk.N.ffn_pred_a.bias        (rank)            F32
 *   blk.N.ffn_pred_b.weight      (n_groups, rank)
 *   blk.N.ffn_pred_b.bias        (n_groups)        F32, minus the threshold: a group is open when its score is >= 0
 *
 * Keys:
 *   deadwood.gate.rule           string            the rule's name: cats, group-max, ..; static or random: a control
 *                                                  that opens the same groups for every token, by a predictor of rank 1
 *                                                  whose A, a and B are 0 and whose b is 1 (open) or -1
 *   deadwood.gate.group          u32               neurons that are open or closed together, aligned; 1: single neurons
 *   deadwood.gate.threshold      f32[n_layer]      a group is open when its largest |act(gate)| reaches it; not needed
 *                                                  where all layers have predictors
 *   deadwood.gate.activity       f32[n_layer]      share of open neurons on the calibration texts, 0 .. 1
 *   deadwood.gate.dense          bool[n_layer]     never written; in older files: auto selection runs the layer ungated
 *   deadwood.predictor.input     string            "ffn" or "previous": they read the FFN input of their own layer
 *                                                  or of the layer before
 *
 * Whether skipping pays depends on the machine, so the file does not say it: where down has 16 or 32 bits the engine
 * measures it where the model runs (DW_SELECT_AUTO in engine.h).  Upstream llama.cpp refuses files with tensors that it
 * does not know. */
#ifndef DW_FFN_GATED_H
#define DW_FFN_GATED_H

#define DW_KEY_GATE_RULE "deadwood.gate.rule"
#define DW_KEY_GATE_GROUP "deadwood.gate.group"
#define DW_KEY_GATE_THRESHOLD "deadwood.gate.threshold"
#define DW_KEY_GATE_ACTIVITY "deadwood.gate.activity"
#define DW_KEY_GATE_DENSE "deadwood.gate.dense"
#define DW_KEY_PREDICTOR_INPUT "deadwood.predictor.input"

#endif
