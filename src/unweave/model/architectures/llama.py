"""Llama (SmolLM, TinyLlama, Llama 3): pre-norm, RMSNorm, rotary, gated MLP, grouped heads."""

from unweave.model.architectures import _llama_like as like
from unweave.model.checkpoint import Architecture, Checkpoint, architectures
from unweave.model.weights import Block, Network


def read(c: Checkpoint) -> Network:
    rotary = like.rotary(c)

    def block(_: int, name: str) -> Block:
        return like.pre_norm_block(c, name, like.attention(c, name, rotary), like.mlp(c, name))

    return like.network(c, "LlamaModel", block)


_VARIANTS = {
    "one key head, biases": {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True},
    "wide heads": {"head_dim": 8},
    **like.ropes("linear", "llama3", "yarn"),
}
architectures.register("llama")(
    Architecture(
        read, tiny=like.variants("Llama", _VARIANTS), wrong={"rms_norm_eps": 0.1}, gguf="llama"
    )
)
