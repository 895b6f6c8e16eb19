"""What Llama and its descendants share: tensor names, grouped rotary heads, gated MLP, RMSNorm.

Each function builds one plain Llama record. A family's own file changes what differs with
`dataclasses.replace` and puts the branches in its own order, so that the differences between
families stand in their files, not in switches here.
"""

from collections.abc import Callable, Mapping
from typing import Any

from unweave.errors import UnweaveError
from unweave.model.architectures import _decoder as decoder
from unweave.model.architectures import _tiny
from unweave.model.architectures._tiny import rope as rope
from unweave.model.checkpoint import Checkpoint, Tiny
from unweave.model.positions import rotary_of
from unweave.model.weights import Attention, Block, Embedding, Mlp, Network, Norm, Rotary


def head_shape(c: Checkpoint) -> tuple[int, int, int]:
    """Query heads, key-value heads and d_head."""
    heads, d_model = c.get("num_attention_heads"), c.get("hidden_size")
    d_head = c.get("head_dim", None) or d_model // heads
    return heads, c.get("num_key_value_heads", None) or heads, d_head


def rotary(c: Checkpoint, layer_type: str | None = None) -> Rotary:
    """The rotary record; where each layer type has its own parameters, that of one type.

    Call it once and share the record: the program builds one table per record.
    """
    parameters = c.get("rope_parameters")
    if layer_type is not None:
        parameters = parameters[layer_type]
    return rotary_of(parameters, head_shape(c)[2], c.get("max_position_embeddings", None))


def layer_types(c: Checkpoint) -> list[str]:
    """Which layers attend to everything before them and which to a window, checked."""
    types = c.get("layer_types")
    for kind in types:
        if kind not in ("full_attention", "sliding_attention"):
            raise UnweaveError(
                f"layer_types holds {kind!r}, which {c.model_class} does not support: "
                "expected full_attention or sliding_attention"
            )
    return types


def windows(c: Checkpoint) -> list[int | None]:
    """The attention window of every layer; None where a layer sees everything."""
    window = c.get("sliding_window")
    return [window if kind == "sliding_attention" else None for kind in layer_types(c)]


def norm(c: Checkpoint, name: str) -> Norm:
    return c.norm(name, "rms", c.get("rms_norm_eps"))


def attention(c: Checkpoint, name: str, table: Rotary) -> Attention:
    """`name` is the block's prefix; biases are taken where the checkpoint has them."""
    c.get("attention_bias", None)  # visible from the tensors themselves
    heads, kv_heads, d_head = head_shape(c)
    parts = ("q_proj", "k_proj", "v_proj", "o_proj")
    projections = decoder.projections(c, f"{name}.self_attn", *parts)
    return decoder.attention(projections, heads, d_head, kv_heads, rotary=table)


def mlp(c: Checkpoint, name: str, activation: str = "hidden_act") -> Mlp:
    """`activation` is the config field that names the nonlinearity."""
    for field in ("intermediate_size", "mlp_bias"):
        c.get(field, None)  # visible from the tensors themselves
    return Mlp(
        c.linear(f"{name}.mlp.up_proj"),
        c.linear(f"{name}.mlp.down_proj"),
        c.activation(activation),
        gate=c.linear(f"{name}.mlp.gate_proj"),
    )


def pre_norm_block(c: Checkpoint, name: str, attention: Attention, mlp: Mlp) -> Block:
    """Llama's order; despite its tensor's name the second norm stands before the MLP."""
    norms = [norm(c, f"{name}.{part}") for part in ("input_layernorm", "post_attention_layernorm")]
    return decoder.pre_norm_block(attention, mlp, norms)


def network(c: Checkpoint, base_class: str, block: Callable[[int, str], Block]) -> Network:
    """Embedding, blocks, final norm and, unless the checkpoint is the base model, the head.

    Args:
        c: The checkpoint.
        base_class: The transformers class without a head ("LlamaModel").
        block: Reads one block, given its index and the prefix of its tensors.
    """
    root = c.root("model.")
    embedding = Embedding(c.tensor(f"{root}embed_tokens.weight"))
    blocks = (block(i, f"{root}layers.{i}") for i in range(c.get("num_hidden_layers")))
    return decoder.language_model(c, base_class, embedding, blocks, norm(c, f"{root}norm"))


def variants(prefix: str, changes: Mapping[str, dict[str, Any]], **fields: Any) -> dict[str, Tiny]:
    """What the checks of a family with grouped heads run on: those of every one, and its own.

    Args:
        prefix: Of the transformers classes ("Llama").
        changes: What each variant of its own changes in the tiny config.
        fields: What all of them change.
    """
    tied = {"num_key_value_heads": 4, "tie_word_embeddings": True}
    every = {"grouped heads": {}, "full heads, tied": tied, **changes}
    return _tiny.decoder_variants(prefix, tiny(**fields), every)


def ropes(*kinds: str) -> dict[str, dict[str, Any]]:
    """Variants with these scalings of rotary positions."""
    return {f"rope {kind}": {"rope_parameters": rope(kind)} for kind in kinds}


def tiny(**fields: Any) -> dict[str, Any]:
    """A tiny config with grouped heads, with changes."""
    return _tiny.tiny(**{"num_key_value_heads": 2} | fields)
