"""The order of the nodes outside a circuit, so that faithfulness stays near 1 as they come back."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from unweave.estimates import standard_error
from unweave.progress import progress
from unweave.scores.problem import N, Problem, Runs
from unweave.search.descent import Predicted
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
            predicted = Predicted.at(problem, loss, present, others)
            count = min(len(others), max(SETTINGS.soon, len(present) // SETTINGS.later))
            chosen = [others[i] for i in predicted.joining(count)]
            order += chosen
            others = [node for node in others if node not in set(chosen)]
            advance(count)
    return order


def missing_faithfulness(problem: Runs[N], circuit: Sequence[N]) -> float:
    """What the faithfulness of a circuit lacks of its aim, 1 and a standard error."""
    reference, metric = problem.reference, problem.metric([circuit])[0]
    # A circuit does a little worse on prompts that it was not found on.
    aim = 1 + float(standard_error((metric - reference.full) / reference.scale))
    return aim - float(reference.faithfulness(metric))


def interleaved(
    tried: Sequence[str],
    others: Sequence[str],
    effect: Mapping[str, float],
    measure: Callable[[Sequence[str]], float],
) -> list[str]:
    """Nodes after a circuit, so that faithfulness stays near its aim.

    The next of those that were tried is the one whose effect is nearest to what is missing. Then
    positive and negative nodes interleave, each in their order: always the kind that brings
    faithfulness nearer. Effects do not add up for long, so what is missing is measured again: soon
    at first, then less often, as nodes come to matter less.

    Args:
        tried: Nodes whose effect was seen just after the circuit.
        effect: What a node adds to faithfulness; those that add nothing come last.
        measure: What faithfulness lacks of its aim with these nodes after the circuit.
    """
    left = [name for name in tried if effect[name]]
    positive = deque(name for name in others if effect[name] > 0)
    negative = deque(name for name in others if effect[name] < 0)
    order: list[str] = []
    missing, due = 0.0, 0
    while left or (positive and negative):
        if len(order) == due:
            missing = measure(order)
            due += max(SETTINGS.soon, due // SETTINGS.later)
        if left:
            order.append(min(left, key=lambda name: abs(missing - effect[name])))
            left.remove(order[-1])
        else:
            order.append((positive if missing > 0 else negative).popleft())
        missing -= effect[order[-1]]
    idle = (name for name in (*tried, *others) if not effect[name])
    return [*order, *positive, *negative, *idle]
