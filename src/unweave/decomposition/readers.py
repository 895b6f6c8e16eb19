"""Readers: what is taken from the splits as they pass the targets' points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unweave.ablation import Ablation
from unweave.batch import Readout
from unweave.decomposition.ruleset import RuleSet
from unweave.decomposition.split import Split
from unweave.sites import HEAD_KINDS, Point, Site

Numbers = Int[Tensor, " source"]


@runtime_checkable
class Reader(Protocol):
    """Takes what a target needs as values pass."""

    def take(self, x: Split, point: Point, numbers: Numbers) -> None:
        """Called at every named point with the splits of the sources that are numbered so."""
        ...

    def values(self, numbers: Numbers) -> Tensor | None:
        """What was read of some sources, each a row; None before the first of them passed."""
        ...


@dataclass(frozen=True, eq=False)
class Target:
    """One site that is read.

    Args:
        column: Its number among the targets.
        unit: Which head or neuron of its point; None for all of it.
        where: Its position in each example, or the positions as a mask; None for all.
    """

    column: int
    unit: int | None
    where: Int[Tensor, " batch"] | Bool[Tensor, "batch position"] | None


Targets = Mapping[Point, Sequence[Target]]


def targets_by_point(
    sites: Sequence[Site], wheres: Sequence[Tensor | None], part: slice
) -> Targets:
    """Targets sorted by the point they are read at, their positions those of some examples."""
    found: dict[Point, list[Target]] = {}
    cut = {id(where): where[part] for where in wheres if where is not None}
    for column, (site, where) in enumerate(zip(sites, wheres, strict=True)):
        own = None if where is None else cut[id(where)]
        found.setdefault(site.point, []).append(Target(column, site.unit, own))
    return found


@dataclass(frozen=True, eq=False)
class Kept:
    """Relevant parts and totals of all examples, by target; allocated as the first one passes."""

    sources: int
    examples: int
    rel: dict[int, Float[Tensor, "source batch position *unit"]] = field(default_factory=dict)
    total: dict[int, Float[Tensor, "batch position *unit"]] = field(default_factory=dict)

    def allocate(self, column: int, like: Float[Tensor, "part position *unit"]) -> None:
        if column not in self.total:
            shape = (self.examples, *like.shape[1:])
            self.rel[column] = like.new_zeros(self.sources, *shape)
            self.total[column] = like.new_zeros(shape)


@dataclass(eq=False)
class Keep:
    """Keeps whole relevant parts at some points, for the examples of one part."""

    targets: Targets
    part: slice
    store: Kept
    seen: set[int] = field(default_factory=set)

    def take(self, x: Split, point: Point, numbers: Numbers) -> None:
        for target in self.targets.get(point, ()):
            total = _of_unit(x.total, target.unit, 2)
            picked = total if target.where is None else _at(total, target.where, 0)
            if target.column not in self.seen:
                self.seen.add(target.column)
                self.store.allocate(target.column, picked)
                self.store.total[target.column][self.part] = picked
            if x.rel is None:
                continue
            rel, to = _of_unit(x.rel, target.unit, 3), self.store.rel[target.column]
            if target.where is None:
                to[numbers, self.part, x.start :] = rel
            else:
                index = target.where - x.start
                at = _at(rel, index.clamp(min=0), 1)
                inside = (index >= 0).reshape(-1, *(1,) * (at.ndim - 2))
                to[numbers, self.part] = torch.where(inside, at, 0.0)

    def values(self, numbers: Numbers) -> Tensor | None:
        found = [rel[numbers, self.part].flatten(1) for rel in self.store.rel.values()]
        return torch.cat(found, 1) if found else None

    def reached(self, column: int) -> bool:
        """Whether any source of this part reached a target."""
        return column in self.seen

    def fill(self, totals: Mapping[Point, Float[Tensor, "..."]]) -> None:
        """Totals of points at which every relevant part is 0."""
        for point, total in totals.items():
            for target in self.targets[point]:
                own = _of_unit(total, target.unit, 2)
                own = own if target.where is None else _at(own, target.where, 0)
                self.store.allocate(target.column, own)
                self.store.total[target.column][self.part] = own


def _of_unit(x: Tensor, unit: int | None, axis: int) -> Tensor:
    return x if unit is None else x.select(axis, unit)


def _at(x: Tensor, where: Int[Tensor, " batch"], axis: int) -> Tensor:
    """Each example's own position, which stays an axis of one; `axis` is the batch axis."""
    examples = torch.arange(len(where), device=where.device)
    picked = x[:, examples, where] if axis else x[examples, where]
    return picked.unsqueeze(axis + 1)


