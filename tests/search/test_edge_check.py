"""The search of edges, with what check prompts say of a circuit."""

import json
from dataclasses import replace

import pytest
import torch
from oracles.closeness import assert_close

from unweave.estimates import Estimate
from unweave.experiments.phases import Ledger, find_circuit
from unweave.experiments.specification import Experiment, Specification
from unweave.model.loading import load
from unweave.options import Options
from unweave.scores.edge_problem import EdgeProblem
from unweave.scores.score import scores
from unweave.search import edge_descent, edge_eliminate
from unweave.search.edge_descent import EdgeDescent, EdgeState
from unweave.search.forecast import Forecast
from unweave.search.loss import Loss
from unweave.search.prompts import Checked, SearchPrompts
from unweave.search.search import PRICE, NoCheckpoint, Search, searches
from unweave.search.settings import SEARCH
from unweave.testing.problem import tiny_problem
from unweave.testing.search import Recorder


@pytest.fixture(scope="module")
def problem() -> EdgeProblem:
    found = tiny_problem("llama")
    return EdgeProblem.of(found.model, found.batch, found.ablation)


def asked(problem: EdgeProblem, state: EdgeState, limit: int = 128) -> edge_eliminate._Run:
    """A search that has come to its check, with other prompts to draw."""
    prompts = SearchPrompts(replace(problem, draw=lambda part, count: problem), limit, 1024)
    options = {"tolerance": 0.05, "precision": 0.03, "edge_price": 0.001}
    return edge_eliminate._Run(prompts, options, state, NoCheckpoint())


@pytest.mark.parametrize(
    ("value", "before", "doubled"),
    [(1.04, 0.0, None), (0.94, 0.0, 1), (0.8, 0.0, 0), (0.8, -0.2, 1)],
)
def test_a_search_goes_on_with_what_its_check_said(
    problem: EdgeProblem,
    monkeypatch: pytest.MonkeyPatch,
    value: float,
    before: float,
    doubled: int | None,
) -> None:
    """The shift and the prompts of what comes next; and twice the weight on faithfulness where the
    search's own, value + .2, is not what it aimed at, 1 less the shift that it knew of."""
    found = Checked(Estimate(value, value - 0.5, value + 0.5, 500), -0.2)
    monkeypatch.setattr(SearchPrompts, "check", lambda *given: found)
    state = EdgeState(list(problem.nodes[::2]), prompts=len(problem.batch), shift=before)
    run = asked(problem, state)
    metric = problem.metric([state.circuit])
    off = (metric - problem.reference.full) / abs(float(problem.reference.scale))
    edge_eliminate._check(run, problem.nodes)
    if doubled is None:
        assert (state.phase, state.checks) == ("done", 0)
        return
    assert (state.phase, state.checks, state.shift, state.prompts) == ("exchange", 1, -0.2, 128)
    sign = 1 if float(problem.reference.scale) > 0 else -1
    wanted = 2**doubled * SEARCH.polish.mean * (off.mean(1) - 0.2 * sign).abs()
    assert_close(run.descent().loss(metric), wanted + SEARCH.loss.examples * off.abs().mean(1))


def test_edges_are_foreseen_where_other_prompts_put_the_mean(problem: EdgeProblem) -> None:
    edges = list(problem.nodes[::3])
    loss = Loss.of(problem, 2.0, 0.4)
    state = EdgeState(list(problem.nodes[::2]))
    found = EdgeDescent(problem, loss, 0.001, state, lambda: None)._forecast(edges)
    assert found.shift == loss.shift != 0
    after = found.off[:, None] + found.moves
    mean = 2 * (after.mean(0) + loss.shift).abs()
    assert_close(found.losses(), mean + SEARCH.loss.examples * after.abs().mean(0) + found.size)


def test_balanced_blocks_bring_the_mean_of_other_prompts_back() -> None:
    moves = torch.tensor([[0.1, -0.1, 0.1, -0.1]]).repeat(2, 1)
    found = Forecast(torch.zeros(2), moves, torch.ones(4), shift=0.25)
    assert {1, 3} == set(found.balanced(2))
    assert {0, 2} == set(replace(found, shift=-0.25).balanced(2))


def test_a_search_that_exchanges_edges_goes_on_from_every_state(
    problem: EdgeProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More edges are gone than may come back, so that which these are depends on what left last."""
    monkeypatch.setattr(edge_descent, "SETTINGS", replace(SEARCH.edges, returning=20))
    rated = scores["eap"].run_edges(tiny_problem("llama"))
    options = {"tolerance": 0.0, "edge_price": 0.03}
    whole = Recorder()
    found = searches["eliminate"].run_edges(problem, rated, (), options, whole)
    exchanging = [one for one in whole.states if json.loads(one)["phase"] == "exchange"]
    assert any(json.loads(one)["passes"] > 0 for one in exchanging)
    for state in exchanging:
        again = searches["eliminate"].run_edges(problem, rated, (), options, Recorder(state))
        assert again == found


def test_edges_of_a_circuit_that_does_not_reach_the_metric_do_nothing(
    problem: EdgeProblem,
) -> None:
    """Where the metric reads ablated values alone, at a price that no edge is worth."""
    into = [edge for edge in problem.nodes if not edge.endswith("logits")]
    assert len(into) < len(problem.nodes)
    assert_close(problem.effects([], into[:3]), torch.zeros(len(problem.batch), 3))
    rated = scores["eap"].run_edges(tiny_problem("llama"))
    found = searches["eliminate"].run_edges(problem, rated, (), {"edge_price": 0.3})
    assert sorted(found.ranking) == sorted(problem.nodes)


@pytest.mark.parametrize(("given", "price"), [({}, PRICE.default / 2), ({"price": 0.3}, 0.3)])
def test_nodes_that_edges_lead_between_cost_half_and_are_checked(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, float], price: float
) -> None:
    """Unless the user says what a node costs."""

    class Asked(Exception):
        pass

    def run(self: Search, problem: object, scores: object, options: Options, kept: object) -> None:
        assert self.filled(options)["price"] == price
        assert self.filled(options)["checked"] == searches["eliminate"].options["checked"].default
        raise Asked

    monkeypatch.setattr(Search, "run", run)
    how = Specification("wired-relay", "wired-relay", level="edge", options=given)
    with pytest.raises(Asked):
        find_circuit(Experiment.set_up(how, load("wired-relay")), None, Ledger(), lambda _: None)
