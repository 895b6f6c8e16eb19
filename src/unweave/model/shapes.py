"""The shapes of a network's records, checked against each other once it is read.

transformers compares shapes with the config while it loads a folder. GGUF, ONNX and TransformerLens
files come straight to our records, where a wrong count of heads would only show inside a run.
"""

import math
from collections.abc import Iterator

from torch import Tensor

from unweave.errors import UnweaveError
from unweave.model.weights import Attention, Branch, Linear, Mlp, Network, Norm, Stack

Wanted = tuple[str, tuple[int, ...], tuple[int, ...]]  # what, found, expected


def check_shapes(network: Network) -> None:
    """Raises for the first record whose shape does not fit its neighbours."""
    for what, found, expected in _pairs(network):
        if found != expected:
            raise UnweaveError(
                f"{what} has shape {list(found)}, expected {list(expected)}: config and weights "
                "do not belong together"
            )


def _pairs(network: Network) -> Iterator[Wanted]:
    stacks = {"": network.body} | ({"enc.": network.encoder} if network.encoder else {})
    for prefix, stack in stacks.items():
        if not stack.blocks:
            raise UnweaveError(f"the model has no {prefix}layers: expected at least one")
        yield from _stack(network, stack, prefix)
    width = _rows(network.body.blocks[0].attention.out)
    for step in network.head.steps:
        if isinstance(step, Linear):
            yield from _linear("the head", step, None, width)
            width = _rows(step)
        elif isinstance(step, Norm):
            yield from _norm("the head's norm", step, width)


def _stack(network: Network, stack: Stack, prefix: str) -> Iterator[Wanted]:
    width = _rows(stack.blocks[0].attention.out)
    inner = stack.embedding
    projection = inner.projection
    entering = width if projection is None else projection.weight.shape[-1]
    if inner.tokens is not None and inner.token_projection is None:
        yield from _table(f"{prefix}embed", inner.tokens, entering)
    yield from _table(f"{prefix}positions", inner.positions, entering)
    yield from _table(f"{prefix}token types", inner.types, entering)
    if projection is not None:
        yield from _linear(f"{prefix}embed", projection, width, entering)
    memory = width
    if stack is network.body and network.encoder is not None:
        memory = _rows(network.encoder.blocks[0].attention.out)
    for layer, block in enumerate(stack.blocks):
        for branch in block.branches:
            yield from _branch(f"{prefix}block {layer}", branch, width, memory)
    yield from _norm(f"{prefix}final norm", stack.norm, width)


def _branch(name: str, branch: Branch, width: int, memory: int) -> Iterator[Wanted]:
    for norm in (branch.pre, branch.post, branch.after):
        yield from _norm(f"{name}, norm", norm, width)
    if isinstance(branch.body, Attention):
        yield from _attention(f"{name}, attention", branch.body, width, memory)
    else:
        yield from _mlp(f"{name}, mlp", branch.body, width)


def _attention(name: str, a: Attention, width: int, memory: int) -> Iterator[Wanted]:
    if min(a.heads, a.kv_heads, a.d_head) < 1 or a.heads % a.kv_heads:
        raise UnweaveError(
            f"{name}: {a.heads} heads of {a.d_head} dimensions share {a.kv_heads} key-value heads: "
            "expected positive counts, the second dividing the first"
        )
    source = memory if a.cross else width
    yield from _linear(f"{name}.q", a.q, a.heads * a.d_head, width)
    yield from _linear(f"{name}.k", a.k, a.kv_heads * a.d_head, source)
    yield from _linear(f"{name}.v", a.v, a.kv_heads * a.d_head, source)
    yield from _linear(f"{name}.out", a.out, width, a.heads * a.d_head)
    rotated = 0 if a.rotary is None else 2 * len(a.rotary.inverse_frequencies)
    if rotated > a.d_head:
        yield f"{name}, rotary positions", (rotated,), (a.d_head,)


def _mlp(name: str, mlp: Mlp, width: int) -> Iterator[Wanted]:
    hidden = _rows(mlp.inp)
    yield from _linear(f"{name}.in", mlp.inp, hidden, width)
    yield from _linear(f"{name}.out", mlp.out, width, hidden)
    if mlp.gate is not None:
        yield from _linear(f"{name}.gate", mlp.gate, hidden, width)
    yield from _norm(f"{name}, norm", mlp.norm, hidden)


def _linear(name: str, w: Linear, rows: int | None, columns: int) -> Iterator[Wanted]:
    found = (_rows(w), w.weight.shape[-1])
    yield name, found, (found[0] if rows is None else rows, columns)
    if w.bias is not None:
        yield f"{name}, bias", (w.bias.numel(),), (found[0],)


def _norm(name: str, norm: Norm | None, width: int) -> Iterator[Wanted]:
    for part in () if norm is None else (norm.weight, norm.bias):
        if part is not None:
            yield name, tuple(part.shape), (width,)


def _table(name: str, table: Tensor | None, width: int) -> Iterator[Wanted]:
    if table is not None:
        yield name, tuple(table.shape), (len(table), width)


def _rows(w: Linear) -> int:
    return math.prod(w.weight.shape[:-1])
