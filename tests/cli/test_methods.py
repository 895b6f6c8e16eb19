"""`unweave methods` and the model that a task is run on."""

import json

import pytest

from unweave.behaviours.file import find_task
from unweave.cli import main
from unweave.model.sources import DEFAULT
from unweave.scores.problem import methods


def test_methods_lists_every_method_and_says_what_each_option_means(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["methods", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found] == list(methods)
    assert all(option["meaning"] for one in found for option in one["options"].values())
    assert main(["methods"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in methods)


@pytest.mark.parametrize(
    ("task", "model"),
    [("ioi", DEFAULT), ("wired-induction", "wired-induction"), ("question-type", None)],
)
def test_a_task_names_the_model_it_is_for(task: str, model: str | None) -> None:
    found = find_task(task)
    assert found.own_model == (model or found.model)
