/* ffn_act.h - the key that names the activation of the FFN's gate, in files where it is not the architecture's own.
 *
 *   deadwood.ffn.activation      string            "silu", "gelu_pytorch_tanh" or "relu": hidden_act in config.json of
 *                                                  transformers.  Missing: the architecture's own
 *
 * heal --activation writes it, and every tool copies it.  Upstream llama.cpp ignores the key and computes with the
 * architecture's own activation, so its text from such a file is wrong. */
#ifndef DW_FFN_ACT_H
#define DW_FFN_ACT_H

#define DW_KEY_FFN_ACTIVATION "deadwood.ffn.activation"

#endif
