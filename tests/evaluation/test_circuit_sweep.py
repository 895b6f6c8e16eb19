"""Circuits at several thresholds against a known one, worked out by hand."""

from random import Random

import pytest

from unweave.evaluation.circuit_sweep import circuit_sweep
from unweave.sites import parse

NODES = [parse(f"a{layer}.h{head}") for layer in range(4) for head in range(5)]
KNOWN = [parse("a1.h2"), parse("a3.h0"), parse("a3.h4"), parse("a0.h0")]


def test_a_perfect_method_scores_one():
    found = circuit_sweep(dict.fromkeys(range(90, 100), KNOWN), NODES, KNOWN)
    assert found.auc == 1.0
    assert {(false, true) for _, false, true in found.points} == {(0.0, 1.0)}
    assert (found.known, found.nodes) == (4, 20)


def test_by_hand():
    # 90: three of four and two of sixteen others; 95: one of four and none.
    circuits = {90: [*KNOWN[:3], NODES[6], NODES[8]], 95: KNOWN[:1]}
    found = circuit_sweep(circuits, NODES, KNOWN)
    assert found.points == ((90, 2 / 16, 3 / 4), (95, 0.0, 1 / 4))
    # (0, 0) (0, ¼) (⅛, ¾) (1, 1)
    assert found.auc == pytest.approx(1 / 8 * (1 / 4 + 3 / 4) / 2 + 7 / 8 * (3 / 4 + 1) / 2)


def test_nothing_and_everything_are_chance():
    assert circuit_sweep({1: []}, NODES, KNOWN).auc == 0.5
    assert circuit_sweep({1: NODES}, NODES, KNOWN).auc == 0.5


def test_the_wrong_nodes_score_zero():
    others = [node for node in NODES if node not in KNOWN]
    assert circuit_sweep({1: others}, NODES, KNOWN).auc == 0.0


def test_the_area_is_scikit_learns():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = Random(0)
    for _ in range(20):
        circuits = {p: rng.sample(NODES, rng.randrange(1, 12)) for p in range(5)}
        found = circuit_sweep(circuits, NODES, KNOWN)
        line = sorted({(0.0, 0.0), (1.0, 1.0), *((x, y) for _, x, y in found.points)})
        assert found.auc == pytest.approx(metrics.auc(*zip(*line, strict=True)))


def test_mlps_count_where_the_known_circuit_names_one():
    nodes = [*NODES, parse("m0"), parse("m1")]
    assert circuit_sweep({1: KNOWN}, nodes, KNOWN).nodes == 20
    with_mlp = circuit_sweep({1: [*KNOWN, parse("m1")]}, nodes, [*KNOWN, parse("m0")])
    assert with_mlp.nodes == 22
    assert with_mlp.points == ((1, 1 / 17, 4 / 5),)


def test_a_node_at_positions_counts_once():
    split = [node.at(where) for node in NODES for where in ("end", "S2")]
    found = circuit_sweep({1: [KNOWN[0].at("end"), KNOWN[0].at("S2")]}, split, KNOWN)
    assert (found.nodes, found.points) == (20, ((1, 0.0, 1 / 4),))


def test_no_area_without_both_kinds():
    assert circuit_sweep({1: NODES}, NODES, NODES).auc is None
    assert circuit_sweep({1: NODES}, NODES, [parse("a9.h9")]).auc is None
