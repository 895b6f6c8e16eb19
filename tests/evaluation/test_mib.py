"""MIB's shares, counts and areas, by hand."""

import math

import pytest

from unweave.evaluation.mib import SHARES, MibCurve, MibResult, area, kept_counts


def test_shares_are_rounded_down():
    """301 nodes of SmolLM2; 0.29 · 100 is 28.999… in binary, and MIB's int() keeps 28."""
    assert kept_counts(301) == (0, 0, 1, 3, 6, 15, 30, 60, 150, 301)
    assert kept_counts(32491) == (32, 64, 162, 324, 649, 1624, 3249, 6498, 16245, 32491)
    assert kept_counts(7) == (0, 0, 0, 0, 0, 0, 0, 1, 3, 7)


def test_neither_end_is_added():
    """The axis begins at 0.001: a perfect circuit at every share has CPR 0.999."""
    perfect = MibCurve(kept_counts(1000), (1.0,) * 10, (1.0,) * 10)
    assert perfect.cpr == pytest.approx(0.999)
    assert perfect.cmd == 0
    assert perfect.log_accuracy == pytest.approx(1.0)


def test_areas_by_hand():
    """f is 0 but at shares 0.5 and 1, where it is 1.2 and 1."""
    f = (0.0,) * 8 + (1.2, 1.0)
    curve = MibCurve(kept_counts(10), f, tuple(float(v > 0) for v in f))
    assert curve.cpr == pytest.approx(0.3 * 1.2 / 2 + 0.5 * 1.1)
    # From 0.001 to 0.2 the distance is 1, then it falls to 0.2 and to 0.
    assert curve.cmd == pytest.approx(0.199 + 0.3 * 0.6 + 0.5 * 0.1)
    steps = math.log(0.5 / 0.2) / 2 + math.log(1 / 0.5)
    assert curve.log_accuracy == pytest.approx(steps / math.log(1000))


def test_linear_values_have_the_area_of_a_line():
    assert area([2 * share for share in SHARES]) == pytest.approx(1 - 0.001**2)


def test_cpr_is_of_the_signed_order_and_cmd_of_the_other():
    counts = kept_counts(10)
    low, high = (MibCurve(counts, (f,) * 10, (a,) * 10) for f, a in ((0.5, 0.25), (0.9, 0.75)))
    found = MibResult(signed=high, absolute=low)
    assert found.cpr == pytest.approx(0.999 * 0.9)
    assert found.cmd == pytest.approx(0.999 * 0.5)
    assert found.log_accuracy == pytest.approx(0.75)
    assert found.to_json()["signed"]["cmd"] == pytest.approx(0.999 * 0.1)
