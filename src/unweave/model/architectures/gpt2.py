"""GPT-2: pre-norm, learned positions, fused qkv stored transposed."""

from unweave.model.checkpoint import Architecture, Checkpoint, Tiny, architectures
from unweave.model.weights import (
    Attention,
    Block,
    Branch,
    Embedding,
    Head,
    Linear,
    Mlp,
    Network,
    Stack,
)


def read(c: Checkpoint) -> Network:
    root = c.root("transformer.")
    layers, heads, d_model = c.get("n_layer"), c.get("n_head"), c.get("n_embd")
    eps, activation = c.get("layer_norm_epsilon"), c.activation("activation_function")
    c.get("n_inner")
    scale_weights, by_layer = c.get("scale_attn_weights"), c.get("scale_attn_by_inverse_layer_idx")
    c.get("reorder_and_upcast_attn")  # changes precision only
    c.expect("add_cross_attention", False)
    c.skip(r".*\.attn\.(masked_)?bias")

    def block(i: int) -> Block:
        name = f"{root}h.{i}"
        q, k, v = c.fused(f"{name}.attn.c_attn", (d_model,) * 3, transposed=True)
        scale = (d_model // heads) ** -0.5 if scale_weights else 1.0
        attention = Attention(
            q,
            k,
            v,
            c.linear(f"{name}.attn.c_proj", transposed=True),
            heads=heads,
            kv_heads=heads,
            d_head=d_model // heads,
            scale=scale / (i + 1) if by_layer else scale,
            causal=True,
        )
        mlp = Mlp(
            c.linear(f"{name}.mlp.c_fc", transposed=True),
            c.linear(f"{name}.mlp.c_proj", transposed=True),
            activation,
        )
        return Block(
            (
                Branch(attention, pre=c.norm(f"{name}.ln_1", "layer", eps)),
                Branch(mlp, pre=c.norm(f"{name}.ln_2", "layer", eps)),
            )
        )

    tokens = c.tensor(f"{root}wte.weight")
    body = Stack(
        Embedding(tokens, positions=c.tensor(f"{root}wpe.weight")),
        tuple(block(i) for i in range(layers)),
        c.norm(f"{root}ln_f", "layer", eps),
    )
    if c.model_class == "GPT2Model":
        return Network(body)
    unembed = c.maybe("lm_head.weight")
    return Network(body, Head((Linear(tokens if unembed is None else unembed),)))


_TINY = {
    "vocab_size": 61,
    "n_embd": 24,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 32,
    "initializer_range": 0.3,
}
architectures.register("gpt2")(
    Architecture(
        read,
        tiny={
            "default": Tiny("GPT2LMHeadModel", _TINY),
            "base model": Tiny("GPT2Model", _TINY),
            "untied, wide mlp": Tiny(
                "GPT2LMHeadModel", _TINY | {"tie_word_embeddings": False, "n_inner": 40}
            ),
            "scale by layer": Tiny(
                "GPT2LMHeadModel",
                _TINY | {"scale_attn_by_inverse_layer_idx": True, "activation_function": "relu"},
            ),
        },
        wrong={"layer_norm_epsilon": 0.1},
    )
)
