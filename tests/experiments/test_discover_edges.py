"""`discover --level edge`: figures against slow runs, files, resuming, and what it refuses."""

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from oracles.deaths import Deadly, Death, result
from oracles.edge_runs import plain_edge_faithfulness
from safetensors.torch import load_file

from unweave import cli
from unweave.behaviours.synthetic.known_edges import known_edges
from unweave.circuits import Circuit
from unweave.errors import UnweaveError
from unweave.experiments import files
from unweave.experiments.compare import Comparison, compare
from unweave.experiments.discover import discover
from unweave.experiments.edge_experiment import EdgeExperiment
from unweave.experiments.evaluate import evaluate_run
from unweave.experiments.methods import find_method
from unweave.experiments.run_folder import read_run
from unweave.experiments.specification import Experiment, Specification
from unweave.model.loading import load
from unweave.model.model import Model
from unweave.report.circuit_files import read_circuit
from unweave.report.data import page_data
from unweave.report.exports import eap_ig, edges_csv, neuronpedia
from unweave.report.folder import read_shown

TASK = "wired-induction"


@pytest.fixture(scope="module")
def wired() -> Model:
    return load(TASK)


def specification(**changes: Any) -> Specification:
    usual = {"ablation": "counterfactual", "prompts": 6, "held_out": 6, "level": "edge"}
    return Specification(TASK, TASK, **usual | changes)


@pytest.fixture(scope="module")
def folder(wired: Model, tmp_path_factory: Any) -> Path:
    found = tmp_path_factory.mktemp("edges") / "run"
    discover(wired, TASK, specification(), found)
    return found


@pytest.mark.parametrize("ablation", ["mean", "counterfactual"])
def test_faithfulness_is_that_of_slow_runs(wired: Model, ablation: str) -> None:
    how = specification(ablation=ablation)
    circuit = discover(wired, TASK, how)
    edges = EdgeExperiment(Experiment.set_up(how, wired))
    names = [edge.name for edge in circuit.edges]
    assert circuit.faithfulness == pytest.approx(
        plain_edge_faithfulness(edges.held_out, names), abs=1e-4
    )
    assert circuit.found == pytest.approx(plain_edge_faithfulness(edges.discovery, names), abs=1e-4)
    check = edges.problem("check", 6)
    whole = plain_edge_faithfulness(check, names)
    for edge in circuit.edges:
        left = [name for name in names if name != edge.name]
        assert edge.effect == pytest.approx(
            whole - plain_edge_faithfulness(check, left), abs=1e-4
        ), edge.name
    for node in circuit.nodes:
        left = [name for name in names if f"{node}->" not in name and f">{node}<" not in name]
        effect = whole - plain_edge_faithfulness(check, left)
        assert circuit.evidence[node].effect == pytest.approx(effect, abs=1e-4), node


def test_the_files_tell_the_graph(wired: Model, folder: Path) -> None:
    record = json.loads((folder / "circuit.json").read_text())
    known = known_edges(Experiment.set_up(specification(), wired).task, TASK, "counterfactual")
    assert record["level"] == "edge"
    assert record["edges_total"] == 193
    assert {edge["edge"] for edge in record["edges"]} == {*known}
    assert {node["site"] for node in record["nodes"]} == {"a1.h2", "a2.h0"}
    run = read_run(folder)
    assert run.circuit.to_json() == record
    assert run.specification.mlps is True
    assert run.edge_scores is not None
    assert len(run.edge_scores.ranking()) == 193
    assert run.edge_scores.ranking()[: len(known)] == [edge.name for edge in run.circuit.edges]
    assert load_file(folder / "edges.safetensors")["values"].shape == (193,)
    assert "5 of 193 edges among 2 nodes reproduce" in run.record["verdict"]["sentence"]
    curve = run.record["edge_curve"]
    assert curve["faithfulness"][-1] == pytest.approx(1, abs=1e-4)
    assert curve["faithfulness"][0] == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("at", [2, 4, 7, 11, 14])
