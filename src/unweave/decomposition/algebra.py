"""The `Decompose` algebra: the program's operations on splits, by the rules of a set.

Totals are computed once per stage by `RecordTotals`, which keeps every operation's result in order.
`Decompose` replays the same stage for one chunk of sources and takes the totals from that tape:
the program is the same code, so the order is the same.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unweave.decomposition import fused
from unweave.decomposition.rules import AttentionTotals, clamp
from unweave.decomposition.ruleset import RuleSet
from unweave.decomposition.split import Split
from unweave.model.algebra import (
    AllHeads,
    Plain,
    RotaryTable,
    Scoring,
    attention_mix,
    attention_scores,
    pattern_of,
    rotate_pairs,
)
from unweave.model.weights import Activation, Linear, Norm
from unweave.sites import Point

Positions = Int[Tensor, "batch n"]
Visit = Callable[[Split, Point, "Positions | None"], Split]


def gather_positions(
    x: Float[Tensor, "..."], index: Int[Tensor, "batch n"], axis: int
) -> Float[Tensor, "..."]:
    """Each example's own positions; `axis` is the batch axis."""
    batch = torch.arange(len(index), device=x.device)[:, None]
    return x[(slice(None),) * axis + (batch, index)]


@dataclass(eq=False)
class RecordTotals(Plain):
    """Plain totals, every result kept in order; attention keeps its pattern too.

    Args:
        reads: Positions that are read after the last block's attention; None for all.
    """

    reads: Positions | None
    tape: list[Tensor] = field(default_factory=list)

    def _keep(self, x: Tensor) -> Tensor:
        self.tape.append(x)
        return x

    def constant(self, x: Tensor) -> Tensor:
        return self._keep(x)

    def linear(self, x: Tensor, w: Linear, place: str) -> Tensor:
        return self._keep(super().linear(x, w, place))

    def norm(self, x: Tensor, w: Norm, place: str) -> Tensor:
        return self._keep(super().norm(x, w, place))

    def activation(self, x: Tensor, f: Activation, place: str) -> Tensor:
        return self._keep(super().activation(x, f, place))

    def gate(self, gate: Tensor, up: Tensor, f: Activation, place: str) -> Tensor:
        return self._keep(super().gate(gate, up, f, place))

    def add(self, x: Tensor, y: Tensor, place: str) -> Tensor:
        return self._keep(super().add(x, y, place))

    def scale(self, x: Tensor, factor: float) -> Tensor:
        return self._keep(super().scale(x, factor))

    def split_heads(self, x: Tensor, heads: int) -> Tensor:
        return self._keep(super().split_heads(x, heads))

    def merge_heads(self, x: Tensor) -> Tensor:
        return self._keep(super().merge_heads(x))

    def rotate(self, x: Tensor, table: RotaryTable) -> Tensor:
        return self._keep(super().rotate(x, table))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        pattern = self._keep(pattern_of(attention_scores(q, k), scoring))
        return self._keep(attention_mix(pattern, v))

    def first(self, x: Tensor) -> Tensor:
        return self._keep(super().first(x))

    def cut(self, x: Tensor) -> Tensor:
        return self._keep(x if self.reads is None else gather_positions(x, self.reads, 0))


