"""A transformer as data: frozen records of the checkpoint's own tensors.

Every tensor is a view of the checkpoint, never a copy and never changed. What an architecture
does is said by which records it fills in, and in which order; the program only follows them.

Records compare and hash by identity (`eq=False`), since tensors have no cheap equality.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float32
from torch import Tensor

ActivationName = Literal[
    "gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "tanh", "solu", "softcap"
]


@runtime_checkable
class WeightWindow(Protocol):
    """What gives matrices that are stored in another dtype or on another device (`window.py`)."""

    dtype: torch.dtype
    device: torch.device

    @property
    def bytes(self) -> int:
        """What it holds at most."""
        ...

    def get(self, stored: Tensor) -> Tensor:
        """A matrix as the network computes with it."""
        ...

    def has_halves(self, stored: Tensor) -> bool:
        """Whether `twice` gives all of a matrix."""
        ...

    def twice(self, stored: Tensor) -> Tensor:
        """[W, W] as it is stored: the factor of an input that was cut into two halves."""
        ...


@dataclass(frozen=True, eq=False)
class Linear:
    """`x Wᵀ + b`. The output axes may be several (head, d_head) where the checkpoint interleaves
    them, so that a fused tensor stays a view; `matrix` and `offset` flatten them."""

    weight: Float[Tensor, "*out d_in"]
    bias: Float[Tensor, "*out"] | None = None
    window: WeightWindow | None = None

    @property
    def matrix(self) -> Float[Tensor, "d_out d_in"]:
        stored = self.weight if self.window is None else self.window.get(self.weight)
        return stored.flatten(0, -2)

    @property
    def offset(self) -> Float[Tensor, " d_out"] | None:
        return None if self.bias is None else self.bias.flatten()

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs, known without the numbers."""
        return self.weight.shape[:-1].numel(), self.weight.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        return self.weight.dtype if self.window is None else self.window.dtype

    def rows(self, index: Tensor) -> "Linear":
        """Keeps only some outputs: the logit columns that a metric reads."""
        offset, own = self.offset, self.weight.flatten(0, -2)[index.to(self.weight.device)]
        if self.window is not None:
            own = own.to(self.window.device, self.window.dtype)
        return Linear(own, None if offset is None else offset[index.to(offset.device)])


@dataclass(frozen=True, eq=False)
class Norm:
    """LayerNorm or RMSNorm; the scale is `weight + shift` (Gemma stores weight − 1: shift 1)."""

    kind: Literal["layer", "rms"]
    eps: float
    weight: Float[Tensor, " d"] | None = None
    bias: Float[Tensor, " d"] | None = None
    shift: float = 0.0

    @property
    def gain(self) -> Float[Tensor, " d"] | None:
        if self.weight is None or self.shift == 0.0:
            return self.weight
        return self.weight + self.shift


@dataclass(frozen=True, eq=False)
class Activation:
    """A nonlinearity; `parameter` is the cap of `softcap`, c·tanh(x/c), or how a checkpoint's code
    rounds the √(2/π) of `gelu_tanh` (BLOOM)."""

    name: ActivationName
    parameter: float | None = None


@dataclass(frozen=True, eq=False)
class Rotary:
    """Rotary positions of the first `2·len(inverse_frequencies)` dimensions of a head.

    Args:
        inverse_frequencies: One per rotated pair, kept in float32 as transformers computes them.
        factor: Multiplies cos and sin (yarn's attention factor).
        interleaved: Pairs are (2i, 2i+1) as in GPT-J, instead of (i, i + half).
    """

    inverse_frequencies: Float32[Tensor, " half"]
    factor: float = 1.0
    interleaved: bool = False


@dataclass(frozen=True, eq=False)
class Alibi:
    """Score bias −slope·distance per head (BLOOM)."""

    slopes: Float[Tensor, " head"]


@dataclass(frozen=True, eq=False)
class RelativeBias:
    """Learned score bias per bucketed distance and head (T5, MPNet)."""

    table: Float[Tensor, "bucket head"]
    max_distance: int
    bidirectional: bool


