"""Edge scores: the effect of a node on the metric through one reader of the residual stream.

A reader t is a head's q, k or v, an MLP, or the logits; node s adds δ_s = out_s − out_s(μ) to the
stream that t reads. Without the edge s → t, t reads x − δ_s and everything else reads x:

    effect(s → t) = m(M) − m(M without s → t).

1. `local`: what t's own output loses without δ_s, by the rule set (exact under `removal`), times
   the metric's gradient at that output. All edges in one sweep of the nodes, and one backward pass.
2. `exact`: that loss is pushed on to the logits as a relevant part of its own, one for each edge.
   Under `removal` this is the effect itself.

With `paths="total"` t reads the stream without all that s causes in it, not only without δ_s.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unweave.ablation import Ablation
from unweave.batch import Batch
from unweave.circuits import EdgeScores
from unweave.decomposition.algebra import Decompose, gather_positions
from unweave.decomposition.engine import Job, sweep_parts
from unweave.decomposition.feeds import Observe, Written, written
from unweave.decomposition.jobs import LOGITS, Setting
from unweave.decomposition.memory import edge_bytes
from unweave.decomposition.precision import Precision, widened
from unweave.decomposition.readers import MetricScores, Numbers, Reader
from unweave.decomposition.readout import MetricHead, metric_head
from unweave.decomposition.ruleset import RuleSet, find_rules
from unweave.decomposition.sources import Source
from unweave.decomposition.split import Split
from unweave.decomposition.sweep import MakeAlgebra
from unweave.errors import UnweaveError
from unweave.graph import Graph, graph_of, graph_points
from unweave.model.algebra import Plain, Scoring
from unweave.model.model import Model
from unweave.model.program import run
from unweave.model.weights import Linear, Norm
from unweave.registry import nearest
from unweave.sites import Point, Site, parse

Variant = Literal["local", "exact"]
Paths = Literal["direct", "total"]

_BRANCHES = ("q", "k", "v")
_READER = {"mlp": 3, "logits": 4}
# Linear maps that read the stream where no norm comes before them.
_READING = ("attention.q", "attention.k", "attention.v", "mlp.in", "mlp.gate")


def edge_relevance(
    model: Model,
    batch: Batch,
    ablation: Ablation,
    rules: str | RuleSet = "removal",
    variant: Variant = "local",
    paths: Paths = "direct",
    edges: Sequence[str] | None = None,
    memory: str | int | None = None,
    precision: Precision | None = None,
) -> EdgeScores:
    """Scores the edges of a decoder by decomposition.

    Args:
        ablation: What nodes are compared with; holds values at `unweave.graph.graph_points`.
        rules: How a reader's output, and in `exact` everything behind it, splits.
        variant: "local" (one sweep and one backward pass for all edges) or "exact" (one pushed
            part for each edge).
        paths: How s reaches t: "direct" through the stream alone, or "total", by all its paths
            (`local` only).
        edges: Names such as `a0.h0->a5.h1<q>`; None for all.
        memory: As in `decompose`.
        precision: As in `decompose`.

    Returns:
        The mean over examples of each edge's score, in the order of `edges` or of the graph.

    Raises:
        UnweaveError: For an architecture without such edges, or an unknown edge.
    """
    model = widened(model, precision)
    graph = graph_of(model, post_norms=variant == "local")
    chosen = _chosen(graph, edges)
    if variant == "exact" and paths == "total":
        raise UnweaveError("paths='total' is defined for variant='local': choose one of the two")
    setting = _EdgeSetting(model, batch, ablation, find_rules(rules), graph, memory, precision)
    names = graph.edges if chosen is None else chosen
    if variant == "local":
        values = graph.values(setting.local(paths == "direct"))
        if chosen is not None:
            index = dict(zip(graph.edges, range(len(graph.edges)), strict=True))
            values = values[[index[name] for name in chosen]]
    else:
        values = setting.exact(names)
    about = {
        "model": model.name,
        "ablation": ablation.name,
        "rules": setting.rules.name,
        "variant": variant,
        "paths": paths,
    }
    return EdgeScores(tuple(names), values.cpu(), about)


def _chosen(graph: Graph, edges: Sequence[str] | None) -> tuple[str, ...] | None:
    for name in edges or ():
        if name not in graph.places:
            known = nearest(name, graph.edges, "expected e.g. a0.h0->a5.h1<q>")
            raise UnweaveError(f"{name!r} is not an edge of this model: {known}")
    return None if edges is None else tuple(edges)


@dataclass(frozen=True, eq=False)
class _EdgeSetting:
    """What both variants share."""

    model: Model
    batch: Batch
    ablation: Ablation
    rules: RuleSet
    graph: Graph
    memory: str | int | None
    precision: Precision | None

    def job(self, head: MetricHead, sources: Sequence[Source]) -> Job:
        inputs, reads = self.batch.clean, self.batch.readout.read[:, None]
        setting = Setting(
            self.model, head.network, inputs, {}, self.rules, self.precision, self.memory
        )
        return setting.job(
            sources,
            self.ablation,
            frozenset(),
            reads,
            LOGITS,
            lambda rows: rows * (len(self.batch) + 3 * len(self.graph.destinations)) * 8,
            edge_bytes(head.network, inputs, len(self.graph.sources)),
        )

    def metric(
        self, head: MetricHead, scores: Float[Tensor, "source batch"], part: slice
    ) -> MetricScores:
        weights = None if head.weights is None else head.weights[part]
        at = torch.zeros_like(self.batch.readout.read[part])
        return MetricScores(head.readout.select(part), self.rules, weights, at, scores[:, part])

    def head(self) -> MetricHead:
        return metric_head(self.model, self.batch.clean, self.batch.readout, self.rules)

    def local(self, direct: bool) -> Float[Tensor, "destination source"]:
        """Every edge's score, averaged over examples."""
        head, graph = self.head(), self.graph
        sources = [Source((_site(name),)) for name in graph.sources]
        job = replace(
            self.job(head, sources),
            algebra=lambda part: functools.partial(_LocalEdges, direct=direct),
        )
        scores = torch.zeros(job.rows, len(self.batch), **self._like)
        matrix = torch.zeros(len(graph.destinations), job.rows, **self._like)

        def readers(part: slice) -> list[Reader]:
            found = gradients(self.model, self.batch.select(part))
            own = _EdgeReader(graph, found, torch.zeros_like(matrix))
            return [self.metric(head, scores, part), own]

        for part in sweep_parts(job, readers):
            edge_reader = part.readers[1]
            assert isinstance(edge_reader, _EdgeReader)
            matrix += edge_reader.matrix
        matrix = matrix[:, : len(sources)] / len(self.batch)
        matrix[-1] = scores[: len(sources)].mean(1)
        return matrix

    def exact(self, names: Sequence[str]) -> Float[Tensor, " edge"]:
        """The scores of some edges, each pushed to the logits by itself."""
        head, sources = self.head(), [self._source(name) for name in names]
        job = self.job(head, sources)
        again = [names[i] for i in job.rechecked]
        edges = _PushedEdges.of(self.graph, [*names, *again], self.model.network.device)

        def algebra(part: slice) -> MakeAlgebra:
            return functools.partial(_EnteringEdges, edges=edges, delta=self._written(part))

        scores = torch.zeros(job.rows, len(self.batch), **self._like)
        for _ in sweep_parts(
            replace(job, algebra=algebra), lambda part: [self.metric(head, scores, part)]
        ):
            continue
        return scores[: len(names)].mean(1)

    def _source(self, name: str) -> Source:
        """An edge as a source, which enters where its reader puts out."""
        destination = self.graph.destinations[self.graph.places[name][0]]
        if destination.node == "logits":
            return _EdgeSource((), name, Point("resid", len(self.model.network.body.blocks)))
        return _EdgeSource((), name, _site(destination.node).point)

    @property
    def _like(self) -> dict[str, Any]:
        return {"dtype": self.model.network.dtype, "device": self.model.network.device}

    def _written(self, part: slice) -> Written:
        ops = Observe(frozenset(graph_points(self.model)))
        with torch.no_grad():
            run(self.model.network, self.batch.clean.select(part), ops)
        return written(self.model, ops, self.graph, self.ablation.select(part))


