"""The order of the nodes outside a circuit, so that faithfulness stays near 1 as they come back."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from unweave.estimates import standard_error
from unweave.progress import progress
from unweave.scores.problem import N, Problem, Runs
from unweave.search.settings import SEARCH
from unweave.sites import parse

SETTINGS = SEARCH.order


def measured_order(
    problem: Problem, circuit: Sequence[str], others: Sequence[str], effects: Mapping[str, float]
) -> list[str]:
    """Orders the nodes outside a circuit by what faithfulness lacks, measured on the way.

    Args:
        others: The nodes outside, the likeliest to be needed first.
        effects: What each adds to faithfulness, as far as it is known.
    """
    problem = problem.select(slice(0, SETTINGS.prompts))
    reference, kept = problem.reference, tuple(map(parse, circuit))
    tried, rest = others[: SETTINGS.tried], others[SETTINGS.tried :]
    gains = reference.faithfulness(problem.flipped(kept, list(map(parse, tried))))
    gains -= reference.faithfulness(problem.metric([kept]))
    gains[gains.abs() <= SETTINGS.rounding] = 0.0
    known = dict(effects) | dict(zip(tried, gains.tolist(), strict=True))
    done = 0
    with progress("Ordering the other nodes", len(others)) as advance:

        def missing(more: Sequence[str]) -> float:
            nonlocal done
            advance(len(more) - done)
            done = len(more)
            return missing_faithfulness(problem, (*kept, *map(parse, more)))

        return interleaved(tried, rest, known, missing)


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
