"""The order of nodes, so that faithfulness is near 1 at as many sizes as possible.

It is a way down from the whole model through the circuit to nothing, read backwards: always what is
missed least leaves, first of the nodes outside the circuit, then of its own. Where many are left,
what is missed is foreseen; the last few nodes of the circuit are run.
"""

from collections.abc import Sequence

from unweave.progress import progress
from unweave.scores.problem import Problem
from unweave.search.descent import forecast
from unweave.search.loss import Loss
from unweave.search.settings import SEARCH
from unweave.sites import Site

SETTINGS = SEARCH.descent


def measured_order(
    problem: Problem, circuit: Sequence[Site], rest: Sequence[Site], known: float
) -> list[Site]:
    """The nodes of a circuit, then the others; of both, the last one to leave first.

    Args:
        known: The circuit's faithfulness on more prompts than order nodes. By how much it is larger
            there is added to faithfulness: all of it at the circuit, none at the whole model or
            without any node, which the scale takes for 1 and 0.
    """
    problem = problem.select(slice(0, SETTINGS.proposing))
    shift = known - float(problem.faithfulness([circuit])[0])
    left, gone, size = [*circuit, *rest], list[Site](), len(circuit)
    with progress("Ordering the nodes", len(left)) as advance:
        while left:
            near = min(len(left) / size, size / len(left))
            loss = Loss.of(problem, SEARCH.polish.mean, shift * near)
            some = _missed_least(problem, loss, left, left[size:])
            gone += some
            left = [node for node in left if node not in set(some)]
            advance(len(some))
    return gone[::-1]


def _missed_least(
    problem: Problem, loss: Loss, left: Sequence[Site], outside: Sequence[Site]
) -> list[Site]:
    """What leaves next: of the nodes outside the circuit the more at once the more there are, of
    its own one at a time.

    Each circuit that lacks one is run once few nodes are left at all: there to first order is far
    off, and runs of small circuits cost less than a gradient.
    """
    leaving = outside or left
    if len(left) > SETTINGS.tried:
        foreseen = forecast(problem, loss, left, leaving)
        return [leaving[i] for i in foreseen.together(max(1, len(outside) // SETTINGS.ordered))]
    missed = loss(problem.flipped(left, leaving))
    # Of equals the last one, which was missed least before.
    return [leaving[int((missed <= missed.min() + SEARCH.loss.rounding).nonzero().max())]]
