"""EAP: gradient × difference (attribution patching; Syed, Rager & Conmy, 2023).

    node  s(u)    = ⟨∂m/∂z_u, z_u − μ_u⟩
    edge  s(u, v) = ⟨∂m/∂(input of v), out_u − out_u(μ)⟩

all at the clean run, summed over positions, averaged over examples. v is the query, key or value
of one head, an MLP or the logits, and out_u what node u adds to the residual stream.
"""

from unweave.circuits import EdgeScores, Scores
from unweave.graph import graph_of
from unweave.options import Options
from unweave.scores.edges import EdgeGradients, contributions, edge_parts, matrix_of
from unweave.scores.gradients import gradient_products
from unweave.scores.problem import Problem
from unweave.scores.score import Score, edge_scores, node_scores, scores


def score(problem: Problem, options: Options) -> Scores:
    """One forward and one backward pass for all nodes."""
    return node_scores(problem, gradient_products(problem), score="eap")


def score_edges(problem: Problem, options: Options) -> EdgeScores:
    """One forward and one backward pass for all edges."""
    model, graph, total = problem.model, graph_of(problem.model), None
    for part in edge_parts(problem, graph):
        batch, ablation = problem.batch.select(part), problem.ablation.select(part)
        gradients = EdgeGradients(model, batch, graph)
        clean = gradients.add()
        scores = matrix_of(gradients, contributions(model, graph, batch, ablation, clean))
        total = scores if total is None else total + scores
    assert total is not None
    return edge_scores(problem, graph, total / len(problem.batch), score="eap")


scores.register("eap")(
    Score("eap", "gradient × difference, one backward pass", score, edges=score_edges)
)
