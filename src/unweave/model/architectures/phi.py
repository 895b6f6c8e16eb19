"""Phi (1, 1.5, 2): attention and MLP in parallel from one norm, partial rotary, biases."""

from unweave.model.architectures import _decoder as decoder
from unweave.model.architectures import _tiny
from unweave.model.checkpoint import Architecture, Checkpoint, architectures
from unweave.model.weights import Block, Embedding, Mlp, Network


def read(c: Checkpoint) -> Network:
    root = c.root("model.")
    heads, d_model = c.get("num_attention_heads"), c.get("hidden_size")
    d_head = c.get("head_dim", None) or d_model // heads
    eps, activation = c.get("layer_norm_eps"), c.activation("hidden_act")
    c.get("intermediate_size", None)  # visible from the tensors themselves
    kv_heads, qk_norm = c.get("num_key_value_heads", None) or heads, c.get("qk_layernorm")
    rotary = decoder.partial_rotary(c, d_head)

    def block(i: int) -> Block:
        name = f"{root}layers.{i}"
        part = f"{name}.self_attn"
        attention = decoder.attention(
            decoder.projections(c, part, "q_proj", "k_proj", "v_proj", "dense"),
            heads,
            d_head,
            kv_heads,
            rotary=rotary,
            q_norm=c.norm(f"{part}.q_layernorm", "layer", eps) if qk_norm else None,
            k_norm=c.norm(f"{part}.k_layernorm", "layer", eps) if qk_norm else None,
        )
        mlp = Mlp(c.linear(f"{name}.mlp.fc1"), c.linear(f"{name}.mlp.fc2"), activation)
        return decoder.parallel_block(
            attention, mlp, c.norm(f"{name}.input_layernorm", "layer", eps)
        )

    embedding = Embedding(c.tensor(f"{root}embed_tokens.weight"))
    blocks = map(block, range(c.get("num_hidden_layers")))
    norm = c.norm(f"{root}final_layernorm", "layer", eps)
    return decoder.language_model(c, "PhiModel", embedding, blocks, norm, bias=True)


_TINY = _tiny.tiny(hidden_size=32, **_tiny.HALF_ROTARY)
_VARIANTS = {
    "full heads": {},
    "grouped heads, tied": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "query and key norms": {"qk_layernorm": True},
    "rope linear, full": _tiny.FULL_LINEAR,
}
architectures.register("phi")(
    Architecture(read, tiny=_tiny.decoder_variants("Phi", _TINY, _VARIANTS), wrong=_tiny.OTHER_BASE)
)
