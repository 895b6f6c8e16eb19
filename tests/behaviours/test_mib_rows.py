"""Rows of MIB's datasets as prompts, by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from unweave.behaviours.file import bad_lines, read_task
from unweave.behaviours.mib_rows import is_mib_row, mib_prompt
from unweave.errors import UnweaveError

IOI: dict[str, Any] = {
    "prompt": "Then Mary and John left, and John gave a book to",
    "choices": ["John", "Mary"],
    "answerKey": 1,
    "template": "Then {A} and {B}",
    "abc_counterfactual": {"prompt": "Then A", "choices": ["B", "C"], "answerKey": 0},
    "s2_io_flip_counterfactual": {
        "prompt": "Then Mary and John left, and Mary gave a book to",
        "choices": ["John", "Mary"],
        "answerKey": 0,
    },
}
CHOICE: dict[str, Any] = {
    "prompt": "The box is red. A. blue B. red\nAnswer:",
    "choices": {"label": ["A", "B"], "text": ["blue", "red"]},
    "answerKey": 1,
    "symbol_counterfactual": {
        "prompt": "The box is red. 1. blue 2. red\nAnswer:",
        "choices": {"label": [1, 2], "text": ["blue", "red"]},
        "answerKey": 1,
    },
}
SUM: dict[str, Any] = {
    "prompt": "The sum of 13 and 25 is ",
    "label": "38",
    "random_counterfactual": {"prompt": "The sum of 40 and 11 is ", "label": 51},
}


@pytest.mark.parametrize(
    ("row", "answer", "distractor"),
    [(IOI, " Mary", " John"), (CHOICE, " B", " 2"), (SUM, "38", "51")],
    ids=["ioi", "multiple choice", "arithmetic"],
)
def test_each_dataset_is_read(row: dict[str, Any], answer: str, distractor: str) -> None:
    assert is_mib_row(row)
    found = mib_prompt(row)
    name = next(n for n in ("s2_io_flip", "symbol", "random") if f"{n}_counterfactual" in row)
    assert (found.clean, found.corrupted) == (
        row["prompt"],
        row[f"{name}_counterfactual"]["prompt"],
    )
    assert found.answers == (answer,)
    assert found.distractors == (distractor,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answerKey": 7}, "has no answer"),
        ({"prompt": 3}, "prompt of the row is 3"),
        ({"s2_io_flip_counterfactual": "Mary"}, "expected an object with a prompt"),
        ({"answerKey": 0}, "answer and distractor are both"),
        ({"s2_io_flip_counterfactual": {}}, "prompt of s2_io_flip_counterfactual is None"),
    ],
)
def test_bad_rows_say_why(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnweaveError, match=message):
        mib_prompt(IOI | change)


def test_a_file_of_rows_is_a_task(tmp_path: Path) -> None:
    path = tmp_path / "ioi_test.jsonl"
    rows = [IOI | {"prompt": IOI["prompt"].replace("book", thing)} for thing in "abcdef"]
    path.write_text("\n".join(map(json.dumps, rows)))
    task = read_task(path)
    assert len(task.lines) == 6
    path.write_text("\n".join(map(json.dumps, [*rows, IOI | {"answerKey": 9}])))
    ((line, reason),) = bad_lines(path)
    assert line == 7
    assert "has no answer" in reason
