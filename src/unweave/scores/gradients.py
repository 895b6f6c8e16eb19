"""Gradients of the metric at named points, by autograd over our own program."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unweave.ablation import Ablation, position_mask, side_of
from unweave.batch import Batch
from unweave.cost import with_backward
from unweave.model.algebra import Plain
from unweave.model.model import Model
from unweave.model.program import Stream, stages
from unweave.model.weights import Attention, Norm
from unweave.patching.circuits import Patch, read_positions
from unweave.patching.graphs import captures, replayed
from unweave.scores.problem import Problem
from unweave.sites import Point, Site, StackName, head_point

ROWS = 16  # prompts in one forward and backward pass on a CPU

Activations = Mapping[Point, Float[Tensor, "batch position *unit"]]


@dataclass(eq=False)
class Tap(Patch):
    """A run, possibly ablated, that keeps values with their gradients at some points.

    Args:
        points: Where gradients are taken.
        given: Values that replace what the run computes, by point.
        taps: What the run uses at each point, in its graph: the gradient is taken there.
        computed: What each point's nodes computed themselves, before any ablation.
        outside: Whether that is wanted of nodes that are not kept too; if not, their ablation may
            stand for it.
    """

    points: frozenset[Point] = frozenset()
    given: Activations = field(default_factory=dict)
    taps: dict[Point, Tensor] = field(default_factory=dict)
    computed: dict[Point, Tensor] = field(default_factory=dict)
    outside: bool = True

    def needed_heads(self, w: Attention, layer: int, stack: StackName) -> tuple[int, ...] | None:
        z, *inputs = (head_point(part, layer, stack, w.cross) for part in "zqkv")
        seen = self.points | self.given.keys()
        if z in self.given or (z in self.points and self.outside) or not seen.isdisjoint(inputs):
            return None
        return super().needed_heads(w, layer, stack)

    def complete(
        self, z: Tensor | None, heads: tuple[int, ...], w: Attention, x: Tensor, point: Point
    ) -> Tensor:
        if point not in self.points:
            return super().complete(z, heads, w, x, point)
        like = x.new_empty(1).expand(*x.shape[:2], w.heads, w.d_head)
        every = self.ablation.at(point, like, self._left)
        if z is not None:
            every = every.index_copy(2, torch.tensor(heads), z)
        return self.linear(self.merge_heads(self.at(every, point)), w.out, "attention.out")

    def at(self, x: Tensor, point: Point) -> Tensor:
        x = self.given.get(point, x)
        if point not in self.points:
            return super().at(x, point)
        self.computed[point] = x.detach()
        # What is replaced everywhere needs no gradient of what it replaces.
        self.taps[point] = tracked(super().at(x.detach() if self._replaces(point) else x, point))
        return self.taps[point]

    def _replaces(self, point: Point) -> bool:
        keep = self.keep.get(point)
        return keep is not None and keep.device.type == "cpu" and not bool(keep.any())


@dataclass(eq=False)
class HeldScales(Tap):
    """The model's values; to the backward pass the scale 1/σ of a norm is a constant."""

    def norm(self, x: Tensor, w: Norm, place: str) -> Tensor:
        if w.kind == "layer":
            x = x - x.mean(-1, keepdim=True)
        x = x * torch.rsqrt(x.detach().pow(2).mean(-1, keepdim=True) + w.eps)
        x = x if w.gain is None else x * w.gain
        return x if w.bias is None else x + w.bias


def tracked(x: Tensor) -> Tensor:
    """A tensor that gradients can be taken at; where nothing before it needs any, a fresh leaf."""
    return x if x.requires_grad else x.detach().requires_grad_()


def metric_gradients(
    model: Model,
    batch: Batch,
    points: Iterable[Point],
    keep: dict[Point, Bool[Tensor, "circuit #batch #position unit"]] | None = None,
    ablation: Ablation | None = None,
    given: Activations | None = None,
    algebra: Callable[..., Tap] = Tap,
    outside: bool = True,
) -> tuple[dict[Point, Tensor], dict[Point, Tensor], Float[Tensor, " batch"]]:
    """One forward and one backward pass.

    Args:
        keep: What an ablated run keeps, for one circuit; None ablates nothing.
        given: Values that replace what the run computes, by point.
        algebra: The run's operations; a subclass of `Tap` may hold coefficients constant.
        outside: Whether nodes that are not kept are of interest; if not, what they would compute
            is left open.

    Returns:
        The gradient of each example's metric at each point, what each point's nodes computed
        themselves, and the metric.
    """
    order = sorted(frozenset(points), key=lambda point: point.depth)

    def run(inputs: tuple) -> tuple[Tensor, ...]:
        clean, readout, kept, base, values = inputs
        some = replace(batch, clean=clean, readout=readout)
        reads = read_positions(model, some)[:, None]
        ops = algebra(
            kept, base, len(batch), reads, points=frozenset(order), given=values, outside=outside
        )
        with torch.enable_grad():
            metric = run_from(model, some, ops)
            gradients = gradients_at(metric, ops.taps)
        found = (gradients[point] for point in order), (ops.computed[point] for point in order)
        return (*found[0], *found[1], metric.detach())

    inputs = (batch.clean, batch.readout, keep or {}, ablation or Ablation("none"), given or {})
    if captures(model.network, 3 * batch.clean.mask.numel()):
        what = ("gradients", algebra, tuple(order), outside)
        found = replayed(model.network, what, inputs, run)
    else:
        found = run(inputs)
    gradients, computed = found[: len(order)], found[len(order) : -1]
    return (
        dict(zip(order, gradients, strict=True)),
        dict(zip(order, computed, strict=True)),
        found[-1],
    )


