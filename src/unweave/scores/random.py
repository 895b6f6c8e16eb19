"""Random scores: what the others of a comparison have to beat."""

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.circuits import EdgeScores, Scores
from unweave.graph import graph_of
from unweave.options import Option, Options
from unweave.scores.problem import Problem
from unweave.scores.score import Score, edge_scores, node_scores, scores


def score(problem: Problem, options: Options) -> Scores:
    """Uniform in [0, 1), one draw a node, the same for every example."""
    values = _draw((len(problem.nodes), 1), options["seed"], problem)
    return node_scores(
        problem,
        values.expand(-1, len(problem.batch)),
        score="random",
        seed=str(options["seed"]),
    )


def score_edges(problem: Problem, options: Options) -> EdgeScores:
    """Uniform in [0, 1), one draw an edge."""
    graph = graph_of(problem.model)
    matrix = _draw((len(graph.destinations), len(graph.sources)), options["seed"], problem)
    return edge_scores(problem, graph, matrix, score="random", seed=str(options["seed"]))


def _draw(shape: tuple[int, int], seed: int, problem: Problem) -> Float[Tensor, "n m"]:
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=draw, dtype=problem.model.network.dtype)


scores.register("random")(
    Score(
        "random",
        "uniform scores by seed",
        score,
        {"seed": Option(0, "decides the scores", low=0, high=2**63 - 1)},
        edges=score_edges,
    )
)