def _site(name: str) -> Site:
    return parse("embed" if name == "input" else name)


# --- local: all readers as the nodes' parts pass ------------------------------------------------


@dataclass(frozen=True)
class Through(Point):
    """A head's output as it changes through its query, key or value alone."""

    branch: str = ""


@dataclass(eq=False)
class _LocalEdges(Decompose):
    """Shows readers what each head's output loses through q, k or v alone.

    Args:
        direct: What readers make of a relevant part does not join the stream: it carries only what
            its sources wrote.
    """

    direct: bool = True
    layer: int = 0

    def at(self, x: Split, point: Point) -> Split:
        if point.kind == "resid":
            self.layer = point.layer
        x = super().at(x, point)
        return Split(None, x.total, x.start) if self.direct and point.kind == "neuron" else x

    def attend(self, q: Split, k: Split, v: Split, scoring: Scoring) -> Split:
        mark, parts = self._next, (q, k, v)
        for i, branch in enumerate(_BRANCHES):
            if parts[i].rel is None:
                continue
            self._next = mark
            own = [x if i == j else replace(x, rel=None) for j, x in enumerate(parts)]
            z = super().attend(own[0], own[1], own[2], scoring)
            self.visit(z, Through("z", self.layer, branch=branch), self.left)
        self._next = mark
        if self.direct:
            q, k, v = (replace(x, rel=None) for x in parts)
        return super().attend(q, k, v, scoring)


