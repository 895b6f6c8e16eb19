"""`unweave methods` and the model that a task is run on."""

import json
import re

import pytest
from snippets import ROOT

from unweave.behaviours.file import find_task
from unweave.cli import main
from unweave.experiments.methods import METHODS, find_method
from unweave.model.sources import DEFAULT
from unweave.scores.score import scores
from unweave.search.search import searches


def test_methods_lists_everything_and_says_what_each_option_means(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["methods", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    listed = {kind: [one["name"] for one in found[kind]] for kind in found}
    assert listed == {
        "methods": list(METHODS),
        "scores": list(scores),
        "searches": list(searches),
    }
    options = [
        option
        for kind in ("scores", "searches")
        for one in found[kind]
        for option in one["options"].values()
    ]
    assert len(options) > 15
    assert all(option["meaning"] and option["expected"] for option in options)
    assert main(["methods"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for names in listed.values() for name in names)


@pytest.mark.parametrize("score", list(scores))
def test_every_score_is_a_method_by_its_name(score: str) -> None:
    method = find_method(score)
    assert (method.score, method.search) == (score, "top")
    assert method.name == (score if score in METHODS else f"{score}+top")
    assert not method.score_options


def test_every_method_is_in_the_table_of_the_documentation() -> None:
    page = (ROOT / "docs" / "scores-and-searches.md").read_text("utf-8")
    table = page.partition("| `--method` |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `([a-z+-]+)`", table, re.M)) == sorted(METHODS)
    table = page.partition("## Which score")[2].partition("## Which search")[0]
    assert sorted(re.findall(r"^\| `([a-z-]+)`", table, re.M)) == sorted(scores)


@pytest.mark.parametrize(
    ("task", "model"),
    [("ioi", DEFAULT), ("wired-induction", "wired-induction"), ("question-type", None)],
)
def test_a_task_names_the_model_it_is_for(task: str, model: str | None) -> None:
    found = find_task(task)
    assert found.own_model == (model or found.model)
