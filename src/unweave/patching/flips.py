"""One circuit with each of some nodes dropped or added: exact, each run from its node's layer."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.ablation import Ablation
from unweave.batch import Batch
from unweave.model.model import Model
from unweave.model.program import Stage, Stream, stages
from unweave.patching.circuits import (
    Patch,
    keep_masks,
    read_positions,
    repeat_inputs,
    rows_at_once,
    run_circuits,
)
from unweave.patching.graphs import captures, room
from unweave.progress import progress
from unweave.sites import Point, Site

_GPU_TOKENS = 1 << 11  # fewer do not fill a GPU


def run_flips(
    model: Model,
    batch: Batch,
    circuit: Sequence[Site],
    nodes: Sequence[Site],
    points: Sequence[Point],
    ablation: Ablation,
) -> Float[Tensor, "node batch"]:
    """The metric of the circuit without each of its own nodes, and with each of the others.

    Equals `run_circuits` of those circuits. A change at a node leaves everything before its layer
    as it is, so each run begins there, from the circuit's own residual stream. Where launches take
    longer than kernels, whole runs of all of them at once are faster.
    """
    if captures(model.network, room(len(nodes)) * batch.clean.mask.numel()):
        own = frozenset(circuit)
        return run_circuits(model, batch, [own ^ {node} for node in nodes], points, ablation)
    limit = rows_at_once(model, batch)
    values = torch.zeros(
        len(nodes), len(batch), device=model.network.device, dtype=model.network.dtype
    )
    step = min(len(batch), limit)
    with torch.no_grad(), progress("Trying each node", len(nodes) * len(batch)) as advance:
        for i in range(0, len(batch), step):
            part = slice(i, min(i + step, len(batch)))
            some, base = batch.select(part), ablation.select(part)
            runs = _Runs(model, some, tuple(circuit), tuple(points), base)
            for layer, numbers in _joined(runs.by_stage(nodes), _few(model, some)):
                for j in range(0, len(numbers), max(1, limit // step)):
                    chosen = numbers[j : j + max(1, limit // step)]
                    values[chosen, part] = runs.flipped(layer, [nodes[n] for n in chosen])
                    advance(len(chosen) * len(some))
    return values


def _few(model: Model, batch: Batch) -> int:
    """Nodes below which a GPU is not filled: they join those of an earlier layer."""
    if model.network.device.type != "cuda":
        return 1
    return -(-_GPU_TOKENS // batch.clean.mask.numel())


def _joined(by_stage: Mapping[int, Sequence[int]], few: int) -> list[tuple[int, list[int]]]:
    """Stages with the numbers of the nodes that begin there, at least `few` but for the last."""
    joined: list[tuple[int, list[int]]] = []
    for stage in sorted(by_stage):
        if joined and len(joined[-1][1]) < few:
            joined[-1][1].extend(by_stage[stage])
        else:
            joined.append((stage, list(by_stage[stage])))
    return joined


class _Runs:
    """The circuit's own run over some examples, kept stage by stage as far as it is asked for."""

    def __init__(
        self,
        model: Model,
        batch: Batch,
        circuit: tuple[Site, ...],
        points: tuple[Point, ...],
        ablation: Ablation,
    ) -> None:
        self.model, self.batch, self.circuit = model, batch, frozenset(circuit)
        self.points, self.ablation = points, ablation
        self.reads = read_positions(model, batch)
        self.stages: dict[int, list[Stage]] = {}
        self.entering: list[Stream[Tensor] | None] = [None]
        # A change may need positions that the circuit itself does not: all of them are kept.
        self.own = replace(self._patch([circuit]), reads=None)

    def by_stage(self, nodes: Sequence[Site]) -> dict[int, list[int]]:
        """Numbers of the nodes by the stage in which they lie."""
        where = {
            (stage.stack, stage.layer): i
            for i, stage in enumerate(self._stages(1))
            if stage.layer is not None or stage.name.endswith("embed")
        }
        found = defaultdict(list)
        for number, node in enumerate(nodes):
            layer = None if node.point.kind == "embed" else node.point.layer
            found[where[node.point.stack, layer]].append(number)
        return found

    def flipped(self, begin: int, nodes: Sequence[Site]) -> Float[Tensor, "node batch"]:
        circuits = [tuple(self.circuit ^ {node}) for node in nodes]
        ops, entering = self._patch(circuits), self._entering(begin)
        stream = None
        if entering is not None:
            stream = Stream(_repeat(entering.x, len(nodes)), _maybe(entering.memory, len(nodes)))
        for stage in self._stages(len(nodes))[begin:]:
            stream = stage.apply(ops, stream)
        assert stream is not None
        return self.batch.readout.measure(stream.x[:, 0].unflatten(0, (len(nodes), -1)))

    def _entering(self, stage: int) -> Stream[Tensor] | None:
        for one in self._stages(1)[len(self.entering) - 1 : stage]:
            self.entering.append(one.apply(self.own, self.entering[-1]))
        return self.entering[stage]

    def _patch(self, circuits: Sequence[tuple[Site, ...]]) -> Patch:
        keep = keep_masks(circuits, self.points, self.model, self.batch)
        reads = self.reads.repeat(len(circuits))[:, None]
        return Patch(keep, self.ablation, len(self.batch), reads)

    def _stages(self, count: int) -> list[Stage]:
        if count not in self.stages:
            inputs = repeat_inputs(self.batch.clean, count)
            self.stages[count] = stages(self.model.network, inputs)
        return self.stages[count]


def _repeat(x: Float[Tensor, "batch *rest"], count: int) -> Float[Tensor, "row *rest"]:
    return x.repeat(count, *(1,) * (x.ndim - 1))


def _maybe(x: Tensor | None, count: int) -> Tensor | None:
    return None if x is None else _repeat(x, count)
