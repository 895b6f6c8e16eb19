"""Exact edge scores: every edge is a source of its own, which enters at its reader."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unweave.decomposition.algebra import Decompose, gather_positions
from unweave.decomposition.feeds import Written
from unweave.decomposition.local_edges import BRANCHES
from unweave.decomposition.readers import Numbers
from unweave.decomposition.sources import Source
from unweave.decomposition.split import Split
from unweave.graph import Graph
from unweave.model.algebra import Scoring
from unweave.model.weights import Linear, Norm
from unweave.sites import Point, Site, parse

_READER = {"mlp": 3, "logits": 4}
# Linear maps that read the stream where no norm comes before them.
_READING = ("attention.q", "attention.k", "attention.v", "mlp.in", "mlp.gate")


def node_site(name: str) -> Site:
    """The site of a node of the graph; the embedding is called input there."""
    return parse("embed" if name == "input" else name)


@dataclass(frozen=True)
class EdgeSource(Source):
    """An edge as a source: it enters where its reader puts out."""

    name: str
    reader: Point

    @property
    def first(self) -> Point:
        return self.reader

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class PushedEdges:
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
    def of(graph: Graph, names: Sequence[str], device: torch.device) -> "PushedEdges":
        rows = []
        for name in names:
            row, column = graph.index[name]
            destination = graph.destinations[row]
            kind = destination.branch or ("logits" if destination.node == "logits" else "mlp")
            branch = (*BRANCHES, "mlp", "logits").index(kind)
            rows.append((column, branch, node_site(destination.node).unit or 0))
        column, branch, unit = torch.tensor(rows, device=device).T
        return PushedEdges(column, branch, unit)

    def select(self, numbers: Numbers) -> "PushedEdges":
        return PushedEdges(self.column[numbers], self.branch[numbers], self.unit[numbers])


@dataclass(eq=False)
class EnteringEdges(Decompose):
    """Entering edges: each reader gets δ_s of its own edge, and the stream gets nothing but what
    that one reader makes of it. Edges that have entered are pushed as ever."""

    edges: PushedEdges = field(kw_only=True)
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
