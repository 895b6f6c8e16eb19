"""Polish: single changes of a circuit, and exchanges of two nodes, as long as they pay."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.scores.problem import Problem
from unweave.search.descent import SETTINGS, forecast
from unweave.search.loss import Loss
from unweave.search.race import Heats, race
from unweave.sites import Site


def polish(
    problem: Problem,
    loss: Loss,
    circuit: Sequence[Site],
    left: Sequence[Site],
    price: float,
    limit: int,
) -> tuple[Site, ...]:
    """Drops or adds single nodes, the best one each time; where none pays, exchanges two.

    What a node does depends on those that are still there. The loss, each node at its price, falls
    with every step, so it ends. The nodes come back in the order in which they are missed.

    Args:
        left: Nodes outside, the likeliest to be needed first.
        limit: The most nodes that the circuit may have.
    """
    others = _candidates(problem, loss, circuit, left)
    now = _Present(tuple(circuit), problem.metric([tuple(circuit)]))
    missed: dict[Site, float] = {}
    while True:
        kept, tried = now.circuit, [*now.circuit, *others]
        # A change that is not allowed is worth nothing by itself, but may be one half of a swap.
        drop = price if len(kept) > 1 else -torch.inf
        add = -price if len(kept) < limit else -torch.inf
        worth = torch.tensor([*[drop] * len(kept), *[add] * len(others)])
        heats = race(problem, kept, tried, loss, worth)
        missed = dict(zip(tried, heats.values, strict=True))
        best = heats.order[0]
        circuit, metric = _flipped(kept, [tried[best]]), heats.whole(best)
        changed = _Present(circuit, problem.metric([circuit]) if metric is None else metric)
        if now.gain(changed, loss) + float(worth[best]) <= SETTINGS.rounding:
            swapped = _swapped(problem, loss, now, others, heats, tried)
            if swapped is None or now.gain(swapped, loss) <= SETTINGS.rounding:
                break
            changed = swapped
        others = [node for node in tried if node not in set(changed.circuit)]
        now = changed
    return tuple(sorted(now.circuit, key=lambda node: -missed.get(node, 0.0)))


@dataclass(frozen=True, eq=False)
class _Present:
    """A circuit with its metric."""

    circuit: tuple[Site, ...]
    metric: Float[Tensor, "1 batch"]

    def gain(self, other: "_Present", loss: Loss) -> float:
        """By how much another circuit's loss is smaller."""
        return float(loss(self.metric)[0]) - float(loss(other.metric)[0])


def _candidates(
    problem: Problem, loss: Loss, circuit: Sequence[Site], left: Sequence[Site]
) -> list[Site]:
    """Nodes that may join: of those that are likely to be needed and of those that a gradient
    predicts to help most, in turn; a gradient misses nodes that do nothing by halves."""
    own = set(circuit)
    outside = [node for node in problem.nodes if node not in own]
    # Every proposal is tried on all prompts: some are enough to make it.
    some = slice(0, SETTINGS.proposing)
    foreseen = forecast(problem.select(some), loss.select(some), circuit, outside)
    order = foreseen.losses().argsort(stable=True).tolist()
    likely = [node for node in left if node not in own]
    turns = zip_longest(likely, (outside[i] for i in order))
    found = dict.fromkeys(node for turn in turns for node in turn if node is not None)
    return list(found)[: SETTINGS.returning]


def _swapped(
    problem: Problem,
    loss: Loss,
    now: _Present,
    others: Sequence[Site],
    heats: Heats,
    tried: Sequence[Site],
) -> _Present | None:
    """The best circuit in which one of the others takes a node's place.

    What two changes do together is guessed from what each does alone, on the prompts that all of
    them saw; the best guesses are run on these, the best of them on all.
    """
    place = {node: i for i, node in enumerate(tried)}
    pairs = [(i, j) for i in now.circuit for j in others]
    if not pairs:
        return None
    seen = slice(0, min(heats.seen))
    first, part, alone = problem.select(seen), loss.select(seen), heats.metric[:, seen]
    rows = torch.tensor([[place[i], place[j]] for i, j in pairs], device=alone.device)
    guesses = part(alone[rows[:, 0]] + alone[rows[:, 1]] - now.metric[:, seen])
    circuits = [_flipped(now.circuit, pairs[i]) for i in _least(guesses, SETTINGS.swaps)]
    if not circuits:
        return None
    best = [circuits[i] for i in _least(part(first.metric(circuits)), SETTINGS.finalists)]
    metric = problem.metric(best)
    chosen = int(loss(metric).argmin())
    return _Present(best[chosen], metric[chosen][None])


def _least(values: Float[Tensor, " n"], count: int) -> list[int]:
    return values.argsort(stable=True)[:count].tolist()


def _flipped(circuit: Sequence[Site], nodes: Sequence[Site]) -> tuple[Site, ...]:
    """The circuit without those of the nodes that it has, and with the others."""
    own = set(circuit)
    return (*(n for n in circuit if n not in set(nodes)), *(n for n in nodes if n not in own))
