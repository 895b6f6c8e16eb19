"""Options of scores and searches: types, ranges, choices, and values from the command line."""

import math

import pytest

from unweave.errors import UnweaveError
from unweave.options import Option, filled
from unweave.scores.score import scores
from unweave.search.search import searches

KNOWN = {
    "steps": Option(5, "how many", low=1, high=9),
    "price": Option(0.5, "how much", low=0.0),
    "on": Option("inputs", "where", choices=("inputs", "activations")),
    "prune": Option(True, "whether"),
    "name": Option("x", "any text"),
}


def test_defaults_and_given_values():
    assert filled("score x", KNOWN, {}) == {
        "steps": 5,
        "price": 0.5,
        "on": "inputs",
        "prune": True,
        "name": "x",
    }
    found = filled("score x", KNOWN, {"price": 2, "steps": 9})
    assert (found["price"], type(found["price"]), found["steps"]) == (2.0, float, 9)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("steps", 0, "a whole number from 1 to 9"),
        ("steps", 10, "a whole number from 1 to 9"),
        ("steps", 2.0, "a whole number from 1 to 9"),
        ("steps", True, "a whole number from 1 to 9"),
        ("steps", "5", "a whole number from 1 to 9"),
        ("price", -0.1, "a number from 0"),
        ("price", math.nan, "a number from 0"),
        ("price", math.inf, "a number from 0"),
        ("on", "input", "inputs or activations"),
        ("prune", 1, "true or false"),
        ("name", 3, "a text such as 'x'"),
    ],
)
def test_values_outside_their_meaning(name, value, expected):
    with pytest.raises(UnweaveError) as caught:
        filled("score x", KNOWN, {name: value})
    assert str(caught.value) == f"score x: {name} is {value!r}, expected {expected}"


def test_unknown_names():
    with pytest.raises(UnweaveError, match="score x has no option 'step': did you mean steps"):
        filled("score x", KNOWN, {"step": 3})
    with pytest.raises(UnweaveError, match="score y has no option 'step': it has none"):
        filled("score y", {}, {"step": 3})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("steps", "3", 3),
        ("price", "3", 3.0),
        ("price", "1e-2", 0.01),
        ("prune", "False", False),
        ("prune", "true", True),
        ("on", "activations", "activations"),
        ("name", "3", "3"),
    ],
)
def test_texts_from_the_command_line(name, text, value):
    found = KNOWN[name].read("score x", name, text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "text"), [("steps", "three"), ("steps", "2.5"), ("prune", "yes"), ("price", "nan")]
)
def test_texts_without_meaning(name, text):
    with pytest.raises(UnweaveError, match=f"score x: {name} is .*expected"):
        KNOWN[name].read("score x", name, text)


def test_a_grammar_of_its_own():
    def check(text: str) -> None:
        if ":" not in text:
            raise UnweaveError(f"rule {text!r}: expected kind:number")

    option = Option("top:1", "a rule", check=check)
    assert option.checked("search x", "rule", "top:3") == "top:3"
    with pytest.raises(UnweaveError, match="rule 'top': expected kind:number"):
        option.checked("search x", "rule", "top")


@pytest.mark.parametrize("registry", [scores, searches], ids=lambda registry: registry.noun)
def test_every_default_keeps_its_own_rules(registry):
    for name in registry:
        assert registry[name].filled({}).keys() == registry[name].options.keys()
        assert all(option.help for option in registry[name].options.values())
