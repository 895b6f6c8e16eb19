"""`compare`: results, resuming, killed runs, failing results."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from oracles.circuit_runs import plain_faithfulness
from oracles.task_files import task_file

from unweave.errors import UnweaveError
from unweave.experiments import compare as module
from unweave.experiments.compare import Comparison, compare
from unweave.experiments.methods import find_method
from unweave.experiments.specification import Experiment, Specification
from unweave.experiments.summary import row, summary
from unweave.model.loading import load
from unweave.model.weights import tensors
from unweave.scores.score import Score, scores

NAME = "wired-induction"
BASE = Specification(NAME, NAME, prompts=12, held_out=12)
METHODS = (find_method("eap"), find_method("patching"))
PLAN = Comparison((NAME,), BASE, METHODS)


def test_table_and_figures(tmp_path: Path) -> None:
    record = compare(PLAN, tmp_path, load)
    assert json.loads((tmp_path / "compare.json").read_text()) == record
    own = next(one for one in record["summary"] if one["method"] == "patching")
    assert own["auc"] == 1.0
    assert own["k95"] == 2
    assert own["forwards"] > own["score_forwards"] > 0
    assert 0 <= own["curve_gap"] < 0.2
    figures = record["figures"]
    assert {dot["method"] for dot in figures["runtime_against_auc"]} == {"eap", "patching"}
    lines = {line["line"] for line in figures["faithfulness_against_size"]}
    assert lines >= {"eap", "eap, zero ablation", "random", "published"}
    beaten = figures["random_circuits_beaten"][0]
    assert len(beaten["fractions"]) == len(beaten["beaten"]) == len(beaten["farther"]) == 10


def test_figures_are_those_of_plain_runs(tmp_path: Path) -> None:
    """Each circuit and each curve of a result, by plain runs on the held-out prompts."""
    method = find_method("eap-ig+eliminate").with_options({"steps": 3, "max_size": 1})
    compare(replace(PLAN, methods=(*METHODS, method)), tmp_path, load)
    held_out = Experiment.set_up(BASE, load(NAME)).held_out
    for name in ("eap", "patching", "eap-ig+eliminate"):
        result = json.loads((tmp_path / f"{NAME}--{name}--seed0.json").read_text())
        assert result["settings"]["options"] == result["options"]
        expected = plain_faithfulness(held_out, result["circuit"])
        assert result["faithfulness"] == pytest.approx(expected, abs=1e-4)
        curve = result["curve"]
        for size, value in zip(curve["sizes"], curve["faithfulness"], strict=True):
            expected = plain_faithfulness(held_out, result["ranking"][:size])
            assert value == pytest.approx(expected, abs=1e-4)
        ends = zip(curve["sizes"], curve["sizes"][1:], strict=False)
        off = [abs(1 - value) for value in curve["faithfulness"]]
        areas = [(b - a) * (off[i] + off[i + 1]) / 2 for i, (a, b) in enumerate(ends)]
        assert curve["curve_gap"] == pytest.approx(sum(areas) / len(held_out.nodes), abs=1e-6)
    assert result["options"]["steps"] == 3
    assert len(result["circuit"]) == 1


def test_a_method_chooses_its_own_size(tmp_path: Path) -> None:
    chosen = tuple(find_method(name) for name in ("random", "cdt"))
    record = compare(replace(PLAN, methods=chosen), tmp_path, load)
    assert [row["method"] for row in record["rows"]] == ["random", "cdt"]
    assert record["rows"][1]["size"] == 2


@pytest.mark.parametrize(
    "base",
    [
        replace(BASE, granularity="head@position"),
        replace(BASE, ablation="counterfactual"),
        replace(BASE, granularity="qkv"),
    ],
)
def test_nodes_and_ablations_of_discover(tmp_path: Path, base: Specification) -> None:
    chosen = (find_method("eap", search="eliminate"),)
    record = compare(replace(PLAN, base=base, methods=chosen), tmp_path, load)
    (row,) = record["rows"]
    assert (row["score"], row["search"]) == ("eap", "eliminate")
    assert row["nodes"] == len(Experiment.set_up(base, load(NAME)).nodes)
    assert abs(1 - row["faithfulness"]) < 0.1


def test_finished_results_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compare(PLAN, tmp_path, load)
    with monkeypatch.context() as patch:
        for name in ("method_result", "reference_result"):
            patch.setattr(module, name, lambda *_: pytest.fail("a finished result is run again"))
        said: list[str] = []
        assert compare(PLAN, tmp_path, load, said.append) == first
    assert len(said) == 3
    assert all(line.endswith("already there") for line in said)
    more = compare(replace(PLAN, seeds=(0, 1)), tmp_path, load)
    assert [(row["method"], row["seed"]) for row in more["rows"]] == [
        (method, seed) for seed in (0, 1) for method in ("eap", "patching")
    ]
    assert more["rows"][:2] == first["rows"]


_WATCHED = """
import sys
import weakref
from pathlib import Path
from unweave.experiments import compare
from unweave.experiments.methods import find_method
from unweave.experiments.specification import Specification
from unweave.model.loading import load

