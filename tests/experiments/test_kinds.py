"""`discover` of neurons and MLPs, and with an ablation that a user adds."""

import json
from pathlib import Path
from typing import Any

import pytest
from oracles.circuit_runs import plain_faithfulness
from oracles.tiny_folders import GPT2, words

from unweave.ablation import ZERO, counterfactual
from unweave.ablations.kind import AblationKind, Apply, ablations
from unweave.errors import UnweaveError
from unweave.experiments.discover import discover
from unweave.experiments.evaluate import evaluate_run
from unweave.experiments.run_folder import read_run
from unweave.experiments.specification import Experiment, Specification
from unweave.model.algebra import Plain
from unweave.model.loading import load
from unweave.model.model import Model
from unweave.model.program import run
from unweave.sites import Point, parse
from unweave.testing.oracle import build

TASK = "wired-induction"


@pytest.fixture(scope="module")
def wired() -> Model:
    return load(TASK)


def specification(**changes: Any) -> Specification:
    usual: dict[str, Any] = {"ablation": "counterfactual", "prompts": 8, "held_out": 8}
    return Specification(TASK, TASK, **usual | changes)


LETTERS = ["abcd", "bcda", "cdab", "dabc", "acbd", "cadb", "dbca", "bdac"]


@pytest.fixture(scope="module")
def letters(tmp_path_factory: Any) -> tuple[Model, str]:
    """A tiny random GPT-2 with MLPs, and a file of prompts that it happens to answer."""
    folder = tmp_path_factory.mktemp("gpt2")
    build(GPT2).save_pretrained(folder)
    words(folder)
    model = load(str(folder))
    logits = run(model.network, model.inputs([f"{text}?" for text in LETTERS]), Plain())[:, -1]
    order = logits.mean(0)[1:9].argsort(descending=True).tolist()
    answer, distractor = ("abcdefgh"[i] for i in (order[0], order[-1]))
    rows = [
        {
            "clean": f"{text}?",
            "corrupted": f"{text[::-1]}?",
            "answer": answer,
            "distractor": distractor,
        }
        for text in LETTERS
    ]
    path = folder / "task.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return model, str(path)


@pytest.mark.parametrize(("granularity", "nodes"), [("neuron", 2 * 96), ("mlp", 2)])
def test_neurons_and_mlps_are_circuit_nodes(
    letters: tuple[Model, str], granularity: str, nodes: int, tmp_path: Path
) -> None:
    model, task = letters
    counts: dict[str, Any] = {"prompts": 4, "held_out": 2}
    how = Specification(task, model.name, granularity=granularity, ablation="zero", **counts)
    said: list[str] = []
    circuit = discover(model, task, how, tmp_path / "run", say=said.append)
    assert circuit.total == nodes
    kinds = {parse(name).point.kind for name in circuit.nodes}
    assert kinds == {granularity}
    held_out = Experiment.set_up(how, model).held_out
    assert circuit.faithfulness == pytest.approx(plain_faithfulness(held_out, circuit.nodes), 1e-4)
    # Roles are defined for MLPs, not for neurons: the circuit is found all the same.
    assert any("Not explained" in line for line in said) == (granularity == "neuron")
    assert read_run(tmp_path / "run").circuit == circuit


@pytest.mark.parametrize("level", ["node", "edge"])
def test_nodes_without_effect_are_an_error_before_anything_is_scored(
    wired: Model, level: str, tmp_path: Path
) -> None:
    def prepare(task: Any, model: Model, points: tuple[Point, ...], seed: int) -> Apply:
        return lambda batch: counterfactual(model, batch.clean, points)

    kind = AblationKind("itself", "every activation stands for itself", prepare)
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ablations._entries, "itself", kind)
        how = specification(ablation="itself", level=level)
        with pytest.raises(UnweaveError, match="there is no effect to be faithful to"):
            discover(wired, TASK, how, tmp_path / "run", say=said.append)
    assert not any("Scoring" in line for line in said)


def test_a_new_ablation_is_in_the_verdict_and_in_the_evaluation(
    wired: Model, tmp_path: Path
) -> None:
    def prepare(task: Any, model: Model, points: tuple[Point, ...], seed: int) -> Apply:
        return lambda batch: ZERO

    assert "mine" not in ablations
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ablations._entries, "mine", AblationKind("mine", "a file's own", prepare))
        discover(wired, TASK, specification(), tmp_path)
        record = json.loads((tmp_path / "run.json").read_text())["verdict"]["faithfulness"]
        assert list(record) == ["counterfactual", "mean", "mine", "zero"]
        assert record["mine"]["value"] == record["zero"]["value"]
        run = read_run(tmp_path)
        found = evaluate_run(run, lambda how: wired, parts=("roc",))
        assert {*found["faithfulness"]} == {"mean", "counterfactual", "mine", "zero"}
