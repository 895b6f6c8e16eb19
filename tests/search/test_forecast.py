"""Foreseen losses, against plain loops over the same numbers."""

import itertools

import pytest
import torch

from unweave.search.forecast import Forecast


@pytest.fixture(params=range(3))
def forecast(request) -> Forecast:
    draw = torch.Generator().manual_seed(request.param)
    off = 0.1 * torch.randn(5, generator=draw, dtype=torch.float64)
    moves = 0.2 * torch.randn(5, 7, generator=draw, dtype=torch.float64)
    return Forecast(off, moves, moves.abs().mean(0), 1.0 + request.param)


def slow_loss(forecast: Forecast, changes) -> float:
    """|1 − f| at its weight and the mean of single deviations, after some changes together."""
    rows = zip(forecast.off.tolist(), forecast.moves.tolist(), strict=True)
    off = [at + sum(row[i] for i in changes) for at, row in rows]
    return forecast.mean * abs(sum(off)) / len(off) + sum(map(abs, off)) / len(off)


def test_losses_are_those_of_single_changes(forecast):
    slow = [slow_loss(forecast, [i]) + float(forecast.size[i]) for i in range(7)]
    assert forecast.losses().tolist() == pytest.approx(slow, abs=1e-12)


def test_the_next_edge_to_leave_has_the_smallest_loss_with_those_before(forecast):
    order = forecast.together(5)
    assert len(set(order)) == 5
    for done in range(5):
        left = [i for i in range(7) if i not in order[:done]]
        slow = {i: slow_loss(forecast, [*order[:done], i]) + float(forecast.size[i]) for i in left}
        assert order[done] == min(slow, key=lambda i: slow[i])
    assert forecast.together(2) == order[:2]


def test_of_too_many_edges_the_smallest_leave_that_bring_the_mean_back(forecast):
    order, means = forecast.balanced(7), forecast.moves.mean(0).tolist()
    off, left = float(forecast.off.mean()), list(range(7))
    for i in order:
        back = [j for j in left if (means[j] < 0) == (off > 0)]
        assert i == min(back or left, key=lambda j: float(forecast.size[j]))
        off += means[i]
        left.remove(i)
    assert not left
    assert forecast.balanced(3) == order[:3]


def test_what_a_run_missed_is_made_up_for(forecast):
    moved = forecast.moved(0.2)
    change = slow_loss(moved, [1]) + float(forecast.size[1])
    assert float(moved.losses()[1]) == pytest.approx(change, abs=1e-12)
    assert float(moved.off.mean()) == pytest.approx(float(forecast.off.mean()) + 0.2)


def test_edges_that_cancel_leave_together():
    """Each alone would cost more than the third; together they cost nothing."""
    moves = torch.tensor([[0.10, -0.10, 0.11], [0.10, -0.10, 0.11]])
    forecast = Forecast(torch.zeros(2), moves, torch.zeros(3))
    assert forecast.together(2) == [0, 1]


def test_changes_are_made_as_long_as_they_pay(forecast):
    prices = torch.tensor([0.02, -0.02] * 3 + [0.02], dtype=torch.float64)

    def worth(changes) -> float:
        return slow_loss(forecast, changes) + sum(float(prices[i]) for i in changes)

    order = forecast.paying(prices, 7)
    values = [worth(order[:n]) for n in range(len(order) + 1)]
    assert all(after < before for before, after in itertools.pairwise(values))
    left = [i for i in range(7) if i not in order]
    assert all(worth([*order, i]) >= values[-1] - 1e-6 for i in left)
    assert forecast.paying(prices, 1) == order[:1]


@pytest.mark.parametrize("room", [(7, 7), (2, 0), (0, 1), (3, 2)])
@pytest.mark.parametrize("most", [1, 3, 7])
def test_the_best_sets_are_those_of_all(forecast, room, most):
    """Against a loop over every set: no more changes than allowed, the circuit within its sizes."""
    growth = torch.tensor([-1, 1, -1, 1, -1, -1, 1])
    worth = -0.02 * growth.double()

    def value(changes) -> float:
        charged = sum(float(forecast.size[i] - worth[i]) for i in changes)
        return slow_loss(forecast, changes) + charged

    sets = [s for n in range(1, most + 1) for s in itertools.combinations(range(7), n)]
    sets = [s for s in sets if -room[0] <= sum(int(growth[i]) for i in s) <= room[1]]
    found = forecast.best_sets(worth, growth, room, most, 4)
    assert list(map(value, found)) == pytest.approx(sorted(map(value, sets))[:4], abs=2e-6)
    assert len({*map(tuple, found)}) == min(4, len(sets))
    assert {*map(tuple, found)} <= {*sets}


def test_no_set_is_best_where_none_is_allowed(forecast):
    leave = torch.full((7,), -1)
    assert forecast.best_sets(torch.ones(7).double(), leave, (0, 5), 7) == []


def test_of_equals_the_smaller_set_comes_first():
    moves = torch.tensor([[0.0, -0.1, 0.0], [0.0, -0.1, 0.0]])
    forecast = Forecast(torch.full((2,), 0.1), moves, torch.zeros(3))
    sets = forecast.best_sets(torch.zeros(3), torch.full((3,), -1), (3, 0), 3, 3)
    assert sets == [[1], [0, 1], [1, 2]]
