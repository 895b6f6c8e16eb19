"""The only forward pass: a transformer's records, followed in any algebra.

A run is a sequence of stages (embed, each block, final norm, head), each a function from stream
to stream. `run` folds over them; the decomposition engine drives them one by one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from unweave.cost import spend
from unweave.model.algebra import Algebra, Plain, RotaryTable, Scoring, V, normalise
from unweave.model.positions import Context, prepare, token_positions
from unweave.model.products import linear
from unweave.model.weights import (
    Activation,
    Attention,
    Block,
    Embedding,
    Head,
    Linear,
    Mlp,
    Network,
    Norm,
    Stack,
)
from unweave.sites import Point, StackName, head_point


@dataclass(frozen=True, eq=False)
class Inputs:
    """One batch of inputs, padded to one length.

    Args:
        mask: True at real tokens.
        types: Token types (BERT's segments); None means all 0.
        pixels: Images instead of tokens (ViT).
        decoder: The decoder's side of an encoder-decoder.
    """

    mask: Bool[Tensor, "batch position"]
    tokens: Int[Tensor, "batch position"] | None = None
    types: Int[Tensor, "batch position"] | None = None
    pixels: Float[Tensor, "batch channel height width"] | None = None
    decoder: "Inputs | None" = None

    def select(self, examples: slice | Int[Tensor, " n"]) -> "Inputs":
        """A part of the batch."""

        def pick(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[examples]

        return Inputs(
            self.mask[examples],
            pick(self.tokens),
            pick(self.types),
            pick(self.pixels),
            None if self.decoder is None else self.decoder.select(examples),
        )


@dataclass(frozen=True, eq=False)
class Stream(Generic[V]):
    """What one stage hands to the next: the residual stream, and the encoder's output.

    Args:
        cut: Whether the stream holds only the positions that are read.
    """

    x: V
    memory: V | None = None
    cut: bool = False


@dataclass(frozen=True, eq=False)
class Stage(Generic[V]):
    """One step of a run; `layer` is set for blocks, `last` for the last block."""

    name: str
    apply: "Callable[[Algebra[V], Stream[V] | None], Stream[V]]"
    layer: int | None = None
    stack: StackName = ""
    last: bool = False


def run(network: Network, inputs: Inputs, ops: Algebra[V]) -> V:
    """The forward pass: logits of a language model, class scores, or hidden states."""
    stream: Stream[V] | None = None
    for stage in stages(network, inputs):
        stream = stage.apply(ops, stream)
    assert stream is not None
    return stream.x


def logits(network: Network, inputs: Inputs) -> Float[Tensor, "batch position out"]:
    """The plain forward pass, without gradients."""
    with torch.no_grad():
        return run(network, inputs, Plain())


def stages(network: Network, inputs: Inputs) -> list[Stage]:
    """The run as a list of steps, masks and tables prepared."""
    if network.encoder is None:
        body = _stack_stages(network.body, inputs, "", None, last=True)
    else:
        if inputs.decoder is None:
            raise ValueError("an encoder-decoder needs Inputs.decoder")
        body = [
            *_stack_stages(network.encoder, inputs, "enc", None, last=False),
            *_stack_stages(network.body, inputs.decoder, "", inputs.mask, last=True),
        ]

    def end(ops: Algebra[V], stream: Stream[V] | None) -> Stream[V]:
        assert stream is not None
        return replace(stream, x=head(ops, network.head, stream.x))

    return [*body, Stage("head", end)]


def _stack_stages(
    stack: Stack,
    inputs: Inputs,
    name: StackName,
    memory_mask: Bool[Tensor, "batch memory"] | None,
    last: bool,
) -> list[Stage]:
    context = prepare(stack, inputs.mask, _dtype(stack), memory_mask)
    prefix = "enc." if name else ""

    def start(ops: Algebra[V], stream: Stream[V] | None) -> Stream[V]:
        x = ops.at(ops.constant(embed(stack.embedding, inputs)), Point("embed", 0, name))
        # A decoder's stream begins with what the encoder left in x.
        return Stream(x, None if stream is None else stream.x)

    def at_block(i: int) -> Callable:
        def apply(ops: Algebra[V], stream: Stream[V]) -> Stream[V]:
            stream = replace(stream, x=ops.at(stream.x, Point("resid", i, name)))
            if last and not stream.cut and _only_read(ops, stack, i, name):
                stream = replace(stream, x=ops.cut(stream.x), cut=True)
            return block(ops, stack.blocks[i], stream, context, i, name, last_block=i == end)

        return apply

    def finish(ops: Algebra[V], stream: Stream[V] | None) -> Stream[V]:
        assert stream is not None
        x = ops.at(stream.x, Point("resid", len(stack.blocks), name))
        return replace(stream, x=x if stack.norm is None else ops.norm(x, stack.norm, "final"))

    end = len(stack.blocks) - 1 if last else -1
    return [
        Stage(f"{prefix}embed", start, stack=name),
        *(
            Stage(f"{prefix}block {i}", at_block(i), i, name, last=i == end)
            for i in range(len(stack.blocks))
        ),
        Stage(f"{prefix}final", finish, stack=name),
    ]


def _only_read(ops: Algebra[V], stack: Stack, layer: int, name: StackName) -> bool:
    """Whether no head from a layer on is computed: only what is read there is used any more."""
    later = (
        ops.needed_heads(branch.body, i, name)
        for i in reversed(range(layer, len(stack.blocks)))
        for branch in stack.blocks[i].branches
        if isinstance(branch.body, Attention)
    )
    return all(heads == () for heads in later)


def block(
    ops: Algebra[V],
    w: Block,
    stream: Stream[V],
    context: Context,
    layer: int,
    stack: StackName,
    last_block: bool,
) -> Stream[V]:
    """`x ← after(x + post(body(pre(x))))` for each branch, or all branches from one x."""
    spend(_tokens(stream.x))
    x = entry = stream.x
    # Other positions are last used as keys and values of the last attention of the last block.
    uncut = sum(isinstance(b.body, Attention) for b in w.branches) if last_block else 0
    is_cut = stream.cut
    for branch in w.branches:
        source = entry if w.parallel else x
        if isinstance(branch.body, Attention):
            uncut -= 1
            cuts = last_block and uncut == 0 and not is_cut
            y = source if branch.pre is None else ops.norm(source, branch.pre, "attention.pre")
            memory = stream.memory if branch.body.cross else y
            assert memory is not None
            y = attention(ops, branch.body, y, memory, context, layer, stack, cuts)
            if cuts:
                x, is_cut = ops.cut(x), True
            place = "attention"
        else:
            if w.parallel and is_cut and not stream.cut:
                source = ops.cut(source)
            y = source if branch.pre is None else ops.norm(source, branch.pre, "mlp.pre")
            y = mlp(ops, branch.body, y, layer, stack)
            place = "mlp"
        if branch.post is not None:
            y = ops.norm(y, branch.post, f"{place}.post")
        if place == "mlp":
            y = ops.at(y, Point("mlp", layer, stack))
        x = ops.add(x, y, f"{place}.add")
        if branch.after is not None:
            x = ops.norm(x, branch.after, f"{place}.after")
    return replace(stream, x=x, cut=is_cut)


def _tokens(x: object) -> int:
    """Rows of an activation; of a split the relevant parts only: totals are a run of their own."""
    values = getattr(x, "rel", x)
    return values.shape[:-1].numel() if isinstance(values, Tensor) else 0


def attention(
    ops: Algebra[V],
    w: Attention,
    x: V,
    memory: V,
    context: Context,
    layer: int,
    stack: StackName,
    cuts: bool,
) -> V:
    """q, k, v → pattern → z → output projection; keys and values come from `memory`."""

    heads, point = ops.needed_heads(w, layer, stack), head_point("z", layer, stack, w.cross)
    if heads is None:
        z = ops.at(_mixed(ops, w, x, memory, context, context.scorings[w], layer, stack), point)
        if cuts:
            z = ops.cut(z)
        return ops.linear(ops.merge_heads(z), w.out, "attention.out")
    z = None
    if heads:
        some, scoring = w.only(heads), context.scorings[w].only(heads)
        z = _mixed(ops, some, x, memory, context, scoring, layer, stack)
    if cuts:
        z, x = None if z is None else ops.cut(z), ops.cut(x)
    return ops.complete(z, heads, w, x, point)


def _mixed(
    ops: Algebra[V],
    w: Attention,
    x: V,
    memory: V,
    context: Context,
    scoring: Scoring,
    layer: int,
    stack: StackName,
) -> V:
    """z: what each head mixes from the values of its keys."""

    def point(part: str) -> Point:
        return head_point(part, layer, stack, w.cross)

    q = _project(ops, x, w.q, w.heads, w.q_norm, "attention.q", point("q"))
    k = _project(ops, memory, w.k, w.kv_heads, w.k_norm, "attention.k", point("k"))
    v = _project(ops, memory, w.v, w.kv_heads, None, "attention.v", point("v"))
    if w.rotary is not None:
        table: RotaryTable = context.rotary[w.rotary]
        q, k = ops.rotate(q, table), ops.rotate(k, table)
    return ops.attend(q, k, v, scoring)


def _project(
    ops: Algebra[V], x: V, w: Linear, heads: int, norm: Norm | None, place: str, point: Point
) -> V:
    y = ops.linear(x, w, place)
    per_head = (
        norm is not None and norm.weight is not None and len(norm.weight) * heads == w.shape[0]
    )
    if norm is not None and not per_head:
        y = ops.norm(y, norm, f"{place}.norm")
    y = ops.at(ops.split_heads(y, heads), point)
    return ops.norm(y, norm, f"{place}.norm") if norm is not None and per_head else y


def mlp(ops: Algebra[V], w: Mlp, x: V, layer: int, stack: StackName) -> V:
    """Plain or gated feed-forward layer."""
    up = ops.linear(x, w.inp, "mlp.in")
    if w.gate is None:
        hidden = ops.activation(up, w.activation, "mlp.activation")
    else:
        gate = ops.linear(x, w.gate, "mlp.gate")
        hidden = ops.gate(gate, up, w.activation, "mlp.activation")
    if w.norm is not None:
        hidden = ops.norm(hidden, w.norm, "mlp.norm")
    hidden = ops.at(hidden, Point("neuron", layer, stack))
    return ops.linear(hidden, w.out, "mlp.out")


def head(ops: Algebra[V], w: Head, x: V) -> V:
    """From the last hidden states to the output, by the head's steps."""
    if w.first:
        x = ops.first(x)
    for step in w.steps:
        if isinstance(step, Linear):
            x = ops.linear(x, step, "head")
        elif isinstance(step, Norm):
            x = ops.norm(x, step, "head")
        elif isinstance(step, Activation):
            x = ops.activation(x, step, "head")
        else:
            x = ops.scale(x, step)
    return ops.at(x, Point("logits"))


def embed(w: Embedding, inputs: Inputs) -> Float[Tensor, "batch position d_model"]:
    """Token, position and type vectors, or image patches, summed and normed."""
    if w.patches is not None:
        assert inputs.pixels is not None
        size = w.patches.size
        squares = functional.unfold(inputs.pixels, size, stride=size).transpose(1, 2)
        x = linear(squares, w.patches.projection.matrix, w.patches.projection.offset)
        x = torch.cat((w.patches.class_token.expand(len(x), 1, -1), x), 1)
    else:
        assert w.tokens is not None
        assert inputs.tokens is not None
        x = w.tokens[inputs.tokens.to(w.tokens.device)].to(inputs.mask.device, w.dtype)
        x = x if w.scale == 1.0 else x * torch.tensor(w.scale, dtype=x.dtype)
        if w.token_projection is not None:
            x = linear(x, w.token_projection.matrix, w.token_projection.offset)
    if w.types is not None:
        zeros = torch.zeros_like(inputs.mask, dtype=torch.long)
        x = x + w.types[zeros if inputs.types is None else inputs.types]
    if w.positions is not None:
        x = x + w.positions[token_positions(inputs.mask) + w.position_offset]
    x = x if w.norm is None else normalise(x, w.norm)
    if w.projection is not None:
        x = linear(x, w.projection.matrix, w.projection.offset)
    return x


def _dtype(stack: Stack) -> torch.dtype:
    return stack.blocks[0].branches[0].body.out.dtype
