"""Elimination, piece by piece, on a problem with enough nodes for blocks to leave."""

import math
from collections.abc import Sequence

import pytest
from oracles.closeness import assert_close

from unweave.experiments.specification import Experiment, Specification
from unweave.model.loading import load
from unweave.patching.circuits import run_circuits
from unweave.patching.flips import run_flips
from unweave.scores.problem import Problem
from unweave.scores.score import scores
from unweave.search.eliminate import SETTINGS, eliminate, nested, polish
from unweave.search.loss import Loss
from unweave.search.order import interleaved
from unweave.search.search import searches
from unweave.sites import Site

TASK = "wired-induction"


@pytest.fixture(scope="module")
def problem() -> Problem:
    how = Specification(TASK, TASK, ablation="counterfactual", prompts=8)
    return Experiment.set_up(how, load(TASK)).discovery


@pytest.fixture(scope="module")
def many() -> Problem:
    """A node for each head and token: enough that they leave in blocks."""
    how = Specification(TASK, TASK, ablation="counterfactual", prompts=4, granularity="head@token")
    return Experiment.set_up(how, load(TASK)).discovery


def prices(problem: Problem, price: float) -> dict[str, float]:
    return {str(node): price for node in problem.nodes}


def test_flips_equal_the_circuits_run_one_by_one(problem: Problem) -> None:
    circuit, nodes = problem.nodes[::2], problem.nodes
    fast = run_flips(problem.model, problem.batch, circuit, nodes, problem.points, problem.ablation)
    changed = [tuple(set(circuit) ^ {node}) for node in nodes]
    slow = run_circuits(problem.model, problem.batch, changed, problem.points, problem.ablation)
    assert_close(fast, slow)


def test_elimination_is_nested_and_its_losses_are_those_of_its_circuits(many: Problem) -> None:
    loss = Loss.of(many)
    steps = list(eliminate(many, many.nodes, loss, prices(many, 0.01)))
    assert any(len(step.removed) > 2 for step in steps), "blocks leave"
    assert any(len(step.removed) == 1 for step in steps), "and single nodes"
    order = nested(many.nodes, steps)
    assert sorted(map(str, order)) == sorted(map(str, many.nodes))
    circuits = [tuple(order[: step.size]) for step in steps]
    losses = loss(many.metric(circuits)).tolist()
    assert [step.loss for step in steps] == pytest.approx(losses, abs=1e-5)
    assert [step.size for step in steps] == sorted({step.size for step in steps}, reverse=True)


def test_elimination_goes_on_from_any_step(many: Problem) -> None:
    loss, price = Loss.of(many), prices(many, 0.005)
    steps = list(eliminate(many, many.nodes, loss, price))
    for count in (1, 3, len(steps) // 2, len(steps) - 1):
        rest = eliminate(many, many.nodes, loss, price, done=steps[:count])
        assert list(rest) == steps[count:]


def test_polish_ends_where_no_single_change_pays(many: Problem) -> None:
    loss, price = Loss.of(many), 0.005
    steps = list(eliminate(many, many.nodes, loss, prices(many, price)))
    order = nested(many.nodes, steps)
    size = min(step.size for step in steps if step.loss <= SETTINGS.worst)
    start, left = tuple(order[:size]), order[size : size + SETTINGS.returning]

    def value(circuit: tuple[Site, ...]) -> float:
        return float(loss(many.metric([circuit]))[0]) + price * len(circuit)

    found = polish(many, start, left, loss, prices(many, price), len(many.nodes))
    assert value(found) <= value(start) + 1e-6
    for node in (*start, *left):
        changed = tuple(set(found) ^ {node})
        assert not changed or value(changed) >= value(found) - 1e-5
    assert len(polish(many, start, left, loss, prices(many, 0.0), size)) <= size
    nothing = tuple(order[-2:])
    assert value(nothing) > SETTINGS.worst
    assert polish(many, nothing, left, loss, prices(many, price), len(many.nodes)) == nothing


def test_positive_and_negative_nodes_interleave_after_the_circuit() -> None:
    effect = {"a": 0.4, "b": -0.2, "c": 0.1, "d": 0.3, "e": -0.9, "f": 0.0, "g": 0.5}

    def missing(more: Sequence[str]) -> float:
        return 0.15 - sum(effect[name] for name in more)

    # 0.15 is missing: a is 0.25 too much, b not enough, e 0.85 too much.
    assert interleaved("", "abcdef", effect, missing) == list("abecdf")
    # What is measured counts: a, c and d did nothing, so g comes before b.
    assert interleaved("", "abcdefg", effect, lambda more: 0.75) == list("acdgbef")


def test_tried_nodes_follow_as_they_are_needed() -> None:
    effect = {"a": 0.4, "b": -0.2, "c": 0.1, "d": 0.0, "e": -0.1, "f": 0.3}
    asked = []

    def missing(more: Sequence[str]) -> float:
        asked.append(len(more))
        return 0.15 - sum(effect[name] for name in more)

    # 0.15 is missing: c is nearest. Then 0.05: b is 0.25 away, a 0.35. d does nothing.
    assert interleaved("abcd", "ef", effect, missing) == list("cbaefd")
    assert asked == [0, 3]


@pytest.mark.parametrize("order", ["measured", "left"])
def test_every_node_is_ranked_after_the_circuit(many: Problem, order: str) -> None:
    found = searches["eliminate"].run(many, scores["eap"].run(many), {"order": order})
    assert sorted(found.ranking) == sorted(map(str, many.nodes))
    assert found.ranking[: len(found.circuit)] == found.circuit
    best = min(found.rounds, key=lambda one: one.loss)
    assert best.circuit == found.circuit
    loss = Loss.of(many)
    assert best.loss == pytest.approx(float(loss(many.metric([found.sites]))[0]), abs=1e-5)
    assert math.isfinite(best.faithfulness)
