"""The search of edges, with what check prompts say of a circuit."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from oracles.closeness import assert_close
from torch import Tensor

from unweave.estimates import Estimate
from unweave.scores.edge_problem import EdgeProblem
from unweave.scores.problem import Reference
from unweave.scores.score import scores
from unweave.search import edge_descent, edge_eliminate
from unweave.search.edge_descent import EdgeDescent, EdgeState
from unweave.search.forecast import Forecast
from unweave.search.loss import Loss
from unweave.search.prompts import Checked, SearchPrompts
from unweave.search.search import NoCheckpoint, searches
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
    found = EdgeDescent(problem, loss, 0.001, state, lambda: None)._forecasts(edges)[0]
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
    options = {"tolerance": 0.0, "edge_price": 0.1}
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


def additive(
    problem: EdgeProblem, monkeypatch: pytest.MonkeyPatch, adds: dict[str, float], rest: float = 0.0
) -> EdgeDescent:
    """On runs in which every edge adds its number to each prompt's metric, and the model's is 0.

    Args:
        rest: What is there without any of the edges.
    """

    def metric(self: EdgeProblem, circuits: Sequence[Sequence[str]]) -> Tensor:
        rows = [rest + sum(adds[edge] for edge in one) for one in circuits]
        return torch.tensor(rows, dtype=torch.float64)[:, None].repeat(1, len(self.batch))

    def effects(self: EdgeProblem, circuit: object, edges: Sequence[str], share: float) -> Tensor:
        row = torch.tensor([adds[edge] for edge in edges], dtype=torch.float64)
        return row.repeat(len(self.batch), 1)

    monkeypatch.setattr(EdgeProblem, "metric", metric)
    monkeypatch.setattr(EdgeProblem, "effects", effects)
    zero = torch.zeros(len(problem.batch), dtype=torch.float64)
    state = EdgeState(list(adds), prompts=len(problem.batch))
    return EdgeDescent(
        problem, Loss(Reference(zero, zero - 1), 1.0, 2.0), 0.001, state, lambda: None
    )


def test_of_single_edges_that_would_overshoot_together_one_leaves(
    problem: EdgeProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without either of two the metric is the model's, without both as far below as it was above;
    an idle edge leaves as well."""
    first, second, needed, idle = problem.nodes[:4]
    adds = {first: 0.3, second: 0.3, needed: -0.3, idle: 0.0}
    descent = additive(problem, monkeypatch, adds)
    descent.singles()
    left = set(descent.state.circuit)
    assert needed in left
    assert idle not in left
    assert len({first, second} & left) == 1


@pytest.mark.parametrize("helps", [False, True])
def test_a_block_that_is_wrong_halfway_is_put_together_at_the_circuit(
    problem: EdgeProblem, monkeypatch: pytest.MonkeyPatch, helps: bool
) -> None:
    """Half on the way what is needed looks as if it had to go."""
    needed, idle = problem.nodes[:8], problem.nodes[8:16]
    adds = {**dict.fromkeys(needed, 0.1), **dict.fromkeys(idle, 0.0)}
    descent = additive(problem, monkeypatch, adds, rest=-0.8)

    def forecasts(self: EdgeDescent, edges: Sequence[str]) -> tuple[Forecast, Forecast]:
        sizes = torch.tensor([adds[edge] for edge in edges], dtype=torch.float64)
        off = torch.zeros(len(problem.batch), dtype=torch.float64)
        none = torch.zeros(len(off), len(sizes), dtype=torch.float64)
        wrong = Forecast(off, none, -sizes)
        return wrong, Forecast(off, none - sizes, sizes) if helps else wrong

    monkeypatch.setattr(EdgeDescent, "_forecasts", forecasts)
    descent.blocks()
    left = set(descent.state.circuit)
    assert set(needed) <= left
    assert (left < adds.keys()) is helps
