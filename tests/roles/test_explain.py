"""Roles of models that were wired to have them; definitions as data; sentences; checks."""

import json
import math
from dataclasses import replace

import pytest
from oracles.explained import synthetic

from unweave.behaviours.synthetic.known_roles import ROLES, known_roles
from unweave.behaviours.task import synthetic_tasks
from unweave.errors import UnweaveError
from unweave.experiments.files import plain
from unweave.model.synthetic import tracr_programs
from unweave.roles import explain, explain_with_cost
from unweave.roles.definitions import bundled_roles, read_roles
from unweave.roles.explain import RoleFound
from unweave.roles.inputs import Moved, held
from unweave.roles.measurements import VALUES, Figure, Shift
from unweave.roles.sentences import sentence
from unweave.roles.shares import is_token

MOVER = next(role for role in bundled_roles().roles if role.name == "mover")
needs_tracr = pytest.mark.skipif(
    not tracr_programs.available(), reason='tracr is not installed: pip install "unweave[tracr]"'
)
WIRED = [
    (name, ablation) for name in synthetic_tasks if "wired" in name for ablation in ("mean", "zero")
]
COMPILED = [
    (name, "zero") for name in synthetic_tasks if "tracr" in name
]  # zero ablation needs most nodes
CASES = WIRED + [pytest.param(*case, marks=needs_tracr) for case in COMPILED]


@pytest.mark.parametrize(("name", "ablation"), CASES)
def test_every_node_has_the_roles_it_was_wired_for_and_no_other(name, ablation):
    problem = synthetic(name, ablation, prompts=32, seed=5)
    found, cost = explain_with_cost(problem, problem.nodes)
    given = {one.node: tuple(role.name for role in one.roles) for one in found if one.roles}
    known = {node: set(roles) for node, roles in known_roles(name, ablation).items()}
    assert {node: set(roles) for node, roles in given.items()} == known
    checks = [(one.node, check) for one in found for role in one.roles for check in role.checks]
    # The relay's heads attend by position: they are no duplicate-token heads on random tokens.
    expected = {"a0.h1", "a1.h2"} if name == "wired-relay" else set()
    assert {node for node, check in checks if check.held is False} == expected
    # Every prompt of tracr:balance has the same answer: nothing to exchange m1's write with.
    untested = {"m1"} if name == "tracr:balance" else set()
    assert {node for node, check in checks if check.held is None} == untested
    # What feeds a node that was wired is used by it.
    fed = [f for one in found if one.node in known for f in one.measurements.feeders]
    assert all(feeder.held for feeder in fed if not is_token(feeder.source))
    assert cost.passes < 20


@pytest.mark.parametrize("ablation", ["mean", "counterfactual", "zero"])
def test_heads_at_positions_have_the_roles_they_were_wired_for(ablation):
    problem = synthetic("wired-inhibition", ablation, prompts=32, seed=5)
    nodes = ["a0.h0@other", "a1.h1@end", "a2.h2@end", "a2.h2@other"]
    found = {one.node: one for one in explain(problem, nodes)}
    assert {node: one.role for node, one in found.items()} == {
        "a0.h0@other": "duplicate token",
        "a1.h1@end": "inhibition",
        "a2.h2@end": "mover",
        "a2.h2@other": "unclear",
    }
    assert "its key comes from a0.h0@other (100%)" in found["a1.h1@end"].sentence


@needs_tracr
def test_an_mlp_that_raises_the_answer_lowers_it_once_answer_and_distractor_are_exchanged():
    problem = synthetic("tracr:hist", prompts=32, seed=5)
    readout = problem.batch.readout
    other = replace(readout, answers=readout.distractors, distractors=readout.answers)
    turned = replace(problem, batch=replace(problem.batch, readout=other))
    for one, name in ((problem, "answer promotion"), (turned, "answer suppression")):
        (role,) = next(x for x in explain(one, one.nodes) if x.node == "m0").roles
        assert (role.name, role.checks[0].held) == (name, True)


def test_every_role_has_a_check():
    assert all(role.checks for role in bundled_roles().roles)


def test_every_role_of_a_head_is_wired_somewhere():
    wired = {role for known in ROLES.values() for roles in known.values() for role in roles}
    heads = {role.name for role in bundled_roles().roles if "head" in role.of}
    assert heads <= wired | {"positional"}


@pytest.fixture(scope="module")
def inhibition():
    return {one.node: one for one in explain(synthetic("wired-inhibition"), ["0.0", "1.1", "2.2"])}


