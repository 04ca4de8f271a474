"""The decoder that train.py trains, in plain PyTorch.

It computes what transformers' Qwen2ForCausalLM computes: RMSNorm before each half of a layer, rotary positions that
turn the two halves of a head against each other, grouped-query attention with biases on queries, keys and values,
a gated feed-forward network, and an output matrix tied to the embeddings. Shapes in the comments: B sequences,
T tokens, D model width, H heads, K heads of keys and values, A head width.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CONFIGS = {
    "mini": {
        "d_model": 256, "n_layer": 8, "n_head": 4, "n_head_kv": 2, "n_ff": 1024,
        "vocab": 16384, "n_ctx": 1024, "rope_theta": 10000.0, "eps": 1e-6,
    },
    "base": {
        "d_model": 512, "n_layer": 12, "n_head": 8, "n_head_kv": 4, "n_ff": 2048,
        "vocab": 16384, "n_ctx": 1024, "rope_theta": 10000.0, "eps": 1e-6,
    },
}


class RMSNorm(nn.Module):
    """Divide by the root mean square, in float32, and multiply by a learnt weight."""

    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        y = x.float()
        scale = torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * scale * self.weight).to(x.dtype)


def rotate(x, cos, sin):
    """Turn each pair (x[i], x[i + A/2]) by the angle of its position."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Block(nn.Module):
    """One layer: attention and feed-forward network, each added to its input."""

    def __init__(self, config, dropout):
        super().__init__()
        d_model = config["d_model"]
        n_ff = config["n_ff"]
        self.dropout = dropout  # on what is added to the residual stream, in training only
        self.n_head = config["n_head"]
        self.n_head_kv = config["n_head_kv"]
        self.head_dim = d_model // self.n_head
        kv_width = self.n_head_kv * self.head_dim
        self.input_layernorm = RMSNorm(d_model, config["eps"])
        self.post_attention_layernorm = RMSNorm(d_model, config["eps"])
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, kv_width)
        self.v_proj = nn.Linear(d_model, kv_width)
        self.o_proj = nn.Linear(d_model, d_model, bias=False)
        self.gate_proj = nn.Linear(d_model, n_ff, bias=False)
        self.up_proj = nn.Linear(d_model, n_ff, bias=False)
        self.down_proj = nn.Linear(n_ff, d_model, bias=False)

    def split_heads(self, x, n_head):
        """(B, T, n_head * A) to (B, n_head, T, A)."""
        batch, tokens, _ = x.shape
        return x.view(batch, tokens, n_head, self.head_dim).transpose(1, 2)

    def drop(self, x):
        """Dropout of the residual branch."""
        return F.dropout(x, self.dropout, self.training)

    def attention(self, x, cos, sin):
        """Return x plus its causal attention."""
        batch, tokens, _ = x.shape
        y = self.input_layernorm(x)
        q = rotate(self.split_heads(self.q_proj(y), self.n_head), cos, sin)
        k = rotate(self.split_heads(self.k_proj(y), self.n_head_kv), cos, sin)
        v = self.split_heads(self.v_proj(y), self.n_head_kv)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)  # (B, H, T, A)
        joined = heads.transpose(1, 2).reshape(batch, tokens, -1)
        return x + self.drop(self.o_proj(joined))

    def feed_forward(self, x):
        """Return x plus its gated feed-forward network."""
        y = self.post_attention_layernorm(x)
        hidden = F.silu(self.gate_proj(y)) * self.up_proj(y)  # (B, T, n_ff)
        return x + self.drop(self.down_proj(hidden))

    def forward(self, x, cos, sin):
        return self.feed_forward(self.attention(x, cos, sin))


class Model(nn.Module):
    """Embeddings, layers, the last norm; the output matrix is the embeddings' own."""

    def __init__(self, config, dropout=0.0):
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab"], config["d_model"])
        self.layers = nn.ModuleList(Block(config, dropout) for _ in range(config["n_layer"]))
        self.norm = RMSNorm(config["d_model"], config["eps"])
        self.init_weights(config["n_layer"])
        self.init_positions(config)

    def init_weights(self, n_layer):
        """Matrices normal with deviation 0.02, those that end a branch smaller with depth; biases zero."""
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                ends_branch = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 / ((2 * n_layer) ** 0.5 if ends_branch else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def init_positions(self, config):
        """Keep cosine and sine of every position's angles, (n_ctx, A/2)."""
        head_dim = config["d_model"] // config["n_head"]
        frequency = 1.0 / config["rope_theta"] ** (torch.arange(0, head_dim, 2).float() / head_dim)
        angle = torch.outer(torch.arange(config["n_ctx"]).float(), frequency)
        self.register_buffer("cos", angle.cos(), False)
        self.register_buffer("sin", angle.sin(), False)

    def hidden(self, ids):
        """Return the normed hidden states, (B, T, D), of ids, (B, T)."""
        x = self.embed_tokens(ids)
        tokens = ids.shape[1]
        cos = self.cos[:tokens].to(x.dtype)
        sin = self.sin[:tokens].to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)

    def logits(self, hidden):
        """Return float32 scores of the whole vocabulary."""
        return F.linear(hidden, self.embed_tokens.weight).float()

    def forward(self, ids, targets):
        """Return the mean cross-entropy in nats."""
        return F.cross_entropy(self.logits(self.hidden(ids)).flatten(0, 1), targets.flatten())


ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")


def checkpoint_name(name):
    """Return the name that a parameter of Model has in a Qwen2ForCausalLM checkpoint."""
    parts = name.split(".")
    if parts[0] == "layers" and parts[2] in ATTENTION:
        parts.insert(2, "self_attn")
    elif parts[0] == "layers" and parts[2] in FEED_FORWARD:
        parts.insert(2, "mlp")
    return "model." + ".".join(parts)


def checkpoint_config(config):
    """Return the config.json of a Qwen2ForCausalLM checkpoint."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": config["d_model"],
        "intermediate_size": config["n_ff"],
        "num_hidden_layers": config["n_layer"],
        "num_attention_heads": config["n_head"],
        "num_key_value_heads": config["n_head_kv"],
        "vocab_size": config["vocab"],
        "max_position_embeddings": config["n_ctx"],
        "rope_theta": config["rope_theta"],
        "rms_norm_eps": config["eps"],
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "attention_dropout": 0.0,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
