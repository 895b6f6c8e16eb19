"""`unweave evaluate` and `unweave compare`: what they print and write, and bad input."""

import json

import pytest

from unweave import cli
from unweave.experiments.discover import discover
from unweave.experiments.specification import Plan

NAME = "wired-induction"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    from unweave.model.loading import load

    folder = tmp_path_factory.mktemp("runs") / "one"
    discover(load(NAME), NAME, Plan(NAME, NAME, discover=12, evaluate=12), folder)
    return folder


def test_evaluate_writes_its_record_and_a_table(run, capsys):
    assert cli.main(["evaluate", str(run), "-n", "12"]) == 0
    output = capsys.readouterr().out
    assert "faithfulness, zero ablation" in output
    record = json.loads((run / "evaluation.json").read_text())
    assert record["about"] == {"task": NAME, "model": NAME, "method": "cdt"}
    assert record["prompts"] == 12
    assert record["roc"]["published"]["auc"] == 1.0


def test_evaluate_as_json_and_in_part(run, capsys):
    assert cli.main(["evaluate", str(run), "-n", "12", "--parts", "curve", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["curves"]["mean"]["k95"] == 2
    assert record["chance"] is None


def test_evaluate_without_scores(run, tmp_path, capsys):
    (tmp_path / "circuit.json").write_text((run / "circuit.json").read_text())
    assert cli.main(["evaluate", str(tmp_path), "-n", "12", "--parts", "minimality"]) == 0
    assert json.loads((tmp_path / "evaluation.json").read_text())["roc"] == {}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, "no run folder"),
        ({}, "circuit.json is not there: expected circuit.json, as unweave discover"),
        ({"circuit.json": "{"}, "circuit.json is no JSON"),
        ({"circuit.json": '{"task": "ioi"}'}, "has no model, method, nodes"),
        (
            {"circuit.json": '{"task": "io", "model": "m", "method": "x", "nodes": []}'},
            "unknown task 'io': did you mean ioi",
        ),
        (
            {"circuit.json": '{"task": "ioi", "model": "m", "method": "x", "nodes": [{}]}'},
            "expected an object with a site",
        ),
        (
            {
                "circuit.json": '{"task": "ioi", "model": "m", "method": "x", "nodes": []}',
                "scores.safetensors": "no",
            },
            "scores.safetensors cannot be read",
        ),
        (
            {
                "circuit.json": '{"task": "ioi", "model": "m", "method": "x", "nodes": []}',
                "run.json": '{"options": {"ablation": "men"}}',
            },
            "did you mean mean",
        ),
    ],
)
def test_bad_run_folders(tmp_path, capsys, files, message):
    folder = tmp_path / "run"
    if files is not None:
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
    assert cli.main(["evaluate", str(folder)]) == 2
    assert message in capsys.readouterr().err


def test_unknown_part(run, capsys):
    assert cli.main(["evaluate", str(run), "--parts", "curves"]) == 2
    assert "did you mean curve" in capsys.readouterr().err


def compare(*more: str) -> int:
    return cli.main(
        ["compare", NAME, "--model", NAME, "--n-discover", "12", "--n-evaluate", "12", *more]
    )


def test_compare_prints_a_table(tmp_path, capsys):
    assert compare("--methods", "eap, patching", "--out", str(tmp_path)) == 0
    found = capsys.readouterr()
    assert "patching" in found.out
    assert "AUC" in found.out
    assert "…" not in found.out.split("f: faith")[0]  # no column is cut at 80 characters
    assert f"{NAME}, eap, seed 0" in found.err
    assert compare("--methods", "eap,patching", "--out", str(tmp_path), "--json", "-q") == 0
    record = json.loads(capsys.readouterr().out)
    assert {row["method"] for row in record["summary"]} == {"eap", "patching"}


def test_compare_where_all_fails_exits_with_1(tmp_path, capsys):
    code = cli.main(["compare", "ioi", "--model", NAME, "--methods", "eap", "--out", str(tmp_path)])
    assert code == 1
    assert "single tokens" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--methods", "pathing"], "unknown method 'pathing': did you mean patching"),
        (["--seeds", "a"], "expected numbers such as 0,1,2"),
        (["--seeds", ","], "nothing to compare"),
        (["--ablation", "men"], "unknown ablation 'men': did you mean mean"),
        (["--n-evaluate", "0"], "greater than or equal to 1"),
    ],
)
def test_compare_bad_input(tmp_path, capsys, more, message):
    assert compare("--out", str(tmp_path), *more) == 2
    assert message in capsys.readouterr().err


def test_compare_into_a_file(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert compare("--out", str(tmp_path / "file"), "--methods", "eap") == 2
    assert "is a file" in capsys.readouterr().err


def test_tasks_of_different_models_need_a_model(capsys):
    assert cli.main(["compare", "ioi", "wired-induction"]) == 2
    assert "wired-induction on wired-induction" in capsys.readouterr().err


def test_a_task_is_compared_on_its_own_model(tmp_path, capsys):
    few = ["--n-discover", "4", "--n-evaluate", "4", "--draws", "1", "--methods", "cdt,random"]
    assert cli.main(["compare", "wired-induction", *few, "--out", str(tmp_path), "-q"]) == 0
    assert "wired-induction, wired-induction, mean ablation" in capsys.readouterr().out