@dataclass(frozen=True, eq=False)
class _Sizes:
    """‖β‖₁, ‖γ‖₁ and ⟨β, T − μ⟩ of each source, example, position and unit at one point.

    Args:
        parts: The three, from the first position of the relevant parts on.
        early: ‖T‖₁ before it, where all is γ.
        mask: Real tokens, [batch, position, 1].
    """

    parts: Float[Tensor, "three source batch rel_position unit"]
    early: Float[Tensor, "batch early unit"]
    mask: Bool[Tensor, "batch position 1"]

    def over(
        self, where: Bool[Tensor, "batch position"] | None
    ) -> Float[Tensor, "three source batch unit"]:
        """Summed over real tokens, at some positions or at all."""
        mask = self.mask if where is None else self.mask & where[:, :, None]
        start = self.early.shape[1]
        summed = (self.parts * mask[:, start:]).sum(3)
        summed[1] += (self.early * mask[:, :start]).sum(1)
        return summed


@dataclass(eq=False)
class Pairs:
    """Sizes of β and γ at every target, for R(s, t) of all pairs in one sweep.

    Args:
        targets: Inner targets by point.
        masks: For each point, real tokens; padding never counts.
        sums: Over examples, of each source and target: ‖β‖/‖γ‖ (the paper's eq. 16), ‖β‖ and ‖γ‖
            (for the ratio of means), and ⟨β, T − μ⟩.
    """

    targets: Targets
    masks: Mapping[Point, Bool[Tensor, "batch position"]]
    ablation: Ablation
    sums: Float[Tensor, "four source target"]

    def take(self, x: Split, point: Point, numbers: Numbers) -> None:
        if point not in self.targets or x.rel is None:
            return
        sizes = self._sizes(x, point)
        for where, here in _by_position(self.targets[point]):
            found = sizes.over(where)
            units = [target.unit or 0 for target in here]
            self._add(numbers, [target.column for target in here], found[..., units])

    def _sizes(self, x: Split, point: Point) -> _Sizes:
        assert x.rel is not None
        rel, total = _by_unit(x.rel, point), _by_unit(x.total, point)
        seen = total[:, x.start :]
        away = seen - _by_unit(self.ablation.at(point, x.total), point)[:, x.start :]
        parts = (rel.abs().sum(-1), (seen - rel).abs_().sum(-1), (rel * away).sum(-1))
        early = total[:, : x.start].abs().sum(-1)
        return _Sizes(torch.stack(parts), early, self.masks[point][:, :, None])

    def _add(
        self,
        numbers: Numbers,
        columns: Sequence[int],
        found: Float[Tensor, "three source batch target"],
    ) -> None:
        size, rest, signed = found
        # γ is 0 only where everything is relevant: then the ratio is taken as large, not NaN.
        tiny = torch.finfo(rest.dtype).tiny
        ratio = torch.where(size == 0, 0.0, size / rest.clamp(min=tiny))
        added = torch.stack([part.sum(1) for part in (ratio, size, rest, signed)])
        self.sums[:, numbers[:, None], torch.tensor(columns, device=numbers.device)] += added

    def values(self, numbers: Numbers) -> Tensor | None:
        return self.sums[3, numbers] if self.sums.numel() else None


def pair_measures(
    sums: Float[Tensor, "four source target"], examples: int
) -> dict[str, Float[Tensor, "source target"]]:
    """The three measures of relevance, from what `Pairs` summed up."""
    ratio, size, rest, signed = sums
    whole = size + rest
    return {
        "ratio": ratio / examples,
        "share": torch.where(whole == 0, 0.0, size / whole.clamp(min=1e-30)),
        "signed": signed / examples,
    }


def _by_unit(x: Float[Tensor, "..."], point: Point) -> Float[Tensor, "..."]:
    """With the axes unit and d: a neuron has one number, other points but heads one unit."""
    if point.kind in HEAD_KINDS:
        return x
    return x.unsqueeze(-1 if point.kind == "neuron" else -2)


def _by_position(targets: Sequence[Target]) -> list[tuple[Tensor | None, list[Target]]]:
    """Targets of one point with the same position, so that each is one indexed sum."""
    groups: dict[int, tuple[Tensor | None, list[Target]]] = {}
    for target in targets:
        groups.setdefault(id(target.where), (target.where, []))[1].append(target)
    return list(groups.values())


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
    scores: Float[Tensor, "source batch"]

    def take(self, x: Split, point: Point, numbers: Numbers) -> None:
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
        self.scores[numbers] = score

    def values(self, numbers: Numbers) -> Tensor | None:
        return self.scores[numbers]