def test_sentences_tell_what_was_wired(inhibition):
    start, *parts = inhibition["a1.h1"].sentence.split("; ")
    assert start == (
        "a1.h1 attends from `end` (100%) to the distractor's token (100% of its weight)"
    )
    assert parts[:4] == [
        "it turns later heads away from the distractor's token",
        "checked: without it they attend there more: held",
        "its key comes from a0.h0 (100%) (checked: without a0.h0 there its output falls by 83%, "
        "without its whole key by 83%: held)",
        "it changes the query of a2.h2 (100%)",
    ]
    effect = inhibition["a1.h1"].measurements.effect
    assert parts[4] == (
        f"without it the metric falls by {effect.mean:.2f} ± {1.96 * effect.error:.2f}, "
        "through later nodes."
    )


def test_a_sentence_says_when_a_check_did_not_hold_or_was_not_made(inhibition):
    roles = {role.name: role for role in bundled_roles().roles}
    for value, words in ((0.1, "did not hold"), (math.nan, "could not be tested")):
        random = {"previous": value, "duplicate": value, "induction": value}
        node = replace(inhibition["a0.h0"].measurements, random=random)
        role = RoleFound.of(roles["duplicate token"], node)
        told = sentence(node, [(role.says, role.checks)])
        assert f"checked: it does so on random tokens: {words}" in told


def test_a_sentence_claims_only_feeders_that_the_output_follows(inhibition):
    node = replace(
        inhibition["a2.h2"].measurements,
        feeds={"q": {"a1.h1": 0.5, "a0.h1": -0.2, "a0.h0": 0.3}, "k": {"a0.h2": 0.9}},
        moved={"q": Moved(0.8, 0.01), "k": Moved(0.02, 0.01)},
        fed={
            "q": {"a1.h1": Moved(0.3, 0.01), "a0.h1": Moved(-0.1, 0.01), "a0.h0": Moved(0.3, 0.2)},
            "k": {"a0.h2": Moved(0.01, 0.01)},
        },
    )
    told = sentence(node, []).split("; ")
    assert told[1:4] == [
        "its query comes from a1.h1 (50%) and a0.h1 (-20%) (checked: without each there its output "
        "falls by 30% and -10%, without its whole query by 80%: held)",
        "in its query is a0.h0 (30%), but that its output follows is not shown (checked: without "
        "a0.h0 there its output falls by 30% ± 39%, without its whole query by 80%: did not hold)",
        "that its output depends on what its key holds is not shown (checked: without that it "
        "falls by 2% ± 2%)",
    ]


@pytest.mark.parametrize(
    ("share", "without", "whole", "expected"),
    [
        (0.5, Moved(0.05, 0.01), Moved(0.8, 0.01), True),  # a softmax may need little of a query
        (0.5, Moved(0.03, 0.01), Moved(0.8, 0.01), False),  # below a twentieth of .8
        (0.5, Moved(0.03, 0.01), Moved(0.4, 0.01), True),
        (0.5, Moved(0.015, 0.001), Moved(0.2, 0.01), False),  # 2% of the output at least
        (0.5, Moved(0.3, 0.2), Moved(0.8, 0.01), False),  # not clear of chance
        (-0.5, Moved(-0.3, 0.01), Moved(0.8, 0.01), True),
        (-0.5, Moved(0.3, 0.01), Moved(0.8, 0.01), False),
        (0.5, Moved(0.09, 0.001), Moved(0.09, 0.001), None),  # nothing to test there
        (0.5, Moved(0.3, 0.01), Moved(0.5, 0.3), None),
        (0.5, None, Moved(0.8, 0.01), None),
    ],
)
def test_when_the_claim_of_a_feeder_held(share, without, whole, expected):
    assert held(share, without, whole) is expected


def test_a_sentence_of_an_mlp_says_on_which_tokens_it_acts(inhibition):
    node = inhibition["a2.h2"].measurements
    node = replace(node, kind="mlp", attention=None, tokens={" to": 0.6, " a": 0.3, " b": 0.1})
    assert sentence(node, []).startswith(
        "a2.h2 acts at `end` (100%), on ' to' (60%) and ' a' (30%)"
    )


def test_a_sentence_names_a_distance_where_nothing_else_holds_the_weight(inhibition):
    node = inhibition["a1.h1"].measurements
    spread = replace(node.attention, to={}, relations={}, offsets={4: 0.6, 2: 0.3})
    told = sentence(replace(node, attention=spread), [])
    assert "attends from `end` (100%) to the token 4 back (60% of its weight)" in told


