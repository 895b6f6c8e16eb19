"""`unweave discover` as a user types it: what it prints, and one line for every mistake."""

import json
from pathlib import Path

import pytest

from unweave.cli import main

TASK = ["discover", "wired-induction", "--model", "wired-induction"]
QUICK = [*TASK, "-n", "6", "--held-out", "6", "--ablation", "counterfactual"]


def test_the_circuit_is_printed_and_the_run_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*QUICK, "--out", str(tmp_path / "run"), "-v"]) == 0
    out, err = capsys.readouterr()
    assert "faithfulness" in out
    assert "iteration 1: targets logits" in out
    assert "Scoring" in err
    assert {p.name for p in (tmp_path / "run").iterdir()} >= {
        "run.json",
        "circuit.json",
        "scores.safetensors",
    }


def test_json_is_all_that_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--out", str(tmp_path / "run"), "--json"]) == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert record["size"] == len(record["nodes"])
    assert err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["discover", "ioii"], "did you mean ioi"),
        ([*QUICK, "--method", "eapp"], "did you mean eap"),
        ([*QUICK, "--ablation", "average"], "ablation 'average'"),
        ([*QUICK, "--granularity", "layer"], "granularity 'layer': expected head"),
        ([*QUICK, "-o", "select=many"], "select 'many': expected top:N"),
        ([*QUICK, "-o", "selekt=top:3"], "did you mean select"),
        ([*QUICK, "-o", "max_size"], "expected name=value"),
        ([*QUICK, "-o", "max_size=many"], "expected a int"),
        (["discover", "nothing.jsonl"], "nothing.jsonl"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert main([*arguments, "--out", str(folder), "-q"]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not (folder / "run.json").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main([*QUICK, "--out", str(tmp_path / "file" / "run"), "-q"]) == 2
    assert "choose another with --out" in capsys.readouterr().err


def test_an_empty_task_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.jsonl").write_text("")
    assert main(["discover", str(tmp_path / "mine.jsonl"), "-q"]) == 2
    assert "mine.jsonl" in capsys.readouterr().err


CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome", "Egypt": "Cairo"}


def test_a_model_that_fails_the_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lands = list(CAPITALS)
    lines = [
        {
            "clean": f"The capital of {land} is",
            "corrupted": f"The capital of {other} is",
            "answer": f" {CAPITALS[other]}",  # the other land's: the model says its own
            "distractor": f" {CAPITALS[land]}",
        }
        for land, other in zip(lands, lands[1:] + lands[:1], strict=True)
    ]
    file, folder = tmp_path / "capitals.jsonl", tmp_path / "run"
    file.write_text("\n".join(map(json.dumps, lines)))
    arguments = ["discover", str(file), "--ablation", "counterfactual", "--out", str(folder), "-q"]
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert "there is no behaviour to explain; choose another model" in err
    assert len(err.strip().splitlines()) == 1
    assert not folder.exists() or not list(folder.iterdir())
