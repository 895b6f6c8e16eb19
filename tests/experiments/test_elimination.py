"""Elimination, piece by piece, on a problem with enough nodes for blocks to leave."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from oracles.closeness import assert_close

from unweave.circuits import Scores
from unweave.experiments.specification import Experiment, Specification
from unweave.model.loading import load
from unweave.patching.circuits import run_circuits
from unweave.patching.flips import run_flips
from unweave.scores.problem import Problem
from unweave.scores.score import scores
from unweave.search.descent import SETTINGS
from unweave.search.eliminate import nested, polish
from unweave.search.loss import Loss
from unweave.search.order import interleaved
from unweave.search.search import Finding, searches
from unweave.sites import Site, parse

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


@dataclass
class Kept:
    """A checkpoint that keeps every state, as a run folder would have it at that moment."""

    states: list[str] = field(default_factory=list)

    def load(self) -> dict[str, Any] | None:
        return json.loads(self.states[-1]) if self.states else None

    def save(self, state: Mapping[str, Any]) -> None:
        self.states.append(json.dumps(state))


@pytest.fixture(scope="module")
def searched(many: Problem) -> tuple[Scores, Finding, Kept]:
    found, kept = scores["eap"].run(many), Kept()
    return found, searches["eliminate"].run(many, found, {}, kept), kept


def test_flips_equal_the_circuits_run_one_by_one(problem: Problem) -> None:
    circuit, nodes = problem.nodes[::2], problem.nodes
    fast = run_flips(problem.model, problem.batch, circuit, nodes, problem.points, problem.ablation)
    changed = [tuple(set(circuit) ^ {node}) for node in nodes]
    slow = run_circuits(problem.model, problem.batch, changed, problem.points, problem.ablation)
    assert_close(fast, slow)


def test_elimination_is_nested_and_its_losses_are_those_of_its_circuits(
    many: Problem, searched: tuple[Scores, Finding, Kept]
) -> None:
    loss, finding = Loss.of(many), searched[1]
    first = finding.rounds[0]
    assert any(len(step.removed) > 2 for step in first.steps), "blocks leave"
    assert any(1 <= len(step.removed) <= 2 for step in first.steps), "and single nodes"
    joined = [parse(name) for name in first.selected]
    order = nested(joined, first.steps)
    assert sorted(map(str, order)) == sorted(first.selected)
    circuits = [tuple(order[: step.size]) for step in first.steps]
    assert [step.loss for step in first.steps] == pytest.approx(
        loss(many.metric(circuits)).tolist(), abs=1e-5
    )
    sizes = [step.size for step in first.steps]
    assert sizes == sorted(sizes, reverse=True)


def test_the_search_goes_on_from_every_state(
    many: Problem, searched: tuple[Scores, Finding, Kept]
) -> None:
    found, finding, kept = searched
    assert len(kept.states) > 5
    for count in range(1, len(kept.states) + 1):
        again = searches["eliminate"].run(many, found, {}, Kept(kept.states[:count]))
        assert again == finding, f"from state {count}"


def test_polish_ends_where_no_single_change_pays(
    many: Problem, searched: tuple[Scores, Finding, Kept]
) -> None:
    loss, price, finding = Loss.of(many), 0.005, searched[1]
    order = [parse(name) for name in finding.ranking]
    start, left = tuple(order[:8]), order[8:]

    def value(circuit: tuple[Site, ...]) -> float:
        return float(loss(many.metric([circuit]))[0]) + price * len(circuit)

    found = polish(many, start, left, loss, price, len(many.nodes))
    assert value(found) <= value(start) + 1e-6
    for node in (*start, *left[: SETTINGS.returning]):
        changed = tuple(set(found) ^ {node})
        assert not changed or value(changed) >= value(found) - 1e-5, node
    assert len(polish(many, start, left, loss, 0.0, len(start))) <= len(start)


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


def test_a_fixed_number_of_prompts_above_the_start_is_searched_to_its_end() -> None:
    how = Specification(TASK, TASK, ablation="counterfactual", prompts=8)
    problem = Experiment.set_up(how, load(TASK)).discovery
    assert problem.draw is None
    found = searches["eliminate"].run(
        problem, scores["eap"].run(problem), {"start": 2, "precision": 1e-9}
    )
    best = found.rounds[-1]
    metric = problem.metric([found.sites])
    assert best.faithfulness == pytest.approx(float(Loss.of(problem).faithfulness(metric)[0]))


def test_a_circuit_that_is_not_faithful_at_its_price_gets_a_lower_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At .9 a node, one head is the cheapest circuit of the relay; the behaviour needs three."""
    how = Specification("wired-relay", "wired-relay", ablation="counterfactual", prompts=4)
    problem = Experiment.set_up(how, load("wired-relay")).discovery
    found, options = scores["eap"].run(problem), {"price": 0.9, "order": "left"}
    lowered = searches["eliminate"].run(problem, found, options)
    monkeypatch.setattr("unweave.search.eliminate.SETTINGS", replace(SETTINGS, halvings=0))
    kept = searches["eliminate"].run(problem, found, options)
    assert (len(kept.circuit), len(lowered.circuit)) == (1, 3)
    assert float(problem.faithfulness([lowered.sites])[0]) == pytest.approx(1, abs=0.01)