@dataclass(frozen=True, eq=False)
class Attention:
    """Multi-head attention; `kv_heads < heads` is grouped-query attention.

    A query or key norm over `d_head` acts per head, one over all heads acts before the split.
    """

    q: Linear
    k: Linear
    v: Linear
    out: Linear
    heads: int
    kv_heads: int
    d_head: int
    scale: float
    causal: bool
    cross: bool = False
    window: int | None = None
    softcap: float | None = None
    rotary: Rotary | None = None
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    bias: Alibi | RelativeBias | None = None

    @property
    def by_head(self) -> bool:
        """Whether heads do not see each other before they are added up."""
        norms = [norm for norm in (self.q_norm, self.k_norm) if norm is not None]
        return all(n.weight is not None and len(n.weight) == self.d_head for n in norms)

    def only(self, heads: Sequence[int]) -> "Attention":
        """The record of some heads, in ascending order; those that share a key keep it.

        The bias of the output projection belongs to no head and is left out.
        """
        shared = [head // (self.heads // self.kv_heads) for head in heads]
        keys = sorted(set(shared))
        if len({shared.count(key) for key in keys}) > 1:
            keys = shared  # a group of another size than the others: each head has its own key

        def index(units: Sequence[int]) -> Tensor:
            return (
                torch.tensor(units)[:, None] * self.d_head + torch.arange(self.d_head)
            ).flatten()

        matrix = self.out.matrix
        return replace(
            self,
            q=self.q.rows(index(heads)),
            k=self.k.rows(index(keys)),
            v=self.v.rows(index(keys)),
            out=Linear(matrix[:, index(heads).to(matrix.device)]),
            heads=len(heads),
            kv_heads=len(keys),
        )


@dataclass(frozen=True, eq=False)
class Mlp:
    """`out(f(inp(x)))`, or `out(f(gate(x)) · inp(x))` with a gate; `norm` acts on the hidden
    neurons (SoLU models)."""

    inp: Linear
    out: Linear
    activation: Activation
    gate: Linear | None = None
    norm: Norm | None = None


@dataclass(frozen=True, eq=False)
class Branch:
    """One residual branch: `x ← after(x + post(body(pre(x))))`, each norm optional."""

    body: Attention | Mlp
    pre: Norm | None = None
    post: Norm | None = None
    after: Norm | None = None


@dataclass(frozen=True, eq=False)
class Block:
    """Branches in order; with `parallel` they all read the block's input and are summed."""

    branches: tuple[Branch, ...]
    parallel: bool = False

    @property
    def attention(self) -> Attention:
        """The self-attention of the block."""
        return next(b for b in self._bodies(Attention) if not b.cross)

    @property
    def mlp(self) -> Mlp | None:
        return next(self._bodies(Mlp), None)

    @property
    def cross(self) -> Attention | None:
        return next((b for b in self._bodies(Attention) if b.cross), None)

    def _bodies(self, kind: type) -> Iterator[Any]:
        return (branch.body for branch in self.branches if isinstance(branch.body, kind))


@dataclass(frozen=True, eq=False)
class Patches:
    """An image cut in squares, each projected, after a learned class token (ViT)."""

    projection: Linear
    size: int
    class_token: Float[Tensor, " d_model"]


@dataclass(frozen=True, eq=False)
class Embedding:
    """`projection(norm(token_projection(tokens·scale) + positions + types))`.

    Learned positions are looked up at `position + position_offset`.

    Args:
        dtype: In which rows of the token table are used; None for the table's own.
    """

    tokens: Float[Tensor, "vocab d_token"] | None = None
    scale: float = 1.0
    token_projection: Linear | None = None
    positions: Float[Tensor, "max_position d"] | None = None
    position_offset: int = 0
    types: Float[Tensor, "type d"] | None = None
    norm: Norm | None = None
    projection: Linear | None = None
    patches: Patches | None = None
    dtype: torch.dtype | None = None


@dataclass(frozen=True, eq=False)
class Stack:
    """Embedding, blocks and final norm of one encoder or decoder."""

    embedding: Embedding
    blocks: tuple[Block, ...]
    norm: Norm | None = None


@dataclass(frozen=True, eq=False)
class Head:
    """What turns the last hidden states into the output.

    Args:
        steps: Applied in order; the last linear map gives the logits.
        first: Read only the first position (classifiers on [CLS]).
        labels: Class names of a classifier.
    """

    steps: "tuple[Linear | Norm | Activation | float, ...]" = ()
    first: bool = False
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Network:
    """A whole transformer. `encoder` is set for encoder-decoders, whose `body` is the decoder;
    `window` where weights are stored in another dtype or elsewhere than it computes."""

    body: Stack
    head: Head = field(default_factory=Head)
    encoder: Stack | None = None
    window: WeightWindow | None = None

    @property
    def dtype(self) -> torch.dtype:
        return next(tensors(self)).dtype if self.window is None else self.window.dtype

    @property
    def device(self) -> torch.device:
        return next(tensors(self)).device if self.window is None else self.window.device

    def to(self, target: torch.dtype | torch.device) -> "Network":
        """A converted network; rotary frequencies and relative tables keep their meaning."""
        return _converted(self, target, {})


def tensors(record: object) -> Iterator[Tensor]:
    """Every weight tensor below a record (rotary frequencies and ALiBi's slopes are none)."""
    if isinstance(record, Tensor):
        yield record
    elif isinstance(record, tuple):
        for item in record:
            yield from tensors(item)
    elif is_dataclass(record) and not isinstance(record, Rotary | Alibi):
        for spec in fields(record):
            yield from tensors(getattr(record, spec.name))


def _converted(record: Any, target: torch.dtype | torch.device, done: dict[int, Any]) -> Any:
    # `done` keeps shared records shared: one rotary table, tied embeddings.
    if id(record) in done:
        return done[id(record)]
    if isinstance(record, Rotary | Alibi) and isinstance(target, torch.dtype):
        result = record
    elif isinstance(record, Tensor):
        result = record.to(target)
    elif isinstance(record, tuple):
        result = tuple(_converted(item, target, done) for item in record)
    elif is_dataclass(record) and not isinstance(record, type):
        changes = {
            f.name: _converted(getattr(record, f.name), target, done) for f in fields(record)
        }
        result = replace(record, **changes)
    else:
        return record
    done[id(record)] = result
    return result
