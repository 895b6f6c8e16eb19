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
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.ablation import Ablation
from unweave.batch import Batch
from unweave.circuits import EdgeScores
from unweave.decomposition.engine import Job, sweep_parts
from unweave.decomposition.feeds import Observe, Written, written
from unweave.decomposition.jobs import LOGITS, Setting
from unweave.decomposition.local_edges import EdgeReader, LocalEdges, gradients
from unweave.decomposition.memory import edge_bytes
from unweave.decomposition.precision import Precision, precision_note, widened
from unweave.decomposition.pushed_edges import EdgeSource, EnteringEdges, PushedEdges, node_site
from unweave.decomposition.readers import MetricScores, Reader
from unweave.decomposition.readout import MetricHead, metric_head
from unweave.decomposition.ruleset import RuleSet, find_rules
from unweave.decomposition.sources import Source
from unweave.decomposition.sweep import MakeAlgebra
from unweave.errors import UnweaveError
from unweave.graph import Graph, graph_of, graph_points
from unweave.model.model import Model
from unweave.model.program import run
from unweave.registry import nearest
from unweave.sites import Point

Variant = Literal["local", "exact"]
PathKind = Literal["direct", "total"]


def edge_relevance(
    model: Model,
    batch: Batch,
    ablation: Ablation,
    rules: str | RuleSet = "removal",
    variant: Variant = "local",
    paths: PathKind = "direct",
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
        matrix, note = setting.local(paths == "direct")
        values = graph.values(matrix)
        if chosen is not None:
            index = dict(zip(graph.edges, range(len(graph.edges)), strict=True))
            values = values[[index[name] for name in chosen]]
    else:
        values, note = setting.exact(names)
    about = {
        "model": model.name,
        "ablation": ablation.name,
        "rules": setting.rules.name,
        "variant": variant,
        "paths": paths,
        **note,
    }
    return EdgeScores(tuple(names), values.cpu(), about)


def _chosen(graph: Graph, edges: Sequence[str] | None) -> tuple[str, ...] | None:
    for name in edges or ():
        if name not in graph.index:
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

    def local(self, direct: bool) -> tuple[Float[Tensor, "destination source"], dict[str, str]]:
        """Every edge's score, averaged over examples, and a note on precision."""
        head, graph = self.head(), self.graph
        sources = [Source((node_site(name),)) for name in graph.sources]
        job = replace(
            self.job(head, sources),
            algebra=lambda part: functools.partial(LocalEdges, direct=direct),
        )
        scores = torch.zeros(job.rows, len(self.batch), **self._like)
        matrix = torch.zeros(len(graph.destinations), job.rows, **self._like)

        def readers(part: slice) -> list[Reader]:
            found = gradients(self.model, self.batch.select(part))
            own = EdgeReader(graph, found, torch.zeros_like(matrix))
            return [self.metric(head, scores, part), own]

        note: dict[str, str] = {}
        for part in sweep_parts(job, readers):
            edge_reader = part.readers[1]
            assert isinstance(edge_reader, EdgeReader)
            matrix += edge_reader.matrix
            note |= precision_note(part.tf32, len(job.rechecked))
        matrix = matrix[:, : len(sources)] / len(self.batch)
        matrix[-1] = scores[: len(sources)].mean(1)
        return matrix, note

    def exact(self, names: Sequence[str]) -> tuple[Float[Tensor, " edge"], dict[str, str]]:
        """The scores of some edges, each pushed by itself, and a note on precision."""
        head, sources = self.head(), [self._source(name) for name in names]
        job = self.job(head, sources)
        again = [names[i] for i in job.rechecked]
        edges = PushedEdges.of(self.graph, [*names, *again], self.model.network.device)

        def algebra(part: slice) -> MakeAlgebra:
            return functools.partial(EnteringEdges, edges=edges, delta=self._written(part))

        scores = torch.zeros(job.rows, len(self.batch), **self._like)
        note: dict[str, str] = {}
        pushing = replace(job, algebra=algebra)
        for part in sweep_parts(pushing, lambda part: [self.metric(head, scores, part)]):
            note |= precision_note(part.tf32, len(job.rechecked))
        return scores[: len(names)].mean(1), note

    def _source(self, name: str) -> Source:
        """An edge as a source, which enters where its reader puts out."""
        destination = self.graph.destinations[self.graph.index[name][0]]
        if destination.node == "logits":
            return EdgeSource((), name, Point("resid", len(self.model.network.body.blocks)))
        return EdgeSource((), name, node_site(destination.node).point)

    @property
    def _like(self) -> dict[str, Any]:
        return {"dtype": self.model.network.dtype, "device": self.model.network.device}

    def _written(self, part: slice) -> Written:
        ops = Observe(frozenset(graph_points(self.model)))
        with torch.no_grad():
            run(self.model.network, self.batch.clean.select(part), ops)
        return written(self.model, ops, self.graph, self.ablation.select(part))
