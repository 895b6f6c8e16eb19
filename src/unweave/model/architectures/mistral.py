"""Mistral: Llama with a sliding window in every layer (v0.1; later ones have no window)."""

from dataclasses import replace

from unweave.model.architectures import _llama_like as like
from unweave.model.checkpoint import Architecture, Checkpoint, Tiny, architectures
from unweave.model.weights import Block, Network


def read(c: Checkpoint) -> Network:
    rotary, window = like.rotary(c), c.get("sliding_window")

    def block(_: int, name: str) -> Block:
        attention = replace(like.attention(c, name, rotary), window=window)
        return like.pre_norm_block(c, name, attention, like.mlp(c, name))

    return like.network(c, "MistralModel", block)


architectures.register("mistral")(
    Architecture(
        read,
        tiny={
            "short window": Tiny("MistralForCausalLM", like.tiny(sliding_window=4)),
            "base model, long window": Tiny("MistralModel", like.tiny()),
            "no window, full heads, tied": Tiny(
                "MistralForCausalLM",
                like.tiny(sliding_window=None, num_key_value_heads=4, tie_word_embeddings=True),
            ),
            "one key head, wide": Tiny(
                "MistralForCausalLM", like.tiny(num_key_value_heads=1, head_dim=8, sliding_window=3)
            ),
            "rope yarn": Tiny(
                "MistralForCausalLM", like.tiny(sliding_window=4, rope_parameters=like.rope("yarn"))
            ),
        },
        wrong={"rope_parameters": like.rope(rope_theta=50.0)},
    )
)
