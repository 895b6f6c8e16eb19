"""The way down: circuits with fewer and fewer nodes, always without what is missed least.

One gradient pass at a circuit gives, to first order, what every node adds to the metric of every
prompt; so it foresees the loss without any set of nodes, cancellations included. That only
proposes: every circuit on the way is run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.patching.circuits import keep_masks
from unweave.scores.gradients import differences, metric_gradients, node_products, parts
from unweave.scores.problem import Problem
from unweave.search.forecast import Forecast
from unweave.search.loss import Loss
from unweave.search.race import race
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
        if len(nodes) > SETTINGS.few and (step := self._block(nodes, steps[-1].loss)):
            return step
        return self._few(nodes)

    def _block(self, nodes: tuple[Site, ...], present: float) -> Step | None:
        """Without the largest block that costs no more than its price; None where none does."""
        foreseen = forecast(self.problem, self.loss, nodes, nodes)
        order = foreseen.together(len(nodes) // SETTINGS.blocks[0])
        for share in SETTINGS.blocks:
            block = tuple(nodes[i] for i in order[: len(nodes) // share])
            step = self._step(nodes, block)
            if step.loss <= present + self.price * len(block):
                return step
        return None

    def _few(self, nodes: tuple[Site, ...]) -> Step:
        """Without the node that is missed least, or a pair, such as two that cancel."""
        singles, pair = self._proposed(nodes)
        worth = torch.full((len(singles),), self.price)
        heats = race(self.problem, nodes, singles, self.loss, worth)
        best = heats.order[0]
        one = self._step(nodes, (singles[best],), heats.whole(best))
        if pair is None:
            return one
        both = self._step(nodes, pair)
        return both if both.loss - self.price <= one.loss else one

    def _proposed(self, nodes: tuple[Site, ...]) -> tuple[list[Site], tuple[Site, Site] | None]:
        """Nodes to try without, and the best pair of them all; few nodes are all tried."""
        # Every proposal is tried on all prompts: some are enough to make it.
        some = slice(0, SETTINGS.proposing)
        foreseen = forecast(self.problem.select(some), self.loss.select(some), nodes, nodes)
        order = foreseen.losses().argsort(stable=True).tolist()
        singles = [nodes[i] for i in order[: SETTINGS.tried]]
        pairs = list(combinations(range(len(nodes)), 2)) if len(nodes) > 2 else []
        if not pairs:
            return singles, None
        first, second = torch.tensor(pairs, device=foreseen.moves.device).T
        sums = foreseen.moves[:, first] + foreseen.moves[:, second]
        i, j = pairs[int(_charged(foreseen.off, sums, foreseen.mean).losses().argmin())]
        return singles, (nodes[i], nodes[j])

    def _step(
        self,
        nodes: tuple[Site, ...],
        removed: tuple[Site, ...],
        metric: Float[Tensor, "1 batch"] | None = None,
    ) -> Step:
        left = tuple(node for node in nodes if node not in set(removed))
        metric = self.problem.metric([left]) if metric is None else metric
        loss, faithfulness = float(self.loss(metric)[0]), float(self.loss.faithfulness(metric)[0])
        return Step(len(left), loss, faithfulness, tuple(map(str, removed)), len(metric[0]))


def forecast(
    problem: Problem, loss: Loss, circuit: Sequence[Site], nodes: Sequence[Site]
) -> Forecast:
    """What the loss will be where some nodes leave a circuit, or join it if they are outside."""
    metric, adds = estimated_effects(problem, tuple(circuit), nodes)
    own = set(circuit)
    signs = adds.new_tensor([-1.0 if node in own else 1.0 for node in nodes])
    off = (metric - loss.reference.full) / loss.scale
    return _charged(off, adds.T * signs / loss.scale, loss.mean)


def _charged(
    off: Float[Tensor, " batch"], moves: Float[Tensor, "batch change"], mean: float
) -> Forecast:
    return Forecast(off, moves, SETTINGS.doubt * moves.abs().mean(0), mean)


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
