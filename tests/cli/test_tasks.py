"""`unweave tasks` as a user meets it."""

import json

import pytest

from unweave import cli
from unweave.behaviours.task import synthetic_tasks, tasks
from unweave.model import loading


@pytest.fixture
def loaded(smollm2, monkeypatch):
    monkeypatch.setattr(loading, "load", lambda name, device: smollm2)


def test_list_names_every_task(capsys):
    assert cli.main(["tasks"]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in tasks)
    assert "gpt2 (26)" in output


def test_list_for_programs(capsys):
    assert cli.main(["tasks", "--json"]) == 0
    found = {task["name"]: task for task in json.loads(capsys.readouterr().out)}
    assert list(found) == [*tasks, *synthetic_tasks]
    assert "a9.h9" in found["ioi"]["known"]["gpt2"]


@pytest.mark.usefixtures("loaded")
def test_show_labels_tokens(capsys):
    assert cli.main(["tasks", "show", "ioi", "-n", "2"]) == 0
    output = capsys.readouterr().out
    for label in ("›IO", "›S1", "›S1+1", "›S2", "‹to›end"):
        assert label in output
    assert "metric: logit difference at end" in output
    assert "correct" in output
    assert output.count("corrupted") == 2


@pytest.mark.usefixtures("loaded")
def test_show_for_programs(capsys):
    assert cli.main(["tasks", "show", "sva", "-n", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["measured"]["correct"] > 0.8
    (prompt,) = found["prompts"]
    start, end = prompt["positions"]["subject"]["characters"]
    assert prompt["clean"][start:end] not in prompt["corrupted"].split()


def test_typo(capsys):
    assert cli.main(["tasks", "show", "docstrings"]) == 2
    assert capsys.readouterr().err == "error: unknown task 'docstrings': did you mean docstring?\n"


def test_validate(tmp_path, capsys):
    path = tmp_path / "mine.jsonl"
    good = [
        json.dumps({"clean": f"{i} a", "corrupted": "b", "answer": " c", "distractor": " d"})
        for i in range(6)
    ]
    path.write_text("\n".join(good))
    assert cli.main(["tasks", "validate", str(path), "--file-only"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{path}: no problems"
    path.write_text("\n".join([good[0], "{", *good[1:], "[]"]))
    assert cli.main(["tasks", "validate", str(path), "--file-only"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[:2]] == ["line 2", "line 8"]
    assert lines[2].endswith("2 problems")


@pytest.mark.usefixtures("loaded")
def test_validate_with_a_model(tmp_path, capsys):
    path = tmp_path / "mine.csv"
    rows = [f"{i} keys,{i} key, arrrre, is" for i in range(6)]
    path.write_text("\n".join(["clean,corrupted,answer,distractor", *rows]))
    args = ["tasks", "validate", str(path), "--model", "smollm2-135m"]
    assert cli.main(args) == 1
    assert "--first-token" in capsys.readouterr().out
    # What is left is not about the lines: the model cannot do this.
    assert cli.main([*args, "--first-token", "--only-correct", "--json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["line"] == 0
    assert "it cannot do the task" in problem["reason"]


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize(
    ("n", "message"),
    [
        ("99999999", "99999999 prompts: expected 1 to 10000"),
        ("0", "0 prompts: expected 1"),
        ("9", "mine has 4 prompts for part 'evaluate', 9 were asked for"),
    ],
)
def test_show_more_than_there_is(tmp_path, capsys, n, message):
    path = tmp_path / "mine.jsonl"
    rows = [
        {"clean": f"{i} keys", "corrupted": f"{i} key", "answer": " are", "distractor": " is"}
        for i in range(20)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert cli.main(["tasks", "show", str(path), "-n", n]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("loaded")
def test_markup_in_a_name_is_text(tmp_path, capsys):
    path = tmp_path / "[bold]mine[red].jsonl"
    rows = [
        {"clean": f"{i} keys", "corrupted": f"{i} key", "answer": " are", "distractor": " is"}
        for i in range(8)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert cli.main(["tasks", "show", str(path)]) == 0
    assert "[bold]mine[red]: 8 prompts" in capsys.readouterr().out


def test_missing_file(tmp_path, capsys):
    assert cli.main(["tasks", "validate", str(tmp_path / "none.jsonl"), "--file-only"]) == 2
    assert "cannot be read: No such file" in capsys.readouterr().err
