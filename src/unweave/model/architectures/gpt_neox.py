"""GPT-NeoX (Pythia): parallel branches with a norm each, fused qkv head by head, partial rotary."""

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
    root = c.root("gpt_neox.")
    heads, d_model = c.get("num_attention_heads"), c.get("hidden_size")
    d_head = d_model // heads
    eps, activation = c.get("layer_norm_eps"), c.activation("hidden_act")
    parallel = c.get("use_parallel_residual")
    for field in ("intermediate_size", "attention_bias"):
        c.get(field, None)  # visible from the tensors themselves
    rope = c.get("rope_parameters")
    d_rotary = int(d_head * rope.get("partial_rotary_factor", 1.0))
    rotary = rotary_of(rope, d_rotary, c.get("max_position_embeddings", None))
    c.skip(r".*\.attention\.((masked_)?bias|rotary_emb\.inv_freq)")

    def block(i: int) -> Block:
        name = f"{root}layers.{i}"
        q, k, v = c.interleaved(f"{name}.attention.query_key_value", heads)
        attention = Attention(
            q,
            k,
            v,
            c.linear(f"{name}.attention.dense"),
            heads=heads,
            kv_heads=heads,
            d_head=d_head,
            scale=d_head**-0.5,
            causal=True,
            rotary=rotary,
        )
        mlp = Mlp(
            c.linear(f"{name}.mlp.dense_h_to_4h"),
            c.linear(f"{name}.mlp.dense_4h_to_h"),
            activation,
        )
        return Block(
            (
                Branch(attention, pre=c.norm(f"{name}.input_layernorm", "layer", eps)),
                Branch(mlp, pre=c.norm(f"{name}.post_attention_layernorm", "layer", eps)),
            ),
            parallel,
        )

    tokens = c.tensor(f"{root}embed_in.weight")
    blocks = tuple(block(i) for i in range(c.get("num_hidden_layers")))
    body = Stack(Embedding(tokens), blocks, c.norm(f"{root}final_layer_norm", "layer", eps))
    if c.model_class == "GPTNeoXModel":
        return Network(body)
    # Published files call the head embed_out; transformers renames it while loading.
    unembed = c.maybe("embed_out.weight" if c.has("embed_out.weight") else "lm_head.weight")
    return Network(body, Head((Linear(tokens if unembed is None else unembed),)))


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


architectures.register("gpt_neox")(
    Architecture(
        read,
        tiny={
            "parallel": Tiny("GPTNeoXForCausalLM", _TINY),
            "sequential": Tiny("GPTNeoXForCausalLM", _TINY | {"use_parallel_residual": False}),
            "base model": Tiny("GPTNeoXModel", _TINY),
            "no attention bias, tied": Tiny(
                "GPTNeoXForCausalLM", _TINY | {"attention_bias": False, "tie_word_embeddings": True}
            ),
            "rope full, linear": Tiny(
                "GPTNeoXForCausalLM",
                _rope(rope_type="linear", factor=4.0, partial_rotary_factor=1.0),
            ),
        },
        wrong={"rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 0.5}},
    )
)
