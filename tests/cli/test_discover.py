"""`unweave discover` as a user types it: what it prints, and one line for every mistake."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from oracles.task_files import task_file

from unweave.cli import main
from unweave.experiments.run_folder import RunFolder

TASK = ["discover", "wired-induction", "--model", "wired-induction"]
QUICK = [*TASK, "-n", "6", "--held-out", "6", "--ablation", "counterfactual"]


def test_the_circuit_is_printed_and_the_run_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*QUICK, "--out", str(tmp_path / "run"), "-v"]) == 0
    out, err = capsys.readouterr()
    assert "faithfulness" in out
    assert "round 1: targets logits" in out
    lines = out.splitlines()
    (head,) = (i for i, line in enumerate(lines) if line.split()[:1] == ["node"])
    assert lines[head].split() == ["node", "role", "effect", "again", "instead"]
    row = next(line for line in lines[head:] if line.split()[:1] == ["a1.h2"])
    assert "previous token" in row
    assert re.search(r"\+\d\.\d\d ± \d\.\d\d .*\d+%", row), row
    folder = tmp_path / "run"
    assert lines[-1] == f"Next: open {folder / 'report.html'}, or unweave evaluate {folder}"
    assert "Scoring" in err
    assert {p.name for p in (tmp_path / "run").iterdir()} >= {
        "run.json",
        "circuit.json",
        "scores.safetensors",
    }


def test_the_report_is_opened_where_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(typer, "launch", opened.append)
    quick = [*QUICK, "--method", "eap", "--no-explain", "-q", "--out"]
    assert main([*quick, str(tmp_path / "a")]) == 0
    assert opened == []
    assert main([*quick, str(tmp_path / "b"), "--open"]) == 0
    assert opened == [str(tmp_path / "b" / "report.html")]
    assert (tmp_path / "b" / "report.html").is_file()


def test_json_is_all_that_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--out", str(tmp_path / "run"), "--json"]) == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert record["size"] == len(record["nodes"])
    assert err == ""


def test_a_free_pair_with_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = ["--score", "eap-ig", "--search", "eliminate", "-o", "steps=3", "-o", "max_size=1"]
    assert main([*QUICK, *pair, "--out", str(tmp_path / "run"), "-q"]) == 0
    assert "1 of 12 nodes" in capsys.readouterr().out
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["method"], record["options"]["steps"]) == ("eap-ig+eliminate", 3)
    # The record's own name of the pair is read back.
    assert main(["evaluate", str(tmp_path / "run"), "--parts", "roc", "-q"]) == 0


def test_a_run_has_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert main([*QUICK, "--method", "eap", "--seed", "3", "-q"]) == 0
    folders = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert len(folders) == 2
    assert all(name.startswith("wired-induction-wired-induction-seed3-") for name in folders)


def test_a_run_that_fails_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["discover", "ioi", "--model", "wired-induction", "-q"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, save = tmp_path / "run", RunFolder.save
    assert main([*QUICK, "--out", str(tmp_path / "whole"), "-q"]) == 0
    saved = 0

    def interrupted(self: RunFolder, state: Any) -> None:
        nonlocal saved
        save(self, state)
        saved += 1
        if saved == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save", interrupted)
        assert main([*QUICK, "--out", str(folder)]) == 130
    err = capsys.readouterr().err
    assert f"continue with --resume --out {folder}" in err
    assert err.endswith("interrupted\n")
    assert {path.name for path in folder.iterdir()} == {"state.json", "scores.safetensors"}
    assert main([*QUICK, "--out", str(folder), "--resume", "-q"]) == 0
    whole = (tmp_path / "whole" / "circuit.json").read_bytes()
    assert (folder / "circuit.json").read_bytes() == whole


def test_bos_is_part_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`evaluate` measures the model that the run was made with."""
    how = [*QUICK, "--method", "eap", "--keep-wrong", "-q"]
    metrics = {}
    for bos in ("--bos", "--no-bos"):
        folder = tmp_path / bos
        assert main([*how, bos, "--out", str(folder)]) == 0
        record = json.loads((folder / "run.json").read_text())
        assert record["identity"]["specification"]["bos"] == (bos == "--bos")
        capsys.readouterr()
        assert main(["evaluate", str(folder), "--parts", "roc", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["faithfulness"]["counterfactual"]
        assert found["full"] == pytest.approx(record["metric"]["full"], 1e-5)
        metrics[bos] = found["full"]
    assert metrics["--bos"] != pytest.approx(metrics["--no-bos"], 1e-3)
    assert main([*how, "--no-bos", "--out", str(tmp_path / "--bos"), "--resume"]) == 2
    assert "bos was True, is False" in capsys.readouterr().err


def test_seen_and_new_templates_are_both_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, folder = (
        task_file(tmp_path / "mine.jsonl", "wired-induction", templates=4),
        tmp_path / "r",
    )
    how = ["--model", "wired-induction", "--method", "eap", "--no-explain", *QUICK[4:], "-q"]
    assert main(["discover", file, *how, "--out", str(folder)]) == 0
    found = json.loads((folder / "run.json").read_text())["verdict"]["templates"]
    (line,) = re.findall(r"held-out prompts by template: (.*)", capsys.readouterr().out)
    for kind in ("seen", "new"):
        assert f"{found[kind]['value']:.3f}" in line
        assert f"of {kind} templates" in line


def test_markup_in_names_is_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "[bold]x[" / "[/red]"
    file = task_file(tmp_path / "[bold]mine.jsonl", "wired-induction", 20)
    assert main(["discover", file, *QUICK[2:], "--method", "eap", "--out", str(folder)]) == 0
    assert "[/red]/report.html" in capsys.readouterr().out
    assert main(["evaluate", str(folder), "-n", "4", "--parts", "roc"]) == 0
    out = capsys.readouterr().out
    assert f"Written: {folder / 'evaluation.json'}" in out
    assert "[bold]mine" in "".join(out.split())  # in the title, which is broken to fit


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main([*QUICK, "--out", str(tmp_path / "file" / "run"), "-q"]) == 2
    assert "is a file: choose another folder with --out" in capsys.readouterr().err


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
