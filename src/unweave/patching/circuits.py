"""Circuits as runs: every node outside a circuit is ablated, many circuits in one batch."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unweave.ablation import Ablation, position_mask
from unweave.batch import Batch
from unweave.model.algebra import Plain
from unweave.model.model import Model
from unweave.model.program import Inputs, run
from unweave.progress import progress
from unweave.sites import Point, Site

# Tokens (circuits × examples × positions) in one forward pass.
_CPU_TOKENS, _GPU_TOKENS = 1 << 11, 1 << 16


@dataclass(eq=False)
class Patch(Plain):
    """A plain run in which activations outside the kept ones are an ablation.

    The batch holds every circuit's examples one after the other: row = circuit · batch + example.

    Args:
        keep: At each ablated point, what stays: [circuit, batch, position, unit].
        batch: How many examples there are.
        reads: Positions read after the last attention; None for all.
    """

    keep: dict[Point, Bool[Tensor, "circuit #batch #position unit"]]
    ablation: Ablation
    batch: int
    reads: Int[Tensor, "row n"] | None = None
    left: Int[Tensor, "row n"] | None = None

    def cut(self, x: Tensor) -> Tensor:
        if self.reads is None:
            return x
        self.left = self.reads
        return x[torch.arange(len(x), device=x.device)[:, None], self.reads]

    def at(self, x: Tensor, point: Point) -> Tensor:
        keep = self.keep.get(point)
        if keep is None:
            return x
        left = None if self.left is None else self.left[: self.batch]
        rows = x.unflatten(0, (-1, self.batch))
        base = self.ablation.at(point, rows[0], left)
        if left is not None and keep.shape[2] > 1:
            examples = torch.arange(self.batch, device=x.device)[:, None]
            keep = keep.expand(-1, self.batch, -1, -1)[:, examples, left]
        # A head's output has an axis of its own; an MLP is one unit, a neuron one number.
        keep = keep.reshape(*keep.shape, *(1,) * (rows.ndim - keep.ndim))
        return torch.where(keep, rows, base).flatten(0, 1)


def keep_masks(
    circuits: Sequence[Collection[Site]], points: Iterable[Point], model: Model, batch: Batch
) -> dict[Point, Bool[Tensor, "circuit #batch #position unit"]]:
    """What each circuit keeps at every ablated point.

    A site without a position is kept at every position. Masks have no batch and position axes
    to speak of while no site names a position. They are put together on the CPU and travel to the
    model's device in one piece: a GPU would wait for each of thousands of small writes.
    """
    first, total = {}, 0
    for point in points:
        first[point], total = total, total + model.units(point)
    kept: dict[tuple, tuple[Site, list[tuple[int, int]]]] = {}
    for row, circuit in enumerate(circuits):
        for site in circuit:
            key = (site.position, site.point.stack, _reads_memory(site.point))
            places = kept.setdefault(key, (site, []))[1]
            places.append((row, first[site.point] + (site.unit or 0)))
    device = batch.clean.mask.device
    masks = {
        point: torch.zeros(len(circuits), 1, 1, model.units(point), dtype=torch.bool, device=device)
        for point in first
    }
    for site, places in kept.values():
        flat = torch.zeros(len(circuits), total, dtype=torch.bool)
        flat[tuple(torch.tensor(places).T)] = True
        flat = flat.to(device)
        where = position_mask(site, batch.clean, batch.positions)
        for point, start in first.items():
            if (point.stack, _reads_memory(point)) != (site.point.stack, _reads_memory(site.point)):
                continue
            here = flat[:, None, None, start : start + model.units(point)]
            masks[point] = masks[point] | (here if where is None else here & where[..., None])
    return masks


def _reads_memory(point: Point) -> bool:
    """Whether an activation of the decoder has the encoder's positions."""
    return point.kind in ("ck", "cv")


def run_circuits(
    model: Model,
    batch: Batch,
    circuits: Sequence[Collection[Site]],
    points: Iterable[Point],
    ablation: Ablation,
    rows: int | None = None,
) -> Float[Tensor, "circuit batch"]:
    """The metric of each circuit on each example, all else at `points` ablated.

    Args:
        points: Where nodes live; everything there that a circuit does not hold is replaced.
        rows: Circuits × examples in one forward pass; None chooses by device.
    """
    points = list(points)
    limit = rows or rows_at_once(model, batch)
    values = torch.zeros(len(circuits), len(batch), device=model.network.device)
    values = values.to(model.network.dtype)
    examples_at_once = min(len(batch), limit)
    circuits_at_once = max(1, limit // examples_at_once)
    with torch.no_grad(), progress("Running circuits", len(circuits) * len(batch)) as advance:
        for i in range(0, len(batch), examples_at_once):
            part = slice(i, min(i + examples_at_once, len(batch)))
            some, base = batch.select(part), ablation.select(part)
            for j in range(0, len(circuits), circuits_at_once):
                chosen = circuits[j : j + circuits_at_once]
                keep = keep_masks(chosen, points, model, some)
                values[j : j + len(chosen), part] = _metric(model, some, keep, base, len(chosen))
                advance(len(chosen) * len(some))
    return values


def _metric(
    model: Model, batch: Batch, keep: dict, ablation: Ablation, count: int
) -> Float[Tensor, "circuit batch"]:
    reads = read_positions(model, batch).repeat(count)[:, None]
    ops = Patch(keep, ablation, len(batch), reads)
    logits = run(model.network, repeat_inputs(batch.clean, count), ops)
    return batch.readout.measure(logits[:, 0].unflatten(0, (count, -1)))


def rows_at_once(model: Model, batch: Batch) -> int:
    """How many prompt rows one forward pass takes on the model's device."""
    tokens = _GPU_TOKENS if model.network.device.type == "cuda" else _CPU_TOKENS
    return max(1, tokens // batch.clean.mask.shape[1])


def read_positions(model: Model, batch: Batch) -> Int[Tensor, " batch"]:
    """Where the output is read: a classifier on its first token reads nothing else."""
    read = batch.readout.read
    return torch.zeros_like(read) if model.network.head.first else read


def repeat_inputs(inputs: Inputs, count: int) -> Inputs:
    """The whole batch, `count` times over."""
    if count == 1:
        return inputs
    index = torch.arange(len(inputs.mask), device=inputs.mask.device).repeat(count)
    return inputs.select(index)
