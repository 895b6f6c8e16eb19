"""Collectors: what is taken from the splits as they pass the targets' points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unweave.ablation import Ablation
from unweave.batch import Readout
from unweave.decomposition.ruleset import RuleSet
from unweave.decomposition.split import Split
from unweave.sites import HEAD_KINDS, Point, Site


@dataclass(eq=False)
class Keep:
    """Keeps whole relevant parts at some points.

    Args:
        count: How many sources the run has.
        part: The examples that the run has.
    """

    points: frozenset[Point]
    count: int
    part: slice
    rel: dict[Point, Float[Tensor, "source batch position *unit"]] = field(default_factory=dict)
    total: dict[Point, Float[Tensor, "batch position *unit"]] = field(default_factory=dict)

    def take(self, x: Split, point: Point, chunk: range) -> None:
        if point not in self.points:
            return
        if point not in self.rel:
            self.rel[point] = x.total.new_zeros(self.count, *x.total.shape)
            self.total[point] = x.total
        if x.rel is not None:
            self.rel[point][chunk.start : chunk.stop, :, x.start :] = x.rel

    def fill(self, totals: Mapping[Point, Float[Tensor, "..."]]) -> None:
        """Totals of points at which every relevant part is 0."""
        for point, total in totals.items():
            self.rel[point] = total.new_zeros(self.count, *total.shape)
            self.total[point] = total


@dataclass(frozen=True, eq=False)
class PairTarget:
    """A target at one named position, or over all positions."""

    site: Site
    where: Int[Tensor, " batch"] | None


@dataclass(eq=False)
class Pairs:
    """Sizes of β and γ at every target, for R(s, t) of all pairs in one sweep.

    Per source, target and example: ‖β‖₁, ‖γ‖₁ and ⟨β, T − μ⟩, summed over the examples as
    Σ‖β‖/‖γ‖ (the paper's eq. 18), Σ‖β‖ and Σ‖γ‖ (for the ratio of means) and Σ⟨β, T − μ⟩.

    Args:
        targets: For each point, the column of each of its targets.
        masks: For each point, real tokens; padding never counts.
    """

    targets: Mapping[Point, list[tuple[int, int, Int[Tensor, " batch"] | None]]]
    masks: Mapping[Point, Bool[Tensor, "batch position"]]
    ablation: Ablation
    ratio: Float[Tensor, "source target"]
    size: Float[Tensor, "source target"]
    rest: Float[Tensor, "source target"]
    signed: Float[Tensor, "source target"]

    def take(self, x: Split, point: Point, chunk: range) -> None:
        columns = self.targets.get(point)
        if columns is None or x.rel is None:
            return
        rel, total = _by_unit(x.rel, point), _by_unit(x.total, point)
        seen = total[:, x.start :]
        # Per source, example, position and unit; positions are summed below.
        size = rel.abs().sum(-1)
        rest = (seen - rel).abs_().sum(-1)
        away = seen - _by_unit(self.ablation.at(point, x.total), point)[:, x.start :]
        signed = (rel * away).sum(-1)
        early = total[:, : x.start].abs().sum(-1)
        mask = self.masks[point][:, :, None]
        for wheres, columns_here, units in _by_position(columns):
            self._add(chunk, columns_here, units, wheres, mask, size, rest, signed, early)

    def _add(self, chunk, columns, units, where, mask, size, rest, signed, early) -> None:
        rows, start = slice(chunk.start, chunk.stop), early.shape[1]
        if where is None:
            seen = mask[:, start:]
            b = (size * seen).sum(2)[..., units]
            c = (rest * seen).sum(2)[..., units] + (early * mask[:, :start]).sum(1)[:, units]
            s = (signed * seen).sum(2)[..., units]
        else:
            index, examples = where - start, torch.arange(len(where), device=where.device)
            inside = (index >= 0)[None, :, None]
            index = index.clamp(min=0)
            b, c, s = (
                torch.where(inside, x[:, examples, index], 0.0)[..., units]
                for x in (size, rest, signed)
            )
            if start:
                before = early[examples, where.clamp(max=start - 1)]
                c = c + torch.where(inside, 0.0, before)[..., units]
        # γ is 0 only where everything is relevant: then the ratio is taken as large, not NaN.
        tiny = torch.finfo(c.dtype).tiny
        self.ratio[rows, columns] += torch.where(b == 0, 0.0, b / c.clamp(min=tiny)).sum(1)
        self.size[rows, columns] += b.sum(1)
        self.rest[rows, columns] += c.sum(1)
        self.signed[rows, columns] += s.sum(1)

    def measures(self, examples: int) -> dict[str, Float[Tensor, "source target"]]:
        """The three measures of relevance."""
        whole = self.size + self.rest
        return {
            "ratio": self.ratio / examples,
            "share": torch.where(whole == 0, 0.0, self.size / whole.clamp(min=1e-30)),
            "signed": self.signed / examples,
        }


def _by_unit(x: Float[Tensor, "..."], point: Point) -> Float[Tensor, "..."]:
    """With the axes unit and d: a neuron has one number, other points but heads one unit."""
    if point.kind in HEAD_KINDS:
        return x
    return x.unsqueeze(-1 if point.kind == "neuron" else -2)


def _by_position(columns):
    """Targets of one point with the same position, so that each is one indexed sum."""
    groups: dict[int, tuple[Tensor | None, list[int], list[int]]] = {}
    for column, unit, where in columns:
        groups.setdefault(id(where), (where, [], []))
        groups[id(where)][1].append(column)
        groups[id(where)][2].append(unit)
    return groups.values()


@dataclass(eq=False)
class MetricScores:
    """Each source's part of the metric, per example.

    Args:
        at: Where the logits' point holds the position that is read.
        weights: The metric's gradient pulled back to what passes the logits' point, when the
            readout is linear; None when the metric itself is evaluated on parts of the logits.
    """

    readout: Readout
    rules: RuleSet
    weights: Float[Tensor, "batch out"] | None
    at: Int[Tensor, " batch"]
    values: Float[Tensor, "source batch"]

    def take(self, x: Split, point: Point, chunk: range) -> None:
        if point.kind != "logits" or x.rel is None:
            return
        rows = torch.arange(len(self.at), device=self.at.device)
        index, total = self.at - x.start, x.total[rows, self.at]
        rel = x.rel[:, rows, index.clamp(min=0)] * (index >= 0)[:, None]
        if self.weights is not None:
            score = torch.einsum("sbo,bo->sb", rel, self.weights)
        elif self.rules.readout == "paper":
            score = self.readout.measure(rel)
        else:
            score = self.readout.measure(total) - self.readout.measure(total - rel)
        self.values[chunk.start : chunk.stop] = score


def pair_targets(
    targets: Sequence[PairTarget],
) -> dict[Point, list[tuple[int, int, Int[Tensor, " batch"] | None]]]:
    """Targets sorted by the point they are read at."""
    by_point: dict[Point, list] = {}
    for column, target in enumerate(targets):
        by_point.setdefault(target.site.point, []).append(
            (column, target.site.unit or 0, target.where)
        )
    return by_point