def test_attention_has_to_shift_by_more_than_prompts_differ(inhibition):
    node, roles = inhibition["a1.h1"].measurements, bundled_roles()
    for error, given in ((0.01, ["inhibition"]), (0.05, [])):
        shift = Shift(Figure(-0.06, error, 0.06), 1.0)
        assert [role.name for role in roles.of(replace(node, shifts={"a2.h2": shift}))] == given


def test_a_node_that_does_not_matter_has_no_role(inhibition):
    node = inhibition["a2.h2"].measurements
    assert [role.name for role in bundled_roles().of(node)] == ["mover"]
    assert bundled_roles().of(replace(node, effect_share=0.009)) == []


def test_figures_that_were_not_measured_meet_nothing(inhibition):
    node = replace(inhibition["a2.h2"].measurements, copying=math.nan)
    assert bundled_roles().of(node) == []


@pytest.mark.parametrize(
    ("copying", "error", "given", "words"),
    [
        (0.55, 0.03, True, "only just mover (copying 0.55 ± 0.06, at least 0.5)"),
        (0.45, 0.03, False, "not quite mover (copying 0.45 ± 0.06, at least 0.5)"),
        (0.55, 0.02, True, None),
        (0.45, 0.02, False, None),
        (0.45, math.nan, False, None),
    ],
)
def test_a_figure_near_its_limit_is_said_with_its_error(inhibition, copying, error, given, words):
    node = replace(inhibition["a2.h2"].measurements, copying=copying)
    node = replace(node, errors={**node.errors, "copying": error})
    roles = bundled_roles()
    assert [role.name for role in roles.of(node)] == (["mover"] if given else [])
    undecided = roles.undecided(node)
    assert [(one.role, one.given, one.measure) for one in undecided] == (
        [("mover", given, "copying")] if words else []
    )
    assert words is None or words in sentence(node, [], undecided)


def test_a_role_that_another_figure_rules_out_is_not_undecided(inhibition):
    node = replace(inhibition["a2.h2"].measurements, copying=0.45)
    node = replace(node, errors={**node.errors, "copying": 0.1}, copying_random=0.0)
    assert bundled_roles().undecided(node) == []


def test_the_record_is_json(inhibition):
    record = json.loads(json.dumps(plain(inhibition["a2.h2"].to_json())))
    assert record["role"] == "mover"
    (role,) = record["roles"]
    assert role["checks"][0]["held"] is True
    assert role["evidence"].keys() == {m.measure for m in MOVER.evidence}
    assert record["measurements"]["feeds"]["q"]["a1.h1"] == pytest.approx(1, abs=0.01)


def test_every_measure_has_its_number(inhibition):
    assert inhibition["a2.h2"].measurements.values().keys() == VALUES.keys()


def test_a_users_roles_are_added_and_replace(tmp_path, inhibition):
    file = tmp_path / "own.toml"
    file.write_text(
        '[[role]]\nname = "key feeder"\nof = "head"\nsays = "marks keys"\n'
        'evidence = [{ measure = "reads_k", at_least = 0.9 }]\n'
        '[[role]]\nname = "mover"\nof = ["head"]\nsays = "moves"\n'
        'evidence = [{ measure = "copying", at_least = 2 }]\n'
    )
    roles = read_roles(file)
    names = {
        node: [role.name for role in roles.of(one.measurements)] for node, one in inhibition.items()
    }
    assert names == {
        "a0.h0": ["duplicate token", "key feeder"],
        "a1.h1": ["inhibition"],
        "a2.h2": [],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[role]]\nname = 'x'", "role 'x' has no of, says, evidence"),
        ("role = 3", "expected roles as"),
        ("=", "is not TOML"),
        (
            "[[role]]\nname='x'\nof='head'\nsays='y'\nevidence=[{measure='copyin', at_least=1}]",
            "requires 'copyin', which is not measured: did you mean copying",
        ),
        (
            "[[role]]\nname='x'\nof='head'\nsays='y'\nevidence=[{measure='copying', over=1}]",
            "expected at_least or at_most, found over",
        ),
        (
            "[[role]]\nname='x'\nof='neuron'\nsays='y'\nevidence=[{measure='copying', at_least=1}]",
            "expected head or mlp",
        ),
    ],
)
def test_bad_roles(tmp_path, text, message):
    file = tmp_path / "roles.toml"
    file.write_text(text)
    with pytest.raises(UnweaveError, match=message):
        read_roles(file)


def test_roles_that_are_not_there(tmp_path):
    with pytest.raises(UnweaveError, match="cannot read the roles"):
        read_roles(tmp_path / "none.toml")
