"""Polish: nodes leave a circuit, join it or change places, as long as that pays."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unweave.scores.problem import Problem
from unweave.search.descent import forecast, measured_changes
from unweave.search.loss import Loss
from unweave.search.race import Heats, race
from unweave.search.settings import SEARCH
from unweave.sites import Site

SETTINGS = SEARCH.polish


def polish(
    problem: Problem,
    loss: Loss,
    circuit: Sequence[Site],
    left: Sequence[Site],
    price: float,
    limit: int,
) -> tuple[Site, ...]:
    """Of all sets of the best single changes, makes the best one, as long as one pays.

    1. Every node leaves, and every candidate joins, alone; a race finds the best of these changes.
    2. What several do together is guessed from what each does alone, on every prompt. The best few
    sets are run on the prompts of the first heat, the best of them on all; where it does not pay,
    sets of at most half as many changes are next. 3. The loss, each node at
    its price, falls with every step, so it ends where no single change pays. The nodes come back
    in the order in which they are missed.

    Args:
        left: Nodes outside, the likeliest to be needed first.
        limit: The most nodes that the circuit may have.
    """
    others = _candidates(problem, loss, circuit, left)
    now = _Present(tuple(circuit), problem.metric([tuple(circuit)]))
    while True:
        tried = [*now.circuit, *others]
        growth = torch.tensor([-1] * len(now.circuit) + [1] * len(others))
        heats = race(problem, now.circuit, tried, loss, -price * growth, SEARCH.descent.tried)
        changed = _changed(problem, loss, now, tried, growth, price, limit, heats)
        if changed is None:
            missed = dict(zip(tried, heats.values, strict=True))
            return tuple(sorted(now.circuit, key=lambda node: -missed[node]))
        others = [node for node in tried if node not in set(changed.circuit)]
        now = changed


@dataclass(frozen=True, eq=False)
class _Present:
    """A circuit with its metric."""

    circuit: tuple[Site, ...]
    metric: Float[Tensor, "1 batch"]

    def cost(self, loss: Loss, price: float) -> float:
        return float(loss(self.metric)[0]) + price * len(self.circuit)


def _changed(
    problem: Problem,
    loss: Loss,
    now: _Present,
    tried: Sequence[Site],
    growth: Int[Tensor, " change"],
    price: float,
    limit: int,
    heats: Heats,
) -> _Present | None:
    """The circuit after the best set of changes that pays; None where none does."""
    best = [i for i in heats.order if heats.whole(i) is not None][: SEARCH.descent.tried]
    alone = heats.metric[best]
    measured = measured_changes(loss, now.metric[0], alone)
    grown = growth[best].to(alone.device)
    room, most = (len(now.circuit) - 1, limit - len(now.circuit)), len(best)
    bar = now.cost(loss, price) - SEARCH.loss.rounding
    seen = slice(0, min(heats.seen))
    first, part = problem.select(seen), loss.select(seen)
    while most:
        sets = measured.best_sets(-price * grown, grown, room, most, SETTINGS.finalists)
        if not sets:
            break
        circuits = [_flipped(now.circuit, [tried[best[i]] for i in one]) for one in sets]
        metric = first.metric(circuits)
        costs = part(metric) + price * torch.tensor([len(one) for one in circuits]).to(metric)
        circuit = circuits[int(costs.argmin())]
        changed = _Present(circuit, problem.metric([circuit]))
        if changed.cost(loss, price) < bar:
            return changed
        most = max(map(len, sets)) // 2
    # What is charged for doubt may have hidden a single change that pays.
    for i, metric in zip(best, alone, strict=True):
        changed = _Present(_flipped(now.circuit, [tried[i]]), metric[None])
        if 0 < len(changed.circuit) <= limit and changed.cost(loss, price) < bar:
            return changed
    return None


def _candidates(
    problem: Problem, loss: Loss, circuit: Sequence[Site], left: Sequence[Site]
) -> list[Site]:
    """Nodes that may join: of those that are likely to be needed and of those that a gradient
    predicts to help most, in turn; a gradient misses nodes that do nothing by halves."""
    own = set(circuit)
    outside = [node for node in problem.nodes if node not in own]
    # Every proposal is tried on all prompts: some are enough to make it.
    some = slice(0, SEARCH.descent.proposing)
    foreseen = forecast(problem.select(some), loss.select(some), circuit, outside)
    order = foreseen.losses().argsort(stable=True).tolist()
    likely = [node for node in left if node not in own]
    turns = zip_longest(likely, (outside[i] for i in order))
    found = dict.fromkeys(node for turn in turns for node in turn if node is not None)
    return list(found)[: SETTINGS.returning]


def _flipped(circuit: Sequence[Site], nodes: Sequence[Site]) -> tuple[Site, ...]:
    """The circuit without those of the nodes that it has, and with the others."""
    own = set(circuit)
    return (*(n for n in circuit if n not in set(nodes)), *(n for n in nodes if n not in own))
