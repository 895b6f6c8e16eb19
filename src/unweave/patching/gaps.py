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
class Gaps:
    """out_u(μ) − out_u of each source u that was written so far.

    Args:
        size: How many sources there will be.
        values: Room for all of them; None before the first.
        total: Their sum so far.
        count: How many were written.
        slopes: In a backward pass, the gradients of `values`.
        token: What orders the backward pass.
    """

    size: int
    values: Tensor | None = None
    total: Tensor | None = None
    count: int = 0
    slopes: Tensor | None = None
    token: Tensor | None = None

    def write(self, gap: Gap) -> None:
        """Adds the gaps of the next sources."""
        if self.values is None or self.total is None:
            self.values = gap.new_empty(len(gap), self.size, *gap.shape[2:])
            self.total = gap.new_zeros(len(gap), *gap.shape[2:])
        self.total = self.total + gap.sum(1)
        if torch.is_grad_enabled():
            self.token = _Write.apply(gap, self._token(gap), self)
        else:
            self.put(gap)

    def put(self, gap: Gap) -> slice:
        """Writes without a record for a backward pass; returns where."""
        assert self.values is not None
        where = slice(self.count, self.count + gap.shape[1])
        self.values[:, where] = gap
        self.count = where.stop
        return where

    def read(
        self, weights: Float[Tensor, "circuit *batch reader column"], columns: Columns
    ) -> Float[Tensor, "circuit reader batch position d_model"]:
        """Σ_u weight · gap_u over some sources, for each reader; weights may be each example's."""
        assert self.values is not None
        if torch.is_grad_enabled():
            return _Read.apply(weights, columns, self._token(weights), self)
        return weighted_sum(weights, self.values[:, columns])

    def cut(self, examples: Int[Tensor, "batch 1"], reads: Int[Tensor, "batch 1"]) -> "Gaps":
        """The same where only one position of each example is read any more."""
        if self.values is None or self.total is None:
            return self
        values = self.values[:, :, examples, reads]
        found = Gaps(self.size, values, self.total[:, examples, reads], self.count)
        if torch.is_grad_enabled():
            found.token = _Cut.apply(self._token(values), self, found, examples, reads)
        return found

    def gradient(self) -> Tensor:
        """The gradients so far, zero at the beginning of a backward pass."""
        assert self.values is not None
        if self.slopes is None:
            self.slopes = torch.zeros_like(self.values)
        return self.slopes

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
    def forward(ctx: Any, gap: Tensor, token: Tensor, gaps: Gaps) -> Tensor:
        ctx.gaps, ctx.where = gaps, gaps.put(gap)
        return torch.zeros_like(token)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        return ctx.gaps.gradient()[:, ctx.where], grad_outputs[0], None


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, columns: Columns, token: Tensor, gaps: Gaps) -> Tensor:
        ctx.save_for_backward(weights)
        ctx.columns, ctx.gaps = columns, gaps
        assert gaps.values is not None
        return weighted_sum(weights, gaps.values[:, columns])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, None, Tensor, None]:
        (weights,) = ctx.saved_tensors
        slope, gaps = grad_outputs[0], ctx.gaps
        own, found = gaps.values[:, ctx.columns], None
        if ctx.needs_input_grad[0]:
            own = own.flatten(3).transpose(1, 2) if weights.ndim == 4 else own.flatten(2)
            each = slope.flatten(3).transpose(1, 2) if weights.ndim == 4 else slope.flatten(2)
            found = torch.matmul(each, own.mT)
        back = weighted_sum(weights.mT, slope)
        if isinstance(ctx.columns, slice):
            gaps.gradient()[:, ctx.columns] += back
        else:
            gaps.gradient().index_add_(1, ctx.columns, back)
        return found, None, slope.new_zeros(()), None


class _Cut(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, token: Tensor, gaps: Gaps, after: Gaps, examples: Tensor, reads: Tensor
    ) -> Tensor:
        ctx.gaps, ctx.after, ctx.where = gaps, after, (examples, reads)
        return torch.zeros_like(token)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None, None]:
        examples, reads = ctx.where
        ctx.gaps.gradient()[:, :, examples, reads] += ctx.after.gradient()
        return grad_outputs[0], None, None, None, None
