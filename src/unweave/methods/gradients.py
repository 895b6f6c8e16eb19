"""Gradients of the metric at named points, by autograd over our own program."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unweave.baselines import position_index
from unweave.batch import Batch
from unweave.methods.method import Problem

from unweave.model.model import Model
from unweave.model.program import run
from unweave.patching.ablation import Patch
from unweave.sites import HEAD_KINDS, Point, Site

EMBED = Point("embed")


@dataclass(eq=False)
class Tap(Patch):
    """A run, possibly ablated, that keeps values with their gradients at some points.

    `taps` holds what the node itself computed; its gradient is taken at what the run uses.

    Args:
        embedding: Replaces what enters the first layer.
    """

    points: frozenset[Point] = frozenset()
    embedding: Float[Tensor, "batch position d_model"] | None = None
    taps: dict[Point, Tensor] = field(default_factory=dict)
    computed: dict[Point, Tensor] = field(default_factory=dict)

    def at(self, x: Tensor, point: Point) -> Tensor:
        if point == EMBED and self.embedding is not None:
            x = self.embedding
        if point in self.points:
            self.computed[point] = x.detach()
            x = super().at(x, point)
            if not x.requires_grad:
                x = x.detach().requires_grad_()
            self.taps[point] = x
            return x
        return super().at(x, point)


def metric_gradients(
    model: Model,
    batch: Batch,
    points: Iterable[Point],
    keep: dict[Point, Bool[Tensor, "circuit #batch #position unit"]] | None = None,
    baseline=None,
    embedding: Float[Tensor, "batch position d_model"] | None = None,
) -> tuple[dict[Point, Tensor], dict[Point, Tensor], Float[Tensor, " batch"]]:
    """One forward and one backward pass.

    Returns:
        The gradient of each example's metric at each point, what each point's nodes computed
        themselves, and the metric.
    """
    reads = batch.readout.read[:, None]
    ops = Tap(keep or {}, baseline, len(batch), reads, None, frozenset(points), embedding)
    with torch.enable_grad():
        logits = run(model.network, batch.clean, ops)
        metric = batch.readout.measure(logits[:, 0])
        found = torch.autograd.grad(metric.sum(), list(ops.taps.values()), allow_unused=True)
    gradients = {
        point: torch.zeros_like(ops.taps[point]) if g is None else g
        for point, g in zip(ops.taps, found, strict=True)
    }
    return gradients, ops.computed, metric.detach()


def node_products(
    problem: Problem,
    gradients: dict[Point, Float[Tensor, "batch position *unit"]],
    deltas: dict[Point, Float[Tensor, "batch position *unit"]],
    batch: Batch,
) -> Float[Tensor, "node batch"]:
    """⟨gradient, delta⟩ of every node, over its positions."""
    products = {
        point: (gradients[point] * deltas[point]).sum(-1) for point in problem.points
    }
    return gather_nodes(problem.nodes, products, batch)


def gather_nodes(
    nodes: Iterable[Site], products: dict[Point, Float[Tensor, "batch left *head"]], batch: Batch
) -> Float[Tensor, "node batch"]:
    """Per node: its unit, summed over positions or at its own.

    In the last block an MLP's output is there only at the position that is read.
    """
    rows = []
    examples = torch.arange(len(batch), device=batch.groups.device)
    for node in nodes:
        value = products[node.point]
        if node.point.kind in HEAD_KINDS:
            value = value[..., node.unit]
        where: Int[Tensor, " batch"] | None = position_index(node, batch.clean, batch.positions)
        if where is None:
            rows.append(value.sum(1))
        elif value.shape[1] == batch.clean.mask.shape[1]:
            rows.append(value[examples, where])
        else:
            rows.append(torch.where(where == batch.readout.read, value[:, 0], 0.0))
    return torch.stack(rows)


