"""Phi-3 and Phi-4: Llama with q, k, v in one tensor and gate and up in another."""

from unweave.model.architectures import _decoder as decoder
from unweave.model.architectures import _llama_like as like
from unweave.model.checkpoint import Architecture, Checkpoint, architectures
from unweave.model.weights import Block, Mlp, Network


def read(c: Checkpoint) -> Network:
    heads, kv_heads, d_head = like.head_shape(c)
    d_hidden, activation = c.get("intermediate_size"), c.activation("hidden_act")
    rotary, window = decoder.partial_rotary(c, d_head), c.get("sliding_window")
    for field in ("partial_rotary_factor", "original_max_position_embeddings", "attention_bias"):
        c.get(field, None)  # in rope_parameters; for longrope only; visible from the tensors

    def block(_: int, name: str) -> Block:
        rows = (heads * d_head, kv_heads * d_head, kv_heads * d_head)
        projections = (
            *c.fused(f"{name}.self_attn.qkv_proj", rows),
            c.linear(f"{name}.self_attn.o_proj"),
        )
        attention = decoder.attention(
            projections, heads, d_head, kv_heads, window=window, rotary=rotary
        )
        gate, up = c.fused(f"{name}.mlp.gate_up_proj", (d_hidden, d_hidden))
        mlp = Mlp(up, c.linear(f"{name}.mlp.down_proj"), activation, gate=gate)
        return like.pre_norm_block(c, name, attention, mlp)

    return like.network(c, "Phi3Model", block)


_VARIANTS = {
    "short window": {"sliding_window": 4},
    "one key head, partial rotary": {
        "num_key_value_heads": 1,
        "rope_parameters": like.rope(partial_rotary_factor=0.7),
    },
}
architectures.register("phi3")(
    Architecture(
        read,
        tiny=like.variants(
            "Phi3",
            _VARIANTS,
            pad_token_id=0,  # the default is past the tiny vocabulary
        ),
        wrong={"rope_parameters": like.rope(rope_theta=50.0)},
    )
)
