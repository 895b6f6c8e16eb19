"""Gemma 2: sandwich norms, soft-capped scores and logits, a window in every other layer."""

from dataclasses import replace

from unweave.model.architectures import _gemma_like as gemma
from unweave.model.architectures import _llama_like as like
from unweave.model.architectures._tiny import decoder_variants
from unweave.model.checkpoint import Architecture, Checkpoint, architectures
from unweave.model.weights import Attention, Network


def read(c: Checkpoint) -> Network:
    rotary, windows = like.rotary(c), like.windows(c)
    scale, softcap = c.get("query_pre_attn_scalar") ** -0.5, c.get("attn_logit_softcapping")
    c.expect("use_bidirectional_attention", None, False)
    for field in ("hidden_act", "cache_implementation", "sliding_window_size"):
        c.get(field, None)  # left over in published configs; transformers reads none of them

    def attention(i: int, name: str) -> Attention:
        plain = like.attention(c, name, rotary)
        return replace(plain, scale=scale, softcap=softcap, window=windows[i])

    return gemma.sandwich_network(c, "Gemma2Model", attention)


# Caps low enough to bend the scores and logits of a tiny model.
_TINY = like.tiny(
    head_dim=8,
    query_pre_attn_scalar=12,
    sliding_window=4,
    attn_logit_softcapping=2.0,
    final_logit_softcapping=3.0,
)
_VARIANTS = {
    "short window, soft-caps": {},
    "no soft-caps, one key head, biases": {
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "num_key_value_heads": 1,
        "attention_bias": True,
    },
    "full heads, untied, long window": {
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
        "sliding_window": 64,
    },
    "window in named layers, rope linear": {
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "rope_parameters": like.rope("linear"),
    },
}
architectures.register("gemma2")(
    Architecture(
        read,
        tiny=decoder_variants("Gemma2", _TINY, _VARIANTS),
        wrong={"query_pre_attn_scalar": 48},
        needs_bos=True,
        gguf="gemma2",
    )
)
