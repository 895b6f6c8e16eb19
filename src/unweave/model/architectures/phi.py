"""Phi (1, 1.5, 2): attention and MLP in parallel from one norm, partial rotary, biases."""

from unweave.model.checkpoint import Architecture, Checkpoint, Tiny, architectures
from unweave.model.positions import rotary_of
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
    root = c.root("model.")
    heads, d_model = c.get("num_attention_heads"), c.get("hidden_size")
    d_head = c.get("head_dim", None) or d_model // heads
    eps, activation = c.get("layer_norm_eps"), c.activation("hidden_act")
    c.get("intermediate_size", None)  # visible from the tensors themselves
    kv_heads, qk_norm = c.get("num_key_value_heads", None) or heads, c.get("qk_layernorm")
    rope = c.get("rope_parameters")
    d_rotary = int(d_head * rope.get("partial_rotary_factor", 1.0))
    rotary = rotary_of(rope, d_rotary, c.get("max_position_embeddings", None))

    def block(i: int) -> Block:
        name = f"{root}layers.{i}"
        attention = Attention(
            c.linear(f"{name}.self_attn.q_proj"),
            c.linear(f"{name}.self_attn.k_proj"),
            c.linear(f"{name}.self_attn.v_proj"),
            c.linear(f"{name}.self_attn.dense"),
            heads=heads,
            kv_heads=kv_heads,
            d_head=d_head,
            scale=d_head**-0.5,
            causal=True,
            rotary=rotary,
            q_norm=c.norm(f"{name}.self_attn.q_layernorm", "layer", eps) if qk_norm else None,
            k_norm=c.norm(f"{name}.self_attn.k_layernorm", "layer", eps) if qk_norm else None,
        )
        mlp = Mlp(c.linear(f"{name}.mlp.fc1"), c.linear(f"{name}.mlp.fc2"), activation)
        norm = c.norm(f"{name}.input_layernorm", "layer", eps)
        return Block((Branch(attention, pre=norm), Branch(mlp, pre=norm)), parallel=True)

    tokens = c.tensor(f"{root}embed_tokens.weight")
    blocks = tuple(block(i) for i in range(c.get("num_hidden_layers")))
    body = Stack(Embedding(tokens), blocks, c.norm(f"{root}final_layernorm", "layer", eps))
    if c.model_class == "PhiModel":
        return Network(body)
    unembed = c.maybe("lm_head.weight")
    unembed = Linear(tokens if unembed is None else unembed, c.maybe("lm_head.bias"))
    return Network(body, Head((unembed,)))


_TINY = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    "initializer_range": 0.3,
}


def _rope(**fields: object) -> dict:
    return _TINY | {"rope_parameters": {"rope_theta": 10000.0, **fields}}


architectures.register("phi")(
    Architecture(
        read,
        tiny={
            "full heads": Tiny("PhiForCausalLM", _TINY),
            "base model": Tiny("PhiModel", _TINY),
            "grouped heads, tied": Tiny(
                "PhiForCausalLM", _TINY | {"num_key_value_heads": 2, "tie_word_embeddings": True}
            ),
            "query and key norms": Tiny("PhiForCausalLM", _TINY | {"qk_layernorm": True}),
            "rope linear, full": Tiny(
                "PhiForCausalLM", _rope(rope_type="linear", factor=4.0, partial_rotary_factor=1.0)
            ),
        },
        wrong={"rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 0.5}},
    )
)
