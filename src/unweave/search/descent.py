"""The way down: circuits with fewer and fewer nodes, always without what is missed least.

One gradient pass at a circuit gives, to first order, what every node adds to the metric of every
prompt; so it foresees the loss without any set of nodes, cancellations included. That only
proposes: every circuit on the way is run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.patching.circuits import keep_masks
from unweave.scores.gradients import differences, metric_gradients, node_products, parts
from unweave.scores.problem import Problem
from unweave.search.forecast import Forecast
from unweave.search.loss import Loss
from unweave.search.search import Step
from unweave.search.settings import SEARCH
from unweave.sites import Site

SETTINGS = SEARCH.descent


@dataclass(frozen=True, eq=False)
class Descent:
    """Circuits on the way down, on one set of prompts.

    Args:
        price: Loss that one node less may cost.
    """

    problem: Problem
    loss: Loss
    price: float

    def next(self, nodes: tuple[Site, ...], steps: Sequence[Step]) -> Step | None:
        """The circuit after `nodes`; None where circuits are clearly past the best."""
        if not steps:
            return self._step(nodes, ())
        values = [step.loss + self.price * step.size for step in steps]
        if len(nodes) <= 1 or values[-1] - min(values) > SETTINGS.margin:
            return None
        present = steps[-1].loss
        if len(nodes) <= SETTINGS.tried:
            return self._few(nodes, present, None)
        foreseen = self._foreseen(nodes)
        if len(nodes) > SETTINGS.few and (step := self._block(nodes, present, foreseen)):
            return step
        return self._few(nodes, present, foreseen)

    def _block(self, nodes: tuple[Site, ...], present: float, foreseen: Forecast) -> Step | None:
        """Without the largest block that costs no more than its price; None where none does."""
        order = foreseen.together(len(nodes) // SETTINGS.blocks[0])
        for share in SETTINGS.blocks:
            block = tuple(nodes[i] for i in order[: len(nodes) // share])
            step = self._step(nodes, block)
            if step.loss <= present + self.price * len(block):
                return step
        return None

    def _few(self, nodes: tuple[Site, ...], present: float, foreseen: Forecast | None) -> Step:
        """Without the nodes that pay to leave together, such as two that cancel; where none does,
        without the one that is missed least."""
        likely = nodes
        if foreseen is not None:
            order = foreseen.losses().argsort(stable=True).tolist()
            likely = tuple(nodes[i] for i in order[: SETTINGS.tried])
        measured = self._measured(nodes, likely)
        most, leave = len(likely), torch.full((len(likely),), -1, device=measured.off.device)
        while True:
            room = (len(nodes) - 1, 0)
            chosen = measured.best_sets(-self.price * leave, leave, room, most)[0]
            step = self._step(nodes, tuple(likely[i] for i in chosen))
            if len(chosen) == 1 or step.loss <= present + self.price * len(chosen):
                return step
            most = len(chosen) // 2

    def _measured(self, nodes: tuple[Site, ...], likely: tuple[Site, ...]) -> Forecast:
        """What the loss is without each of the likely nodes, on some prompts: run, not foreseen."""
        part, loss = self._some
        return measured_changes(loss, part.metric([nodes])[0], part.flipped(nodes, likely))

    def _foreseen(self, nodes: tuple[Site, ...]) -> Forecast:
        return forecast(*self._some, nodes, nodes)

    @cached_property
    def _some(self) -> tuple[Problem, Loss]:
        """Prompts on which circuits are proposed; all prompts decide on each."""
        some = slice(0, SETTINGS.proposing)
        return self.problem.select(some), self.loss.select(some)

    def _step(self, nodes: tuple[Site, ...], removed: tuple[Site, ...]) -> Step:
        left = tuple(node for node in nodes if node not in set(removed))
        metric = self.problem.metric([left])
        loss, faithfulness = float(self.loss(metric)[0]), float(self.loss.faithfulness(metric)[0])
        return Step(len(left), loss, faithfulness, tuple(map(str, removed)), len(metric[0]))


def measured_changes(
    loss: Loss, metric: Float[Tensor, " batch"], changed: Float[Tensor, "change batch"]
) -> Forecast:
    """What the loss will be after several changes, each of which was run alone.

    Args:
        metric: Of the circuit.
        changed: Of the circuit after each change.
    """
    off = (metric - loss.reference.full) / loss.scale
    return _charged(loss, off, (changed - metric).T / loss.scale)


def forecast(
    problem: Problem, loss: Loss, circuit: Sequence[Site], nodes: Sequence[Site]
) -> Forecast:
    """What the loss will be where some nodes leave a circuit, or join it if they are outside."""
    metric, adds = estimated_effects(problem, tuple(circuit), nodes)
    own = set(circuit)
    signs = adds.new_tensor([-1.0 if node in own else 1.0 for node in nodes])
    off = (metric - loss.reference.full) / loss.scale
    return _charged(loss, off, adds.T * signs / loss.scale)


def _charged(
    loss: Loss, off: Float[Tensor, " batch"], moves: Float[Tensor, "batch change"]
) -> Forecast:
    return Forecast(off, moves, SETTINGS.doubt * moves.abs().mean(0), loss.mean, loss.shift)


def estimated_effects(
    problem: Problem, circuit: tuple[Site, ...], nodes: Sequence[Site]
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "node batch"]]:
    """The circuit's metric, and to first order what each of some nodes adds, or would add."""
    if not nodes:
        metric = problem.metric([circuit])
        return metric[0], metric[:0]
    found = problem.by_prompts(1 + len(nodes), lambda part: _effects(part, circuit, nodes))
    return found[0], found[1:]


def _effects(
    problem: Problem, circuit: tuple[Site, ...], nodes: Sequence[Site]
) -> Float[Tensor, "row batch"]:
    metrics, columns = [], []
    chosen, outside = replace(problem, nodes=tuple(nodes)), not set(nodes) <= set(circuit)
    # A GPU's graph serves all circuits where it reads the same points.
    points = chosen.points if problem.model.network.device.type == "cpu" else problem.points
    for part in parts(len(problem.batch), problem.model.network.device):
        batch, ablation = problem.batch.select(part), problem.ablation.select(part)
        keep = keep_masks([circuit], problem.points, problem.model, batch)
        gradients, values, metric = metric_gradients(
            problem.model, batch, points, keep, ablation, outside=outside
        )
        metrics.append(metric)
        deltas = differences(values, ablation, batch)
        columns.append(node_products(chosen, gradients, deltas, batch))
    return torch.cat([torch.cat(metrics)[None], torch.cat(columns, 1)])
