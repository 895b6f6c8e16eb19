"""BLOOM: ALiBi instead of position vectors, a norm on the embedding, fused qkv head by head."""

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from unweave.model.architectures import _decoder as decoder
from unweave.model.architectures._tiny import decoder_variants
from unweave.model.checkpoint import Architecture, Checkpoint, architectures
from unweave.model.weights import Activation, Alibi, Block, Embedding, Mlp, Network

# √(2/π) as BLOOM's training code writes it; the other digits show in float64.
_GELU = Activation("gelu_tanh", 0.79788456)


def read(c: Checkpoint) -> Network:
    root = c.root("transformer.")
    heads, d_model, eps = c.get("n_head"), c.get("hidden_size"), c.get("layer_norm_epsilon")
    c.expect("apply_residual_connection_post_layernorm", False)
    c.expect("slow_but_exact", False)
    # Traces of Megatron in the published configs, which transformers does not read either.
    for field in (
        "attention_softmax_in_fp32",
        "bias_dropout_fusion",
        "masked_softmax_fusion",
        "n_inner",
        "offset_alibi",
        "seq_length",
        "skip_bias_add",
        "skip_bias_add_qkv",
    ):
        c.get(field, None)
    alibi = Alibi(_slopes(heads))

    def block(i: int) -> Block:
        name = f"{root}h.{i}"
        projections = (
            *c.interleaved(f"{name}.self_attention.query_key_value", heads),
            c.linear(f"{name}.self_attention.dense"),
        )
        attention = decoder.attention(projections, heads, d_model // heads, bias=alibi)
        inp, out = decoder.projections(c, f"{name}.mlp", "dense_h_to_4h", "dense_4h_to_h")
        parts = ("input_layernorm", "post_attention_layernorm")
        norms = [c.norm(f"{name}.{part}", "layer", eps) for part in parts]
        return decoder.pre_norm_block(attention, Mlp(inp, out, _GELU), norms)

    embedding = Embedding(
        c.tensor(f"{root}word_embeddings.weight"),
        norm=c.norm(f"{root}word_embeddings_layernorm", "layer", eps),
    )
    blocks, norm = map(block, range(c.get("n_layer"))), c.norm(f"{root}ln_f", "layer", eps)
    return decoder.language_model(c, "BloomModel", embedding, blocks, norm)


def _slopes(heads: int) -> Float64[Tensor, " head"]:
    """Press et al. (2021): 2^(−8i/n) for i = 1…n with n a power of two; heads past it take every
    other slope of the sequence for 2n."""
    n = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * i / n) for i in range(1, n + 1)]
    slopes += [2 ** (-4 * i / n) for i in range(1, 2 * (heads - n) + 1, 2)]
    return torch.tensor(slopes, dtype=torch.float64)


_TINY = {
    "vocab_size": 61,
    "hidden_size": 24,
    "n_layer": 3,
    "n_head": 4,
    "initializer_range": 0.3,
}
_VARIANTS = {"default": {}, "six heads, untied": {"n_head": 6, "tie_word_embeddings": False}}
architectures.register("bloom")(
    Architecture(
        read, tiny=decoder_variants("Bloom", _TINY, _VARIANTS), wrong={"layer_norm_epsilon": 0.1}
    )
)
