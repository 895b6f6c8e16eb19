"""Exact activation patching: what the metric loses when one node is ablated."""

from unweave.circuits import Scores
from unweave.decomposition.api import relevance
from unweave.scores.problem import Method, Options, Problem, methods, node_scores


def score(problem: Problem, options: Options) -> Scores:
    """m(M) − m(M without u) for every node u, one run a node, many in one batch.

    Decomposition with the rule `removal` everywhere *is* this run (docs/method.md §3), and starts at
    the node's layer: half the cost of a whole forward pass for each node.
    """
    found = relevance(
        problem.model,
        problem.batch,
        problem.nodes,
        rules="removal",
        ablation=problem.ablation,
        pairs=(),
    )
    return node_scores(problem, found.examples, method="patching")


methods.register("patching")(Method("patching", "exact, one node ablated at a time", score))
