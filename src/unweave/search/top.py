"""Top: the best k nodes of the scores' own ranking, k by what a node must be worth.

1. Circuits of the first k nodes are run, for a grid of k. 2. The one with the smallest
`loss + price·k` is kept. Nothing is reordered: the ranking is the scores'.
"""

from unweave.circuits import Scores
from unweave.options import Option, Options
from unweave.scores.problem import Problem
from unweave.search.edge_top import find_edges
from unweave.search.loss import Loss
from unweave.search.search import (
    MAX_SIZE,
    PRICE,
    TOLERANCE,
    Finding,
    SavedState,
    Search,
    one_round,
    ranked_sites,
    searches,
)
from unweave.search.settings import SEARCH


def find(problem: Problem, scores: Scores, options: Options, checkpoint: SavedState) -> Finding:
    """Tries the prefixes of the ranking in one batch."""
    ranking = ranked_sites(problem, scores)
    most = min(options["max_size"] or len(ranking), len(ranking))
    sizes = sorted({min(size, most) for size in SEARCH.top.sizes})
    if options["size"]:
        sizes = [min(options["size"], most)]
    losses = Loss.of(problem)(problem.metric([tuple(ranking[:size]) for size in sizes]))
    best = min(range(len(sizes)), key=lambda i: float(losses[i]) + options["price"] * sizes[i])
    circuit = tuple(ranking[: sizes[best]])
    rounds = (one_round(problem, scores, circuit, losses[best]),)
    return Finding(tuple(map(str, circuit)), tuple(map(str, ranking)), rounds)


searches.register("top")(
    Search(
        "top",
        "the best nodes by score, as many as are worth their price",
        find,
        {
            "size": Option(0, "how many nodes; 0 lets the price decide", low=0),
            "price": PRICE,
            "max_size": MAX_SIZE,
            "tolerance": TOLERANCE,
        },
        edges=find_edges,
        nodes_first=False,
    )
)
