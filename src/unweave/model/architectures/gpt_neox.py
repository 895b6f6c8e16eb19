"""GPT-NeoX (Pythia): parallel branches with a norm each, fused qkv head by head, partial rotary."""

from unweave.model.architectures import _decoder as decoder
from unweave.model.architectures import _tiny
from unweave.model.checkpoint import Architecture, Checkpoint, architectures
from unweave.model.weights import Block, Embedding, Mlp, Network


def read(c: Checkpoint) -> Network:
    root = c.root("gpt_neox.")
    heads, d_model = c.get("num_attention_heads"), c.get("hidden_size")
    d_head = d_model // heads
    eps, activation = c.get("layer_norm_eps"), c.activation("hidden_act")
    parallel = c.get("use_parallel_residual")
    for field in ("intermediate_size", "attention_bias"):
        c.get(field, None)  # visible from the tensors themselves
    rotary = decoder.partial_rotary(c, d_head)
    c.skip(r".*\.attention\.((masked_)?bias|rotary_emb\.inv_freq)")

    def block(i: int) -> Block:
        name = f"{root}layers.{i}"
        projections = (
            *c.interleaved(f"{name}.attention.query_key_value", heads),
            c.linear(f"{name}.attention.dense"),
        )
        attention = decoder.attention(projections, heads, d_head, rotary=rotary)
        inp, out = decoder.projections(c, f"{name}.mlp", "dense_h_to_4h", "dense_4h_to_h")
        norms = [
            c.norm(f"{name}.{part}", "layer", eps)
            for part in ("input_layernorm", "post_attention_layernorm")
        ]
        return decoder.pre_norm_block(attention, Mlp(inp, out, activation), norms, parallel)

    embedding = Embedding(c.tensor(f"{root}embed_in.weight"))
    blocks = map(block, range(c.get("num_hidden_layers")))
    norm = c.norm(f"{root}final_layer_norm", "layer", eps)
    # Published files call the head embed_out; transformers renames it while loading.
    unembed = "embed_out" if c.has("embed_out.weight") else "lm_head"
    return decoder.language_model(c, "GPTNeoXModel", embedding, blocks, norm, unembed)


_TINY = _tiny.tiny(hidden_size=32, **_tiny.HALF_ROTARY)
_VARIANTS = {
    "parallel": {},
    "sequential": {"use_parallel_residual": False},
    "no attention bias, tied": {"attention_bias": False, "tie_word_embeddings": True},
    "rope full, linear": _tiny.FULL_LINEAR,
}
architectures.register("gpt_neox")(
    Architecture(
        read, tiny=_tiny.decoder_variants("GPTNeoX", _TINY, _VARIANTS), wrong=_tiny.OTHER_BASE
    )
)
