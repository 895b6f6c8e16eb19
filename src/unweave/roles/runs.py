"""Runs that are watched, may begin at a layer and may have activations replaced on the way."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.ablation import Ablation, position_mask
from unweave.batch import Batch
from unweave.model.algebra import Plain, Scoring, attention_scores, pattern_of
from unweave.model.model import Model
from unweave.model.program import Inputs, Stage, Stream, stages
from unweave.sites import HEAD_KINDS, Point, Site

Pattern = Float[Tensor, "batch query key"]
Edit = Callable[[Tensor], Tensor]


@dataclass(eq=False)
class Watch(Plain):
    """A plain run that keeps patterns of some heads and activations at some points.

    Args:
        heads: By the point of their output, the heads whose patterns are kept.
        points: Where activations are kept.
        edits: What replaces an activation, by point; it is kept as replaced.
    """

    heads: Mapping[Point, Sequence[int]]
    points: frozenset[Point]
    edits: Mapping[Point, Edit] = field(default_factory=dict)
    patterns: dict[Site, Tensor] = field(default_factory=dict)
    found: dict[Point, Tensor] = field(default_factory=dict)
    latest: tuple[Tensor, Tensor, Scoring] | None = None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        self.latest = (q, k, scoring)
        return super().attend(q, k, v, scoring)

    def at(self, x: Tensor, point: Point) -> Tensor:
        if point in self.heads:
            assert self.latest is not None
            q, k, scoring = self.latest
            pattern = pattern_of(attention_scores(q, k), scoring)
            for head in self.heads[point]:
                self.patterns[Site(point, head)] = pattern[:, head]
        if point in self.edits:
            x = self.edits[point](x)
        if point in self.points:
            self.found[point] = x
        return x


@dataclass(frozen=True, eq=False)
class Seen:
    """What a watched run left."""

    patterns: Mapping[Site, Pattern]
    at: Mapping[Point, Float[Tensor, "batch position *unit"]]


@dataclass
class Cost:
    """Work done so far, in forward passes of the prompts that are explained.

    One token through one block is a unit; a pass is every prompt's tokens through every block.
    A backward pass counts as two.
    """

    tokens: int
    layers: int
    units: int = 0
    by_part: dict[str, float] = field(default_factory=dict)

    def add(self, part: str, tokens: int, layers: int) -> None:
        self.units += tokens * layers
        one = self.tokens * self.layers
        self.by_part[part] = self.by_part.get(part, 0.0) + tokens * layers / one

    def add_sweep(self, part: str, batch: Batch, sources: Iterable[Site]) -> None:
        """A decomposition: totals once, each source from its own block and position on."""
        examples, length = batch.clean.mask.shape
        self.add(part, examples * length, self.layers)
        for source in sources:
            where = position_mask(source, batch.clean, batch.positions)
            start = 0 if where is None else int(where.any(0).long().argmax())
            first = 0 if source.point.kind == "embed" else source.point.layer
            self.add(part, examples * (length - start), self.layers - first)

    @property
    def passes(self) -> float:
        return self.units / (self.tokens * self.layers)


def observe(
    model: Model, inputs: Inputs, heads: Iterable[Site], points: Iterable[Point], step: int = 64
) -> Seen:
    """One plain run over all prompts, `step` of them at a time."""
    by_point, wanted = _by_point(heads), frozenset(points)
    parts: list[Watch] = []
    with torch.no_grad():
        for i in range(0, len(inputs.mask), step):
            ops, stream = Watch(by_point, wanted), None
            # The head is left out: logits of every position are wide, and not looked at.
            for stage in stages(model.network, inputs.select(slice(i, i + step)))[:-1]:
                stream = stage.apply(ops, stream)
            parts.append(ops)
    patterns = {h: torch.cat([p.patterns[h] for p in parts]) for h in parts[0].patterns}
    return Seen(patterns, {x: torch.cat([p.found[x] for p in parts]) for x in parts[0].found})


@dataclass(eq=False)
class Runner:
    """Runs of one batch of prompts that begin where something is replaced.

    What enters every block is kept from one plain run, so a run costs only the blocks behind it.
    """

    model: Model
    batch: Batch
    cost: Cost
    steps: list[Stage] = field(default_factory=list)
    entering: list[Stream[Tensor] | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.steps = stages(self.model.network, self.batch.clean)
        stream, ops = None, Plain()
        with torch.no_grad():
            for stage in self.steps[:-1]:
                self.entering.append(stream)
                stream = stage.apply(ops, stream)
        self.entering.append(stream)
        self.cost.add("checks", self.batch.clean.mask.numel(), self.cost.layers)
        self.metric = self._measure(stream)

    def run(
        self,
        edits: Mapping[Point, Edit],
        heads: Iterable[Site] = (),
        points: Iterable[Point] = (),
        last: int | None = None,
    ) -> tuple[Seen, Float[Tensor, " batch"] | None]:
        """A run with activations replaced, from the first of them to block `last` (or the end).

        Returns:
            What was watched, and the metric where the run went to the end.
        """
        first = min(-1 if point.kind == "embed" else point.layer for point in edits)
        ops = Watch(_by_point(heads), frozenset(points), edits)
        end = len(self.steps) - 1 if last is None else last + 2
        stream = self.entering[first + 1]
        with torch.no_grad():
            for stage in self.steps[first + 1 : end]:
                stream = stage.apply(ops, stream)
        blocks = (self.cost.layers if last is None else last + 1) - max(first, 0)
        self.cost.add("checks", self.batch.clean.mask.numel(), blocks)
        return Seen(ops.patterns, ops.found), self._measure(stream) if last is None else None

    def _measure(self, stream: Stream[Tensor] | None) -> Float[Tensor, " batch"]:
        assert stream is not None
        read = self.batch.readout.read
        at_read = stream.x[torch.arange(len(read), device=read.device), read][:, None]
        with torch.no_grad():
            out = self.steps[-1].apply(Plain(), Stream(at_read)).x
        return self.batch.readout.measure(out[:, 0])


def ablated(nodes: Iterable[Site], ablation: Ablation, batch: Batch) -> dict[Point, Edit]:
    """Edits that put the ablation in place of nodes (at their position, where they have one)."""
    by_point: dict[Point, list[Site]] = {}
    for node in nodes:
        by_point.setdefault(node.point, []).append(node)

    def edit(point: Point, here: Sequence[Site]) -> Edit:
        def replace(x: Tensor) -> Tensor:
            base, x = ablation.at(point, x), x.clone()
            for node in here:
                where = position_mask(node, batch.clean, batch.positions)
                units = (node.unit,) if point.kind in HEAD_KINDS else ()
                own, other = x[:, :, *units], base[:, :, *units]
                where = slice(None) if where is None else where
                own[where] = other[where]
            return x

        return replace

    return {point: edit(point, here) for point, here in by_point.items()}


def _by_point(heads: Iterable[Site]) -> dict[Point, list[int]]:
    found: dict[Point, list[int]] = {}
    for head in heads:
        assert head.unit is not None
        found.setdefault(head.point, []).append(head.unit)
    return found
