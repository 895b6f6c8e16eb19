"""The order of all edges: the circuit's first, then the others, so that f stays near 1."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from unweave.circuits import EdgeScores
from unweave.scores.edge_problem import EdgeProblem
from unweave.search.order import missing_faithfulness
from unweave.search.settings import SEARCH

SETTINGS = SEARCH.edges


def ranked_edges(problem: EdgeProblem, scores: EdgeScores, circuit: Sequence[str]) -> list[str]:
    """Every edge: the circuit's by what they do to it, the others by score."""
    part = problem.select(slice(0, SETTINGS.ordered))
    sizes = part.effects(circuit, circuit).abs().mean(0).argsort(descending=True, stable=True)
    first = [circuit[i] for i in sizes.tolist()]
    own, scale = set(circuit), float(part.reference.scale)
    values = dict(zip(scores.edges, (scores.values / scale).tolist(), strict=True))
    others = [edge for edge in scores.ranking() if edge not in own]

    def missing(more: Sequence[str]) -> float:
        return missing_faithfulness(part, [*circuit, *more])

    return [*first, *balanced(others, values, len(circuit), missing)]


def balanced(
    others: Sequence[str],
    effect: Mapping[str, float],
    begun: int,
    measure: Callable[[Sequence[str]], float],
) -> list[str]:
    """Positive and negative edges, each kind in its order, always the kind that brings
    faithfulness nearer to its aim.

    A run with most of the model's edges costs as much as hundreds of small circuits, and the more
    edges there are, the less the next ones do: what is missing is measured each time that the
    number of edges has doubled.

    Args:
        others: The edges outside a circuit, the most important first.
        effect: What an edge adds to faithfulness; those that add nothing come last.
        begun: How many edges the circuit has.
        measure: What faithfulness lacks of its aim with these edges after the circuit.
    """
    positive = deque(edge for edge in others if effect[edge] > 0)
    negative = deque(edge for edge in others if effect[edge] < 0)
    order, missing, due = list[str](), 0.0, 0
    while positive and negative:
        if len(order) == due:
            missing = measure(order)
            due += max(1, begun + len(order))
        order.append((positive if missing > 0 else negative).popleft())
        missing -= effect[order[-1]]
    return [*order, *positive, *negative, *(edge for edge in others if not effect[edge])]
