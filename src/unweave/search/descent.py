"""The way down: circuits with fewer and fewer nodes, always without what is missed least."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.patching.circuits import keep_masks
from unweave.scores.gradients import differences, metric_gradients, node_products, parts
from unweave.scores.problem import Problem
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
        blocks: Whether blocks leave, as long as that costs nothing; else one or two nodes, until
            circuits are clearly past the best.
    """

    problem: Problem
    loss: Loss
    price: float
    blocks: bool

    def next(self, nodes: tuple[Site, ...], steps: Sequence[Step]) -> Step | None:
        """The circuit after `nodes`; None where the way down ends."""
        count = len(self.problem.batch)
        mine = [step for step in steps if step.prompts == count and step.blocks == self.blocks]
        if not mine:
            return self._step(nodes, ())
        present = mine[-1].loss
        if self.blocks:
            return self._block(nodes, present)
        value = min(step.loss + self.price * step.size for step in mine)
        past = present + self.price * len(nodes) - value > SETTINGS.margin
        return None if len(nodes) <= 1 or past else self._single(nodes, present)

    def _block(self, nodes: tuple[Site, ...], present: float) -> Step | None:
        """Without the largest block of those that do least that may leave at once."""
        _, effects = estimated_effects(self.problem, nodes)
        # What to first order looks like a gain is often an error: small effects leave.
        order = _ordered(nodes, effects.abs().mean(1))
        for share in SETTINGS.blocks:
            block = tuple(order[: len(nodes) // share])
            if not block:
                continue
            step = self._step(nodes, block)
            if step.loss <= max(present + self.price * len(block), SETTINGS.good):
                return step
        return None

    def _single(self, nodes: tuple[Site, ...], present: float) -> Step:
        """Without the node that is missed least, or two that do not need each other."""
        chosen = list(nodes)
        if len(nodes) > 2 * SETTINGS.tried:
            # An estimate only proposes what is then tried: half of the prompts are enough.
            half = slice(0, -(-len(self.problem.batch) // 2))
            metric, effects = estimated_effects(self.problem.select(half), nodes)
            chosen = _ordered(nodes, self.loss.select(half)(metric - effects))[: SETTINGS.tried]
        worth = torch.full((len(chosen),), self.price)
        heats = race(self.problem, nodes, chosen, self.loss, worth, wanted=min(2, len(chosen)))
        best = [chosen[i] for i in heats.order[:2]]
        if len(best) == 2 and len(nodes) > 2:
            both = self._step(nodes, tuple(best))
            if both.loss <= present + 2 * self.price:
                return both
        return self._step(nodes, tuple(best[:1]), heats.whole(heats.order[0]))

    def _step(
        self,
        nodes: tuple[Site, ...],
        removed: tuple[Site, ...],
        metric: Float[Tensor, "1 batch"] | None = None,
    ) -> Step:
        left = tuple(node for node in nodes if node not in set(removed))
        metric = self.problem.metric([left]) if metric is None else metric
        loss, faithfulness = float(self.loss(metric)[0]), float(self.loss.faithfulness(metric)[0])
        names = tuple(map(str, removed))
        return Step(len(left), loss, faithfulness, names, len(metric[0]), self.blocks)


def estimated_effects(
    problem: Problem, nodes: tuple[Site, ...]
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "node batch"]]:
    """The circuit's metric, and to first order what each node adds: ⟨∂m/∂z, z − μ⟩ there."""
    found = problem.by_prompts(1 + len(nodes), lambda part: _effects(part, nodes))
    return found[0], found[1:]


def _effects(problem: Problem, nodes: tuple[Site, ...]) -> Float[Tensor, "row batch"]:
    metrics, columns = [], []
    for part in parts(len(problem.batch), problem.model.network.device):
        batch, ablation = problem.batch.select(part), problem.ablation.select(part)
        keep = keep_masks([nodes], problem.points, problem.model, batch)
        gradients, values, metric = metric_gradients(
            problem.model, batch, problem.points, keep, ablation
        )
        metrics.append(metric)
        deltas = differences(values, ablation, batch)
        columns.append(node_products(problem, gradients, deltas, batch))
    index = {node: i for i, node in enumerate(problem.nodes)}
    chosen = torch.cat(columns, 1)[[index[node] for node in nodes]]
    return torch.cat([torch.cat(metrics)[None], chosen])


def _ordered(nodes: Sequence[Site], by: Float[Tensor, " node"]) -> list[Site]:
    return [nodes[i] for i in torch.argsort(by, stable=True).tolist()]
