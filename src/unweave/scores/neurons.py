"""Gradient scores of output neurons: coordinates of what each node adds to the residual stream.

    s(u, d) = ∂m/∂(stream that u writes)_d · (out_u − out_u(μ))_d

summed over positions, averaged over examples: `eap` at the clean run, `eap-ig` with the gradient
averaged on the path of embeddings. Over the coordinates of a node they add up to its node score.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.ablation import Ablation
from unweave.batch import Batch
from unweave.errors import UnweaveError
from unweave.graph import Graph, graph_of
from unweave.model.model import Model
from unweave.model.weights import Linear
from unweave.options import Options
from unweave.patching.circuits import read_positions
from unweave.scores.eap_ig import input_path
from unweave.scores.gradients import (
    Activations,
    Tap,
    ablation_of,
    gradients_at,
    parts,
    run_from,
    tracked,
)
from unweave.scores.problem import Problem
from unweave.sites import Point


@dataclass(frozen=True, eq=False)
class NeuronScores:
    """Relevance of output neurons to a metric.

    Args:
        nodes: Names of the nodes, the input first.
        values: A row a node, a column for each coordinate of the residual stream.
    """

    nodes: tuple[str, ...]
    values: Float[Tensor, "node d_model"]


@dataclass(eq=False)
class OutputTap(Tap):
    """A run whose taps at heads are what the attention adds to the residual stream."""

    heads: dict[Point, Tensor] = field(default_factory=dict)
    layer: int = 0

    def at(self, x: Tensor, point: Point) -> Tensor:
        if point.kind == "resid":
            self.layer = point.layer
        if point.kind == "z":
            return x
        return super().at(x, point)

    def linear(self, x: Tensor, w: Linear, place: str) -> Tensor:
        y = super().linear(x, w, place)
        if place != "attention.out":
            return y
        point = Point("z", self.layer)
        self.heads[point] = x.detach()
        self.taps[point] = tracked(y)
        return self.taps[point]


def score_neurons(problem: Problem, score: str, options: Options) -> NeuronScores:
    """Rates every neuron of every node's output.

    Raises:
        UnweaveError: For a score that has no gradients of them, or an architecture whose nodes'
            outputs do not add up.
    """
    if score not in ("eap", "eap-ig") or options.get("on", "inputs") != "inputs":
        raise UnweaveError(
            f"score {score} does not rate neurons: use eap or eap-ig (on inputs), which do"
        )
    model = problem.model
    graph, total = graph_of(model, post_norms=False), None
    for part in parts(len(problem.batch), model.network.device):
        batch, ablation = problem.batch.select(part), problem.ablation.select(part)
        found = _of_part(model, graph, batch, ablation, options.get("steps", 0))
        total = found if total is None else total + found
    assert total is not None
    return NeuronScores(graph.sources, (total / len(problem.batch)).cpu())


def _of_part(
    model: Model, graph: Graph, batch: Batch, ablation: Ablation, steps: int
) -> Float[Tensor, "source d_model"]:
    points = frozenset(p for p in graph.source_rows if p.kind != "z")
    runs: Iterator[Activations] = input_path(model, batch, steps) if steps else iter([{}])
    gradients: dict[Point, Tensor] = {}
    ops = None
    for given in runs:
        reads = read_positions(model, batch)[:, None]
        ops = OutputTap({}, Ablation("none"), len(batch), reads, points=points, given=given)
        with torch.enable_grad():
            found = gradients_at(run_from(model, batch, ops), ops.taps)
        gradients = {p: gradients[p] + g if p in gradients else g for p, g in found.items()}
    assert ops is not None
    rows = []
    for point in graph.source_rows:  # the last run is the clean one
        gradient = gradients[point] / max(1, steps)
        if point.kind == "z":
            w = model.network.body.blocks[point.layer].attention
            z = ops.heads[point].unflatten(-1, (w.heads, w.d_head))
            delta = z - ablation_of(ablation, point, z, batch)
            weight = w.out.matrix.unflatten(1, (w.heads, w.d_head))
            rows.append(torch.einsum("bpd,dhe,bphe->hd", gradient, weight, delta))
        else:
            x = ops.computed[point]
            delta = x - ablation_of(ablation, point, x, batch)
            rows.append((gradient * delta).sum((0, 1))[None])
    return torch.cat(rows)
