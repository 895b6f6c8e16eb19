"""Circuits as runs: every node outside a circuit is ablated, many circuits in one batch."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unweave.ablation import Ablation, position_mask
from unweave.batch import Batch, Readout
from unweave.cost import weighted
from unweave.model.algebra import Plain
from unweave.model.model import Model
from unweave.model.products import linear
from unweave.model.program import Inputs, run
from unweave.model.weights import Attention
from unweave.patching.graphs import captures, replayed, room
from unweave.progress import progress
from unweave.sites import Point, Site, StackName, head_point

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

    def needed_heads(self, w: Attention, layer: int, stack: StackName) -> tuple[int, ...] | None:
        """Those that any circuit keeps anywhere, where they can be computed without the others.

        Half of them or more gain little. To look at a mask a GPU would have to be waited for.
        """
        z, *inputs = (head_point(part, layer, stack, w.cross) for part in "zqkv")
        keep = self.keep.get(z)
        if keep is None or keep.device.type != "cpu" or any(p in self.keep for p in inputs):
            return None
        kept = tuple(keep.flatten(0, -2).any(0).nonzero().flatten().tolist())
        some = 2 * len(kept) <= w.heads and (w.by_head or not kept)
        return kept if some else None

    def complete(
        self, z: Tensor | None, heads: tuple[int, ...], w: Attention, x: Tensor, point: Point
    ) -> Tensor:
        """`W_kept · (kept z or its ablation) + W_others · (their ablation) + b`.

        What the others write is the same for every circuit, and for prompts that share an ablation.
        """
        chosen = list(heads)

        def written(values: Tensor) -> Tensor:
            others = values.clone()
            others[..., chosen, :] = 0.0
            return linear(others.flatten(-2), w.out.matrix)

        example, left = x.unflatten(0, (-1, self.batch))[0], self._left
        y = self.ablation.mapped(point, written).at(point, example, left)
        y = y if w.out.offset is None else y + w.out.offset
        if z is None:
            return y.repeat(len(x) // self.batch, 1, 1)
        own = self.ablation.mapped(point, lambda values: values[..., chosen, :])
        z = self._kept(z, self.keep[point][..., chosen], own.at(point, z[: self.batch], left))
        matrix = w.out.matrix.unflatten(1, (w.heads, -1))[:, chosen].flatten(1)
        return (linear(z.flatten(-2), matrix).unflatten(0, (-1, self.batch)) + y).flatten(0, 1)

    def cut(self, x: Tensor) -> Tensor:
        if self.reads is None:
            return x
        self.left = self.reads
        return x[torch.arange(len(x), device=x.device)[:, None], self.reads]

    def at(self, x: Tensor, point: Point) -> Tensor:
        keep = self.keep.get(point)
        if keep is None:
            return x
        return self._kept(x, keep, self.ablation.at(point, x[: self.batch], self._left))

    @property
    def _left(self) -> Int[Tensor, "batch n"] | None:
        return None if self.left is None else self.left[: self.batch]

    def _kept(
        self,
        x: Tensor,
        keep: Bool[Tensor, "circuit #batch #position unit"],
        base: Float[Tensor, "batch left *unit"],
    ) -> Tensor:
        rows, left = x.unflatten(0, (-1, self.batch)), self._left
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
    kept: dict[tuple, tuple[Site, list[int]]] = {}
    for row, circuit in enumerate(circuits):
        for site in circuit:
            # Everywhere is everywhere in an encoder too; a name is looked up in its own stack.
            key = None if site.position is None else (site.position, *_side(site.point))
            places = kept.setdefault((key,), (site, []))[1]
            places.append(row * total + first[site.point] + (site.unit or 0))
    device = batch.clean.mask.device
    masks: dict[Point, Tensor] = {}
    for site, places in kept.values():
        flat = torch.zeros(len(circuits) * total, dtype=torch.bool)
        flat[torch.tensor(places, dtype=torch.long)] = True
        # Not waited for: what comes after it on the device does.
        flat = flat.reshape(len(circuits), 1, 1, total).to(device, non_blocking=True)
        anywhere = site.position is None
        where = None if anywhere else position_mask(site, batch.clean, batch.positions)
        for point, start in first.items():
            if not anywhere and _side(point) != _side(site.point):
                continue
            here = flat[..., start : start + model.units(point)]
            here = here if where is None else here & where[..., None]
            masks[point] = here if point not in masks else masks[point] | here
    for point in first.keys() - masks.keys():
        shape = (len(circuits), 1, 1, model.units(point))
        masks[point] = torch.zeros(shape, dtype=torch.bool, device=device)
    return {point: masks[point] for point in first}


def _side(point: Point) -> tuple[str, bool]:
    """Whose positions an activation has: its stack's, or in a decoder the encoder's."""
    return point.stack, point.kind in ("ck", "cv")


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
                values[j : j + len(chosen), part] = _metric(model, some, chosen, points, base)
                advance(len(chosen) * len(some))
    return values


def _metric(
    model: Model,
    batch: Batch,
    circuits: Sequence[Collection[Site]],
    points: Sequence[Point],
    ablation: Ablation,
) -> Float[Tensor, "circuit batch"]:
    tokens, network = batch.clean.mask.numel(), model.network
    count = room(len(circuits))
    if not captures(network, count * tokens):
        keep = keep_masks(circuits, points, model, batch)
        given = (batch.clean, batch.readout, keep, ablation)
        return _patched(model, len(batch), len(circuits), given)[0]
    spare = count - len(circuits)
    keep = keep_masks([*circuits, *[()] * spare], points, model, batch)
    given = (batch.clean, batch.readout, keep, ablation)
    what = ("circuits", tuple(points), count)
    with weighted(len(circuits) / count):  # rows of no circuit are not counted
        found = replayed(
            network, what, given, lambda given: _patched(model, len(batch), count, given)
        )
    return found[0][: len(circuits)]


def _patched(
    model: Model, examples: int, count: int, given: "tuple[Inputs, Readout, dict, Ablation]"
) -> tuple[Float[Tensor, "circuit batch"]]:
    """The metric of every circuit on every example, all on the model's device."""
    clean, readout, keep, ablation = given
    read = torch.zeros_like(readout.read) if model.network.head.first else readout.read
    ops = Patch(keep, ablation, examples, read.repeat(count)[:, None])
    logits = run(model.network, repeat_inputs(clean, count), ops)
    return (readout.measure(logits[:, 0].unflatten(0, (count, -1))),)


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