@dataclass(eq=False)
class _Tap(Plain):
    """A run that keeps, in its graph, what heads and neurons put out."""

    reads: Int[Tensor, "batch 1"]
    found: dict[Point, Tensor] = field(default_factory=dict)

    def cut(self, x: Tensor) -> Tensor:
        return gather_positions(x, self.reads, 0)

    def at(self, x: Tensor, point: Point) -> Tensor:
        if point.kind == "embed":
            x = x.detach().requires_grad_()
        elif point.kind in ("z", "neuron"):
            self.found[point] = x
        return x


def gradients(model: Model, batch: Batch) -> dict[Point, Float[Tensor, "batch position *unit"]]:
    """∂metric/∂output of every head and neuron, each example's own."""
    ops = _Tap(batch.readout.read[:, None])
    with torch.enable_grad():
        logits = run(model.network, batch.clean, ops)[:, 0]
        value = batch.readout.measure(logits).sum()
        found = torch.autograd.grad(value, list(ops.found.values()))
    return dict(zip(ops.found, found, strict=True))


@dataclass(eq=False)
class _EdgeReader:
    """⟨loss of a reader's output, gradient there⟩ of every edge, summed over examples."""

    graph: Graph
    gradients: dict[Point, Tensor]
    matrix: Float[Tensor, "destination source"]

    def take(self, x: Split, point: Point, numbers: Numbers) -> None:
        if x.rel is None:
            return
        if isinstance(point, Through):
            gradient = self.gradients[Point("z", point.layer)][:, x.start :]
            found = torch.einsum("sbphe,bphe->hs", x.rel, gradient)
            first = self.graph.destination_rows[point.layer, "attention"].start
            first += _BRANCHES.index(point.branch) * len(found)
            self.matrix[first : first + len(found), numbers] = found
        elif point.kind == "neuron":
            gradient = self.gradients[point][:, x.start :]
            row = self.graph.destination_rows[point.layer, "mlp"].start
            self.matrix[row, numbers] = torch.einsum("sbpn,bpn->s", x.rel, gradient)

    def values(self, numbers: Numbers) -> Tensor:
        return self.matrix[:, numbers].T


