"""The main job, end to end: on a hand-wired model whose circuit is known, and on the real one."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from unweave.behaviours.file import find_task
from unweave.circuits import Circuit, Scores
from unweave.errors import UnweaveError
from unweave.experiments.discover import discover
from unweave.experiments.specification import Plan, set_up
from unweave.model.loading import load
from unweave.model.model import Model
from unweave.patching.circuits import run_circuits
from unweave.patching.flips import run_flips
from unweave.scores import cdt
from unweave.scores.problem import Problem, methods
from unweave.search.eliminate import WORST, eliminate, nested, polish, standard
from unweave.sites import Site

TASK = "wired-induction"
TIMES = {"created", "seconds", "command"}


@pytest.fixture(scope="module")
def wired() -> Model:
    return load(TASK)


def plan(**changes: object) -> Plan:
    return Plan(TASK, TASK, ablation="counterfactual", discover=8, evaluate=8, **changes)


@pytest.fixture(scope="module")
def problem(wired: Model) -> Problem:
    return set_up(plan(), wired, find_task(TASK)).find


def test_the_circuit_of_the_wired_model_is_its_known_one(wired: Model, tmp_path: Path) -> None:
    circuit = discover(wired, TASK, plan(), tmp_path / "run")
    known = find_task(TASK).known_circuit(TASK)
    assert known is not None
    assert set(circuit.nodes) == {str(node) for node in known.nodes}
    assert circuit.faithfulness == pytest.approx(1, abs=0.05)


def test_the_run_folder_tells_everything(wired: Model, tmp_path: Path) -> None:
    circuit = discover(wired, TASK, plan(), tmp_path)
    run = json.loads((tmp_path / "run.json").read_text())
    record = json.loads((tmp_path / "circuit.json").read_text())
    assert Circuit.from_json(record) == circuit
    assert {"site", "score"} == set(record["nodes"][0])
    assert run["schema_version"] == 1
    assert len(run["prompts"]["discover"]) == 8
    assert not {p["clean"] for p in run["prompts"]["discover"]} & {
        p["clean"] for p in run["prompts"]["evaluate"]
    }
    assert run["iterations"][0]["targets"] == ["logits"]
    scores = Scores.load(tmp_path / "scores.safetensors")
    assert set(scores.order) == set(scores.sources)
    assert list(scores.order[: circuit.size]) == list(circuit.nodes)
    assert not (tmp_path / "state.json").exists()


def test_one_seed_gives_identical_files(wired: Model, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        discover(wired, TASK, plan(), folder)
    first, second = (json.loads((f / "run.json").read_text()) for f in folders)
    assert {k: v for k, v in first.items() if k not in TIMES} == {
        k: v for k, v in second.items() if k not in TIMES
    }
    for name in ("circuit.json", "scores.safetensors", "patterns.safetensors"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


_RUN = """
import sys
from unweave.model.loading import load
from unweave.experiments.discover import discover
from unweave.experiments.specification import Plan
task, folder = sys.argv[1:]
plan = Plan(task, task, ablation="counterfactual", discover=8, evaluate=8)
discover(load(task), task, plan, folder, resume=True)
"""


def test_killed_at_random_points_and_resumed(wired: Model, tmp_path: Path) -> None:
    """However often the process is killed, going on gives what an uninterrupted run gives."""
    expected = discover(wired, TASK, plan(), tmp_path / "whole")
    folder, rng, kills = tmp_path / "killed", random.Random(0), 0
    for _ in range(12):
        process = subprocess.Popen(
            [sys.executable, "-c", _RUN, TASK, str(folder)], env={**os.environ}
        )
        began = time.monotonic()
        while not folder.exists() and process.poll() is None:
            time.sleep(0.01)
        try:
            # From the folder's first file to the end takes about a second.
            process.wait(timeout=rng.uniform(0.05, 0.3) * (1 + kills))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            continue
        assert process.returncode == 0, time.monotonic() - began
        break
    resumed = discover(wired, TASK, plan(), folder, resume=True)
    assert resumed == expected
    assert kills > 0
    assert not list(folder.glob(".*part"))
    whole = Scores.load(tmp_path / "whole" / "scores.safetensors")
    assert Scores.load(folder / "scores.safetensors").order == whole.order


def test_an_interrupted_search_goes_on_where_it_stood(wired: Model, tmp_path: Path) -> None:
    expected = discover(wired, TASK, plan(), tmp_path / "whole")
    from unweave.experiments.folder import RunFolder

    class Stop(Exception):
        pass

    saved = RunFolder.save_search
    calls = 0

    def stops(self: RunFolder, search: object) -> None:
        nonlocal calls
        saved(self, search)
        calls += 1
        if calls == 2:
            raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "save_search", stops)
        with pytest.raises(Stop):
            discover(wired, TASK, plan(), tmp_path / "part")
    assert discover(wired, TASK, plan(), tmp_path / "part", resume=True) == expected


def test_toggles_equal_the_circuits_run_one_by_one(problem: Problem) -> None:
    circuit, nodes = problem.nodes[::2], problem.nodes
    fast = run_flips(problem.model, problem.batch, circuit, nodes, problem.points, problem.ablation)
    slow = run_circuits(
        problem.model,
        problem.batch,
        [tuple(set(circuit) ^ {node}) for node in nodes],
        problem.points,
        problem.ablation,
    )
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-5)


@pytest.fixture(scope="module")
def many(problem: Problem) -> Problem:
    """Enough nodes that they leave in blocks."""
    nodes = tuple(node.at(position) for node in problem.nodes for position in (0, 1, -2, -1))
    return replace(problem, nodes=nodes)


@pytest.mark.parametrize("every", [False, True])
def test_elimination_is_nested_and_its_losses_are_those_of_its_circuits(
    many: Problem, every: bool
) -> None:
    problem, against = many, standard(many)
    steps = list(eliminate(problem, problem.nodes, against, math.inf, price=0.01, every=every))
    assert any(len(step.removed) > 1 for step in steps) != every
    order = nested(problem.nodes, steps)
    assert sorted(map(str, order)) == sorted(map(str, problem.nodes))
    circuits = [tuple(order[: step.size]) for step in steps]
    losses = against.loss(problem.metric(circuits)).tolist()
    assert [step.loss for step in steps] == pytest.approx(losses, abs=1e-5)
    assert [step.size for step in steps] == sorted({step.size for step in steps}, reverse=True)


def test_elimination_goes_on_from_any_step(many: Problem) -> None:
    against = standard(many)
    steps = list(eliminate(many, many.nodes, against, math.inf))
    for count in (1, 3, len(steps) - 1):
        rest = eliminate(many, many.nodes, against, math.inf, done=steps[:count])
        assert list(rest) == steps[count:]


def test_polish_ends_where_no_single_change_pays(many: Problem) -> None:
    against, price = standard(many), 0.005
    steps = list(eliminate(many, many.nodes, against, math.inf))
    order = nested(many.nodes, steps)
    size = min(step.size for step in steps if step.loss <= WORST)
    start, left = tuple(order[:size]), order[size : size + 8]

    def value(circuit: tuple[Site, ...]) -> float:
        return float(against.loss(many.metric([circuit]))[0]) + price * len(circuit)

    found = polish(many, start, left, against, price, len(many.nodes))
    assert value(found) <= value(start) + 1e-6
    for node in (*start, *left):
        changed = tuple(set(found) ^ {node})
        assert not changed or value(changed) >= value(found) - 1e-5
    assert len(polish(many, start, left, against, 0.0, size)) <= size
    nothing = tuple(order[-2:])
    assert value(nothing) > WORST
    assert polish(many, nothing, left, against, price, len(many.nodes)) == nothing


def test_what_follows_the_circuit_raises_and_lowers_in_turn() -> None:
    effect = {"a": 0.4, "b": -0.2, "c": 0.1, "d": 0.3, "e": -0.9, "f": 0.0, "g": 0.5}

    def measure(more: Sequence[str]) -> float:
        return 0.15 - sum(effect[name] for name in more)

    # 0.15 is missing: a is 0.25 too much, b not enough, e 0.85 too much.
    assert cdt.in_turn("", "abcdef", effect, measure) == list("abecdf")
    # What is measured counts: a, c and d did nothing, so g comes before b.
    assert cdt.in_turn("", "abcdefg", effect, lambda more: 0.75) == list("acdgbef")


def test_tried_nodes_follow_as_they_are_needed() -> None:
    effect = {"a": 0.4, "b": -0.2, "c": 0.1, "d": 0.0, "e": -0.1, "f": 0.3}
    asked = []

    def measure(more: Sequence[str]) -> float:
        asked.append(len(more))
        return 0.15 - sum(effect[name] for name in more)

    # 0.15 is missing: c is nearest. Then 0.05: b is 0.25 away, a 0.35. d does nothing.
    assert cdt.in_turn("abcd", "ef", effect, measure) == list("cbaefd")
    assert asked == [0, 3]


def test_every_node_is_ranked_and_the_order_after_the_circuit_can_be_made_again(
    many: Problem,
) -> None:
    options = methods["cdt"].checked({})
    scores = cdt.sweep(many, options)
    found = cdt.search(many, scores, options)
    order = cdt.ranking(scores, found)
    assert sorted(order) == sorted(map(str, many.nodes))
    assert order[: len(found.rounds[-1].circuit)] == list(found.rounds[-1].circuit)
    again = cdt.search(many, scores, options, replace(found, after=()))
    assert again == found
    told = json.dumps(found.to_dict())
    assert json.dumps(cdt.Search.from_dict(json.loads(told)).to_dict()) == told


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"select": "top:3", "refine": "none"}, 3),
        ({"select": "fraction:0.5", "refine": "greedy"}, 100),
        ({"select": "percentile:90", "refine": "none"}, 100),
        ({"select": "outliers:1.5", "refine": "greedy", "rules": "paper"}, 100),
        ({"max_size": 2}, 2),
        ({"normalise": True, "measure": "signed", "iterations": 2, "tolerance": 0.0}, 100),
    ],
)
def test_options_of_the_search(wired: Model, options: dict, most: int) -> None:
    circuit = discover(wired, TASK, plan(options=options))
    assert 1 <= circuit.size <= most


@pytest.mark.parametrize("granularity", ["head", "head@position"])
def test_granularity(wired: Model, granularity: str) -> None:
    circuit = discover(wired, TASK, plan(granularity=granularity))
    assert all(("@" in node) == (granularity == "head@position") for node in circuit.nodes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": {"select": "most:3"}}, "expected top:N"),
        ({"options": {"selekt": "top:3"}}, "did you mean select"),
        ({"options": {"rules": "papr"}}, "did you mean paper"),
        ({"method": "cdtt"}, "did you mean cdt"),
        ({"granularity": "layer"}, "expected head or head@position"),
    ],
)
def test_bad_plans(wired: Model, changes: dict, message: str) -> None:
    with pytest.raises(UnweaveError, match=message):
        discover(wired, TASK, plan(**changes))


def test_a_folder_with_something_in_it_is_left_alone(wired: Model, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UnweaveError, match="is not empty"):
        discover(wired, TASK, plan(), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_resuming_with_other_options_is_refused(wired: Model, tmp_path: Path) -> None:
    discover(wired, TASK, plan(), tmp_path)
    with pytest.raises(UnweaveError, match="seed was 0, is 1"):
        discover(wired, TASK, plan(seed=1), tmp_path, resume=True)


def test_the_real_model_on_a_real_task(smollm2: Model) -> None:
    """A small run: the circuit that is found carries the behaviour on other prompts."""
    small = Plan(
        "greater-than",
        "smollm2-135m",
        discover=4,
        evaluate=8,
        ablation="counterfactual",
        options={"rules": "frozen", "select": "fraction:0.1", "pairs": False},
    )
    circuit = discover(smollm2, "greater-than", small)
    assert circuit.size <= 27
    assert circuit.faithfulness > 0.5
    assert "a20.h8" in circuit.nodes
