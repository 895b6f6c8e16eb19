"""The main job, end to end: on a hand-wired model whose circuit is known, and on the real one."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from oracles.circuit_runs import plain_faithfulness, plain_metric

from unweave.behaviours.file import find_task
from unweave.behaviours.prompt import Prompt
from unweave.behaviours.sampling import Part, key_hash
from unweave.behaviours.words import Words
from unweave.circuits import Circuit, Scores
from unweave.errors import UnweaveError
from unweave.experiments.discover import discover
from unweave.experiments.evaluate import evaluate_run
from unweave.experiments.methods import METHODS
from unweave.experiments.run_folder import read_run
from unweave.experiments.specification import Experiment, Specification
from unweave.model.loading import load
from unweave.model.model import Model

TASK = "wired-induction"
TIMES = {"created", "seconds", "command"}


@pytest.fixture(scope="module")
def wired() -> Model:
    return load(TASK)


def specification(**changes: Any) -> Specification:
    usual: dict[str, Any] = {"ablation": "counterfactual", "prompts": 8, "held_out": 8}
    return Specification(TASK, TASK, **usual | changes)


def known() -> set[str]:
    circuit = find_task(TASK).known_circuit(TASK)
    assert circuit is not None
    return {str(node) for node in circuit.nodes}


# The paper's pruning may drop a node that only works with others.
@pytest.mark.parametrize("method", sorted({*METHODS} - {"random", "cdt-paper"}))
def test_every_method_finds_the_wired_circuit(wired: Model, method: str) -> None:
    circuit = discover(wired, TASK, specification(method=method))
    assert set(circuit.nodes) >= known()
    assert circuit.faithfulness == pytest.approx(1, abs=0.05)
    assert circuit.method == method
    if method in ("cdt", "patching", "eap"):
        assert circuit.size == 2


def test_a_free_pair_of_score_and_search(wired: Model, tmp_path: Path) -> None:
    how = specification(score="eap-ig", search="eliminate", options={"steps": 3, "max_size": 1})
    circuit = discover(wired, TASK, how, tmp_path)
    record = json.loads((tmp_path / "run.json").read_text())
    assert circuit.method == record["method"] == "eap-ig+eliminate"
    assert (record["score"], record["search"]) == ("eap-ig", "eliminate")
    assert (record["options"]["steps"], record["options"]["max_size"]) == (3, 1)
    assert circuit.size == 1
    assert read_run(tmp_path).specification.to_dict() == how.to_dict()


def test_figures_are_those_of_plain_runs(wired: Model, tmp_path: Path) -> None:
    """Faithfulness, metric, curve and prompts of run.json, each by plain runs of the model."""
    how = specification(search="eliminate", options={"max_size": 1})
    circuit = discover(wired, TASK, how, tmp_path)
    record = json.loads((tmp_path / "run.json").read_text())
    experiment = Experiment.set_up(how, wired)
    discovery, held_out = experiment.discovery, experiment.held_out
    assert circuit.faithfulness == pytest.approx(plain_faithfulness(held_out, circuit.nodes), 1e-4)
    assert circuit.found == pytest.approx(plain_faithfulness(discovery, circuit.nodes), 1e-4)
    full, empty = plain_metric(held_out, []), plain_metric(held_out, held_out.nodes)
    assert record["metric"]["full"] == pytest.approx(float(full.mean()), 1e-5)
    assert record["metric"]["empty"] == pytest.approx(float(empty.mean()), 1e-5)
    outside = [node for node in held_out.nodes if str(node) not in circuit.nodes]
    own = plain_metric(held_out, outside)
    for row, prompt in enumerate(record["prompts"]["evaluate"]):
        assert prompt["metric"]["model"] == pytest.approx(float(full[row]), 1e-4)
        assert prompt["metric"]["circuit"] == pytest.approx(float(own[row]), 1e-4)
        assert prompt["metric"]["ablated"] == pytest.approx(float(empty[row]), 1e-4)
    ranking = Scores.load(tmp_path / "scores.safetensors").ranking()
    sizes, values = record["curve"]["sizes"], record["curve"]["faithfulness"]
    assert (sizes[0], sizes[-1]) == (0, len(held_out.nodes))
    for size, value in zip(sizes, values, strict=True):
        assert value == pytest.approx(plain_faithfulness(held_out, ranking[:size]), abs=1e-4)
    assert record["summary"]["k95"] == next(
        size for size, value in zip(sizes, values, strict=True) if value >= 0.95
    )


def test_held_out_prompts_of_seen_and_of_new_templates(wired: Model, tmp_path: Path) -> None:
    """Both figures with their errors, each by plain runs of its own prompts."""

    def sampler(words: Words, seed: int, part: Part) -> Iterator[Prompt]:
        for prompt in find_task(TASK).sampler(words, seed, part):
            yield replace(prompt, template=f"kind {key_hash(prompt) % 3}")

    task = replace(find_task(TASK), sampler=sampler, new_templates=("kind 1",))
    how = specification(held_out=10, options={"max_size": 1})
    circuit = discover(wired, task, how, tmp_path)
    run = read_run(tmp_path)
    experiment = Experiment.set_up(how, wired, task)
    assert "kind 1" not in experiment.discovery.batch.templates
    held_out = experiment.held_out
    outside = [node for node in held_out.nodes if str(node) not in circuit.nodes]
    full, empty = plain_metric(held_out, []), plain_metric(held_out, held_out.nodes)
    own, kinds = plain_metric(held_out, outside), run.record["verdict"]["templates"]
    counted = 0
    for name, is_new in (("seen", False), ("new", True)):
        templates = held_out.batch.templates
        rows = [i for i, kind in enumerate(templates) if (kind == "kind 1") == is_new]
        value = float((own - empty)[rows].mean() / (full - empty)[rows].mean())
        assert kinds[name]["value"] == pytest.approx(value, 1e-4)
        # The error of a ratio of means, by the delta method.
        gaps = (own - empty)[rows] - value * (full - empty)[rows]
        error = float(gaps.std() / len(rows) ** 0.5 / (full - empty)[rows].mean())
        low, high = kinds[name]["interval"]
        assert (high - low) / 2 == pytest.approx(1.96 * abs(error), 1e-3, abs=1e-6)
        assert kinds[name]["prompts"] == len(rows) > 0
        counted += len(rows)
    assert counted == circuit.prompts == 10
    # The curve beside them is of the same prompts, so that it cannot contradict them.
    assert run.record["curve"]["prompts"] == run.record["summary"]["prompts"] == circuit.prompts
    curve = dict(zip(*(run.record["curve"][key] for key in ("sizes", "faithfulness")), strict=True))
    assert curve[circuit.size] == pytest.approx(circuit.faithfulness, abs=1e-6)
    assert run.record["verdict"]["minimality"]["prompts"] == len(experiment.check.batch)
    # By its name the task is another one, whose prompts have no templates.
    with pytest.raises(UnweaveError, match=r"the prompts of .* changed since the run was made"):
        evaluate_run(run, lambda how: wired, n=10, parts=["roc"])
    discover(wired, TASK, how, tmp_path / "named")
    evaluated = evaluate_run(read_run(tmp_path / "named"), lambda how: wired, n=10, parts=["roc"])
    assert evaluated["templates"] == {}


def test_the_run_folder_tells_everything(wired: Model, tmp_path: Path) -> None:
    circuit = discover(wired, TASK, specification(), tmp_path)
    run, record = read_run(tmp_path), json.loads((tmp_path / "circuit.json").read_text())
    assert Circuit.from_json(record) == circuit == run.circuit
    assert run.record["schema_version"] == 2
    assert len(run.record["prompts"]["discover"]) == 8
    assert not {p["clean"] for p in run.record["prompts"]["discover"]} & {
        p["clean"] for p in run.record["prompts"]["evaluate"]
    }
    assert run.record["rounds"][0]["targets"] == ["logits"]
    assert run.scores is not None
    assert set(run.scores.order) == set(run.scores.sources)
    assert list(run.scores.order[: circuit.size]) == list(circuit.nodes)
    assert {path.name for path in tmp_path.iterdir()} == {
        "circuit.json",
        "explain.json",
        "patterns.safetensors",
        "run.json",
        "scores.safetensors",
    }


def test_one_seed_gives_identical_files(wired: Model, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        discover(wired, TASK, specification(), folder)
    first, second = (json.loads((f / "run.json").read_text()) for f in folders)
    assert {k: v for k, v in first.items() if k not in TIMES} == {
        k: v for k, v in second.items() if k not in TIMES
    }
    for name in ("circuit.json", "scores.safetensors", "patterns.safetensors"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        ({"search": "algorithm1", "options": {"select": "top:3", "prune": False}}, 12),
        ({"method": "cdt-paper", "options": {"select": "fraction:0.5", "rules": "linear"}}, 12),
        ({"search": "algorithm1", "options": {"select": "outliers:1.5", "rounds": 1}}, 3),
        ({"search": "top", "options": {"size": 3}}, 3),
        ({"options": {"max_size": 2}}, 2),
        ({"options": {"order": "left", "rounds": 1, "pool": 0.5}}, 12),
        ({"ablation": "zero", "method": "patching"}, 12),
    ],
)
def test_options(wired: Model, changes: dict[str, Any], most: int) -> None:
    how = specification(**changes)
    circuit = discover(wired, TASK, how)
    assert 1 <= circuit.size <= most
    assert circuit.total == 12
    held_out = Experiment.set_up(how, wired).held_out
    assert circuit.faithfulness == pytest.approx(plain_faithfulness(held_out, circuit.nodes), 1e-4)


def test_the_default_search_where_blocks_and_pools_act(wired: Model, tmp_path: Path) -> None:
    """A node for each head and token: far more than leave one by one, or join in one round."""
    how = specification(granularity="head@token", prompts=4)
    circuit = discover(wired, TASK, how, tmp_path)
    record = json.loads((tmp_path / "run.json").read_text())
    joined = record["rounds"][0]["selected"]
    assert circuit.total > 100
    assert 12 < len(joined) < circuit.total
    removed = [step["removed"] for one in record["rounds"] for step in one["steps"]]
    assert max(map(len, removed)) > 2, "blocks leave"
    assert circuit.size < len(joined) / 2
    assert {node.partition("@")[0] for node in circuit.nodes} == known()
    held_out = Experiment.set_up(how, wired).held_out
    assert circuit.faithfulness == pytest.approx(plain_faithfulness(held_out, circuit.nodes), 1e-4)
    assert circuit.found == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("granularity", "units", "positions"),
    [
        ("head", 12, {None}),
        ("head@position", 12, {"end", "other"}),
        ("head@token", 12, set(range(9))),  # the length of its prompts
        ("qkv", 36, {None}),
    ],
)
def test_granularity(
    wired: Model, granularity: str, units: int, positions: set[str | int | None]
) -> None:
    experiment = Experiment.set_up(specification(granularity=granularity), wired)
    assert {node.position for node in experiment.nodes} == positions
    assert len(experiment.nodes) == len(set(experiment.nodes)) == units * len(positions)


def test_positions_in_a_circuit(wired: Model) -> None:
    """The whole model is the whole model, whatever positions a circuit names."""
    how = specification(granularity="head@position")
    circuit = discover(wired, TASK, how)
    experiment = Experiment.set_up(how, wired)
    assert {node.partition("@")[0] for node in circuit.nodes} == known()
    whole = float(plain_metric(experiment.held_out, []).mean())
    assert float(experiment.held_out.reference.full.mean()) == pytest.approx(whole, 1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"search": "algorithm1", "options": {"select": "most:3"}}, "expected top:N"),
        ({"search": "algorithm1", "options": {"selekt": "top:3"}}, "did you mean select"),
        ({"method": "cdt", "options": {"rules": "papr"}}, "did you mean paper"),
        ({"options": {"max_size": -5}}, "a whole number from 0"),
        ({"options": {"price": float("nan")}}, "price is nan"),
        ({"options": {"rounds": True}}, "rounds is True"),
        ({"options": {"order": "foo"}}, "expected measured or left"),
        ({"method": "cdtt"}, "did you mean cdt"),
        ({"score": "eapp"}, "did you mean eap"),
        ({"search": "eliminat"}, "did you mean eliminate"),
        ({"granularity": "layer"}, "unknown node kind 'layer'"),
        ({"granularity": "head@"}, "expected head, head@position"),
        ({"granularity": "head@S2"}, "expected head, head@position"),
    ],
)
def test_bad_specifications(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnweaveError, match=message):
        specification(**changes)


def test_a_specification_is_read_back() -> None:
    how = specification(score="eap-ig", options={"steps": 3}, bos=True, mlps=True, seed=4)
    again = Specification.from_dict(json.loads(json.dumps(how.to_dict())))
    assert again.to_dict() == how.to_dict()
    assert again.resolved == how.resolved


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"task": "ioi"}, "needs the field 'model'"),
        ({"task": "ioi", "model": "m", "baseline": "x"}, "no field 'baseline'"),
        ({"task": 3, "model": "m"}, "task is 3: expected str"),
        ({"task": "ioi", "model": "m", "seed": "0"}, "seed is '0': expected int"),
        ({"task": "ioi", "model": "m", "options": []}, "options is"),
    ],
)
def test_broken_specifications(record: dict[str, Any], message: str) -> None:
    with pytest.raises(UnweaveError, match=message):
        Specification.from_dict(record)


def test_the_real_model_on_a_real_task(smollm2: Model) -> None:
    """The default search on SmolLM2: the circuit carries the behaviour on other prompts."""
    how = Specification(
        "greater-than",
        "smollm2-135m",
        prompts=2,
        held_out=4,
        ablation="counterfactual",
        options={"pool": 0.1, "rounds": 1, "order": "left"},
    )
    circuit = discover(smollm2, "greater-than", how, explain=False)
    assert circuit.total == 270
    assert 3 <= circuit.size <= 27
    assert abs(1 - circuit.faithfulness) < 0.5
    assert circuit.found == pytest.approx(
        plain_faithfulness(Experiment.set_up(how, smollm2).discovery, circuit.nodes), abs=1e-3
    )
