"""`unweave evaluate`: what it prints and writes, part by part, and how it goes on."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from oracles.circuit_runs import plain_faithfulness
from oracles.task_files import task_file

from unweave import cli
from unweave.evaluation.api import evaluate
from unweave.experiments import evaluate as module
from unweave.experiments.discover import discover
from unweave.experiments.evaluate import PHASES
from unweave.experiments.files import plain, read_json
from unweave.experiments.run_folder import read_run
from unweave.experiments.specification import Experiment, Specification
from unweave.model.loading import load
from unweave.sites import parse

NAME = "wired-induction"
HOW = Specification(NAME, NAME, prompts=12, held_out=12, method="patching", options={"size": 3})


@pytest.fixture(scope="module")
def found(tmp_path_factory: Any) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "one"
    discover(load(NAME), NAME, HOW, folder)
    return folder


@pytest.fixture
def run(found: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(found, tmp_path / "run"))


def test_it_writes_its_record_and_a_table(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evaluate", str(run), "-n", "12"]) == 0
    out, err = capsys.readouterr()
    assert "faithfulness, zero ablation" in out
    # A line a phase, also where nobody sees bars.
    lines = err.splitlines()
    assert [line.partition("]")[0] for line in lines] == [f"[{i}/7" for i in range(1, 8)]
    assert all("circuits" in line for line in lines)
    assert "s left" in lines[-1]
    record = json.loads((run / "evaluation.json").read_text())
    assert record["about"] == {"task": NAME, "model": NAME, "method": "patching"}
    assert record["prompts"] == 12
    assert record["roc"]["published"]["auc"] == 1.0
    assert record["parts"] == list(PHASES)
    # Ten random circuits of ten sizes and the circuit itself; 12 prompts there as here.
    assert record["forwards"]["random_circuits"] == 101
    assert record["forwards"]["completeness"] == 20
    assert record["forwards"].keys() == {*PHASES, "set-up"}
    assert (run / "report.html").exists()


def test_figures_are_those_of_plain_runs_and_of_the_function(run: Path) -> None:
    assert cli.main(["evaluate", str(run), "-q", "--draws", "4"]) == 0
    record = read_json(run / "evaluation.json", "evaluation")
    experiment, circuit = Experiment.set_up(HOW, load(NAME)), read_run(run).circuit
    main, whole = experiment.held_out, plain_faithfulness(experiment.held_out, circuit.nodes)
    assert record["faithfulness"]["mean"]["value"] == pytest.approx(whole, 1e-4)
    for name in ("zero", "counterfactual"):
        problem = experiment.under(main, name)
        assert problem is not None
        value = record["faithfulness"][name]["value"]
        assert value == pytest.approx(plain_faithfulness(problem, circuit.nodes), abs=1e-4)
    for node, effect in record["minimality"]["effects"].items():
        without = [name for name in circuit.nodes if name != node]
        assert effect == pytest.approx(whole - plain_faithfulness(main, without), abs=1e-4)
    every = [str(node) for node in main.nodes]
    for out in record["completeness"]["knockouts"]:
        left, rest = (
            [n for n in names if n not in out["removed"]] for names in (circuit.nodes, every)
        )
        assert out["circuit"] == pytest.approx(plain_faithfulness(main, left), abs=1e-4)
        assert out["model"] == pytest.approx(plain_faithfulness(main, rest), abs=1e-4)
    scores = read_run(run).scores
    assert scores is not None
    direct = evaluate(
        main,
        scores,
        [parse(name) for name in circuit.nodes],
        known=experiment.known(),
        draws=4,
        seed=HOW.seed,
    )
    same = (
        "curves",
        "random",
        "random_circuits",
        "completeness",
        "minimality",
        "stability",
        "roc",
        "known",
    )
    expected = plain(direct.to_json())
    expected["curves"] = {"mean": expected["curves"]["mean"]}
    record["curves"] = {"mean": record["curves"]["mean"]}
    for name in same:
        assert record[name] == expected[name], name


def test_an_evaluation_that_was_stopped_goes_on(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C after any phase: what is finished stays, the rest is run, the result is the same."""
    whole = Path(shutil.copytree(run, tmp_path / "whole"))
    assert cli.main(["evaluate", str(whole), "-q"]) == 0
    write = module.write_json
    for count in range(1, len(PHASES)):
        saved = 0

        def interrupted(path: Path, record: Any, count: int = count) -> None:
            nonlocal saved
            write(path, record)
            saved += 1
            if saved == count:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(module, "write_json", interrupted)
            assert cli.main(["evaluate", str(run)]) == 130
        assert "the same command continues" in capsys.readouterr().err
        assert read_json(run / "evaluation.json", "it")["parts"] == list(PHASES)[:count]
        assert cli.main(["evaluate", str(run)]) == 0
        lines = capsys.readouterr().err.splitlines()
        assert lines[0].startswith("already there: faithfulness")
        assert len(lines) == 1 + len(PHASES) - count
        assert read_json(run / "evaluation.json", "it") == read_json(
            whole / "evaluation.json", "it"
        )
        (run / "evaluation.json").unlink()


def test_parts_add_to_one_another_but_other_settings_do_not(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["evaluate", str(run), "-n", "12", "--parts", "curve", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["curves"]["mean"]["k95"] == 2
    assert "random_circuits" not in record
    assert cli.main(["evaluate", str(run), "-n", "12", "--parts", "minimality", "-q"]) == 0
    record = read_json(run / "evaluation.json", "evaluation")
    assert record["parts"] == ["faithfulness", "curve", "minimality"]
    assert cli.main(["evaluate", str(run), "-n", "6", "--parts", "roc", "-q"]) == 0
    record = read_json(run / "evaluation.json", "evaluation")
    assert (record["parts"], record["prompts"]) == (["faithfulness", "roc"], 6)


def test_without_scores(run: Path) -> None:
    (run / "scores.safetensors").unlink()
    assert cli.main(["evaluate", str(run), "-n", "12", "-q"]) == 0
    record = read_json(run / "evaluation.json", "evaluation")
    assert record["roc"] == {}
    assert record["stability"] is None


@pytest.mark.parametrize("what", ["model", "prompts"])
def test_what_changed_since_is_noticed(
    run: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    record = read_json(run / "run.json", "run")
    record["identity"]["fingerprint"][what] = "0" * 16
    (run / "run.json").write_text(json.dumps(record))
    for command in (["evaluate", str(run)], ["explain", str(run)]):
        assert cli.main(command) == 2
        assert f"the {what} of" in capsys.readouterr().err


def test_a_task_file_that_changed_since_is_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, folder = Path(task_file(tmp_path / "mine.jsonl", NAME)), tmp_path / "run"
    how = Specification(
        str(file), NAME, method="eap", ablation="counterfactual", prompts=4, held_out=4
    )
    discover(load(NAME), str(file), how, folder, explain=False)
    quick = ["evaluate", str(folder), "-n", "4", "--parts", "roc", "-q"]
    assert cli.main(quick) == 0
    file.write_text(file.read_text() + "\n")
    assert cli.main(quick) == 2
    assert f"the task of {folder} changed" in capsys.readouterr().err
