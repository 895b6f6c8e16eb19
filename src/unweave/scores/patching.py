"""Exact activation patching: what the metric loses when one node is ablated.

    s(u) = m(M) − m(M without u)

Decomposition with the rule `removal` everywhere *is* this run (docs/method.md §3) and starts at the
node's layer: half the cost of a whole forward pass for each node.
"""

from unweave.circuits import Scores
from unweave.decomposition.api import relevance
from unweave.decomposition.needs import SweepNeeds, sweep_needs
from unweave.options import Options
from unweave.scores.problem import Problem
from unweave.scores.score import Score, node_scores, scores


def score(problem: Problem, options: Options) -> Scores:
    """One run a node, many in one batch, on all prompts."""
    found = relevance(
        problem.model,
        problem.batch,
        problem.nodes,
        rules="removal",
        ablation=problem.ablation,
        pairs=(),
    )
    return node_scores(problem, found.examples, score="patching")


def memory(problem: Problem, options: Options) -> SweepNeeds:
    """What the sweep will take."""
    return sweep_needs(problem.model, problem.batch, problem.nodes, "removal")


scores.register("patching")(
    Score("patching", "exact, one node ablated at a time", score, memory=memory)
)
