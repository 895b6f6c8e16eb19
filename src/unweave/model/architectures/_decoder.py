"""What the decoder families share: causal attention, pre-norm blocks, the map to the vocabulary.

Each function builds one record. A family's own file says which tensors and config fields go into
it, so that the differences between families stand in their files.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from unweave.model import weights as w
from unweave.model.architectures._encoder import vocabulary
from unweave.model.checkpoint import Checkpoint
from unweave.model.positions import rotary_of


def projections(c: Checkpoint, name: str, *parts: str) -> list[w.Linear]:
    """The linear maps `parts` below `name`."""
    return [c.linear(f"{name}.{part}") for part in parts]


def attention(
    qkvo: Iterable[w.Linear],
    heads: int,
    d_head: int,
    kv_heads: int | None = None,
    scale: float | None = None,
    **options: Any,
) -> w.Attention:
    """Causal attention of the query, key, value and output projections.

    Args:
        qkvo: The four projections.
        heads: Query heads.
        d_head: Dimensions of a head.
        kv_heads: Key-value heads; as many as query heads unless given.
        scale: Multiplies the scores; 1/√d_head unless given.
        options: Other fields of the record.
    """
    q, k, v, out = qkvo
    return w.Attention(
        q,
        k,
        v,
        out,
        heads=heads,
        kv_heads=heads if kv_heads is None else kv_heads,
        d_head=d_head,
        scale=d_head**-0.5 if scale is None else scale,
        causal=True,
        **options,
    )


def partial_rotary(c: Checkpoint, d_head: int) -> w.Rotary:
    """Rotary positions of the share of each head that `partial_rotary_factor` gives."""
    rope = c.get("rope_parameters")
    d_rotary = int(d_head * rope.get("partial_rotary_factor", 1.0))
    return rotary_of(rope, d_rotary, c.get("max_position_embeddings", None))


def pre_norm_block(
    attention: w.Attention, mlp: w.Mlp, norms: Sequence[w.Norm], parallel: bool = False
) -> w.Block:
    """Attention and MLP, each behind a norm."""
    first, second = norms
    return w.Block((w.Branch(attention, pre=first), w.Branch(mlp, pre=second)), parallel)


def parallel_block(attention: w.Attention, mlp: w.Mlp, norm: w.Norm) -> w.Block:
    """Attention and MLP side by side behind one norm."""
    return pre_norm_block(attention, mlp, (norm, norm), parallel=True)


def language_model(
    c: Checkpoint,
    base_class: str,
    embedding: w.Embedding,
    blocks: Iterable[w.Block],
    norm: w.Norm,
    unembed: str = "lm_head",
    bias: bool = False,
) -> w.Network:
    """The stack and, unless the checkpoint is the base model, the map to the vocabulary.

    Args:
        c: The checkpoint.
        base_class: The transformers class without a head ("LlamaModel").
        embedding: Its token vectors are the unembedding where the two are tied.
        blocks: In order.
        norm: The final norm.
        unembed: The name of the unembedding's tensors.
        bias: Whether the family's unembedding may have a bias.
    """
    body = w.Stack(embedding, tuple(blocks), norm)
    if c.model_class == base_class:
        return w.Network(body)
    offset = c.maybe(f"{unembed}.bias") if bias else None
    return w.Network(body, w.Head((vocabulary(c, unembed, embedding, offset),)))
