"""Qwen2 and Qwen2.5: Llama with biases on q, k and v, and in some layers a sliding window."""

from dataclasses import replace

from unweave.model.architectures import _llama_like as like
from unweave.model.checkpoint import Architecture, Checkpoint, architectures
from unweave.model.weights import Block, Network


def read(c: Checkpoint) -> Network:
    rotary, windows = like.rotary(c), like.windows(c)
    for field in ("use_sliding_window", "max_window_layers"):
        c.get(field, None)  # layer_types already says what follows from them
    c.expect("use_mrope", False)

    def block(i: int, name: str) -> Block:
        attention = replace(like.attention(c, name, rotary), window=windows[i])
        return like.pre_norm_block(c, name, attention, like.mlp(c, name))

    return like.network(c, "Qwen2Model", block)


_WINDOW = {"use_sliding_window": True, "sliding_window": 4}
_VARIANTS = {
    "one key head, window in late layers": {
        "num_key_value_heads": 1,
        "max_window_layers": 1,
        **_WINDOW,
    },
    "window in named layers": {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        **_WINDOW,
    },
    **like.ropes("yarn"),
}
architectures.register("qwen2")(
    Architecture(
        read, tiny=like.variants("Qwen2", _VARIANTS), wrong={"rms_norm_eps": 0.1}, gguf="qwen2"
    )
)
