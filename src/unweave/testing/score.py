"""`check_score`: the contract of a file in `scores`."""

import math
from dataclasses import replace

import torch

from unweave.circuits import EdgeScores, Scores
from unweave.graph import graph_of
from unweave.scores.problem import Problem
from unweave.scores.score import Score
from unweave.scores.score import scores as registered
from unweave.testing.problem import check_error, paired_ablation, tiny_problem

_STEPS = 5  # of a score that takes steps, where more would only take time


def check_score(score: "str | Score") -> None:
    """Checks a score on tiny random models of two families.

    Every node gets one finite score, the same again for the same call; heads, MLPs and nodes at
    single positions are scored; edges are, where the score has them; nodes that equal their
    ablation score 0 (unless scores are drawn by a seed, which then decides them); unknown options
    and values outside their meaning are errors.

    Raises:
        AssertionError: Naming the first thing that is wrong.
    """
    score = _quick(registered[score] if isinstance(score, str) else score)
    for family in ("gpt2", "llama"):
        problem = tiny_problem(family)
        found = _check_nodes(score, problem)
        _check_silence(score, problem, found)
        _check_positions(score, problem)
        _check_edges(score, tiny_problem(family, rows=1, layers=2))
    _check_options(score, tiny_problem("gpt2"))


def _quick(score: Score) -> Score:
    """With few steps unless given: the contract is about what comes out, not how well."""
    steps = score.options.get("steps")
    if steps is None or steps.default <= _STEPS:
        return score
    return replace(score, options={**score.options, "steps": replace(steps, default=_STEPS)})


def _check_nodes(score: Score, problem: Problem) -> Scores:
    scores = score.run(problem)
    names = tuple(map(str, problem.nodes))
    assert scores.sources == names, f"scores of {scores.sources[:3]}…, expected {names[:3]}…"
    count = scores.examples.shape[-1]
    assert scores.examples.shape == (len(names), count), "one score a node and example"
    assert 1 <= count <= len(problem.batch), f"{count} examples scored of {len(problem.batch)}"
    mean = scores.examples.mean(1)
    assert torch.allclose(scores.values, mean, atol=1e-6), "values are not the examples' means"
    assert scores.values.isfinite().all(), "a score is not finite"
    assert scores.values.abs().max() > 0, "every score is 0"
    again = score.run(problem)
    assert torch.equal(scores.values, again.values), "the same call gives other scores"
    heads = tuple(problem.model.heads())
    alone = score.run(replace(problem, nodes=heads))
    assert alone.sources == tuple(map(str, heads)), "heads alone are not scored"
    return scores


def _check_silence(score: Score, problem: Problem, scores: Scores) -> None:
    if "seed" in score.options:
        other = score.run(problem, {"seed": score.options["seed"].default + 1})
        assert not torch.equal(scores.values, other.values), "the seed changes nothing"
        return
    # The corrupted prompt is the clean one, and the ablation the clean activations.
    batch = replace(problem.batch, corrupted=problem.batch.clean)
    same = replace(
        problem, batch=batch, ablation=paired_ablation(problem.model, batch, problem.nodes)
    )
    worst = score.run(same).values.abs().max()
    assert worst < 1e-9, f"nodes that equal their ablation score up to {worst:.1e}, expected 0"


def _check_positions(score: Score, problem: Problem) -> None:
    heads = problem.model.heads()
    nodes = tuple(head.at(where) for head in heads for where in ("start", "end", 2))
    at = replace(problem, nodes=nodes)
    scores = score.run(at)
    assert scores.sources == tuple(map(str, nodes)), "nodes at positions are not scored"
    assert scores.values.isfinite().all(), "a score at a position is not finite"


def _check_edges(score: Score, problem: Problem) -> None:
    if score.edges is None:
        able = [name for name in registered if registered[name].edges is not None]
        check_error(lambda: score.run_edges(problem), able)
        return
    scores: EdgeScores = score.run_edges(problem)
    assert scores.edges == graph_of(problem.model).edges, "not every edge is scored"
    assert scores.values.isfinite().all(), "the score of an edge is not finite"
    again = score.run_edges(problem)
    assert torch.equal(scores.values, again.values), "the same call gives other scores of edges"


def _check_options(score: Score, problem: Problem) -> None:
    check_error(lambda: score.run(problem, {"no_such_option": 1}), ["no_such_option"])
    for name, option in score.options.items():
        check_error(lambda name=name: score.run(problem, {name: object()}), [name])
        if option.low > -math.inf:
            beyond = type(option.default)(option.low - 1)
            check_error(lambda name=name, x=beyond: score.run(problem, {name: x}), [name])
