"""Algorithm 1 against a slow twin that decides one node at a time, and by hand."""

import pytest
import torch
from oracles.algorithm1 import Twin

from unweave.ablations.kind import ablations
from unweave.circuits import Scores
from unweave.errors import UnweaveError
from unweave.experiments.methods import find_method
from unweave.experiments.specification import Experiment, Specification
from unweave.model.loading import load
from unweave.scores.problem import Problem
from unweave.scores.score import scores as registered
from unweave.search.algorithm1 import relevance_to, select
from unweave.search.search import Finding, searches
from unweave.sites import Point, Site
from unweave.testing.problem import tiny_problem
from unweave.testing.search import Recorder


def sweep(problem: Problem, rules: str = "paper") -> Scores:
    options = {"rules": rules, "pairs": True, "prompts": 1000}
    return registered["decomposition"].run(problem, options)


def search(problem: Problem, scores: Scores, **options) -> Finding:
    return searches["algorithm1"].run(problem, scores, options)


@pytest.mark.parametrize("percentile", [50, 70, 90])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_rounds_are_those_of_the_slow_twin(family, percentile):
    problem = tiny_problem(family)
    scores = sweep(problem)
    found = search(problem, scores, select=f"percentile:{percentile}")
    slow = Twin(problem, scores, percentile).run(10)
    assert [(list(one.selected), list(one.circuit)) for one in found.rounds] == slow
    assert found.circuit == tuple(slow[-1][1])


def test_the_twins_take_more_than_one_round_and_drop_nodes():
    """Else the comparison above would say little."""
    rounds, dropped = 0, 0
    for family in ("gpt2", "llama"):
        problem = tiny_problem(family)
        scores = sweep(problem)
        for percentile in (50, 70, 90):
            found = search(problem, scores, select=f"percentile:{percentile}")
            rounds = max(rounds, len(found.rounds))
            dropped += sum(len(one.dropped) for one in found.rounds)
    assert rounds >= 2
    assert dropped >= 2


def test_every_saved_state_leads_to_the_same_end():
    problem = tiny_problem("gpt2")
    scores, options = sweep(problem), {"select": "percentile:50", "tolerance": 0.0}
    whole = Recorder()
    found = searches["algorithm1"].run(problem, scores, options, whole)
    assert len(whole.states) > 2
    for state in whole.states:
        assert searches["algorithm1"].run(problem, scores, options, Recorder(state)) == found


def test_the_ranking_is_the_order_of_joining_before_pruning():
    problem = tiny_problem("gpt2")
    scores = sweep(problem)
    found = search(problem, scores, select="percentile:50", tolerance=0.0)
    joined = [name for one in found.rounds for name in one.selected]
    assert list(found.ranking[: len(joined)]) == joined
    assert len(found.circuit) < len(joined)
    rest = [name for name in scores.ranking() if name not in joined]
    assert list(found.ranking[len(joined) :]) == rest


def test_stop_rules():
    problem = tiny_problem("gpt2")
    scores = sweep(problem)
    assert len(search(problem, scores, select="top:1", rounds=1).rounds) == 1
    assert len(search(problem, scores, select="top:1", tolerance=1e9).rounds) == 1
    # Without relevance between nodes there is nothing to go on from.
    alone = registered["eap"].run(problem)
    assert len(search(problem, alone, select="top:1").rounds) == 1
    # Nothing lies upstream of the first layer's heads.
    first = tuple(node for node in problem.nodes if node.point == Point("z", 0))
    few = Problem(problem.model, problem.batch, first, problem.ablation)
    assert len(search(few, sweep(few), select="top:1", tolerance=0.0).rounds) == 1


def test_without_pruning_everyone_stays():
    problem = tiny_problem("gpt2")
    found = search(problem, sweep(problem), select="percentile:50", prune=False)
    for one in found.rounds:
        assert one.dropped == ()
        assert one.steps == ()
    assert set(found.circuit) == {name for one in found.rounds for name in one.selected}


def scored(values: list[float], pairs: dict[str, list[list[float]]]) -> Scores:
    names = ("a0.h0", "a0.h1", "a1.h0", "a1.h1")
    tensors = {name: torch.tensor(matrix) for name, matrix in pairs.items()}
    wide = torch.tensor(values)
    return Scores(names, wide, wide[:, None], names, tensors)


