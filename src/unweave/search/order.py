"""The order of nodes, so that faithfulness is near 1 at as many sizes as possible.

Nodes of the circuit come first, by a way down from it that is foreseen, and run once few are left.
Then nodes outside it come back, so that faithfulness stays near 1.
"""

from collections.abc import Sequence

from unweave.progress import progress
from unweave.scores.problem import Problem
from unweave.search.descent import forecast
from unweave.search.loss import Loss
from unweave.search.settings import ROUNDING, SEARCH
from unweave.sites import Site

SETTINGS = SEARCH.order


def nested_order(problem: Problem, circuit: Sequence[Site]) -> list[Site]:
    """The nodes of a circuit, the last one to leave first.

    1. While there are many, what to first order is missed least leaves, the more nodes at once the
    more there are; what is left is looked at again. 2. The last few leave one at a time, and each
    circuit that lacks one is run: there to first order is far off, and runs of small circuits cost
    less than a gradient.
    """
    problem = problem.select(slice(0, SEARCH.descent.proposing))
    loss, left, gone = Loss.of(problem, SEARCH.descent.mean), list(circuit), list[Site]()
    while left:
        if len(left) > SEARCH.descent.tried:
            foreseen = forecast(problem, loss, left, left)
            some = foreseen.together(len(left) // SETTINGS.later)
        else:
            missed = loss(problem.flipped(left, left))
            # Of equals the last one, which was missed least before.
            some = [int((missed <= missed.min() + ROUNDING).nonzero().max())]
        gone += [left[i] for i in some]
        left = [node for node in left if node not in set(gone)]
    return gone[::-1]


def measured_order(
    problem: Problem, circuit: Sequence[Site], left: Sequence[Site], rest: Sequence[Site]
) -> list[Site]:
    """The nodes outside a circuit: the way down retraced, then what keeps the loss small.

    Circuits of the way down were faithful, so those that left come back in reverse order. Of the
    rest, whatever the gradient at the circuit so far says adds up to the smallest loss comes next;
    it is taken again from time to time, as nodes come to matter less and less often.

    Args:
        left: The nodes that left on the way down, the last one first.
        rest: The nodes that never joined.
    """
    problem = problem.select(slice(0, SEARCH.descent.proposing))
    loss, order, others = Loss.of(problem, SEARCH.descent.mean), list(left), list(rest)
    with progress("Ordering the other nodes", len(rest)) as advance:
        while others:
            present = (*circuit, *order)
            count = min(len(others), max(SETTINGS.soon, len(present) // SETTINGS.later))
            chosen = [others[i] for i in forecast(problem, loss, present, others).together(count)]
            order += chosen
            others = [node for node in others if node not in set(chosen)]
            advance(count)
    return order
