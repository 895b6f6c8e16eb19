"""`compare`: cells, resuming, killed runs, failing cells."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from unweave.errors import UnweaveError
from unweave.experiments.compare import Plan, compare
from unweave.experiments.comparison_cells import Budget
from unweave.experiments.summary import row, summary, value_at
from unweave.model.loading import load
from unweave.scores.problem import Method, methods

NAME = "wired-induction"
PLAN = Plan((NAME,), ("eap", "patching"), NAME, budget=Budget("mean", 12, 12, draws=10))


def test_table_and_figures(tmp_path):
    record = compare(PLAN, tmp_path, load)
    assert record == json.loads((tmp_path / "compare.json").read_text()) | {
        "seeds": (0,),
        "rows": record["rows"],
        "summary": record["summary"],
        "figures": record["figures"],
    }
    own = next(one for one in record["summary"] if one["method"] == "patching")
    assert own["auc"] == 1.0
    assert own["k95"] == 2
    assert own["forwards"] > 0
    assert 0 <= own["cmd"] < 0.2
    figures = record["figures"]
    assert {dot["method"] for dot in figures["runtime_against_auc"]} == {"eap", "patching"}
    lines = {line["line"] for line in figures["faithfulness_against_size"]}
    assert lines >= {"eap", "eap, zero ablation", "random", "published"}
    beaten = figures["random_circuits_beaten"][0]
    assert len(beaten["fractions"]) == len(beaten["beaten"]) == len(beaten["farther"]) == 10


def test_the_leader_decides_the_size(tmp_path):
    record = compare(replace(PLAN, methods=("random", "cdt")), tmp_path, load)
    assert [row["method"] for row in record["rows"]] == ["cdt", "random"]
    assert record["rows"][0]["size"] == record["rows"][1]["size"] == 2


def test_finished_cells_are_not_run_again(tmp_path):
    first = compare(PLAN, tmp_path, load)

    def never(name):
        raise AssertionError("the model is loaded although every cell is there")

    said: list[str] = []
    assert compare(PLAN, tmp_path, never, said.append)["rows"] == first["rows"] or said
    assert all(line.endswith("already there") for line in said)
    more = compare(replace(PLAN, seeds=(0, 1)), tmp_path, load, said.append)
    assert {row["seed"] for row in more["rows"]} == {0, 1}


def test_a_killed_run_goes_on(tmp_path):
    seeds = tuple(range(40))
    code = f"""
from pathlib import Path
from unweave.experiments.comparison_cells import Budget
from unweave.experiments.compare import Plan, compare
from unweave.model.loading import load
budget = Budget("mean", 12, 12, draws=10)
plan = Plan(({NAME!r},), ("eap", "patching"), {NAME!r}, {seeds}, budget)
compare(plan, Path({str(tmp_path)!r}), load)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment)
    deadline = time.monotonic() + 120
    while len([*tmp_path.glob("*--seed*.json")]) < 4:
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*--seed*.json")}
    assert 4 <= len(done) < 3 * len(seeds)
    assert not (tmp_path / "compare.json").exists()
    assert all(json.loads(path.read_text())["settings"] for path in done)
    few = max(int(path.stem.rpartition("seed")[2]) for path in done) + 1
    said: list[str] = []
    compare(replace(PLAN, seeds=tuple(range(few))), tmp_path, load, said.append)
    assert sum(line.endswith("already there") for line in said) == len(done)
    assert all(path.stat().st_mtime_ns == changed for path, changed in done.items())


def test_other_settings_are_not_mixed(tmp_path):
    compare(PLAN, tmp_path, load)
    other = replace(PLAN, budget=replace(PLAN.budget, ablation="zero"))
    with pytest.raises(UnweaveError, match="ablation = 'mean', now it is 'zero'"):
        compare(other, tmp_path, load)


def test_a_broken_cell_is_named(tmp_path):
    (tmp_path / f"{NAME}--eap--seed0.json").write_text("{")
    with pytest.raises(UnweaveError, match=r"eap--seed0\.json is no JSON.*delete it"):
        compare(PLAN, tmp_path, load)


def test_a_cell_that_fails_is_told_and_tried_again(tmp_path, monkeypatch):
    def fail(problem, options):
        raise UnweaveError("no gradients today: come back")

    good = methods["eap"]
    monkeypatch.setitem(methods._entries, "eap", Method("eap", "fails", fail))
    record = compare(PLAN, tmp_path, load)
    rows = {row["method"]: row for row in record["rows"]}
    assert rows["eap"]["error"] == "no gradients today: come back"
    assert rows["patching"]["auc"] == 1.0
    monkeypatch.setitem(methods._entries, "eap", good)
    assert not any("error" in row for row in compare(PLAN, tmp_path, load)["rows"])


def test_a_model_that_fails_the_task(tmp_path):
    record = compare(replace(PLAN, tasks=("wired-inhibition",)), tmp_path, load)
    assert all("single tokens" in row["error"] for row in record["rows"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": ("pathing",)}, "unknown method 'pathing': did you mean patching"),
        ({"tasks": ("io",)}, "unknown task 'io': did you mean ioi"),
        ({"tasks": ()}, "nothing to compare"),
    ],
)
def test_unknown_names_before_anything_is_run(tmp_path, change, message):
    with pytest.raises(UnweaveError, match=message):
        compare(replace(PLAN, **change), tmp_path, lambda name: pytest.fail("loaded"))


def test_between_two_sizes():
    curve = {"sizes": [0, 2, 4], "faithfulness": [0.0, 1.0, 2.0]}
    assert [value_at(curve, size) for size in (0, 1, 2, 3, 4)] == [0.0, 0.5, 1.0, 1.5, 2.0]


def test_means_over_seeds():
    base = {"task": "t", "method": "m", "size": 2, "auc": None, "k95": 3}
    found = summary([base | {"seed": 0, "cmd": 0.1}, base | {"seed": 1, "cmd": 0.3, "k95": None}])
    assert found[0]["cmd"] == pytest.approx(0.2)
    assert found[0]["k95"] is None
    assert found[0]["spread"]["cmd"] == pytest.approx(0.2 / 2**0.5)


def test_misses_of_two_seeds_do_not_cancel():
    curve = {"cmd": 0.1, "cpr": 0.9, "k80": 1, "k95": 1}
    cell = {"task": "t", "method": "m", "curve": curve, "roc": {}, "circuit": ["a0.h0"]}
    cells = [
        cell | {"seed": seed, "faithfulness": f, "seconds": 1.0, "curves": {}}
        for seed, f in enumerate((1.1, 0.9))
    ]
    found = summary([row(cell, {"error": "none"}, None) for cell in cells])[0]
    assert found["faithfulness"] == pytest.approx(1.0)
    assert found["off"] == pytest.approx(0.1)
