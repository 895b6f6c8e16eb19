"""The order of the nodes outside a circuit, so that faithfulness stays near 1 as they come back."""

from collections.abc import Sequence

from unweave.progress import progress
from unweave.scores.problem import Problem
from unweave.search.descent import forecast
from unweave.search.loss import Loss
from unweave.search.settings import SEARCH
from unweave.sites import Site

SETTINGS = SEARCH.order


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
    problem = problem.select(slice(0, SETTINGS.prompts))
    loss, order, others = Loss.of(problem), list(left), list(rest)
    with progress("Ordering the other nodes", len(rest)) as advance:
        while others:
            present = (*circuit, *order)
            count = min(len(others), max(SETTINGS.soon, len(present) // SETTINGS.later))
            chosen = [others[i] for i in forecast(problem, loss, present, others).together(count)]
            order += chosen
            others = [node for node in others if node not in set(chosen)]
            advance(count)
    return order