def run_from(
    model: Model,
    batch: Batch,
    ops: Plain,
    start: int = 0,
    stream: Stream[Tensor] | None = None,
) -> Float[Tensor, " batch"]:
    """The metric of a run that begins at a stage of the program, with what enters it; a backward
    pass follows."""
    with with_backward():
        for stage in stages(model.network, batch.clean)[start:]:
            stream = stage.apply(ops, stream)
    assert stream is not None
    return batch.readout.measure(stream.x[:, 0])


def gradients_at(metric: Float[Tensor, " batch"], taps: dict) -> dict:
    """∂Σmetric at every tapped tensor, 0 where the metric does not depend on it."""
    if not metric.requires_grad:  # it depends on none of them
        return {key: torch.zeros_like(tap) for key, tap in taps.items()}
    found = torch.autograd.grad(metric.sum(), list(taps.values()), allow_unused=True)
    return {
        key: torch.zeros_like(taps[key]) if gradient is None else gradient
        for key, gradient in zip(taps, found, strict=True)
    }


def parts(count: int, device: torch.device) -> list[slice]:
    """Prompts, a few at a time: the backward pass keeps every activation."""
    rows = ROWS if device.type == "cpu" else 8 * ROWS
    return [slice(i, min(i + rows, count)) for i in range(0, count, rows)]


def differences(values: Activations, ablation: Ablation, batch: Batch) -> dict[Point, Tensor]:
    """z − μ at every point; in the last block an MLP has only the position that is read."""
    return {point: x - ablation_of(ablation, point, x, batch) for point, x in values.items()}


def ablation_of(
    ablation: Ablation, point: Point, x: Float[Tensor, "batch left *unit"], batch: Batch
) -> Float[Tensor, "batch left *unit"]:
    """The ablation of an activation that holds all positions, or only the one that is read."""
    cut = x.shape[1] < side_of(point, batch.clean).mask.shape[1]
    return ablation.at(point, x, batch.readout.read[:, None] if cut else None)


def gradient_products(
    problem: Problem, algebra: Callable[..., Tap] = Tap
) -> Float[Tensor, "node batch"]:
    """⟨∂m/∂z_u, z_u − μ_u⟩ of every node u at the clean run, in the algebra's derivatives."""
    model, columns = problem.model, []
    for part in parts(len(problem.batch), model.network.device):
        batch, ablation = problem.batch.select(part), problem.ablation.select(part)
        gradients, values, _ = metric_gradients(model, batch, problem.points, algebra=algebra)
        deltas = differences(values, ablation, batch)
        columns.append(node_products(problem, gradients, deltas, batch))
    return torch.cat(columns, 1)


def node_products(
    problem: Problem,
    gradients: Activations,
    deltas: Activations,
    batch: Batch,
) -> Float[Tensor, "node batch"]:
    """⟨gradient, delta⟩ of every node, over its positions."""
    products = {}
    for point in problem.points:
        product = gradients[point] * deltas[point]
        # A neuron is one number; a head's and an MLP's output are vectors.
        products[point] = product if point.kind == "neuron" else product.sum(-1)
    return gather_nodes(problem.nodes, products, batch)


def gather_nodes(
    nodes: Iterable[Site], products: dict[Point, Float[Tensor, "batch left *head"]], batch: Batch
) -> Float[Tensor, "node batch"]:
    """Per node: its unit, summed over positions or at its own.

    In the last block an MLP's output is there only at the position that is read.
    """
    rows, picked = [], {}
    for node in nodes:
        key = (node.point, node.position)
        if key not in picked:  # every unit of a point at once
            where = position_mask(node, batch.clean, batch.positions)
            picked[key] = _at_position(products[node.point], where, batch)
        value = picked[key]
        rows.append(value if node.unit is None else value[:, node.unit])
    return torch.stack(rows)


def _at_position(
    value: Float[Tensor, "batch left *head"],
    where: Bool[Tensor, "batch position"] | None,
    batch: Batch,
) -> Float[Tensor, "batch *head"]:
    if where is None:
        return value.sum(1)
    if value.shape[1] < where.shape[1]:
        where = where.gather(1, batch.readout.read[:, None])
    return (value * where.reshape(*where.shape, *(1,) * (value.ndim - 2))).sum(1)