def test_a_death_changes_nothing(
    folder: Path, wired: Model, tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, again = files.write_whole, tmp_path / "run"
    modules = ("files", "run_folder")
    for module in modules:
        monkeypatch.setattr(f"unweave.experiments.{module}.write_whole", Deadly(at, at % 2 == 0))
    with pytest.raises(Death):
        discover(wired, TASK, specification(), again)
    for module in modules:
        monkeypatch.setattr(f"unweave.experiments.{module}.write_whole", write)
    discover(wired, TASK, specification(), again, resume=True)
    assert result(again) == result(folder)


def test_evaluate_measures_the_edges(
    wired: Model, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    record = evaluate_run(read_run(copy), lambda how: wired, draws=2)
    circuit = read_run(copy).circuit
    assert record["size"] == len(circuit.edges)
    assert record["nodes"] == 193
    main = record["faithfulness"]["counterfactual"]
    assert main["value"] == pytest.approx(circuit.faithfulness, abs=1e-6)
    assert record["known"]["published"] == pytest.approx(1, abs=0.02)
    assert {*record["minimality"]["effects"]} == {edge.name for edge in circuit.edges}
    assert record["curves"]["counterfactual"]["sizes"][-1] == 193
    shown = page_data(read_shown(copy))
    assert shown["evaluation"]["curves"]["counterfactual"]["sizes"][-1] == 193
    # The command prints what was just measured, and says of what.
    assert cli.main(["evaluate", str(copy), "-q", "--draws", "2"]) == 0
    told = capsys.readouterr().out
    assert "5 of 193 edges" in told
    assert "0 edges change faithfulness by less than 0.01" in " ".join(told.split())
    assert "node" not in told


def test_an_edge_that_the_model_does_not_have(wired: Model, folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    record = json.loads((copy / "circuit.json").read_text())
    record["edges"][0]["edge"] = "a0.h0->a9.h0<q>"
    files.write_json(copy / "circuit.json", record)
    with pytest.raises(UnweaveError, match="h0<q> is not an edge of wired-induction"):
        evaluate_run(read_run(copy), lambda how: wired, draws=2)
    record["edges"][0]["edge"] = "a0.h0->a9.h0<w>"
    files.write_json(copy / "circuit.json", record)
    with pytest.raises(UnweaveError, match="is not an edge: expected"):
        read_run(copy)


def test_the_page_draws_edges_into_q_k_and_v(folder: Path) -> None:
    run = read_shown(folder)
    shown = page_data(run)
    sites = shown["nodes"]["site"]
    names = {-1: "input", -2: "logits", **dict(enumerate(sites))}
    drawn = {
        f"{names[a]}->{names[b]}" + (f"<{branch}>" if branch else "")
        for a, b, branch, *_ in shown["edges"]
    }
    assert drawn == {edge.name for edge in run.circuit.edges}
    assert shown["counted"] == {"what": "edges", "size": 5, "total": 193}
    assert shown["size"] == 2


def test_exports(folder: Path, tmp_path: Path) -> None:
    run = read_shown(folder)
    names = [edge.name for edge in run.circuit.edges]
    rows = list(csv.DictReader(io.StringIO(edges_csv(run))))
    assert [row["edge"] for row in rows] == names
    assert [row["branch"] for row in rows if row["target"] == "logits"] == [""]
    graph = json.loads(eap_ig(run))
    assert {name for name, edge in graph["edges"].items() if edge["in_graph"]} == {*names}
    assert {name for name, node in graph["nodes"].items() if node["in_graph"]} == {
        "input", "logits", *run.circuit.nodes,
    }  # fmt: skip
    assert run.edge_scores is not None
    for name in run.edge_scores.edges[::17]:
        assert graph["edges"][name]["score"] == pytest.approx(run.edge_scores[name])
    files.write_json(tmp_path / "graph.json", graph)
    assert read_circuit(tmp_path / "graph.json") == run.circuit
    links = json.loads(neuronpedia(run))["links"]
    assert len(links) == 2  # a1.h2 → a2.h0 → logits; the input is no node of that format


def test_compare_at_the_level_of_edges(wired: Model, tmp_path: Path) -> None:
    base = specification()
    methods = tuple(find_method(name) for name in ("cdt", "eap-ig", "patching"))
    comparison = Comparison((TASK,), base, methods, draws=2)
    record = compare(comparison, tmp_path, lambda name: wired)
    rows = {row["method"]: row for row in record["rows"]}
    assert rows["cdt"]["size"] == 5
    assert rows["eap-ig"]["faithfulness"] == pytest.approx(1, abs=0.05)
    assert "score patching rates nodes, not edges" in rows["patching"]["error"]
    again = compare(comparison, tmp_path, lambda name: wired)
    assert again["rows"] == record["rows"]
    assert {method.name for method in Comparison((TASK,), base).checked().methods} >= {
        "cdt", "eap", "eap-ig",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"level": "path"}, "level 'path': expected node or edge"),
        ({"granularity": "neuron"}, "use granularity head"),
        ({"method": "patching"}, "score patching rates nodes, not edges: .*eap"),
        ({"search": "algorithm1"}, "search algorithm1 finds nodes, not edges: .*eliminate"),
        ({"options": {"edge_price": -1.0}}, "edge_price is -1.0"),
    ],
)
def test_what_it_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnweaveError, match=message):
        specification(**changes)


def test_mlps_are_on_for_edges_only() -> None:
    assert specification().mlps is True
    assert specification(level="node").mlps is False
    assert specification(mlps=False).mlps is False
    read = Specification.from_dict(specification().to_dict())
    assert (read.level, read.mlps) == ("edge", True)


def test_without_mlps_as_nodes_they_stay_in_the_circuit() -> None:
    model = load("wired-induction")
    how = specification(mlps=False)
    edges = EdgeExperiment(Experiment.set_up(how, model))
    assert edges.joined(["a1.h2"]) == ("a1.h2", *map(str, model.mlps()))


def test_a_circuit_without_a_level_is_one_of_nodes() -> None:
    record = {
        "schema_version": 2, "task": "t", "model": "m", "method": "x", "total": 4,
        "nodes": [{"site": "a0.h0"}], "edges": [{"edge": "input->a0.h0<q>", "score": 1.0}],
    }  # fmt: skip
    circuit = Circuit.from_json(record)
    assert circuit.level == "node"
    assert circuit.parts == "1 of 4 nodes"
