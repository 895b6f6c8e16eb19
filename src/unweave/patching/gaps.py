"""What nodes differ by from their ablation, as readers of the residual stream take it out or in.

Every reader sums some of the gaps, so they stand in one place and are never copied. autograd would
keep a copy for each reader; here a reader's backward pass adds to the gaps' own gradients, and a
token, which every write hands to the reads and writes after it, lets a write's backward pass wait
for theirs.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

Gap = Float[Tensor, "circuit source batch position d_model"]
Columns = slice | Int[Tensor, " source"]


@dataclass(eq=False)
class _Room:
    """Where gaps stand. autograd's record refers to it, so it holds nothing that refers to the
    record: the two would keep each other for ever.

    Args:
        values: Room for the gaps of all sources.
        slopes: In a backward pass, their gradients.
    """

    values: Tensor
    slopes: Tensor | None = None

    def gradient(self) -> Tensor:
        """The gradients so far, zero at the beginning of a backward pass."""
        if self.slopes is None:
            self.slopes = torch.zeros_like(self.values)
        return self.slopes


@dataclass(eq=False)
class Gaps:
    """out_u(μ) − out_u of each source u that was written so far.

    Args:
        size: How many sources there will be.
        room: Room for all of them; None before the first.
        total: Their sum so far.
        count: How many were written.
        token: What orders the backward pass.
    """

    size: int
    room: _Room | None = None
    total: Tensor | None = None
    count: int = 0
    token: Tensor | None = None

    def write(self, gap: Gap) -> None:
        """Adds the gaps of the next sources."""
        if self.room is None or self.total is None:
            self.room = _Room(gap.new_empty(len(gap), self.size, *gap.shape[2:]))
            self.total = gap.new_zeros(len(gap), *gap.shape[2:])
        self.total = self.total + gap.sum(1)
        where = slice(self.count, self.count + gap.shape[1])
        self.count = where.stop
        if torch.is_grad_enabled():
            self.token = _Write.apply(gap, self._token(gap), self.room, where)
        else:
            self.room.values[:, where] = gap

    def read(
        self, weights: Float[Tensor, "circuit *batch reader column"], columns: Columns
    ) -> Float[Tensor, "circuit reader batch position d_model"]:
        """Σ_u weight · gap_u over some sources, for each reader; weights may be each example's."""
        assert self.room is not None
        if torch.is_grad_enabled():
            return _Read.apply(weights, columns, self._token(weights), self.room)
        return weighted_sum(weights, self.room.values[:, columns])

    def cut(self, examples: Int[Tensor, "batch 1"], reads: Int[Tensor, "batch 1"]) -> "Gaps":
        """The same where only one position of each example is read any more."""
        if self.room is None or self.total is None:
            return self
        room = _Room(self.room.values[:, :, examples, reads])
        found = Gaps(self.size, room, self.total[:, examples, reads], self.count)
        if torch.is_grad_enabled():
            token = self._token(room.values)
            found.token = _Cut.apply(token, self.room, room, examples, reads)
        return found

    def _token(self, like: Tensor) -> Tensor:
        return like.new_zeros((), requires_grad=True) if self.token is None else self.token


def weighted_sum(weights: Tensor, gaps: Tensor) -> Tensor:
    """Σ_u weight · gap_u: [circuit, reader, batch, position, d_model]."""
    if weights.ndim == 4:  # a matrix for every example
        found = torch.matmul(weights, gaps.flatten(3).transpose(1, 2)).transpose(1, 2)
        return found.unflatten(3, gaps.shape[3:])
    return torch.bmm(weights, gaps.flatten(2)).unflatten(2, gaps.shape[2:])


class _Write(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gap: Tensor, token: Tensor, room: _Room, where: slice) -> Tensor:
        ctx.room, ctx.where = room, where
        room.values[:, where] = gap
        return torch.zeros_like(token)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None, None]:
        return ctx.room.gradient()[:, ctx.where], grad_outputs[0], None, None


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, columns: Columns, token: Tensor, room: _Room) -> Tensor:
        ctx.save_for_backward(weights)
        ctx.columns, ctx.room = columns, room
        return weighted_sum(weights, room.values[:, columns])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, None, Tensor, None]:
        (weights,) = ctx.saved_tensors
        slope, room = grad_outputs[0], ctx.room
        own, found = room.values[:, ctx.columns], None
        if ctx.needs_input_grad[0]:
            own = own.flatten(3).transpose(1, 2) if weights.ndim == 4 else own.flatten(2)
            each = slope.flatten(3).transpose(1, 2) if weights.ndim == 4 else slope.flatten(2)
            found = torch.matmul(each, own.mT)
        back = weighted_sum(weights.mT, slope)
        if isinstance(ctx.columns, slice):
            room.gradient()[:, ctx.columns] += back
        else:
            room.gradient().index_add_(1, ctx.columns, back)
        return found, None, slope.new_zeros(()), None


class _Cut(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, token: Tensor, before: _Room, after: _Room, examples: Tensor, reads: Tensor
    ) -> Tensor:
        ctx.before, ctx.after, ctx.where = before, after, (examples, reads)
        return torch.zeros_like(token)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None, None]:
        examples, reads = ctx.where
        ctx.before.gradient()[:, :, examples, reads] += ctx.after.gradient()
        return grad_outputs[0], None, None, None, None