# --- exact: every edge a source of its own ------------------------------------------------------


@dataclass(frozen=True)
class _EdgeSource(Source):
    """An edge as a source: it enters where its reader puts out."""

    name: str
    reader: Point

    @property
    def first(self) -> Point:
        return self.reader

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class _PushedEdges:
    """Edges as rows of a sweep.

    Args:
        column: The node of each.
        branch: 0, 1 or 2 for the q, k or v of a head, 3 for an MLP, 4 for the logits.
        unit: The head; 0 for others.
    """

    column: Int[Tensor, " edge"]
    branch: Int[Tensor, " edge"]
    unit: Int[Tensor, " edge"]

    @staticmethod
    def of(graph: Graph, names: Sequence[str], device: torch.device) -> "_PushedEdges":
        rows = []
        for name in names:
            row, column = graph.places[name]
            destination = graph.destinations[row]
            kind = destination.branch or ("logits" if destination.node == "logits" else "mlp")
            branch = (*_BRANCHES, "mlp", "logits").index(kind)
            rows.append((column, branch, _site(destination.node).unit or 0))
        column, branch, unit = torch.tensor(rows, device=device).T
        return _PushedEdges(column, branch, unit)

    def select(self, numbers: Numbers) -> "_PushedEdges":
        return _PushedEdges(self.column[numbers], self.branch[numbers], self.unit[numbers])


@dataclass(eq=False)
class _EnteringEdges(Decompose):
    """Entering edges: each reader gets δ_s of its own edge, and the stream gets nothing but what
    that one reader makes of it. Edges that have entered are pushed as ever."""

    edges: _PushedEdges = field(kw_only=True)
    delta: Written = field(kw_only=True)
    normed: set[str] = field(default_factory=set)

    def norm(self, x: Split, w: Norm, place: str) -> Split:
        branch, _, which = place.partition(".")
        if which == "pre":
            self.normed.add(branch)
            x = self._enter(x, branch)
        return super().norm(x, w, place)

    def linear(self, x: Split, w: Linear, place: str) -> Split:
        branch = place.partition(".")[0]
        if place in _READING and branch not in self.normed:
            x = self._enter(x, branch)
        return super().linear(x, w, place)

    def at(self, x: Split, point: Point) -> Split:
        x = super().at(x, point)
        # The stream behind the last block has one reader: nothing else is kept from it.
        behind = point.kind == "resid" and self.left is not None
        return self._enter(x, "logits") if behind else x

    def _enter(self, x: Split, branch: str) -> Split:
        """What a branch reads: the stream's relevant part, and δ_s of the edges that lead there."""
        if not self.entering:
            return x
        assert self.numbers is not None
        mine = self.edges.select(self.numbers)
        delta = self.delta[mine.column]
        here = (mine.branch < 3) if branch == "attention" else (mine.branch == _READER[branch])
        delta = delta * _rows(here, delta)
        if self.left is not None:
            delta = gather_positions(delta, self.left, 1)
        return replace(x, rel=delta if x.rel is None else x.rel + delta)

    def attend(self, q: Split, k: Split, v: Split, scoring: Scoring) -> Split:
        if not self.entering:
            return super().attend(q, k, v, scoring)
        assert self.numbers is not None
        mine = self.edges.select(self.numbers)
        branch, unit = mine.branch, mine.unit
        own = [
            x if x.rel is None else replace(x, rel=x.rel * _rows(branch == i, x.rel))
            for i, x in enumerate((q, k, v))
        ]
        z = super().attend(own[0], own[1], own[2], scoring)
        assert z.rel is not None
        heads = torch.arange(z.rel.shape[3], device=unit.device)
        kept = (heads == unit[:, None]) & (branch < 3)[:, None]
        return replace(z, rel=z.rel * kept[:, None, None, :, None])


def _rows(chosen: Bool[Tensor, " source"], like: Tensor) -> Bool[Tensor, "source *ones"]:
    return chosen.reshape(-1, *(1,) * (like.ndim - 1))
