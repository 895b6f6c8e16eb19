"""Runs in which every node or edge is kept by a gate between 0 (its ablation) and 1 (itself).

    node   z ← μ + g·(z − μ)
    edge   input of v ← x + Σ_u (1 − g_uv)·(out_u(μ) − out_u)

With gates of 0 and 1 these are the circuits of `circuits.py` and `edges.py`; in between they are
what a mask is learned on, so gradients flow to the gates.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.ablation import Ablation, position_mask
from unweave.batch import Batch
from unweave.cost import with_backward
from unweave.graph import graph_of
from unweave.model.model import Model
from unweave.model.program import run
from unweave.patching.circuits import Patch, read_positions
from unweave.patching.edges import patched_metric
from unweave.sites import Point, Site


@dataclass(eq=False)
class Gated(Patch):
    """A plain run in which activations are mixed with their ablation.

    Args:
        gates: At each gated point, the share of an activation that stays: [batch, position, unit].
    """

    gates: dict[Point, Float[Tensor, "#batch #position unit"]] | None = None

    def at(self, x: Tensor, point: Point) -> Tensor:
        gate = (self.gates or {}).get(point)
        if gate is None:
            return x
        base = self.ablation.at(point, x, self.left)
        if self.left is not None and gate.shape[1] > 1:
            rows = torch.arange(len(x), device=x.device)[:, None]
            gate = gate.expand(len(x), -1, -1)[rows, self.left]
        gate = gate.reshape(*gate.shape, *(1,) * (x.ndim - gate.ndim))
        return base + gate * (x - base)


def run_gated_nodes(
    model: Model,
    batch: Batch,
    nodes: Sequence[Site],
    gates: Float[Tensor, " node"],
    ablation: Ablation,
) -> Float[Tensor, " batch"]:
    """The metric of each example with a gate at each node; differentiable in the gates.

    What lies at a node's point and belongs to no node is ablated, as in `run_circuits`.
    """
    reads = read_positions(model, batch)[:, None]
    spread = _spread(model, batch, nodes, gates)
    ops = Gated({}, ablation, len(batch), reads, gates=spread)
    with with_backward():
        return batch.readout.measure(run(model.network, batch.clean, ops)[:, 0])


def _spread(
    model: Model, batch: Batch, nodes: Sequence[Site], gates: Float[Tensor, " node"]
) -> dict[Point, Float[Tensor, "#batch #position unit"]]:
    """The gates of all nodes, point by point; positions that several nodes name add up to 1."""
    places: dict[Point, dict[str | int | None, list[tuple[int, int]]]] = defaultdict(dict)
    for number, node in enumerate(nodes):
        places[node.point].setdefault(node.position, []).append((node.unit or 0, number))
    spread = {}
    for point, named in places.items():
        total = gates.new_zeros(1, 1, model.units(point))
        for position, pairs in named.items():
            units, numbers = torch.tensor(pairs, device=gates.device).T
            here = gates.new_zeros(model.units(point)).index_put((units,), gates[numbers])
            where = position_mask(Site(point, None, position), batch.clean, batch.positions)
            total = total + (here if where is None else here * where[..., None])
        spread[point] = total.clamp(max=1.0)
    return spread


def run_gated_edges(
    model: Model,
    batch: Batch,
    gates: Float[Tensor, "destination source"],
    ablation: Ablation,
) -> Float[Tensor, " batch"]:
    """The metric of each example with a gate at each edge; differentiable in the gates.

    Args:
        gates: By destination and source of the model's graph; entries that are no edges are
            ignored.

    Raises:
        UnweaveError: For an architecture whose nodes' outputs do not add up.
    """
    graph = graph_of(model, post_norms=False)
    removed = (1 - gates).masked_fill(~graph.mask.to(gates.device), 0.0)[None]
    every = tuple(range(len(graph.sources)))
    with with_backward():
        return patched_metric(model, batch, removed, ablation, every)[0]
