"""`unweave compare`: what it prints and writes, and bad input."""

import json
from pathlib import Path
from typing import Any

import pytest
from oracles.tiny_folders import GPT2, words
from rich.console import Console

from unweave import cli
from unweave.cli.compare import COLUMNS, tables
from unweave.cli.tables import FIGURES
from unweave.experiments import compare as module
from unweave.testing.oracle import build

NAME = "wired-induction"


def compare(*more: str) -> int:
    return cli.main(["compare", NAME, "--model", NAME, "-n", "8", "--held-out", "8", *more])


def test_it_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = ("--score", "eap-ig", "--search", "top,eliminate", "-o", "steps=3")
    assert compare("--methods", "patching", *pair, "--out", str(tmp_path)) == 0
    found = capsys.readouterr()
    for text in ("patching", "eap-ig+eliminate", "AUC", "mean ablation"):
        assert text in found.out
    assert "…" not in found.out, "a column is cut at 80 characters"
    assert f"{NAME}, eap-ig, seed 0" in found.err
    result = json.loads((tmp_path / f"{NAME}--eap-ig--seed0.json").read_text())
    assert result["options"]["steps"] == 3
    assert compare("--methods", "patching", *pair, "--out", str(tmp_path), "--json", "-q") == 0
    record = json.loads(capsys.readouterr().out)
    names = [row["method"] for row in record["summary"]]
    assert names == ["patching", "eap-ig", "eap-ig+eliminate"]


LONG = ("decomposition+algorithm1", "masks+eliminate", "eap-ig:steps=10:on=activations")


def test_no_figure_is_cut_at_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"curve_gap": 1.234, "curve_area": 2.345, "k95": 260, "auc": 0.91, "size": 262}
    figures |= {"faithfulness": -1.456, "off": 1.567, "seconds": 1234.56}
    figures |= {"score_forwards": 1345.6, "forwards": 12456.7}
    rows = [{"task": "ioi", "method": name, "seeds": 3, **figures} for name in LONG]
    settings = {"ablation": "mean", "level": "node"}
    record = {"summary": rows, "model": "smollm2-135m", "settings": settings, "seeds": [0]}
    console = Console(width=80)
    for table in tables(record):
        console.print(table)
    said = capsys.readouterr().out
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= 80
    for name in COLUMNS:
        spec = FIGURES[name][1]
        assert said.split().count(format(figures[name], spec)) == len(LONG), name
    for name in ("decomposition+", "algorithm1", "masks+eliminate"):
        assert name in said.split()


@pytest.mark.parametrize(
    ("more", "nodes"),
    [
        (["--granularity", "qkv", "--ablation", "counterfactual"], 36),
        (["--granularity", "head@position", "--ablation", "zero"], 24),  # the end, and the rest
    ],
)
def test_nodes_and_ablations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], nodes: int
) -> None:
    how = ["--score", "eap", "--search", "eliminate", "-o", "max_size=2", *more]
    assert compare(*how, "--out", str(tmp_path), "--json", "-q") == 0
    record = json.loads(capsys.readouterr().out)
    (row,) = record["rows"]
    assert record["settings"]["ablation"] == more[-1]
    assert row["nodes"] == nodes
    assert ("@" in row["circuit"][0]) == ("@" in more[1])
    assert row["size"] <= 2


@pytest.mark.parametrize(("more", "nodes"), [(["--mlps"], 2 * 4 + 2), ([], 2 * 4)])
def test_mlps_are_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], nodes: int
) -> None:
    build(GPT2).save_pretrained(tmp_path / "model")
    words(tmp_path / "model")
    letters = ["abcd", "bcda", "cdab", "dabc", "acbd", "cadb", "dbca", "bdac"]
    rows = [
        {"clean": f"{text}?", "corrupted": f"{text[::-1]}?", "answer": "e", "distractor": "f"}
        for text in letters
    ]
    (tmp_path / "task.jsonl").write_text("\n".join(map(json.dumps, rows)))
    what = [str(tmp_path / "task.jsonl"), "--model", str(tmp_path / "model"), "--json", "-q"]
    how = ["-n", "2", "--held-out", "2", "--score", "eap", "--search", "top", "--draws", "1"]
    assert cli.main(["compare", *what, *how, *more, "--out", str(tmp_path / "cells")]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["nodes"] == nodes


def test_ctrl_c_keeps_finished_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "method_result", interrupted)
        assert compare("--methods", "eap", "--out", str(tmp_path)) == 130
    err = " ".join(capsys.readouterr().err.split())
    assert "the same command continues interrupted" in err
    assert [path.name for path in tmp_path.iterdir()] == [f"{NAME}--reference--seed0.json"]
    assert compare("--methods", "eap", "--out", str(tmp_path)) == 0
    assert "reference, seed 0: already there" in capsys.readouterr().err


def test_where_all_fails_it_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = cli.main(["compare", "ioi", "--model", NAME, "--methods", "eap", "--out", str(tmp_path)])
    assert code == 1
    assert "single tokens" in " ".join(capsys.readouterr().out.split())


def test_a_task_is_compared_on_its_own_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["-n", "4", "--held-out", "4", "--draws", "1", "--methods", "cdt,random"]
    assert cli.main(["compare", NAME, *few, "--out", str(tmp_path), "-q"]) == 0
    assert f"{NAME}, {NAME}, mean ablation" in capsys.readouterr().out
