"""Races: of many changes of a circuit, the best ones; clearly worse ones see few prompts.

1. Every change is run on the first prompts. 2. Those whose loss is above the best one's by more
than two standard errors of their difference, example by example, are out, and of the others the
best third goes on. 3. They see four times as many prompts, and as many as are wanted see all. The
closest calls are decided by all prompts, so that other prompts decide them alike; clear ones cost
little.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unweave.estimates import standard_error
from unweave.scores.problem import Problem
from unweave.search.loss import Loss
from unweave.search.settings import SEARCH
from unweave.sites import Site

SETTINGS = SEARCH.race


@dataclass(frozen=True, eq=False)
class Heats:
    """The outcome of a race.

    Args:
        metric: Each change's metric; NaN on prompts that it did not see.
        seen: On how many prompts each was run.
        values: Each change's loss on those, less what it is worth.
    """

    metric: Float[Tensor, "change batch"]
    seen: list[int]
    values: list[float]

    @property
    def order(self) -> list[int]:
        """Changes from the best to the worst: those that lasted longer come first."""
        return sorted(range(len(self.seen)), key=lambda i: (-self.seen[i], self.values[i]))

    def whole(self, change: int) -> Float[Tensor, "1 batch"] | None:
        """The metric of a change that was run on all prompts; None for one that was not."""
        complete = self.seen[change] == self.metric.shape[1]
        return self.metric[change][None] if complete else None


def race(
    problem: Problem,
    circuit: Sequence[Site],
    changes: Sequence[Site],
    loss: Loss,
    worth: Float[Tensor, " change"],
    wanted: int = 1,
) -> Heats:
    """Runs the circuit without each of its own nodes, and with each of the others.

    Args:
        worth: What each change saves (a node's price) or costs (negative), beside the loss.
        wanted: How many changes see all prompts, at least.
    """
    total, alive = len(problem.batch), torch.ones(len(changes), dtype=torch.bool)
    metric = loss.reference.full.new_full((len(changes), total), torch.nan)
    seen, values = [0] * len(changes), [torch.inf] * len(changes)
    start, end = 0, min(SETTINGS.first, total)
    worth = worth.to(metric)
    while True:
        index = alive.nonzero().flatten().tolist()
        part, chosen = problem.select(slice(start, end)), [changes[i] for i in index]
        metric[index, start:end] = part.flipped(circuit, chosen)
        parts = loss.select(slice(0, end)).parts(metric[index, :end])
        costs = parts.mean(1) - worth[index]
        for i, cost in zip(index, costs.tolist(), strict=True):
            seen[i], values[i] = end, cost
        if end == total:
            break
        left = _close(parts, costs, wanted)
        alive[index] = left.cpu()
        few = int(alive.sum()) <= wanted
        start, end = end, total if few else min(SETTINGS.growth * end, total)
    return Heats(metric, seen, values)


def _close(
    parts: Float[Tensor, "change batch"], costs: Float[Tensor, " change"], wanted: int
) -> Bool[Tensor, " change"]:
    """Which changes go on: the best that are not clearly worse than the last of the wanted ones."""
    order = costs.argsort(stable=True)
    mark = int(order[min(wanted, len(costs)) - 1])
    close = costs - costs[mark] <= SETTINGS.errors * standard_error(parts - parts[mark])
    close[order[max(wanted, -(-len(costs) // SETTINGS.lasting)) :]] = False
    return close
