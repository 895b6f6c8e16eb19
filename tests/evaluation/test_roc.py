"""AUC against values worked out by hand, and against scikit-learn where it is installed."""

import pytest
import torch

from unweave.circuits import Scores
from unweave.evaluation.roc import rank_auc, roc, sweep, sweep_auc
from unweave.sites import parse


def scores(values: dict[str, float], order: tuple[str, ...] = ()) -> Scores:
    tensor = torch.tensor(list(values.values()))
    return Scores(tuple(values), tensor, tensor[:, None], order=order)


def test_rank_auc_by_hand():
    # Positives 4 and 2 against 3 and 1: three of four pairs are won.
    assert rank_auc([4.0, 3.0, 2.0, 1.0], [True, False, True, False]) == 0.75


def test_ties_count_half():
    assert rank_auc([1.0, 1.0], [True, False]) == 0.5
    assert rank_auc([2.0, 1.0, 1.0], [True, True, False]) == 0.75


def test_no_auc_without_both_kinds():
    assert rank_auc([1.0, 2.0], [True, True]) is None
    assert rank_auc([1.0, 2.0], [False, False]) is None


def test_rank_auc_is_scikit_learns():
    metrics = pytest.importorskip("sklearn.metrics")
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        keys = torch.randint(0, 8, (40,), generator=generator).double()  # many ties
        positive = torch.rand(40, generator=generator) < 0.3
        expected = metrics.roc_auc_score(positive.numpy(), keys.numpy())
        assert rank_auc(keys, positive) == pytest.approx(expected)


def test_sweep_by_hand():
    # 100 nodes with keys 0…99; the known ones are 99 and 50. Above the 90th percentile (89.1)
    # lie 90…99: one of two known nodes, nine of 98 others.
    keys = torch.arange(100.0)
    positive = torch.zeros(100, dtype=torch.bool)
    positive[[99, 50]] = True
    points = sweep(keys, positive, percentiles=(90, 99))
    assert points == ((90, pytest.approx(9 / 98), 0.5), (99, 0.0, 0.5))
    # (0, 0) (0, ½) (9/98, ½) (1, 1)
    assert sweep_auc(points) == pytest.approx(9 / 98 * 0.5 + (1 - 9 / 98) * 0.75)


def test_heads_are_ranked_against_heads():
    found = scores({"a0.h0": -3.0, "a0.h1": 1.0, "m0": 9.0})
    against_heads = roc(found, [parse("a0.h0")])
    assert (against_heads.auc, against_heads.nodes) == (1.0, 2)
    assert roc(found, [parse("a0.h0"), parse("m0")]).nodes == 3


def test_a_split_node_counts_with_its_best_position():
    found = scores({"a0.h0@end": 0.0, "a0.h0@S2": 5.0, "a0.h1@end": 1.0, "a0.h1@S2": 1.0})
    assert roc(found, [parse("a0.h0")]).auc == 1.0


def test_an_order_of_the_method_comes_before_magnitudes():
    values = {"a0.h0": 1.0, "a0.h1": 5.0, "a0.h2": 3.0}
    known = [parse("a0.h0")]
    assert roc(scores(values), known).auc == 0.0
    assert roc(scores(values, order=("a0.h0", "a0.h1", "a0.h2")), known).auc == 1.0
