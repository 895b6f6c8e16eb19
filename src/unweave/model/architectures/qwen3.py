"""Qwen3: Qwen2 without the biases, with an RMSNorm on every query and key head."""

from dataclasses import replace

from unweave.model.architectures import _llama_like as like
from unweave.model.checkpoint import Architecture, Checkpoint, architectures
from unweave.model.weights import Block, Network


def read(c: Checkpoint) -> Network:
    rotary, windows = like.rotary(c), like.windows(c)
    for field in ("use_sliding_window", "max_window_layers"):
        c.get(field, None)  # layer_types already says what follows from them

    def block(i: int, name: str) -> Block:
        attention = replace(
            like.attention(c, name, rotary),
            window=windows[i],
            q_norm=like.norm(c, f"{name}.self_attn.q_norm"),
            k_norm=like.norm(c, f"{name}.self_attn.k_norm"),
        )
        return like.pre_norm_block(c, name, attention, like.mlp(c, name))

    return like.network(c, "Qwen3Model", block)


_VARIANTS = {
    "one key head, biases": {"num_key_value_heads": 1, "attention_bias": True},
    "window in late layers": {
        "use_sliding_window": True,
        "sliding_window": 4,
        "max_window_layers": 1,
    },
    **like.ropes("yarn"),
}
architectures.register("qwen3")(
    Architecture(
        read,
        tiny=like.variants("Qwen3", _VARIANTS, head_dim=8),
        wrong={"rms_norm_eps": 0.1},
        gguf="qwen3",
    )
)
