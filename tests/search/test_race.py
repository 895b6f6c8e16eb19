"""Races between changes of a circuit, against all of them on all prompts."""

import pytest
import torch

from unweave.experiments.specification import Experiment, Specification
from unweave.model.loading import load
from unweave.patching.circuits import run_circuits
from unweave.scores.problem import Problem
from unweave.search.loss import Loss
from unweave.search.race import SETTINGS, race

TASK = "wired-induction"


@pytest.fixture(scope="module")
def problem() -> Problem:
    how = Specification(TASK, TASK, ablation="counterfactual", prompts=96)
    return Experiment.set_up(how, load(TASK)).discovery


@pytest.mark.parametrize("wanted", [1, 3])
def test_a_race_finds_the_best_change_and_few_see_all_prompts(
    problem: Problem, wanted: int
) -> None:
    loss, circuit, changes = Loss.of(problem), problem.nodes[::2], problem.nodes
    worth = torch.linspace(0, 0.01, len(changes))
    heats = race(problem, circuit, changes, loss, worth, wanted)
    changed = [tuple(set(circuit) ^ {node}) for node in changes]
    model, batch, points = problem.model, problem.batch, problem.points
    slow = run_circuits(model, batch, changed, points, problem.ablation)
    costs = loss(slow) - worth
    assert float(costs[heats.order[0]]) == pytest.approx(float(costs.min()), abs=1e-4)
    total, first = len(problem.batch), SETTINGS.first
    assert set(heats.seen) <= {first, total}
    assert sum(seen == total for seen in heats.seen) >= wanted
    most = max(wanted, -(-len(changes) // SETTINGS.lasting))
    assert sum(seen == total for seen in heats.seen) <= most
    for i, seen in enumerate(heats.seen):
        torch.testing.assert_close(heats.metric[i, :seen], slow[i, :seen], rtol=1e-4, atol=1e-4)
        assert heats.metric[i, seen:].isnan().all()
        part = loss.select(slice(0, seen))(slow[i : i + 1, :seen])
        assert heats.values[i] == pytest.approx(float(part[0] - worth[i]), abs=1e-4)
        assert (heats.whole(i) is None) == (seen < total)


def test_of_clearly_worse_ones_only_those_that_are_wanted_see_more(problem: Problem) -> None:
    """Every other change is worth so much less that its error does not matter."""
    worth = torch.full((len(problem.nodes),), -100.0)
    worth[5] = 0.0
    heats = race(problem, problem.nodes[::2], problem.nodes, Loss.of(problem), worth)
    assert heats.order[0] == 5
    own = [len(problem.batch) if i == 5 else SETTINGS.first for i in range(len(worth))]
    assert heats.seen == own
