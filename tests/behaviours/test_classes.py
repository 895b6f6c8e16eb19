"""Task files for classifiers: text and label, with or without a corrupted text."""

import csv
import json

import pytest

from unweave.behaviours.file import bad_lines, read_task
from unweave.behaviours.prompt import OTHERS
from unweave.behaviours.sampling import PARTS
from unweave.errors import UnweaveError
from unweave.model.loading import load

GENERIC = ["main points", "key ideas", "main topics", "key findings"]
DIRECTED = ["late fees", "legal fees", "total costs", "opening hours"]


def lines(corrupted: bool) -> list[dict]:
    rows = []
    for one, other in zip(GENERIC, DIRECTED, strict=True):
        texts = [f"What are the {phrase} of this text?" for phrase in (one, other)]
        for i, label in enumerate(("generic", "directed")):
            row = {"text": texts[i], "label": label}
            rows.append(row | ({"corrupted": texts[1 - i]} if corrupted else {}))
    return rows


def write(path, rows) -> None:
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text("\n".join(map(json.dumps, rows)))


@pytest.fixture(scope="module")
def classifier():
    return load("question-classifier")


@pytest.mark.parametrize("corrupted", [True, False])
@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_read(tmp_path, classifier, suffix, corrupted):
    path = tmp_path / f"questions{suffix}"
    write(path, lines(corrupted))
    assert bad_lines(path, classifier) == []
    task = read_task(path)
    assert task.metric.name == "margin"
    seen = {}
    for part in PARTS:
        batch = task.batch(classifier, part=part)
        assert batch.aligned
        assert (batch.readout.answers != batch.readout.distractors).all()
        for text in (*batch.texts, *batch.corrupted_texts):
            assert seen.setdefault(text, part) == part


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": "genric"}, "answer 'genric' is not a class: did you mean generic"),
        ({"label": 7}, "has outputs 0–1"),
        ({"label": None}, "label is None"),
        ({"text": ""}, "the clean text is empty"),
        ({"text": 3}, "text is 3: expected a text"),
        ({"answer": " x"}, "'answer' beside text and label"),
        ({"corrupted": "What are the main points of this text?"}, "the same text"),
    ],
)
def test_bad_line(tmp_path, classifier, change, message):
    path = tmp_path / "questions.jsonl"
    rows = lines(corrupted=True)
    rows[0] |= change
    write(path, rows)
    (problem,) = bad_lines(path, classifier)
    assert problem.line == 1
    assert message in problem.reason


def test_one_label_alone_has_nothing_to_compare_with(tmp_path):
    path = tmp_path / "questions.jsonl"
    write(path, [row for row in lines(False) if row["label"] == "generic"])
    assert "every line has the label 'generic'" in bad_lines(path)[0].reason


def test_language_model_is_refused(tmp_path, smollm2):
    path = tmp_path / "questions.jsonl"
    write(path, lines(False))
    task = read_task(path)
    assert task.lines[0][1].distractors == (OTHERS,)
    with pytest.raises(UnweaveError, match="are for a classifier, smollm2-135m is none"):
        task.batch(smollm2, 1)
