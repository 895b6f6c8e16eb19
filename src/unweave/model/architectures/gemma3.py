"""Gemma 3's text model: Gemma 2 with query and key norms for soft-caps, and two rotary bases.

Layers with a window turn by a local base, the others by a global one. With
`use_bidirectional_attention` it is an encoder (EmbeddingGemma).
"""

from dataclasses import replace

from unweave.model.architectures import _gemma_like as gemma
from unweave.model.architectures import _llama_like as like
from unweave.model.checkpoint import Architecture, Checkpoint, Tiny, architectures
from unweave.model.weights import Attention, Network


def read(c: Checkpoint) -> Network:
    types, windows = like.layer_types(c), like.windows(c)
    rotary = {kind: like.rotary(c, kind) for kind in set(types)}
    scale = c.get("query_pre_attn_scalar") ** -0.5
    both_ways = c.get("use_bidirectional_attention", False)
    if both_ways:
        # The config counts a window that looks both ways from end to end.
        windows = [None if window is None else window // 2 + 1 for window in windows]
    c.expect("attn_logit_softcapping", None)  # transformers does not apply it either
    for field in ("hidden_act", "cache_implementation", "sliding_window_pattern"):
        c.get(field, None)  # left over in published configs; layer_types has the pattern

    def attention(i: int, name: str) -> Attention:
        return replace(
            like.attention(c, name, rotary[types[i]]),
            scale=scale,
            causal=not both_ways,
            window=windows[i],
            q_norm=gemma.norm(c, f"{name}.self_attn.q_norm"),
            k_norm=gemma.norm(c, f"{name}.self_attn.k_norm"),
        )

    return gemma.sandwich_network(c, "Gemma3TextModel", attention)


_TINY = like.tiny(
    head_dim=8,
    query_pre_attn_scalar=12,
    sliding_window=4,
    layer_types=["sliding_attention", "full_attention", "sliding_attention"],
)


def _rope(full: str) -> dict:
    return {
        "sliding_attention": like.rope(rope_theta=100.0),
        "full_attention": like.rope(full, rope_theta=1000.0),
    }


architectures.register("gemma3_text")(
    Architecture(
        read,
        tiny={
            "short window, two bases": Tiny(
                "Gemma3ForCausalLM", _TINY | {"rope_parameters": _rope("default")}
            ),
            "base model": Tiny("Gemma3TextModel", _TINY),
            "global rope linear": Tiny(
                "Gemma3ForCausalLM", _TINY | {"rope_parameters": _rope("linear")}
            ),
            "one key head, biases, soft-cap": Tiny(
                "Gemma3ForCausalLM",
                _TINY
                | {
                    "num_key_value_heads": 1,
                    "attention_bias": True,
                    "final_logit_softcapping": 3.0,
                },
            ),
            "full heads, untied, windows only": Tiny(
                "Gemma3ForCausalLM",
                _TINY
                | {"num_key_value_heads": 4, "tie_word_embeddings": False, "layer_types": None},
            ),
            "both ways": Tiny("Gemma3TextModel", _TINY | {"use_bidirectional_attention": True}),
        },
        wrong={"query_pre_attn_scalar": 48},
        needs_bos=True,
        gguf="gemma3",
    )
)
