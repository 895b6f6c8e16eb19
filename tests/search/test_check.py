"""Checks on prompts that a search does not use, and what it does with what they say."""

from dataclasses import replace

import pytest
from oracles.closeness import assert_close

from unweave.circuits import Scores
from unweave.experiments.specification import Experiment, Specification
from unweave.model.loading import load
from unweave.scores.problem import Problem
from unweave.scores.score import scores
from unweave.search.loss import Loss
from unweave.search.polish import polish
from unweave.search.prompts import SearchPrompts
from unweave.search.search import Round, searches
from unweave.search.settings import SEARCH
from unweave.sites import parse
from unweave.testing.problem import tiny_problem

TASK = "wired-suppression"


@pytest.fixture(scope="module")
def drawn() -> Problem:
    """With others of its prompts to draw, though their number is set."""
    experiment = Experiment.set_up(Specification(TASK, TASK, prompts=8), load(TASK))
    return replace(experiment.discovery, draw=experiment.problem)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_shifted_loss_is_that_of_a_mean_further_up(family: str) -> None:
    problem = tiny_problem(family)
    metric = problem.metric([problem.nodes[::2], problem.nodes[1::3]])
    scale = float((problem.reference.full - problem.reference.empty).mean().abs())
    off = (metric - problem.reference.full) / scale
    wanted = 2.0 * (off.mean(1) - 0.3).abs() + SEARCH.loss.examples * off.abs().mean(1)
    loss = Loss.of(problem, 2.0, -0.3)
    assert_close(loss(metric), wanted)
    assert_close(loss.above(metric), off.mean(1))
    part = loss.select(slice(0, 2))
    few = 2.0 * (off[:, :2].mean(1) - 0.3).abs() + SEARCH.loss.examples * off[:, :2].abs().mean(1)
    assert_close(part(metric[:, :2]), few)


def test_a_check_compares_a_circuit_on_other_prompts_with_its_own(drawn: Problem) -> None:
    circuit = drawn.nodes[::2]
    found = SearchPrompts(drawn, 8).check(8, circuit, precision=0.03)
    count = found.faithfulness.prompts
    assert drawn.draw is not None
    others = drawn.draw("check", count)
    assert float(others.faithfulness([circuit])[0]) == pytest.approx(found.faithfulness.value)
    above = [
        (part.metric([circuit])[0] - part.reference.full).mean()
        / (part.reference.full - part.reference.empty).mean().abs()
        for part in (others, drawn)
    ]
    assert found.shift == pytest.approx(float(above[0] - above[1]), abs=1e-5)
    assert found.shift != 0


@pytest.mark.parametrize("precision", [0.5, 0.05, 0.02])
def test_as_many_prompts_are_checked_as_the_error_asks_for(
    drawn: Problem, precision: float
) -> None:
    """With an error that falls with the root of their number."""
    circuit = drawn.nodes[::2]
    half = drawn.reference.estimate(drawn.metric([circuit])[0]).half
    found = SearchPrompts(drawn, 8).others(8, circuit, precision)
    step = SEARCH.descent.proposing
    wanted = max(8, min(SEARCH.check.most, 8 * (half / precision) ** 2))
    available = drawn.draw("check", 1024) if drawn.draw else drawn
    assert len(found.batch) == min(len(available.batch), -int(-wanted // step) * step)


def test_a_search_that_may_draw_none_is_checked_on_its_own(drawn: Problem) -> None:
    for problem, limit in ((replace(drawn, draw=None), 64), (drawn, 4)):
        prompts = SearchPrompts(problem, limit)
        assert not prompts.more
        assert prompts.others(8, problem.nodes, 0.01) is problem
        found = prompts.check(8, problem.nodes[::2], 0.01)
        assert found.shift == 0
        assert found.faithfulness.value == pytest.approx(
            float(problem.faithfulness([problem.nodes[::2]])[0])
        )


@pytest.mark.parametrize("shift", [-0.2, 0.2])
def test_a_polish_aims_at_the_model_on_other_prompts(shift: float) -> None:
    """Where others say that circuits are further up, its own prompts are left below."""
    problem = tiny_problem("llama")
    start, left = problem.nodes[::2], problem.nodes[1::2]
    aims = []
    for loss in (Loss.of(problem, 8.0), Loss.of(problem, 8.0, shift)):
        circuit = polish(problem, loss, start, left, 0.0, len(problem.nodes))
        aims.append(float(loss.above(problem.metric([circuit]))[0]))
    assert abs(aims[1] + shift) < abs(aims[0] + shift) - 0.05


def test_a_circuit_that_other_prompts_find_wanting_is_polished_on(
    drawn: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check prompts on which every circuit is .3 further from the model."""
    found: Scores = scores["eap"].run(drawn)
    usual = SearchPrompts.check
    told: list[float] = []

    def wanting(self: SearchPrompts, prompts: int, circuit: tuple, precision: float):
        check = usual(self, prompts, circuit, precision)
        value = check.faithfulness
        told.append(value.value - 0.3)
        lower = replace(value, value=value.value - 0.3, low=value.low - 0.3, high=value.high - 0.3)
        return check._replace(faithfulness=lower, shift=check.shift - 0.3)

    plain = searches["eliminate"].run(drawn, found, {"order": "left"})
    monkeypatch.setattr(SearchPrompts, "check", wanting)
    aimed = searches["eliminate"].run(drawn, found, {"order": "left"})
    assert len(told) == 1 + SEARCH.check.times or abs(1 - told[-1]) <= 0.025
    assert abs(1.3 - aimed.rounds[-1].faithfulness) < abs(1.3 - plain.rounds[-1].faithfulness)


def test_more_nodes_join_where_a_pool_is_far_from_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scores that put every node that does something last."""
    name = "wired-induction"
    how = Specification(name, name, ablation="counterfactual", prompts=8)
    problem = Experiment.set_up(how, load(name)).discovery
    found = scores["eap"].run(problem)
    upside_down = replace(found, values=1 / (1e-3 + found.values.abs()))
    options = {"pool": 0.2, "order": "left", "rounds": 1}

    def first(begin: float) -> Round:
        changed = replace(SEARCH.descent, smallest_pool=2, begin=begin)
        monkeypatch.setattr("unweave.search.eliminate.SETTINGS", changed)
        return searches["eliminate"].run(problem, upside_down, options).rounds[0]

    pool, grown = first(9.0), first(0.25)
    assert len(pool.selected) == max(2, round(0.2 * len(problem.nodes)))
    assert abs(1 - pool.faithfulness) > 0.25
    joined = tuple(map(parse, grown.selected))
    assert len(joined) > len(pool.selected)
    assert abs(1 - float(problem.faithfulness([joined])[0])) <= 0.25
    assert grown.faithfulness == pytest.approx(1, abs=0.05)
