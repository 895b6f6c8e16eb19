"""NaN that only the prompts of an ablation have is an error that says so, with every score."""

from dataclasses import replace

import pytest
import torch

from unweave.ablation import GroupMeans, counterfactual
from unweave.errors import NotFiniteError, UnweaveError
from unweave.model.model import Model
from unweave.scores.problem import Problem
from unweave.scores.score import scores
from unweave.testing.problem import tiny_problem


def with_nan(problem: Problem) -> Model:
    """The model with NaN for a token that only the corrupted prompts have."""
    batch, network = problem.batch, problem.model.network
    assert batch.clean.tokens is not None
    assert batch.corrupted.tokens is not None
    only = set(batch.corrupted.tokens.flatten().tolist()) - set(
        batch.clean.tokens.flatten().tolist()
    )
    embedding = network.body.embedding
    assert embedding.tokens is not None
    tokens = embedding.tokens.clone()
    tokens[only.pop()] = float("nan")
    body = replace(network.body, embedding=replace(embedding, tokens=tokens))
    return replace(problem.model, network=replace(network, body=body))


def test_the_prompts_of_an_ablation_are_blamed():
    problem = tiny_problem("gpt2")
    model, corrupted = with_nan(problem), problem.batch.corrupted
    with pytest.raises(NotFiniteError, match="counterfactual ablation is not finite at a0"):
        counterfactual(model, corrupted, problem.points)
    with pytest.raises(NotFiniteError, match="mean ablation is not finite at a0"):
        GroupMeans.over(model, corrupted, problem.batch.groups, problem.points)


@pytest.mark.parametrize("name", sorted(scores))
def test_every_score_is_loud(name):
    problem = tiny_problem("gpt2")
    values = {point: x.clone() for point, x in problem.ablation.values.items()}
    values[problem.points[1]][0, 0] = float("nan")
    broken = replace(problem, ablation=replace(problem.ablation, values=values))
    with pytest.raises(NotFiniteError, match=r"the counterfactual ablation is not finite at"):
        scores[name].run(broken)


def test_a_score_that_is_not_finite_is_not_returned():
    problem = tiny_problem("gpt2")
    with pytest.raises(UnweaveError, match=r"score eap of a0\.h0 is not finite"):
        scores["eap"].run(replace(problem, model=with_nan_in_the_clean_prompts(problem)))


def with_nan_in_the_clean_prompts(problem: Problem) -> Model:
    network = problem.model.network
    embedding = network.body.embedding
    assert embedding.tokens is not None
    broken = replace(embedding, tokens=torch.full_like(embedding.tokens, float("nan")))
    body = replace(network.body, embedding=broken)
    return replace(problem.model, network=replace(network, body=body))