SIGNED = [[0.0, 0.0, 4.0, -1.0], [0.0, 0.0, -2.0, -2.0], [0.0] * 4, [0.0] * 4]
SCORES = scored([1.0, -3.0, 10.0, 30.0], {"signed": SIGNED, "ratio": SIGNED})


@pytest.mark.parametrize(
    ("targets", "normalise", "expected"),
    [
        (("logits",), False, [1.0, -3.0, 10.0, 30.0]),
        (("logits",), True, [0.5, -1.5, 0.5, 1.5]),  # layers' mean magnitudes: 2 and 20
        (("a1.h0", "a1.h1"), False, [3.0, -4.0, 0.0, 0.0]),
        (("a1.h1",), False, [-1.0, -2.0, 0.0, 0.0]),
        (("a1.h0", "a1.h1"), True, [6 / 7, -8 / 7, 0.0, 0.0]),  # a layer of zeros stays as it is
    ],
)
def test_relevance_to_targets(targets, normalise, expected):
    options = {"measure": "signed", "normalise": normalise}
    assert relevance_to(SCORES, targets, options).tolist() == pytest.approx(expected)


VALUES = torch.tensor([0.1, -5.0, 2.0, 0.0, 1.0])


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("top:2", [1, 2]),
        ("top:99", [1, 2, 4, 0]),  # a node of relevance 0 never joins
        ("fraction:0.4", [1, 2]),
        ("fraction:0.01", [1]),
        ("percentile:50", [1, 2, 4]),  # the median magnitude is 1
        ("percentile:75", [1, 2]),
        ("outliers:1.5", [1]),  # mean 1.62, deviation 1.84
        ("outliers:9", []),
    ],
)
def test_selection_by_hand(rule, expected):
    assert select(VALUES, rule) == expected


@pytest.mark.parametrize(
    "rule", ["best:3", "top", "top:0", "top:1.5", "fraction:2", "percentile:101", "outliers:x"]
)
def test_a_rule_without_meaning(rule):
    problem = tiny_problem("gpt2")
    with pytest.raises(UnweaveError, match="expected top:N, fraction:F"):
        search(problem, registered["eap"].run(problem), select=rule)


def test_scores_of_zero_choose_nobody():
    problem = tiny_problem("gpt2")
    scores = registered["eap"].run(problem)
    nothing = Scores(scores.sources, 0 * scores.values, 0 * scores.examples)
    with pytest.raises(UnweaveError, match="chose no node: every score is 0"):
        search(problem, nothing, select="top:3")


def wired(name: str, ablation: str) -> tuple[Problem, set[Site]]:
    specification = Specification(name, name, ablation=ablation, prompts=24)
    experiment = Experiment.set_up(specification, load(name))
    return experiment.discovery, set(experiment.known()["published"])


@pytest.mark.parametrize("rule", ["percentile:95", "top:1"])
@pytest.mark.parametrize("ablation", list(ablations))
def test_three_rounds_recover_the_relay(ablation, rule):
    """Each head of the chain is one round further from the logits."""
    problem, known = wired("wired-relay", ablation)
    method = find_method("cdt-paper").with_options({"select": rule})
    scores = registered[method.score].run(problem, method.filled_score())
    found = searches[method.search].run(problem, scores, method.filled_search())
    assert [one.selected for one in found.rounds] == [("a2.h0",), ("a1.h2",), ("a0.h1",)]
    assert [one.targets for one in found.rounds] == [("logits",), ("a2.h0",), ("a1.h2",)]
    assert set(found.sites) == known
    faithful = [one.faithfulness for one in found.rounds]
    assert faithful == pytest.approx([1 / 3, 2 / 3, 1.0], abs=0.01)
    assert found.ranking[:3] == ("a2.h0", "a1.h2", "a0.h1")
    one_round = search(problem, scores, select=rule, rounds=1)
    assert one_round.rounds[-1].faithfulness < 0.4


@pytest.mark.parametrize("ablation", ["mean", "counterfactual"])
def test_members_and_targets_do_not_use_up_the_quota(ablation):
    """Behind a1.h1 and a2.h2, which joined first, a0.h0 is the next best for them."""
    problem, known = wired("wired-inhibition", ablation)
    found = search(problem, sweep(problem, "removal"), select="top:2")
    assert found.rounds[0].selected == ("a1.h1", "a2.h2")
    assert found.rounds[0].faithfulness < 0.7
    assert "a0.h0" in found.rounds[1].selected
    assert set(found.sites) == known
    assert found.rounds[-1].faithfulness == pytest.approx(1, abs=0.02)
