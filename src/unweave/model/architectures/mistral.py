"""Mistral: Llama with a sliding window in every layer (v0.1; later ones have no window)."""

from dataclasses import replace

from unweave.model.architectures import _llama_like as like
from unweave.model.architectures._tiny import decoder_variants
from unweave.model.checkpoint import Architecture, Checkpoint, architectures
from unweave.model.weights import Block, Network


def read(c: Checkpoint) -> Network:
    rotary, window = like.rotary(c), c.get("sliding_window")

    def block(_: int, name: str) -> Block:
        attention = replace(like.attention(c, name, rotary), window=window)
        return like.pre_norm_block(c, name, attention, like.mlp(c, name))

    return like.network(c, "MistralModel", block)


_VARIANTS = {
    "short window": {"sliding_window": 4},
    "no window, full heads, tied": {
        "sliding_window": None,
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
    },
    "one key head, wide": {"num_key_value_heads": 1, "head_dim": 8, "sliding_window": 3},
    "rope yarn": {"sliding_window": 4, "rope_parameters": like.rope("yarn")},
}
architectures.register("mistral")(
    Architecture(
        read,
        tiny=decoder_variants("Mistral", like.tiny(), _VARIANTS),
        wrong={"rope_parameters": like.rope(rope_theta=50.0)},
    )
)
