"""Areas and crossings against values worked out by hand, and many circuits against one."""

import pytest
import torch
from oracles.closeness import RELATIVE, assert_close

from unweave.evaluation.curves import Curve, curve_sizes, faithfulness_curve
from unweave.evaluation.faithfulness import measured
from unweave.patching.circuits import run_circuits

# Sizes 0 1 2 4 of 4 nodes: trapezoids of width ¼, ¼, ½.
TOY = Curve((0, 1, 2, 4), (0.0, 0.8, 1.2, 1.0), nodes=4)


def test_curve_area_by_hand():
    assert TOY.area == pytest.approx(0.25 * 0.4 + 0.25 * 1.0 + 0.5 * 1.1)


def test_curve_gap_by_hand():
    assert TOY.gap == pytest.approx(0.25 * 0.6 + 0.25 * 0.2 + 0.5 * 0.1)


def test_crossings():
    assert TOY.first(0.8) == 1
    assert TOY.first(0.95) == 2
    assert TOY.first(1.3) is None


@pytest.mark.parametrize("nodes", [1, 2, 12, 144, 270])
def test_grid_begins_with_nothing_and_ends_with_all(nodes):
    sizes = curve_sizes(nodes)
    assert sizes[0] == 0
    assert sizes[-1] == nodes
    assert sizes == sorted(set(sizes))


def test_curve_of_the_wired_model(problem, circuit):
    others = [node for node in problem.nodes if node not in circuit]
    curve = faithfulness_curve(problem, [*circuit, *others])
    assert curve.faithfulness[0] == pytest.approx(0, abs=RELATIVE[torch.float32])
    assert curve.faithfulness[-1] == pytest.approx(1, abs=RELATIVE[torch.float32])
    assert curve.first(0.95) == 2


def test_many_at_a_time_is_one_at_a_time(problem):
    circuits = [problem.nodes[:size] for size in (0, 1, 5, 12)]
    together = problem.metric(circuits)
    alone = torch.cat([problem.metric([one]) for one in circuits])
    rows = run_circuits(
        problem.model, problem.batch, circuits, problem.points, problem.ablation, rows=3
    )
    assert_close(together, alone)
    assert_close(together, rows)


def test_faithfulness_by_its_definition(problem, circuit):
    metric = problem.metric([(), problem.nodes, circuit]).double().mean(1)
    by_hand = float((metric[2] - metric[0]) / (metric[1] - metric[0]))
    assert float(problem.faithfulness([circuit])[0]) == pytest.approx(by_hand)
    record = measured(problem, circuit)
    assert record.value == pytest.approx(by_hand)
    assert record.full == pytest.approx(float(metric[1]))
