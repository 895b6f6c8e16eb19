"""Evidence on the nodes of a circuit, against runs of each circuit by itself."""

from typing import Any

import pytest
import torch

from unweave.behaviours.file import find_task
from unweave.evaluation.certainty import CORE, certainty
from unweave.experiments.specification import Experiment, Specification
from unweave.model.loading import load
from unweave.patching.circuits import run_circuits
from unweave.scores.problem import Problem
from unweave.sites import Site
from unweave.testing.problem import tiny_problem

TASK = "wired-induction"


@pytest.fixture(scope="module")
def problem() -> Problem:
    how = Specification(TASK, TASK, ablation="counterfactual", prompts=16)
    return Experiment.set_up(how, load(TASK)).discovery


def faithfulness(problem: Problem, circuit: tuple[Site, ...]) -> float:
    """By runs that share nothing with flips or estimates."""
    runs = [problem.nodes, (), circuit]
    points = problem.points
    found = run_circuits(problem.model, problem.batch, runs, points, problem.ablation).double()
    full, empty, kept = found.mean(1).tolist()
    return (kept - empty) / (full - empty)


def test_effects_are_what_faithfulness_loses_without_a_node(problem: Problem) -> None:
    known = find_task(TASK).known_circuit(TASK)
    assert known is not None
    idle = tuple(node for node in problem.nodes if node not in set(known.nodes))
    circuit = (*known.nodes, idle[0])
    found = certainty(problem, circuit, idle[1:4], price=0.01)
    whole = faithfulness(problem, circuit)
    for node in circuit:
        without = tuple(one for one in circuit if one != node)
        effect = whole - faithfulness(problem, without)
        assert found[str(node)].effect == pytest.approx(effect, abs=1e-4)
        low, high = found[str(node)].interval
        assert low <= found[str(node)].effect <= high
    assert [found[str(node)].group for node in known.nodes] == ["core", "core"]
    assert all(found[str(node)].interval[0] > CORE for node in known.nodes)
    assert all(found[str(node)].frequency == 1 for node in known.nodes)
    # Any idle node is as good as another; no node can do what a wired one does.
    assert found[str(idle[0])].group == "interchangeable"
    assert found[str(idle[0])].swaps[0] in map(str, idle[1:4])
    assert found[str(idle[0])].frequency == 0
    assert not any(found[str(node)].swaps for node in known.nodes)


@pytest.mark.parametrize("seed", range(5))
def test_rounding_does_not_decide_what_can_be_replaced(
    problem: Problem, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other CPUs round the same runs in another way."""
    known = find_task(TASK).known_circuit(TASK)
    assert known is not None
    idle = tuple(node for node in problem.nodes if node not in set(known.nodes))
    draw = torch.Generator().manual_seed(seed)
    scale = float(problem.reference.scale)
    for name in ("metric", "flipped"):
        usual = getattr(Problem, name)

        def rounded(self: Problem, *args: Any, usual: Any = usual) -> torch.Tensor:
            found = usual(self, *args)
            return found + 1e-6 * scale * torch.randn(found.shape, generator=draw)

        monkeypatch.setattr(Problem, name, rounded)
    found = certainty(problem, (*known.nodes, idle[0]), idle[1:4], price=0.01)
    assert found[str(idle[0])].group == "interchangeable"
    assert [found[str(node)].group for node in known.nodes] == ["core", "core"]


def test_a_node_that_is_worth_its_price_alone_is_not_core(problem: Problem) -> None:
    """With nothing to take its place, a small effect is support."""
    known = find_task(TASK).known_circuit(TASK)
    assert known is not None
    idle = next(node for node in problem.nodes if node not in set(known.nodes))
    found = certainty(problem, (*known.nodes, idle), (), price=-1.0)
    assert found[str(idle)].frequency == 1  # below every price
    assert found[str(idle)].group == "supporting"


def test_idle_nodes_replace_nothing_in_a_circuit_above_one() -> None:
    """Without any of its nodes such a circuit comes nearer to 1; that is not to be replaced."""
    how = Specification("wired-suppression", "wired-suppression", prompts=16)
    problem = Experiment.set_up(how, load("wired-suppression")).discovery
    known = find_task("wired-suppression").known_circuit("wired-suppression")
    assert known is not None
    whole, without = problem.metric([known.nodes]).mean(), problem.flipped(known.nodes, known.nodes)
    gains = (without.mean(1) - whole).tolist()
    circuit = tuple(node for node, gain in zip(known.nodes, gains, strict=True) if gain < 0)
    assert faithfulness(problem, circuit) > 1.05
    idle = [node for node in problem.nodes if node not in set(known.nodes)]
    found = certainty(problem, circuit, idle[:4], price=0.01)
    nearer = [
        node
        for node in circuit
        if abs(1 - faithfulness(problem, tuple(n for n in circuit if n != node)))
        < faithfulness(problem, circuit) - 1
    ]
    assert nearer, "the case is there"
    assert not any(one.swaps for one in found.values())


def test_the_whole_model_misses_what_is_core(problem: Problem) -> None:
    """By runs of the whole model without each node."""
    known = find_task(TASK).known_circuit(TASK)
    assert known is not None
    found = certainty(problem, known.nodes, (), price=0.01)
    for node in known.nodes:
        without = tuple(one for one in problem.nodes if one != node)
        missed = 1 - faithfulness(problem, without)
        assert found[str(node)].whole == pytest.approx(missed, abs=1e-4)
        assert found[str(node)].group == "core"


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_what_the_whole_model_does_not_miss_is_not_core(family: str) -> None:
    """Half of a random model's nodes, each half a circuit: some that it needs the model does not
    need, since other nodes do their work there."""
    problem = tiny_problem(family)
    stand_ins = []
    for circuit in (problem.nodes[::2], problem.nodes[1::2], problem.nodes[-4:]):
        for node, found in zip(
            circuit, certainty(problem, circuit, (), 0.01).values(), strict=True
        ):
            needed = max(found.interval[0], -found.interval[1]) > CORE
            assert (found.whole is not None) == needed
            without = tuple(one for one in problem.nodes if one != node)
            lost = problem.reference.samples(problem.reference.full)
            lost = lost - problem.reference.samples(problem.metric([without])[0])
            error = 1.96 * float(lost.std()) / len(lost) ** 0.5
            missed = abs(float(lost.mean())) - error > CORE
            assert found.group == ("core" if needed and missed else "supporting")
            stand_ins += [node] if needed and not missed else []
    assert stand_ins, "the case is there"
