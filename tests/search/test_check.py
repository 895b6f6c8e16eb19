"""Checks on prompts that a search does not use, and what it does with what they say."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from oracles.closeness import assert_close

from unweave.circuits import Scores
from unweave.errors import UnweaveError
from unweave.estimates import Estimate
from unweave.experiments.specification import Experiment, Specification
from unweave.model.loading import load
from unweave.scores.problem import Problem
from unweave.scores.score import scores
from unweave.search.loss import Loss
from unweave.search.polish import polish
from unweave.search.prompts import Checked, SearchPrompts
from unweave.search.search import NoCheckpoint, Round, RoundsState, searches
from unweave.search.settings import SEARCH
from unweave.sites import Site, parse
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
    down = -1 if float(problem.reference.scale) > 0 else 1
    loss = Loss.of(problem, 2.0, down * 0.3)
    assert_close(loss(metric), wanted)
    part = loss.select(slice(0, 2))
    few = 2.0 * (off[:, :2].mean(1) - 0.3).abs() + SEARCH.loss.examples * off[:, :2].abs().mean(1)
    assert_close(part(metric[:, :2]), few)


def test_a_check_compares_a_circuit_on_other_prompts_with_its_own(drawn: Problem) -> None:
    circuit = drawn.nodes[::2]
    found = SearchPrompts(drawn, 8, 1024).check(8, circuit, precision=0.03)
    assert drawn.draw is not None
    others = drawn.draw("check", found.faithfulness.prompts)
    there, here = (float(part.faithfulness([circuit])[0]) for part in (others, drawn))
    assert found.faithfulness.value == pytest.approx(there)
    assert found.shift == pytest.approx(there - here, abs=1e-5)
    assert found.shift != 0


@pytest.mark.parametrize("precision", [0.5, 0.05, 0.02])
def test_as_many_prompts_are_checked_as_the_error_asks_for(
    drawn: Problem, precision: float
) -> None:
    """With an error that falls with the root of their number."""
    circuit = drawn.nodes[::2]
    half = drawn.reference.estimate(drawn.metric([circuit])[0]).half
    found = SearchPrompts(drawn, 8, 1024).others(8, circuit, precision)
    step = SEARCH.descent.proposing
    wanted = max(8, min(1024, 8 * (half / precision) ** 2))
    available = drawn.draw("check", 1024) if drawn.draw else drawn
    assert len(found.batch) == min(len(available.batch), -int(-wanted // step) * step)


def test_a_search_that_may_draw_none_is_checked_on_all_of_its_own(drawn: Problem) -> None:
    circuit = drawn.nodes[::2]
    for problem, checked in ((replace(drawn, draw=None), 1024), (drawn, 0)):
        prompts = SearchPrompts(problem, 8, checked)
        assert prompts.others(4, problem.nodes, 0.01) is problem
        found = prompts.check(4, circuit, 0.01)
        here = float(problem.faithfulness([circuit])[0])
        few = float(problem.select(slice(0, 4)).faithfulness([circuit])[0])
        assert found.faithfulness.value == pytest.approx(here)
        assert found.shift == pytest.approx(here - few, abs=1e-5)


@pytest.mark.parametrize("shift", [-0.2, 0.2])
def test_a_polish_aims_at_the_model_on_other_prompts(shift: float) -> None:
    """Where others say that circuits are further up, its own prompts are left below."""
    problem = tiny_problem("llama")
    start, left = problem.nodes[::2], problem.nodes[1::2]
    aims = []
    for loss in (Loss.of(problem, 8.0), Loss.of(problem, 8.0, shift)):
        circuit = polish(problem, loss, start, left, 0.0, len(problem.nodes))
        aims.append(float(problem.faithfulness([circuit])[0]) + shift)
    assert abs(1 - aims[1]) < abs(1 - aims[0]) - 0.05


@pytest.mark.parametrize("times", [0, 1, 3])
def test_a_circuit_that_other_prompts_find_wanting_is_polished_on(
    drawn: Problem, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Check prompts on which every circuit is .3 lower: what is given back is what is near 1 there,
    and not a round that only its own prompts praise."""
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
    changed = replace(SEARCH.rounds, checks=times)
    monkeypatch.setattr("unweave.search.eliminate.SETTINGS", changed)
    aimed = searches["eliminate"].run(drawn, found, {"order": "left"})
    own = [float(drawn.faithfulness([one.sites])[0]) for one in (plain, aimed)]
    assert abs(1.3 - own[1]) < abs(1.3 - own[0]) - 0.1
    assert all(one.shift == pytest.approx(-0.3, abs=0.1) for one in aimed.rounds)
    # Before the first polish too, which may be the only one.
    assert len(told) <= (times + 1) * len(aimed.rounds)


