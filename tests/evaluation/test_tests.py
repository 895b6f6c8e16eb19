"""Chance, completeness, minimality and stability, on cases whose answer is known."""

import pytest
import torch
from oracles.closeness import RELATIVE

from unweave.circuits import Scores
from unweave.errors import UnweaveError
from unweave.evaluation.checks import completeness, minimality
from unweave.evaluation.random_circuits import (
    Draws,
    compare_with_random,
    random_circuits,
    random_test,
)
from unweave.evaluation.stability import stability
from unweave.sites import parse

DRAWN = (
    Draws(1, 0.1, (0.0, 0.1, 0.2, 0.3)),
    Draws(5, 0.5, (0.5, 0.8, 1.5, 3.0)),
    Draws(10, 1.0, (1.0, 1.0, 1.0, 1.0)),
)


def test_shares_in_both_senses():
    found = compare_with_random(0.9, 4, DRAWN)
    assert [share.beaten for share in found.shares] == [1.0, 0.5, 0.0]
    # Circuits that overshoot are beaten in closeness only.
    assert [share.farther for share in found.shares] == [1.0, 1.0, 0.0]
    assert (found.up_to(), found.up_to(farther=True)) == (0.1, 0.5)
    assert found.own is not None
    assert found.own.size == 5


def test_an_overshooting_circuit_beats_all_and_is_closer_than_few():
    found = compare_with_random(9.0, 4, DRAWN)
    assert [share.beaten for share in found.shares] == [1.0, 1.0, 1.0]
    assert [share.farther for share in found.shares] == [0.0, 0.0, 0.0]


def test_ties_are_not_wins():
    assert [share.beaten for share in compare_with_random(1.0, 10, DRAWN).shares][-1] == 0.0


def test_random_circuits_of_the_wired_model(problem, circuit):
    drawn = random_circuits(problem, (0.5, 1.0), draws=12, seed=3)
    assert [len(draws.faithfulness) for draws in drawn] == [12, 12]
    assert drawn == random_circuits(problem, (0.5, 1.0), draws=12, seed=3)
    assert drawn[1].faithfulness == pytest.approx([1.0] * 12, abs=RELATIVE[torch.float32])
    found = random_test(problem, circuit, (0.2,), draws=10)
    assert found.faithfulness == pytest.approx(1, abs=0.02)
    assert found.shares[0].farther >= 0.9


@pytest.mark.parametrize(("fractions", "draws"), [((0.0,), 1), ((1.5,), 1), ((0.5,), 0)])
def test_senseless_draws(problem, fractions, draws):
    with pytest.raises(UnweaveError, match="expected at least one draw"):
        random_circuits(problem, fractions, draws)


def test_the_wired_circuit_is_complete_and_minimal(problem, circuit):
    assert completeness(problem, circuit, draws=8).worst < 0.02
    effects = minimality(problem, circuit).effects
    assert effects == pytest.approx({"a1.h2": 1, "a2.h0": 1}, abs=0.05)


def test_a_part_of_the_circuit_is_incomplete_and_a_bystander_idle(problem, circuit):
    # Without a node of the circuit both lose everything, so what is left out shows only in whole.
    bystander = parse("a0.h0")
    found = minimality(problem, (*circuit, bystander))
    assert found.idle() == ("a0.h0",)
    alone = completeness(problem, (bystander,), draws=3)
    assert alone.mean == pytest.approx(1, abs=0.02)


def test_what_is_no_node_is_told(problem):
    with pytest.raises(UnweaveError, match=r"a9\.h9 is not a node"):
        minimality(problem, (parse("a9.h9"),))
    with pytest.raises(UnweaveError, match="empty"):
        completeness(problem, ())


def _scores(examples: torch.Tensor) -> Scores:
    names = tuple(f"a0.h{i}" for i in range(len(examples)))
    return Scores(names, examples.mean(1), examples)


def test_equal_prompts_are_perfectly_stable():
    found = stability(_scores(torch.tensor([[3.0], [2.0], [1.0]]).expand(3, 10)), size=2)
    assert (found.overlap, found.between, found.size) == (1.0, 1.0, 2)
    assert found.kept == {"a0.h0": 1.0, "a0.h1": 1.0}


def test_prompts_that_disagree_are_unstable():
    # Node 0 leads on average, but on one prompt in ten only: most resamples miss that prompt or
    # take it in other numbers.
    examples = torch.ones(2, 10)
    examples[0] = 0.0
    examples[0, 0] = 10.5
    found = stability(_scores(examples), size=1, draws=400)
    # It is kept when its prompt is drawn at least once: 1 − 0.9¹⁰ = 0.651.
    assert found.kept["a0.h0"] == pytest.approx(0.651, abs=0.08)
    assert found.overlap == pytest.approx(found.kept["a0.h0"])


def test_stability_needs_several_prompts_and_a_choice():
    with pytest.raises(UnweaveError, match="2 prompts"):
        stability(_scores(torch.ones(2, 1)), size=1)
    with pytest.raises(UnweaveError, match="size"):
        stability(_scores(torch.ones(2, 3)))
