"""Gemma: Llama with norms that store weight − 1, scaled embeddings and a tanh GELU."""

from unweave.model.architectures import _decoder as decoder
from unweave.model.architectures import _gemma_like as gemma
from unweave.model.architectures import _llama_like as like
from unweave.model.architectures._tiny import decoder_variants
from unweave.model.checkpoint import Architecture, Checkpoint, architectures
from unweave.model.weights import Block, Network


def read(c: Checkpoint) -> Network:
    rotary = like.rotary(c)
    c.expect("use_bidirectional_attention", None, False)
    c.expect("hidden_activation", None, "gelu_pytorch_tanh")  # in old configs, beside hidden_act

    def block(_: int, name: str) -> Block:
        parts = ("input_layernorm", "post_attention_layernorm")
        norms = [gemma.norm(c, f"{name}.{part}") for part in parts]
        attention, mlp = like.attention(c, name, rotary), like.mlp(c, name)
        return decoder.pre_norm_block(attention, mlp, norms)

    return gemma.network(c, "GemmaModel", block)


_VARIANTS = {
    "one key head": {"num_key_value_heads": 1},
    "grouped heads, untied, biases": {"tie_word_embeddings": False, "attention_bias": True},
    "full heads, relu": {"num_key_value_heads": 4, "hidden_act": "relu"},
    **like.ropes("linear"),
}
architectures.register("gemma")(
    Architecture(
        read,
        tiny=decoder_variants("Gemma", like.tiny(head_dim=8), _VARIANTS),
        wrong={"rms_norm_eps": 0.1},
        needs_bos=True,
    )
)
