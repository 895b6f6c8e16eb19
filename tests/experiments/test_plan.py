"""`unweave plan`: what it foretells is near to what happens."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unweave import cli
from unweave.cli.plan import lines
from unweave.experiments import plan as planning
from unweave.experiments.discover import discover
from unweave.experiments.methods import find_method
from unweave.experiments.plan import MemoryPlan, Plan, memory_plan, plan, remedies
from unweave.experiments.specification import Experiment, Specification
from unweave.model.loading import load
from unweave.model.weights import tensors

NAME = "wired-induction"
HOW = Specification(NAME, NAME, ablation="counterfactual", prompts=8, held_out=8)


def test_forward_passes_are_near_those_that_are_counted(tmp_path: Path) -> None:
    model = load(NAME)
    expected = plan(model, NAME, HOW)
    discover(model, NAME, HOW, tmp_path / "run")
    counted = json.loads((tmp_path / "run" / "run.json").read_text())["forwards"]
    assert expected.nodes == 12
    assert expected.passes.keys() == counted.keys()
    # The set-up is the run's own; a sweep costs the same for every prompt.
    assert expected.passes["set-up"] == pytest.approx(counted["set-up"], rel=0.01)
    assert expected.passes["scores"] == pytest.approx(counted["scores"], rel=0.05)
    assert sum(expected.passes.values()) == pytest.approx(sum(counted.values()), rel=0.5)
    assert expected.seconds.keys() == counted.keys()


def test_memory_is_weights_ablation_and_the_largest_phase() -> None:
    model = load(NAME)
    problem = Experiment.set_up(HOW, model).discovery
    found = memory_plan(problem, find_method("cdt"), gradients=True)
    held = {tensor.data_ptr(): tensor.nbytes for tensor in tensors(model.network)}
    assert found.parts["weights"] == sum(held.values())
    assert found.parts.keys() == {"weights", "ablation", "scores", "circuits", "gradients"}
    largest = max(found.parts[name] for name in ("scores", "circuits", "gradients"))
    assert found.peak == found.parts["weights"] + found.parts["ablation"] + largest
    # Without a sweep and without gradients there are only runs of circuits.
    few = memory_plan(problem, find_method("random"), gradients=False)
    assert few.parts.keys() == {"weights", "ablation", "circuits"}
    assert found.least <= found.peak


def test_pairs_and_prompts_take_more_memory() -> None:
    problem = Experiment.set_up(HOW, load(NAME)).discovery
    plain, paired = find_method("patching"), find_method("cdt").with_options({"pairs": True})
    without = memory_plan(problem, find_method("cdt"), gradients=False).parts["scores"]
    assert memory_plan(problem, paired, gradients=False).parts["scores"] > without
    few = memory_plan(problem.select(slice(0, 4)), plain, gradients=False).parts["scores"]
    assert memory_plan(problem, plain, gradients=False).parts["scores"] > few


FEWER = [NAME, "--ablation", "counterfactual", "-n", "6", "--held-out", "6"]


@pytest.mark.parametrize("command", [["plan", *FEWER], ["discover", *FEWER, "--dry-run"]])
def test_it_prints_phases_and_memory(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(command) == 0
    said = capsys.readouterr().out
    for text in ("12 nodes", "search", "evaluation", "peak memory", "cpu", "fits"):
        assert text in said
    assert not list(tmp_path.iterdir()), "nothing is kept"


def test_a_comparison_is_planned_method_by_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    methods = ["--methods", "eap,eap+eliminate", "--dry-run", "--json"]
    assert cli.main(["compare", *FEWER, *methods]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in rows] == ["eap", "eap+eliminate"]
    assert rows[0]["forwards"]["search"] < rows[1]["forwards"]["search"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_what_does_not_fit_names_the_options_that_would(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(NAME)
    problem = Experiment.set_up(HOW, model).discovery
    method = HOW.resolved
    half = memory_plan(problem.select(slice(0, 4)), method, True).least
    assert half < memory_plan(problem, method, True).least
    free = {"cpu": 10**12, device: half}
    monkeypatch.setattr(planning, "_free", lambda model: free)
    found = plan(model, NAME, HOW)
    assert found.remedies == {device: ("-n 4",)}
    (line,) = [str(one) for one in lines(found) if "does not fit" in str(one)]
    assert line.startswith(f"  {device}: ")
    assert line.endswith("would fit: -n 4")
    assert found.to_json()["remedies"] == {device: ["-n 4"]}
    # Room for a part of the weights and for the work: on a GPU the layers come by turns.
    monkeypatch.setattr(planning, "memory_plan", lambda *_: MemoryPlan(TOO_MUCH, 310))
    found = remedies(problem, method, True, device, {"cpu": 10**12, device: 200})
    streamed = "--memory 0MB (load(…, device_map='auto') in Python)"
    assert found == (() if device == "cpu" else (streamed,))
    assert "only a smaller model" in str(lines(replace(EMPTY, free={"cpu": 200})))


TOO_MUCH = {"weights": 300, "ablation": 0}
EMPTY = Plan(1, {}, {"search": 1.0}, {"search": 1.0}, MemoryPlan(TOO_MUCH, 310))
