"""What `tasks validate` says is what `discover` will meet, on three files as users write them."""

import json

import pytest
import torch

from unweave import cli
from unweave.ablations.kind import task_ablation
from unweave.behaviours.accuracy import FAILS_BELOW
from unweave.behaviours.file import find_task
from unweave.behaviours.validation import validate
from unweave.errors import UnweaveError
from unweave.model import loading
from unweave.sites import Point

NOUNS = ("key", "dog", "boy", "car", "book", "teacher", "doctor", "house", "tree", "student")
PLACES = ("near the wall", "by the river", "in the room", "at the door")
CAPITALS = {
    "France": "Paris",
    "Germany": "Berlin",
    "Italy": "Rome",
    "the United States": "Washington",
    "Spain": "Madrid",
    "Japan": "Tokyo",
    "Russia": "Moscow",
    "Great Britain": "London",
    "Egypt": "Cairo",
    "Poland": "Warsaw",
}


def line(clean: str, corrupted: str, answer: str, distractor: str) -> str:
    names = ("clean", "corrupted", "answer", "distractor")
    return json.dumps(dict(zip(names, (clean, corrupted, answer, distractor), strict=True)))


@pytest.fixture
def agreement(tmp_path):
    """40 lines, the 20 pairs mirrored."""
    lines = []
    for noun in NOUNS:
        for place in PLACES[:2]:
            one, many = f"The {noun} {place}", f"The {noun}s {place}"
            lines += [line(one, many, " is", " are"), line(many, one, " are", " is")]
    path = tmp_path / "agreement.jsonl"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def pronouns(tmp_path):
    """40 lines, of which the last ten have their answers swapped: 75% can be right."""
    lines = []
    for i, name in enumerate(("John", "Tom", "Paul", "Peter", "Jack") * 8):
        text = f"{name} said in letter {i} that"
        right, wrong = (" he", " she") if i % 4 else (" she", " he")
        lines.append(line(text, text.replace(name, "Mary"), right, wrong))
    path = tmp_path / "pronouns.jsonl"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def unequal(tmp_path):
    lands = list(CAPITALS)
    path = tmp_path / "unequal.jsonl"
    path.write_text(
        "\n".join(
            line(
                f"The capital of {land} is the city of",
                f"The capital of {other} is the city of",
                f" {CAPITALS[land]}",
                f" {CAPITALS[other]}",
            )
            for land, other in zip(lands, lands[1:] + lands[:1], strict=True)
        )
    )
    return path


def test_agreement_is_ready(smollm2, agreement):
    found = validate(agreement, smollm2)
    assert found.problems == ()
    assert found.options == ()
    assert found.sizes == {"discover": 16, "check": 8, "evaluate": 8, "reference": 8}
    assert found.accuracy is not None
    assert found.accuracy.correct > 0.9
    (mirrored,) = [note for note in found.notes if "mirror" in note]
    assert mirrored.startswith("20 pairs of lines")


def test_wrong_prompts_are_those_that_the_model_gets_wrong(smollm2, pronouns):
    found = validate(pronouns, smollm2)
    task = find_task(pronouns)
    texts = task.batch(smollm2).texts
    lines = [json.loads(row) for row in pronouns.read_text().splitlines()]
    expected = {}
    for number, row in enumerate(lines, start=1):
        if row["clean"] in texts:
            logits = smollm2.logits(row["clean"])[0, -1]
            right, wrong = (smollm2.single_token(row[name]) for name in ("answer", "distractor"))
            expected[number] = float(logits[right] - logits[wrong])
    assert found.measured == len(expected) == 16
    assert {one.line for one in found.wrong} == {n for n, value in expected.items() if value <= 0}
    for one in found.wrong:
        assert one.metric == pytest.approx(expected[one.line], abs=1e-3)
    assert found.accuracy is not None
    assert found.accuracy.correct == 1 - len(found.wrong) / 16
    assert found.wrong
    assert bool(found.problems) == (found.accuracy.correct < FAILS_BELOW)
    kept = validate(pronouns, smollm2, only_correct=True)
    assert kept.problems == ()
    assert kept.options[0] == "--only-correct"
    strict = find_task(pronouns, only_correct=True).batch(smollm2)
    assert len(strict) == 16 - len(found.wrong)


def test_a_failing_file_names_the_remedy(smollm2, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(loading, "load", lambda name, device: smollm2)
    rows = [line(f"The {noun}s", f"The {noun}", " is", " are") for noun in NOUNS]
    path = tmp_path / "wrong.jsonl"
    path.write_text("\n".join(rows))
    assert cli.main(["tasks", "validate", str(path)]) == 1
    said = capsys.readouterr().out
    assert "at least 60% are needed" in said
    assert "--only-correct" in said
    assert "wrong, line" in said
    assert "next:" not in said


def test_unequal_lengths_need_another_ablation(smollm2, unequal, capsys, monkeypatch):
    found = validate(unequal, smollm2)
    assert found.problems == ()
    assert found.options == ("--ablation counterfactual",)
    task, points = find_task(unequal), [Point("z", 0)]
    batches = [task.batch(smollm2, part=part) for part in ("discover", "evaluate")]
    (unaligned, *_) = [batch for batch in batches if not batch.aligned]
    with pytest.raises(UnweaveError, match="--ablation counterfactual"):
        task_ablation(task, smollm2, unaligned, "mean", points)
    for batch in batches:
        found = task_ablation(task, smollm2, batch, "counterfactual", points).values[points[0]]
        assert torch.isfinite(found).all()
    monkeypatch.setattr(loading, "load", lambda name, device: smollm2)
    assert cli.main(["tasks", "validate", str(unequal)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"next: unweave discover {unequal} --ablation counterfactual"
    )


def test_prompts_without_reference_of_their_length(smollm2, tmp_path):
    rows = [
        line(f"{'very ' * i}old keys", f"{'very ' * i}old key", " are", " is") for i in range(12)
    ]
    path = tmp_path / "lengths.jsonl"
    path.write_text("\n".join(rows))
    found = validate(path, smollm2, only_correct=True)
    assert any("no reference prompt of their template and length" in note for note in found.notes)
    assert "--ablation counterfactual" in found.options


def test_the_file_alone(agreement, capsys, monkeypatch):
    monkeypatch.setattr(loading, "load", None)
    assert cli.main(["tasks", "validate", str(agreement), "--file-only", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == []
    assert found["sizes"]["check"] == 8
    assert found["accuracy"] is None
    assert cli.main(["tasks", "validate", str(agreement), "--file-only", "--model", "x"]) == 2


def test_one_prompt_to_evaluate_on_is_a_problem(tmp_path):
    path = tmp_path / "mine.jsonl"
    rows = [line(f"{i} a", f"{i} b", " is", " are") for i in range(6)]
    for count, problems in ((5, 1), (6, 0)):
        path.write_text("\n".join(rows[:count]))
        found = validate(path).problems
        assert len(found) == problems
        assert all("write 6 lines or more" in one.reason for one in found)


def test_labels_need_a_classifier(tmp_path, capsys):
    path = tmp_path / "labels.jsonl"
    rows = [{"text": f"{i} why", "label": ("a", "b")[i % 2]} for i in range(8)]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert cli.main(["tasks", "validate", str(path)]) == 2
    assert "need a classifier: give one with --model" in capsys.readouterr().err