@dataclass(eq=False)
class Decompose(AllHeads[Split]):
    """Relevant parts of one chunk of sources through one stage.

    Args:
        rules: One rule per operation.
        tape: The totals of this stage, from `RecordTotals`.
        visit: Called at every named point, with the positions that are left once values have
            been cut to them; it seeds sources and reads targets.
        start: First position of the chunk's relevant parts.
        reads: As `RecordTotals.reads`.
        left: `reads` from the cut on, None before it.
        numbers: The chunk's sources, for algebras that treat some of them in their own way.
        entering: Whether they enter in this stage: nothing of them is in the stream yet.
    """

    rules: RuleSet
    tape: list[Tensor]
    visit: Visit
    start: int = 0
    reads: Positions | None = None
    left: Positions | None = None
    numbers: Int[Tensor, " source"] | None = None
    entering: bool = False
    _next: int = 0

    def _total(self) -> Tensor:
        self._next += 1
        return self.tape[self._next - 1]

    def finish(self) -> None:
        """Every total of the stage has been taken, each by its own operation."""
        assert self._next == len(self.tape), f"{self._next} of {len(self.tape)} totals were used"

    def _result(self, rel: Tensor, total: Tensor, start: int, place: str) -> Split:
        if self.rules.clamps(place):
            rel = clamp(rel, total[:, start:])
        return Split(rel, total, start)

    def constant(self, x: Tensor) -> Split:
        return Split(None, self._total(), self.start)

    def _apply(self, x: Split, place: str, rule: Callable[[Tensor, Tensor], Tensor]) -> Split:
        """One input, one rule of β and the output's total; nothing relevant stays nothing."""
        out = self._total()
        if x.rel is None:
            return Split(None, out, x.start)
        return self._result(rule(x.rel, out[:, x.start :]), out, x.start, place)

    def linear(self, x: Split, w: Linear, place: str) -> Split:
        return self._apply(x, place, lambda rel, out: self.rules.linear(rel, w, out))

    def norm(self, x: Split, w: Norm, place: str) -> Split:
        return self._apply(x, place, lambda rel, out: self.rules.norm(rel, x.seen, w, out))

    def activation(self, x: Split, f: Activation, place: str) -> Split:
        return self._apply(x, place, lambda rel, out: self.rules.activation(rel, x.seen, f, out))

    def gate(self, gate: Split, up: Split, f: Activation, place: str) -> Split:
        out = self._total()
        if gate.rel is None or up.rel is None:
            # Both come from one input by linear maps: they are 0 together.
            return Split(None, out, gate.start)
        rel = self.rules.gate(gate.rel, up.rel, gate.seen, up.seen, f, out[:, gate.start :])
        return self._result(rel, out, gate.start, place)

    def add(self, x: Split, y: Split, place: str) -> Split:
        out = self._total()
        if x.rel is None or y.rel is None:
            rel = y.rel if x.rel is None else x.rel
        else:
            rel = x.rel + y.rel
        if rel is None:
            return Split(None, out, x.start)
        return self._result(rel, out, x.start, place)

    def scale(self, x: Split, factor: float) -> Split:
        return Split(None if x.rel is None else x.rel * factor, self._total(), x.start)

    def split_heads(self, x: Split, heads: int) -> Split:
        rel = None if x.rel is None else x.rel.unflatten(-1, (heads, -1))
        return Split(rel, self._total(), x.start)

    def merge_heads(self, x: Split) -> Split:
        return Split(None if x.rel is None else x.rel.flatten(-2), self._total(), x.start)

    def rotate(self, x: Split, table: RotaryTable) -> Split:
        out = self._total()
        if x.rel is None:
            return Split(None, out, x.start)
        seen = RotaryTable(table.cos[:, x.start :], table.sin[:, x.start :], table.interleaved)
        turned = fused.rotate(x.rel, seen)
        return Split(rotate_pairs(x.rel, seen) if turned is None else turned, out, x.start)

    def attend(self, q: Split, k: Split, v: Split, scoring: Scoring) -> Split:
        pattern, z = self._total(), self._total()
        given = next((x.rel for x in (q, k, v) if x.rel is not None), None)
        if given is None:
            return Split(None, z, q.start)
        queries = slice(q.start, None)
        bias = scoring.bias if scoring.bias is None else scoring.bias[:, :, queries]
        seen = Scoring(scoring.scale, scoring.mask[:, :, queries], bias, scoring.softcap)
        totals = AttentionTotals(
            q.seen, k.total, v.total, z[:, queries], pattern[:, :, queries], seen, k.start
        )
        rel_q, rel_k, rel_v = (_dense(x, len(given)) for x in (q, k, v))
        rel = self.rules.attention(rel_q, rel_k, rel_v, totals)
        return self._result(rel, z, q.start, "attention.mix")

    def first(self, x: Split) -> Split:
        return Split(None if x.rel is None else x.rel[:, :, :1], self._total(), x.start)

    def cut(self, x: Split) -> Split:
        out = self._total()
        if self.reads is None:
            return Split(x.rel, out, x.start)
        self.left = self.reads
        if x.rel is None:
            return Split(None, out)
        index = self.reads - x.start
        rel = gather_positions(x.rel, index.clamp(min=0), 1)
        before = (index < 0).reshape(*index.shape, *(1,) * (rel.ndim - 3))
        return Split(rel.masked_fill(before, 0.0), out)

    def at(self, x: Split, point: Point) -> Split:
        return self.visit(x, point, self.left)


def _dense(x: Split, sources: int) -> Tensor:
    """β as a tensor, 0 where it is not carried."""
    return x.total.new_zeros(sources, *x.seen.shape) if x.rel is None else x.rel