def test_the_order_knows_what_the_last_check_said(
    drawn: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, seen = SearchPrompts.check, list[float]()

    def lower(self: SearchPrompts, prompts: int, circuit: tuple, precision: float) -> Checked:
        found = usual(self, prompts, circuit, precision)
        return found._replace(shift=found.shift - 0.3)

    def ordered(problem: Problem, circuit: Sequence[Site], rest: Sequence[Site], known: float):
        seen.append(known)
        return [*circuit, *rest]

    monkeypatch.setattr(SearchPrompts, "check", lower)
    monkeypatch.setattr("unweave.search.eliminate.measured_order", ordered)
    found = searches["eliminate"].run(drawn, scores["eap"].run(drawn))
    best = min(found.rounds, key=lambda one: one.loss)
    assert best.shift == pytest.approx(-0.3, abs=0.1)
    assert seen == [pytest.approx(best.faithfulness + best.shift)]


@pytest.mark.parametrize("near", [0.04, 0.06])
def test_a_check_holds_within_the_tolerance(
    drawn: Problem, monkeypatch: pytest.MonkeyPatch, near: float
) -> None:
    found: Scores = scores["eap"].run(drawn)
    told: list[int] = []

    def check(self: SearchPrompts, prompts: int, circuit: tuple, precision: float) -> Checked:
        told.append(prompts)
        return Checked(Estimate(1 + near, 0.9, 1.1, 64), 0.0)

    monkeypatch.setattr(SearchPrompts, "check", check)
    searches["eliminate"].run(drawn, found, {"order": "left", "rounds": 1, "tolerance": 0.05})
    assert len(told) == 1 + (1 if near < 0.05 else SEARCH.rounds.checks)
    # One before the first polish; with the first that fails it takes as many prompts as it may.
    assert told[:2] == [8, 8]
    assert all(prompts > 8 for prompts in told[2:])


def test_nodes_that_joined_are_not_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that a polish brought in from further down the ranking."""
    problem = tiny_problem("gpt2")
    changed = replace(SEARCH.rounds, smallest_pool=2, begin=9.0)
    monkeypatch.setattr("unweave.search.eliminate.SETTINGS", changed)
    options = {"pool": 0.01, "rounds": 20, "tolerance": 0.0, "order": "left"}
    monkeypatch.setattr("unweave.search.eliminate._finished", _seen_all)
    found = searches["eliminate"].run(problem, scores["eap"].run(problem), options)
    selected = [name for one in found.rounds for name in one.selected]
    assert len(selected) == len(set(selected))
    assert all(one.selected for one in found.rounds)
    joined = {name for one in found.rounds for name in (*one.circuit, *one.dropped)}
    assert joined == set(map(str, problem.nodes))


def _seen_all(state: RoundsState, options: dict, count: int) -> bool:
    return len({name for one in state.rounds for name in (*one.circuit, *one.dropped)}) >= count


def test_the_state_of_another_version_is_a_clear_error(drawn: Problem) -> None:
    class Old(NoCheckpoint):
        def load(self) -> dict[str, Any]:
            return {"rounds": [], "steps": [], "heavier": 0}

    with pytest.raises(UnweaveError, match=r"another version of unweave .*heavier.*delete its"):
        searches["eliminate"].run(drawn, scores["eap"].run(drawn), {}, Old())


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
        changed = replace(SEARCH.rounds, smallest_pool=2, begin=begin)
        monkeypatch.setattr("unweave.search.eliminate.SETTINGS", changed)
        return searches["eliminate"].run(problem, upside_down, options).rounds[0]

    pool, grown = first(9.0), first(0.25)
    assert len(pool.selected) == max(2, round(0.2 * len(problem.nodes)))
    assert abs(1 - pool.faithfulness) > 0.25
    joined = tuple(map(parse, grown.selected))
    assert len(joined) > len(pool.selected)
    assert abs(1 - float(problem.faithfulness([joined])[0])) <= 0.25
    assert grown.faithfulness == pytest.approx(1, abs=0.05)
