"""Gemma: Llama with norms that store weight − 1, scaled embeddings and a tanh GELU."""

from unweave.model.architectures import _decoder as decoder
from unweave.model.architectures import _gemma_like as gemma
from unweave.model.architectures import _llama_like as like
from unweave.model.checkpoint import Architecture, Checkpoint, Tiny, architectures
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


_TINY = like.tiny(head_dim=8)
architectures.register("gemma")(
    Architecture(
        read,
        tiny={
            "one key head": Tiny("GemmaForCausalLM", _TINY | {"num_key_value_heads": 1}),
            "base model": Tiny("GemmaModel", _TINY),
            "grouped heads, untied, biases": Tiny(
                "GemmaForCausalLM", _TINY | {"tie_word_embeddings": False, "attention_bias": True}
            ),
            "full heads, relu": Tiny(
                "GemmaForCausalLM", _TINY | {"num_key_value_heads": 4, "hidden_act": "relu"}
            ),
            "rope linear": Tiny(
                "GemmaForCausalLM", _TINY | {"rope_parameters": like.rope("linear")}
            ),
        },
        wrong={"rms_norm_eps": 0.1},
        needs_bos=True,
    )
)
