"""The contract of every search, `top` by brute force, and the loss that searches minimise."""

from dataclasses import replace

import pytest
import torch

from unweave.errors import UnweaveError
from unweave.scores.score import scores as registered
from unweave.search.loss import Loss
from unweave.search.search import Finding, Search, searches
from unweave.search.settings import SEARCH
from unweave.sites import parse
from unweave.testing.problem import tiny_problem
from unweave.testing.search import check_search


@pytest.mark.parametrize("name", list(searches))
def test_contract(name):
    check_search(name)


def broken(change) -> Search:
    return replace(searches["top"], name="broken", find=change)


def _shuffled(problem, scores, options, checkpoint) -> Finding:
    found = searches["top"].find(problem, scores, options, checkpoint)
    order = torch.randperm(len(found.ranking)).tolist()
    return replace(found, ranking=tuple(found.ranking[i] for i in order))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p, s, o, c: Finding((), tuple(s.sources)), "the circuit is empty"),
        (lambda p, s, o, c: Finding(("a9.h9",), tuple(s.sources)), "not a node of the problem"),
        (lambda p, s, o, c: Finding((s.sources[0],) * 2, s.sources), "twice in the circuit"),
        (lambda p, s, o, c: Finding(s.sources, s.sources[1:]), "nodes are ranked"),
        (lambda p, s, o, c: Finding(s.sources, s.sources), "no round"),
        (_shuffled, "finds something else"),
    ],
)
def test_contract_notices(change, message):
    with pytest.raises(AssertionError, match=message):
        check_search(broken(change))


def test_an_unknown_search_is_met_with_the_nearest():
    with pytest.raises(UnweaveError, match="unknown search 'elimnate': did you mean eliminate"):
        searches["elimnate"]


@pytest.mark.parametrize("price", [0.0, 0.01, 0.05, 1.0])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_top_weighs_size_against_loss(family, price):
    problem = tiny_problem(family)
    scores = registered["patching"].run(problem)
    order = sorted(scores.sources, key=lambda name: -abs(scores[name]))
    loss, costs = Loss.of(problem), {}
    for size in sorted({min(size, len(order)) for size in SEARCH.top.sizes}):
        circuit = tuple(map(parse, order[:size]))
        costs[size] = float(loss(problem.metric([circuit]))[0]) + price * size
    best = min(costs, key=lambda size: costs[size])
    found = searches["top"].run(problem, scores, {"price": price})
    assert found.circuit == tuple(order[:best])
    assert found.ranking == tuple(order)
    assert len(found.rounds) == 1


def test_top_by_size():
    problem = tiny_problem("gpt2")
    scores = registered["eap"].run(problem)
    for options, size in (({"size": 3}, 3), ({"size": 5, "max_size": 2}, 2), ({"size": 999}, 999)):
        found = searches["top"].run(problem, scores, options)
        assert found.circuit == tuple(scores.ranking()[:size])
    limited = searches["top"].run(problem, scores, {"price": 0.0, "max_size": 2})
    assert len(limited.circuit) <= 2


def test_the_loss_is_0_at_the_model_and_the_scale_at_nothing():
    problem = tiny_problem("gpt2")
    loss, reference = Loss.of(problem), problem.reference
    whole, nothing = loss(torch.stack((reference.full, reference.empty))).tolist()
    assert whole == 0
    assert nothing > 1
    part = loss.select(slice(0, 1))
    assert part.scale == loss.scale  # of all examples
    assert float(part(reference.full[None, :1])[0]) == 0
    off = abs(float(reference.full[0] - reference.empty[0])) / loss.scale
    # Once for the mean, once for the example itself.
    assert float(part(reference.empty[None, :1])[0]) == pytest.approx(2 * off)
