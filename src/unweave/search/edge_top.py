"""Top for edges: the first k edges of the scores' own ranking, the smallest k that is faithful.

1. Circuits of the first k edges are run, for k growing by a quarter, until one is faithful within
the tolerance. 2. Between it and the size before, the smallest such k is found by halving. Where
none is faithful, the k nearest to it is taken. Nothing is reordered: the ranking is the scores'.
"""

from collections.abc import Callable

from unweave.circuits import EdgeScores
from unweave.options import Options
from unweave.scores.edge_problem import EdgeProblem
from unweave.search.search import Finding, Names, SavedState, measured_round
from unweave.search.settings import SEARCH


def find_edges(
    problem: EdgeProblem, scores: EdgeScores, nodes: Names, options: Options, checkpoint: SavedState
) -> Finding:
    """Tries the prefixes of the ranking."""
    allowed = set(problem.graph.among(nodes) if nodes else problem.nodes)
    ranking = [edge for edge in scores.ranking() if edge in allowed]
    seen: dict[int, float] = {}

    def near(size: int) -> bool:
        if size not in seen:
            seen[size] = abs(1 - float(problem.faithfulness([ranking[:size]])[0]))
        return seen[size] <= options["tolerance"]

    best = options["size"] or _smallest(len(ranking), near)
    if best is None:
        best = min(seen, key=lambda size: (seen[size], size))
    circuit = tuple(ranking[:best])
    record = measured_round(problem, circuit, {}, circuit)
    others = [edge for edge in scores.ranking() if edge not in set(circuit)]
    return Finding(circuit, (*circuit, *others), (record,))


def _smallest(count: int, near: Callable[[int], bool]) -> int | None:
    below, size = 0, 1
    while not near(size):
        if size >= count:
            return None
        below, size = size, min(count, max(size + 1, int(SEARCH.top.growth * size)))
    while size - below > 1:
        middle = (below + size) // 2
        below, size = (below, middle) if near(middle) else (middle, size)
    return size
