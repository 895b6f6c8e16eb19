"""Local edge scores: what every reader loses, read as the nodes' parts of the stream pass it."""

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unweave.batch import Batch
from unweave.decomposition.algebra import Decompose, gather_positions
from unweave.decomposition.readers import Numbers
from unweave.decomposition.split import Split
from unweave.graph import Graph
from unweave.model.algebra import Plain, Scoring
from unweave.model.model import Model
from unweave.model.program import run
from unweave.sites import Point

BRANCHES = ("q", "k", "v")


@dataclass(frozen=True)
class Through(Point):
    """A head's output as it changes through its query, key or value alone."""

    branch: str = ""


@dataclass(eq=False)
class LocalEdges(Decompose):
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
        for i, branch in enumerate(BRANCHES):
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
class EdgeReader:
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
            first += BRANCHES.index(point.branch) * len(found)
            self.matrix[first : first + len(found), numbers] = found
        elif point.kind == "neuron":
            gradient = self.gradients[point][:, x.start :]
            row = self.graph.destination_rows[point.layer, "mlp"].start
            self.matrix[row, numbers] = torch.einsum("sbpn,bpn->s", x.rel, gradient)

    def values(self, numbers: Numbers) -> Tensor:
        return self.matrix[:, numbers].T
