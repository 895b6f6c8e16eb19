"""Contextual decomposition: each node's relevant part, pushed to the metric by a rule set.

    s(u) = metric of β_logits,   β_u = z_u − μ_u        (docs/method.md §§2–4)

One sweep rates every node. With `pairs` the same sweep gives R(s, t) of every two nodes, which
searches that go on from inner targets (`algorithm1`) need.
"""

from unweave.circuits import EdgeScores, Scores
from unweave.decomposition.api import relevance
from unweave.decomposition.edges import edge_relevance
from unweave.decomposition.needs import SweepNeeds, sweep_needs
from unweave.decomposition.ruleset import find_rules
from unweave.options import Option, Options
from unweave.scores.problem import Problem
from unweave.scores.score import Score, scores


def score(problem: Problem, options: Options) -> Scores:
    """One sweep over all nodes, on the first prompts."""
    part = problem.select(slice(0, options["prompts"]))
    return relevance(
        problem.model,
        part.batch,
        problem.nodes,
        rules=options["rules"],
        ablation=part.ablation,
        pairs=problem.nodes if options["pairs"] else (),
    )


def memory(problem: Problem, options: Options) -> SweepNeeds:
    """What the sweep will take."""
    part, inner = problem.select(slice(0, options["prompts"])), problem.nodes
    return sweep_needs(
        problem.model,
        part.batch,
        problem.nodes,
        options["rules"],
        inner if options["pairs"] else (),
    )


def score_edges(problem: Problem, options: Options) -> EdgeScores:
    """Every edge: what a reader's output loses without its source, then the metric's gradient there
    (docs/edges.md; exact scores, one push an edge, are `unweave.edge_relevance(variant="exact")`).
    """
    part = problem.select(slice(0, options["prompts"]))
    return edge_relevance(problem.model, part.batch, part.ablation, rules=options["rules"])


scores.register("decomposition")(
    Score(
        "decomposition",
        "relevant parts by the rules of contextual decomposition, one sweep",
        score,
        {
            "rules": Option(
                "removal",
                "rule set, e.g. removal, paper, 'paper, attention=frozen'",
                check=find_rules,
            ),
            "prompts": Option(12, "prompts that the sweep runs on, at most", low=1),
            "pairs": Option(False, "also the relevance of every node to every other"),
        },
        edges=score_edges,
        pairs=True,
        memory=memory,
    )
)
