"""Elimination, piece by piece, on a problem with enough nodes for blocks to leave."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from oracles.closeness import RELATIVE, assert_close

from unweave.behaviours.file import find_task
from unweave.circuits import Scores
from unweave.experiments.specification import Experiment, Specification
from unweave.model.loading import load
from unweave.patching.circuits import run_circuits
from unweave.patching.flips import run_flips
from unweave.patching.gates import run_gated_nodes
from unweave.scores.problem import Problem
from unweave.scores.score import scores
from unweave.search.descent import SETTINGS, forecast
from unweave.search.eliminate import nested
from unweave.search.loss import Loss
from unweave.search.order import measured_order
from unweave.search.polish import polish
from unweave.search.search import Finding, searches
from unweave.search.settings import SEARCH
from unweave.sites import Site, parse
from unweave.testing.problem import tiny_problem

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
    assert_close(torch.tensor([step.loss for step in first.steps]), loss(many.metric(circuits)))
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
    price, finding = 0.005, searched[1]
    order = [parse(name) for name in finding.ranking]
    start, left = tuple(order[:8]), order[8:]
    found = polish(many, Loss.of(many), start, left, price, len(many.nodes))
    assert value(many, found, price) <= value(many, start, price) + 1e-6
    for node in {*found, *left[: SEARCH.polish.returning // 2]}:
        changed = tuple(set(found) ^ {node})
        assert not changed or value(many, changed, price) >= value(many, found, price) - 1e-4, node
    assert len(polish(many, Loss.of(many), start, left, 0.0, len(start))) <= len(start)


def test_polish_puts_a_needed_node_in_the_place_of_an_idle_one(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a circuit that may not grow, an idle node leaves for nothing and a needed one has no room:
    only both at once pay."""
    circuit = find_task(TASK).known_circuit(TASK)
    assert circuit is not None
    *others, needed = circuit.nodes
    idle = next(node for node in problem.nodes if node not in set(circuit.nodes))
    start = (*others, idle)
    polished = polish(problem, Loss.of(problem), start, [needed], 0.0, len(start))
    assert needed in polished
    assert value(problem, polished, 0.0) < value(problem, start, 0.0) - 0.1
    alone = replace(SEARCH, descent=replace(SEARCH.descent, tried=1))
    monkeypatch.setattr("unweave.search.polish.SEARCH", alone)
    assert needed not in polish(problem, Loss.of(problem), start, [needed], 0.0, len(start))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_forecasts_are_slopes_at_gates(family: str) -> None:
    """Against autograd through gates at every node, open in the circuit and shut outside."""
    problem = tiny_problem(family)
    loss, circuit = Loss.of(problem, 2.0), problem.nodes[::2]
    foreseen = forecast(problem, loss, circuit, problem.nodes)
    inside = [float(node in set(circuit)) for node in problem.nodes]
    gates = torch.tensor(inside, dtype=torch.float64, requires_grad=True)
    metric = run_gated_nodes(problem.model, problem.batch, problem.nodes, gates, problem.ablation)
    slopes = torch.stack([torch.autograd.grad(one, gates, retain_graph=True)[0] for one in metric])
    signs = 1 - 2 * gates.detach()
    assert_close(foreseen.off, (metric.detach() - loss.reference.full) / loss.scale)
    assert_close(foreseen.moves, slopes * signs / loss.scale)
    changed = metric.detach() + slopes.T * signs[:, None]
    charged = loss(changed) + SETTINGS.doubt * slopes.abs().mean(0) / loss.scale
    assert_close(foreseen.losses(), charged)


def value(problem: Problem, circuit: Sequence[Site], price: float) -> float:
    return float(Loss.of(problem)(problem.metric([circuit]))[0]) + price * len(circuit)


@pytest.mark.parametrize("order", ["measured", "left"])
def test_every_node_is_ranked_after_the_circuit(many: Problem, order: str) -> None:
    found = searches["eliminate"].run(many, scores["eap"].run(many), {"order": order})
    assert sorted(found.ranking) == sorted(map(str, many.nodes))
    assert found.ranking[: len(found.circuit)] == found.circuit
    best = min(found.rounds, key=lambda one: one.loss)
    assert sorted(best.circuit) == sorted(found.circuit)
    assert order == "measured" or best.circuit == found.circuit
    loss = Loss.of(many)
    own = float(loss(many.metric([found.sites]))[0])
    # A loss is in units of what ablating every node changes: this is relative to that.
    assert best.loss == pytest.approx(own, abs=RELATIVE[torch.float32])


def test_as_they_were_missed_the_others_retrace_the_way_down(many: Problem) -> None:
    found = searches["eliminate"].run(many, scores["eap"].run(many), {"order": "left"})
    (first,) = found.rounds
    own = set(found.circuit)
    path = nested([parse(name) for name in (*first.circuit, *first.dropped)], first.steps)
    left = [str(node) for node in path if str(node) not in own]
    assert list(found.ranking[len(own) :][: len(left)]) == left


