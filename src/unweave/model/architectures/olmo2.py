"""OLMo 2: Llama with norms after the branches only, and on queries and keys over all heads."""

from dataclasses import replace

from unweave.model.architectures import _llama_like as like
from unweave.model.checkpoint import Architecture, Checkpoint, architectures
from unweave.model.weights import Block, Branch, Network


def read(c: Checkpoint) -> Network:
    rotary = like.rotary(c)

    def block(_: int, name: str) -> Block:
        attention = replace(
            like.attention(c, name, rotary),
            q_norm=like.norm(c, f"{name}.self_attn.q_norm"),
            k_norm=like.norm(c, f"{name}.self_attn.k_norm"),
        )
        return Block(
            (
                Branch(attention, post=like.norm(c, f"{name}.post_attention_layernorm")),
                Branch(like.mlp(c, name), post=like.norm(c, f"{name}.post_feedforward_layernorm")),
            )
        )

    return like.network(c, "Olmo2Model", block)


_VARIANTS = {
    "one key head, biases": {"num_key_value_heads": 1, "attention_bias": True},
    **like.ropes("yarn"),
}
architectures.register("olmo2")(
    Architecture(read, tiny=like.variants("Olmo2", _VARIANTS), wrong={"rms_norm_eps": 0.1})
)