name, folder = sys.argv[1:]
seen, set_up = [], compare._experiment

def watched(how, model):
    print(sum(one() is not None for one in seen))
    experiment = set_up(how, model)
    seen.append(weakref.ref(experiment))
    return experiment

compare._experiment = watched
plan = compare.Comparison(
    (name,), Specification(name, name, held_out=12), (find_method("eap"),), (0, 1, 2)
)
compare.compare(plan, Path(folder), load)
"""


def test_one_experiment_is_in_memory_at_a_time(tmp_path: Path) -> None:
    """Prompts with their activations are gigabytes. In a process of its own: the checks of types
    in these tests keep nested functions, and what those refer to."""
    command = [sys.executable, "-c", _WATCHED, NAME, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0", "0"]


_CODE = """
import sys
from pathlib import Path
from unweave.experiments.compare import Comparison, compare
from unweave.experiments.methods import find_method
from unweave.experiments.specification import Specification
from unweave.model.loading import load
name, folder = sys.argv[1:]
base = Specification(name, name, prompts=12, held_out=12)
methods = (find_method("eap"), find_method("patching"))
compare(Comparison((name,), base, methods, tuple(range(40))), Path(folder), load)
"""


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    command = [sys.executable, "-c", _CODE, NAME, str(tmp_path)]
    process = subprocess.Popen(command, env=environment)
    deadline = time.monotonic() + 120
    while len([*tmp_path.glob("*--seed*.json")]) < 4:
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*--seed*.json")}
    assert 4 <= len(done) < 120
    assert not (tmp_path / "compare.json").exists()
    few = max(int(path.stem.rpartition("seed")[2]) for path in done) + 1
    said: list[str] = []
    found = compare(replace(PLAN, seeds=tuple(range(few))), tmp_path, load, said.append)
    assert sum(line.endswith("already there") for line in said) == len(done)
    assert all(path.stat().st_mtime_ns == changed for path, changed in done.items())
    assert not list(tmp_path.glob(".*"))
    whole = compare(replace(PLAN, seeds=(0,)), tmp_path / "whole", load)
    first = [one for one in found["rows"] if one["seed"] == 0]
    times = {"seconds": 0}
    assert [one | times for one in first] == [one | times for one in whole["rows"]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ablation": "zero"}, "ablation = 'mean', now it is 'zero'"),
        ({"prompts": 4}, "prompts = 12, now it is 4"),
        ({"bos": False}, "bos = None, now it is False"),
        ({"granularity": "head@position"}, "granularity = 'head', now it is"),
    ],
)
def test_other_settings_are_not_mixed(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    compare(PLAN, tmp_path, load)
    with pytest.raises(UnweaveError, match=message):
        compare(
            replace(PLAN, base=replace(BASE, **change)), tmp_path, lambda _: pytest.fail("loaded")
        )


def test_other_options_are_not_mixed(tmp_path: Path) -> None:
    compare(PLAN, tmp_path, load)
    other = (METHODS[0].with_options({"max_size": 3}), METHODS[1])
    with pytest.raises(UnweaveError, match="options = "):
        compare(replace(PLAN, methods=other), tmp_path, load)


def test_other_weights_are_not_mixed(tmp_path: Path) -> None:
    compare(PLAN, tmp_path, load)

    def changed(name: str) -> Any:
        model = load(name)
        next(t for t in tensors(model.network) if t.ndim == 2)[0, 0] += 1e-3
        return model

    with pytest.raises(UnweaveError, match="was made with hash of model = "):
        compare(PLAN, tmp_path, changed)


def test_an_edited_task_file_is_not_mixed(tmp_path: Path) -> None:
    """Also where the edit changes no prompt."""
    file, folder = Path(task_file(tmp_path / "mine.jsonl", NAME)), tmp_path / "cells"
    base = Specification(str(file), NAME, prompts=4, held_out=4, ablation="counterfactual")
    plan = Comparison((str(file),), base, METHODS[:1], draws=1)
    first = compare(plan, folder, load)
    assert compare(plan, folder, load) == first
    file.write_text(file.read_text() + "\n")
    with pytest.raises(UnweaveError, match="was made with hash of task = "):
        compare(plan, folder, load)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda result: result.pop("curve"), "expected an object with curve"),
        (lambda result: result.update(circuit="a0.h0"), "circuit is 'a0.h0', expected a list"),
        (lambda result: result["curve"].update(sizes=[1]), "one for a size"),
        (lambda result: result.update(seconds="1"), "seconds is '1', expected a number"),
        (lambda result: result.update(seed=7), "holds another result"),
        (lambda result: result.update(settings=[]), "was made with schema_version = None"),
    ],
)
def test_a_broken_result_is_named(tmp_path: Path, change: Any, message: str) -> None:
    compare(replace(PLAN, methods=METHODS[:1]), tmp_path, load)
    path = tmp_path / f"{NAME}--eap--seed0.json"
    result = json.loads(path.read_text())
    change(result)
    path.write_text(json.dumps(result))
    with pytest.raises(UnweaveError, match=rf"eap--seed0\.json .*{message}"):
        compare(PLAN, tmp_path, load)
    path.write_text("{")
    with pytest.raises(UnweaveError, match=r"eap--seed0\.json is not JSON.*delete it"):
        compare(PLAN, tmp_path, load)


def test_a_result_that_fails_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(problem: object, options: object) -> Any:
        raise UnweaveError("no gradients today: come back")

    good = scores["eap"]
    monkeypatch.setitem(scores._entries, "eap", Score("eap", "fails", fail))
    record = compare(PLAN, tmp_path, load)
    rows = {row["method"]: row for row in record["rows"]}
    assert rows["eap"]["error"] == "no gradients today: come back"
    assert rows["patching"]["auc"] == 1.0
    monkeypatch.setitem(scores._entries, "eap", good)
    assert not any("error" in row for row in compare(PLAN, tmp_path, load)["rows"])


def test_a_model_that_fails_the_task(tmp_path: Path) -> None:
    record = compare(replace(PLAN, tasks=("wired-inhibition",)), tmp_path, load)
    assert record["rows"]
    assert all("single tokens" in row["error"] for row in record["rows"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks": ("io",)}, "unknown task 'io': did you mean ioi"),
        ({"tasks": ()}, "nothing to compare"),
        ({"seeds": ()}, "nothing to compare"),
    ],
)
def test_unknown_names_before_anything_is_run(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnweaveError, match=message):
        compare(replace(PLAN, **change), tmp_path / "new", lambda name: pytest.fail("loaded"))
    assert not (tmp_path / "new").exists()


def test_means_over_seeds() -> None:
    base = {"task": "t", "method": "m", "size": 2, "auc": None, "k95": 3}
    other = base | {"seed": 1, "curve_gap": 0.3, "k95": None}
    found = summary([base | {"seed": 0, "curve_gap": 0.1}, other])
    assert found[0]["curve_gap"] == pytest.approx(0.2)
    assert found[0]["k95"] is None
    assert found[0]["spread"]["curve_gap"] == pytest.approx(0.2 / 2**0.5)


def test_misses_of_two_seeds_do_not_cancel() -> None:
    curve = {"curve_gap": 0.1, "curve_area": 0.9, "k80": 1, "k95": 1}
    result: dict[str, Any] = {"task": "t", "method": "m", "score": "s", "search": "top"}
    result |= {"curve": curve, "roc": {}, "circuit": ["a0.h0"], "interval": [0.8, 1.2]}
    result |= {"forwards": {"score": 1.0, "search": 2.0}, "seconds": 1.0, "curves": {}}
    results = [result | {"seed": seed, "faithfulness": f} for seed, f in enumerate((1.1, 0.9))]
    found = summary([row(result, {"error": "none"}) for result in results])[0]
    assert found["faithfulness"] == pytest.approx(1.0)
    assert found["off"] == pytest.approx(0.1)