def own_faithfulness(problem: Problem, circuit: Sequence[Site]) -> float:
    return float(problem.faithfulness([circuit])[0])


@pytest.mark.parametrize("shift", [0.0, 0.4])
def test_the_order_is_a_way_down_from_the_whole_model(shift: float) -> None:
    """The first nodes to leave, and so the last of the order, are those outside the circuit that
    the whole model misses least, by gradients of gates. What other prompts say of the circuit
    counts for little there: 3 of its nodes are those of the circuit."""
    problem = tiny_problem("gpt2")
    circuit, rest = problem.nodes[:3], problem.nodes[3:]
    loss = Loss.of(problem, SEARCH.polish.mean, shift * 3 / len(problem.nodes))
    order = measured_order(problem, circuit, rest, own_faithfulness(problem, circuit) + shift)
    assert sorted(map(str, order[:3])) == sorted(map(str, circuit))
    assert sorted(map(str, order[3:])) == sorted(map(str, rest))
    gates = torch.ones(len(problem.nodes), dtype=torch.float64, requires_grad=True)
    metric = run_gated_nodes(problem.model, problem.batch, problem.nodes, gates, problem.ablation)
    slopes = torch.stack([torch.autograd.grad(one, gates, retain_graph=True)[0] for one in metric])
    lacks, now, gone = -slopes.T[3:], metric.detach(), list[Site]()
    doubt = SETTINGS.doubt * lacks.abs().mean(1) / loss.scale
    for node in order[::-1][: len(rest) // SEARCH.descent.ordered]:
        costs = (loss(now + lacks) + doubt).tolist()
        left = [cost for cost, one in zip(costs, rest, strict=True) if one not in gone]
        assert costs[rest.index(node)] == pytest.approx(min(left))
        now = now + lacks[rest.index(node)]
        gone.append(node)
    assert gone


@pytest.mark.parametrize("shift", [0.0, -0.6, 0.6])
def test_nodes_of_a_circuit_stand_so_that_fewer_of_them_are_still_near(shift: float) -> None:
    """Each leaves where it is missed least, given those that left before it: runs say so, where to
    first order another one would leave. By how much other prompts find the circuit above its own
    is taken in, the less the fewer nodes are left."""
    problem = tiny_problem("llama")
    circuit = problem.nodes[: SETTINGS.tried]
    order = measured_order(problem, circuit, (), own_faithfulness(problem, circuit) + shift)
    assert sorted(map(str, order)) == sorted(map(str, circuit))
    for count in range(1, len(order)):
        there = order[: count + 1]
        loss = Loss.of(problem, SEARCH.polish.mean, shift * len(there) / len(circuit))
        smaller = [tuple(node for node in there if node != gone) for gone in there]
        losses = loss(problem.metric(smaller))
        assert float(losses[count]) == pytest.approx(float(losses.min()), abs=1e-9)


def test_many_nodes_of_a_circuit_leave_as_foreseen_before_the_last_few_are_run(
    many: Problem,
) -> None:
    circuit = many.nodes[: SETTINGS.tried + 4]
    some = many.select(slice(0, SETTINGS.proposing))
    order = measured_order(many, circuit, (), own_faithfulness(some, circuit))
    assert sorted(map(str, order)) == sorted(map(str, circuit))
    foreseen = forecast(some, Loss.of(some, SEARCH.polish.mean), circuit, circuit)
    first = [circuit[i] for i in foreseen.together(len(circuit) // SEARCH.descent.ordered)]
    assert order[::-1][: len(first)] == first


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


def test_faithfulness_weighs_more_where_a_circuit_lacks_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At .9 a node, one head is the cheapest circuit of the relay; the behaviour needs three."""
    how = Specification("wired-relay", "wired-relay", ablation="counterfactual", prompts=4)
    problem = Experiment.set_up(how, load("wired-relay")).discovery
    found, options = scores["eap"].run(problem), {"price": 0.9, "order": "left"}
    sizes = []
    for checks in (0, 3):
        lighter = replace(SEARCH, polish=replace(SEARCH.polish, mean=1.0))
        monkeypatch.setattr("unweave.search.eliminate.SEARCH", lighter)
        changed = replace(SEARCH.rounds, checks=checks)
        monkeypatch.setattr("unweave.search.eliminate.SETTINGS", changed)
        circuit = searches["eliminate"].run(problem, found, options).sites
        sizes.append(len(circuit))
    assert sizes == [1, 3]
    assert float(problem.faithfulness([circuit])[0]) == pytest.approx(1, abs=0.01)
