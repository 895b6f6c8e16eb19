"""`evaluate --repeat`: the whole search on other prompts."""

import json
from pathlib import Path

import pytest

from unweave.cli import main
from unweave.errors import UnweaveError
from unweave.experiments.discover import discover
from unweave.experiments.evaluate import evaluate_run
from unweave.experiments.repeats import repeats_record
from unweave.experiments.run_folder import read_run
from unweave.experiments.specification import Specification
from unweave.model.loading import load

TASK = "wired-suppression"


def test_each_repeat_is_a_discovery_with_another_seed(tmp_path: Path) -> None:
    model = load(TASK)
    how = {"prompts": 6, "held_out": 6, "options": {"price": 0.05}}
    discover(model, TASK, Specification(TASK, TASK, **how), tmp_path / "run", explain=False)
    said: list[str] = []
    run = read_run(tmp_path / "run")
    first = evaluate_run(run, lambda _: model, draws=2, parts=(), repeat=1, say=said.append)
    record = evaluate_run(run, lambda _: model, draws=2, parts=(), repeat=2, say=said.append)
    searches = record["repeats"]["searches"]
    assert searches[:1] == first["repeats"]["searches"], "one that is there is not run again"
    assert sum("the whole search again" in line for line in said) == 2
    for one in searches:
        again = Specification(TASK, TASK, seed=one["seed"], **how)
        found = discover(model, TASK, again, explain=False)
        assert one["circuit"] == list(found.nodes)
    assert {one["seed"] for one in searches}.isdisjoint({0})
    assert record["forwards"]["repeats"] > first["forwards"]["repeats"] > 0
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text())["repeats"]["searches"]


def test_overlaps_and_shares() -> None:
    searches = [{"seed": 1, "circuit": ["a", "b", "d"]}, {"seed": 2, "circuit": ["a"]}]
    found = repeats_record(["a", "b", "c"], searches)
    assert found["overlap"] == pytest.approx((2 / 4 + 1 / 3) / 2)
    assert found["between"] == pytest.approx((2 / 4 + 1 / 3 + 1 / 3) / 3)
    assert found["kept"] == {"a": 1.0, "b": 0.5, "c": 0.0, "d": 0.5}


def test_circuits_of_edges_are_not_searched_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = "wired-induction"
    how = Specification(task, task, prompts=4, held_out=4, level="edge")
    discover(load(task), task, how, tmp_path / "run", explain=False)
    assert main(["evaluate", str(tmp_path / "run"), "--repeat", "1"]) == 2
    assert "--repeat is for circuits of nodes" in capsys.readouterr().err
    with pytest.raises(UnweaveError, match="circuits of nodes"):
        evaluate_run(read_run(tmp_path / "run"), lambda _: load(task), repeat=1)
