"""The operations that the forward program is written in, and their plain meaning on tensors.

The program (`program.py`) is written once over an `Algebra[V]`. `Plain` computes on tensors;
other algebras carry a relevant part along, or replace activations at named points.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from unweave.model.products import linear
from unweave.model.weights import Activation, Attention, Linear, Norm
from unweave.sites import Point, StackName

V = TypeVar("V")


@dataclass(frozen=True, eq=False)
class Scoring:
    """What turns queries and keys into an attention pattern.

    `pattern = softmax(mask(cap(scale · q·k) + bias))`
    """

    scale: float
    mask: Bool[Tensor, "#batch 1 query key"]
    bias: Float[Tensor, "#batch head query key"] | None = None
    softcap: float | None = None

    def only(self, heads: Sequence[int]) -> "Scoring":
        """The scoring of some heads."""
        return replace(self, bias=None if self.bias is None else self.bias[:, list(heads)])


@dataclass(frozen=True, eq=False)
class RotaryTable:
    """cos and sin at every position; see `Rotary`."""

    cos: Float[Tensor, "batch position half"]
    sin: Float[Tensor, "batch position half"]
    interleaved: bool


@runtime_checkable
class Algebra(Protocol[V]):
    """The operations of a transformer over values V.

    `place` names the operation within its block ("mlp.in"), so that a rule set can treat places
    differently and an error can name one.
    """

    def constant(self, x: Tensor) -> V:
        """A value that no source reaches: the embedding."""
        ...

    def linear(self, x: V, w: Linear, place: str) -> V: ...
    def norm(self, x: V, w: Norm, place: str) -> V: ...
    def activation(self, x: V, f: Activation, place: str) -> V: ...
    def gate(self, gate: V, up: V, f: Activation, place: str) -> V:
        """`f(gate) · up`"""
        ...

    def add(self, x: V, y: V, place: str) -> V: ...
    def scale(self, x: V, factor: float) -> V: ...
    def split_heads(self, x: V, heads: int) -> V:
        """[…, heads·d] → […, heads, d]"""
        ...

    def merge_heads(self, x: V) -> V: ...
    def rotate(self, x: V, table: RotaryTable) -> V: ...
    def attend(self, q: V, k: V, v: V, scoring: Scoring) -> V: ...
    def first(self, x: V) -> V:
        """Keeps the first position."""
        ...

    def cut(self, x: V) -> V:
        """Past the last use of other positions: keeps those that are read."""
        ...

    def needed_heads(self, w: Attention, layer: int, stack: StackName) -> tuple[int, ...] | None:
        """The heads of an attention whose z has to be computed; None for all of them."""
        ...

    def complete(self, z: V | None, heads: tuple[int, ...], w: Attention, x: V, point: Point) -> V:
        """The output of an attention of which only some heads were computed.

        Args:
            z: Of these heads; None where there are none.
            w: The record of all heads.
            x: What it reads, at the positions of z.
        """
        ...

    def at(self, x: V, point: Point) -> V:
        """A named point, where an algebra may read or replace the value."""
        ...


def activate(x: Float[Tensor, "*shape"], f: Activation) -> Float[Tensor, "*shape"]:
    """The nonlinearity itself."""
    match f.name:
        case "gelu":
            return functional.gelu(x)
        case "gelu_tanh":
            if f.parameter is None:
                return functional.gelu(x, approximate="tanh")
            return 0.5 * x * (1 + torch.tanh(f.parameter * x * (1 + 0.044715 * x * x)))
        case "quick_gelu":
            return x * torch.sigmoid(1.702 * x)
        case "relu":
            return functional.relu(x)
        case "silu":
            return functional.silu(x)
        case "tanh":
            return torch.tanh(x)
        case "solu":
            return x * torch.softmax(x, dim=-1)
        case "softcap":
            assert f.parameter is not None
            return f.parameter * torch.tanh(x / f.parameter)


def normalise(x: Float[Tensor, "*shape d"], w: Norm) -> Float[Tensor, "*shape d"]:
    """LayerNorm `(x − mean)/√(var + ε)·g + b`, or RMSNorm `x/√(mean x² + ε)·g`.

    The mean square of half-precision inputs is taken in float32, as transformers does.
    """
    gain = w.gain
    if w.kind == "layer":
        return functional.layer_norm(x, x.shape[-1:], gain, w.bias, w.eps)
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    scaled = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + w.eps)).to(x.dtype)
    scaled = scaled if gain is None else scaled * gain
    return scaled if w.bias is None else scaled + w.bias


def rotate_pairs(
    x: Float[Tensor, "*lead position head d_head"], table: RotaryTable
) -> Float[Tensor, "*lead position head d_head"]:
    """Turns each pair of dimensions by its position's angle; dimensions past them stay."""
    half = table.cos.shape[-1]
    cos, sin = table.cos.unsqueeze(-2), table.sin.unsqueeze(-2)
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    if table.interleaved:
        a, b = turned[..., ::2], turned[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    else:
        a, b = turned[..., :half], turned[..., half:]
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    return torch.cat((turned, rest), -1) if rest.shape[-1] else turned


def attention_scores(
    q: Float[Tensor, "*lead query head d_head"], k: Float[Tensor, "*lead key kv_head d_head"]
) -> Float[Tensor, "*lead head query key"]:
    """q·k for every head; a key head serves its whole group of query heads."""
    kv_heads, group = k.shape[-2], q.shape[-2] // k.shape[-2]
    queries = q.transpose(-3, -2).unflatten(-3, (kv_heads, group)).flatten(-3, -2)
    scores = queries @ k.transpose(-3, -2).transpose(-2, -1)
    return scores.unflatten(-2, (group, q.shape[-3])).flatten(-4, -3)


def attention_mix(
    pattern: Float[Tensor, "*lead head query key"], v: Float[Tensor, "*lead key kv_head d_head"]
) -> Float[Tensor, "*lead query head d_head"]:
    """Σ_key pattern · v for every head."""
    heads, queries = pattern.shape[-3], pattern.shape[-2]
    kv_heads, group = v.shape[-2], heads // v.shape[-2]
    grouped = pattern.unflatten(-3, (kv_heads, group)).flatten(-3, -2)
    mixed = grouped @ v.transpose(-3, -2)
    return mixed.unflatten(-2, (group, queries)).flatten(-4, -3).transpose(-3, -2)


def masked_scores(
    scores: Float[Tensor, "*lead head query key"], scoring: Scoring
) -> Float[Tensor, "*lead head query key"]:
    """`mask(cap(scale·scores) + bias)` of raw q·k scores: what the softmax is taken of."""
    scores = scores * scoring.scale
    if scoring.softcap is not None:
        scores = activate(scores, Activation("softcap", scoring.softcap))
    if scoring.bias is not None:
        scores = scores + scoring.bias
    # A finite floor: a query that sees no key (left padding) must not turn into NaN.
    return scores.masked_fill(~scoring.mask, torch.finfo(scores.dtype).min)


def pattern_of(
    scores: Float[Tensor, "*lead head query key"], scoring: Scoring
) -> Float[Tensor, "*lead head query key"]:
    """`softmax(mask(cap(scale·scores) + bias))` of raw q·k scores."""
    return masked_scores(scores, scoring).softmax(-1)


class AllHeads(Generic[V]):
    """What an algebra that computes every head of an attention has in common."""

    def needed_heads(self, w: Attention, layer: int, stack: StackName) -> tuple[int, ...] | None:
        return None

    def complete(self, z: V | None, heads: tuple[int, ...], w: Attention, x: V, point: Point) -> V:
        raise NotImplementedError  # nothing is missing


class Plain(AllHeads[Tensor]):
    """Ordinary tensors: `run(network, inputs, Plain())` is the model's forward pass."""

    def constant(self, x: Tensor) -> Tensor:
        return x

    def linear(self, x: Tensor, w: Linear, place: str) -> Tensor:
        return linear(x, w.matrix, w.offset)

    def norm(self, x: Tensor, w: Norm, place: str) -> Tensor:
        return normalise(x, w)

    def activation(self, x: Tensor, f: Activation, place: str) -> Tensor:
        return activate(x, f)

    def gate(self, gate: Tensor, up: Tensor, f: Activation, place: str) -> Tensor:
        return activate(gate, f) * up

    def add(self, x: Tensor, y: Tensor, place: str) -> Tensor:
        return x + y

    def scale(self, x: Tensor, factor: float) -> Tensor:
        return x * factor

    def split_heads(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, -1))

    def merge_heads(self, x: Tensor) -> Tensor:
        return x.flatten(-2)

    def rotate(self, x: Tensor, table: RotaryTable) -> Tensor:
        return rotate_pairs(x, table)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        if scoring.softcap is not None:
            return attention_mix(pattern_of(attention_scores(q, k), scoring), v)
        mask = scoring.mask
        if scoring.bias is not None:
            mask = scoring.bias.masked_fill(~mask, torch.finfo(q.dtype).min)
        z = functional.scaled_dot_product_attention(
            q.transpose(-3, -2),
            k.transpose(-3, -2),
            v.transpose(-3, -2),
            attn_mask=mask,
            scale=scoring.scale,
            enable_gqa=q.shape[-2] != k.shape[-2],
        )
        return z.transpose(-3, -2)

    def first(self, x: Tensor) -> Tensor:
        return x[..., :1, :]

    def cut(self, x: Tensor) -> Tensor:
        return x

    def at(self, x: Tensor, point: Point) -> Tensor:
        return x
