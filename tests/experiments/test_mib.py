"""MIB's protocol against transformers with hooks, and the files of a submission."""

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import torch
from oracles.hooked_gpt2 import node_names, patched_logits
from torch import Tensor

from unweave.behaviours.file import find_task
from unweave.errors import UnweaveError
from unweave.evaluation.mib import SHARES
from unweave.experiments.mib import (
    MibLevel,
    Ranked,
    measure_items,
    mib_method,
    mib_nodes,
    mib_problem,
    rank_items,
    read_level,
)
from unweave.experiments.mib_folder import MibTable, graph_config, pack, run_table
from unweave.graph import graph_of
from unweave.model.checkpoint import architectures
from unweave.model.loading import load
from unweave.patching.circuits import run_circuits
from unweave.patching.edges import run_edge_circuits
from unweave.patching.flips import run_flips
from unweave.scores.neurons import NeuronScores, score_neurons
from unweave.scores.problem import Problem
from unweave.scores.score import scores
from unweave.testing.oracle import build
from unweave.testing.problem import paired_ablation, tiny_problem

BOUND = 1e-9


def gpt2_problem(rows: int = 3) -> Problem:
    """Random prompts of a tiny GPT-2 in float64, with MIB's nodes."""
    problem = tiny_problem("gpt2", rows=rows)
    nodes = mib_nodes(problem.model)
    ablation = paired_ablation(problem.model, problem.batch, nodes)
    return replace(problem, nodes=nodes, ablation=ablation)


def twin():
    return build(next(iter(architectures["gpt2"].tiny.values())), torch.float64)


def slow_areas(problem: Problem, values: Tensor, absolute: bool) -> tuple[float, float]:
    """CPR and CMD by transformers' own forward pass, one circuit at a time.

    Args:
        values: A score a node, or a row of scores a node for its neurons.
    """
    hf, batch = twin(), problem.batch
    names, width = node_names(hf), hf.config.n_embd
    table = values if values.ndim == 2 else values[:, None]
    flat = (table.abs() if absolute else table).flatten()
    order = sorted(range(len(flat)), key=lambda i: -float(flat[i]))

    def metric(count: int) -> float:
        mask = torch.zeros(len(flat), dtype=torch.bool)
        mask[order[:count]] = True
        mask = mask.view(table.shape).expand(len(names), width)
        kept = dict(zip(names, mask, strict=True))
        logits = patched_logits(hf, batch.clean.tokens, batch.corrupted.tokens, kept)
        total = 0.0
        for row, at in enumerate(batch.readout.read.tolist()):
            answer, other = batch.readout.answers[row, 0], batch.readout.distractors[row, 0]
            total += float(logits[row, at, answer] - logits[row, at, other])
        return total / len(logits)

    empty, full = metric(0), metric(len(flat))
    f = [(metric(int(share * len(flat))) - empty) / (full - empty) for share in SHARES]
    steps = list(zip(SHARES, SHARES[1:], f, f[1:], strict=False))
    cpr = sum((b - a) * (y + z) / 2 for a, b, y, z in steps)
    cmd = sum((b - a) * (abs(1 - y) + abs(1 - z)) / 2 for a, b, y, z in steps)
    return cpr, cmd


@pytest.mark.parametrize("name", ["eap", "gim", "decomposition"])
def test_node_areas_equal_transformers_with_hooks(name):
    problem = gpt2_problem()
    ranked = rank_items(problem, mib_method(name), "node")
    found = measure_items(problem, ranked, "node")
    assert abs(found.cpr - slow_areas(problem, ranked.found.values, absolute=False)[0]) < BOUND
    assert abs(found.cmd - slow_areas(problem, ranked.found.values, absolute=True)[1]) < BOUND
    assert found.signed.counts[-1] == len(problem.nodes)
    assert found.signed.faithfulness[-1] == pytest.approx(1.0)


def test_neuron_areas_equal_transformers_with_hooks():
    problem = gpt2_problem()
    ranked = rank_items(problem, mib_method("eap-ig:steps=3"), "neuron")
    values = ranked.found.values
    assert isinstance(ranked.found, NeuronScores)
    assert ranked.found.nodes == tuple(node_names(twin()))
    found = measure_items(problem, ranked, "neuron")
    assert found.signed.counts[-1] == values.numel()
    assert abs(found.cpr - slow_areas(problem, values, absolute=False)[0]) < BOUND
    assert abs(found.cmd - slow_areas(problem, values, absolute=True)[1]) < BOUND


@pytest.mark.parametrize(("name", "options"), [("eap", {}), ("eap-ig", {"steps": 3})])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_neurons_add_up_to_their_node(family, name, options):
    problem = tiny_problem(family)
    problem = replace(problem, nodes=mib_nodes(problem.model))
    whole = scores[name].run(problem, options).values
    parts = score_neurons(problem, name, scores[name].filled(options)).values
    assert (parts.sum(1) - whole).abs().max() < BOUND
    assert whole.abs().max() > 1e-4


def test_edges_are_kept_by_share():
    problem = tiny_problem("llama", layers=2)
    problem = replace(problem, nodes=mib_nodes(problem.model))
    ranked = rank_items(problem, mib_method("eap"), "edge")
    found = measure_items(problem, ranked, "edge")
    edges = scores["eap"].run_edges(problem)
    full = run_circuits(problem.model, problem.batch, [()], (), problem.ablation)[0].mean()
    for signed, curve in ((True, found.signed), (False, found.absolute)):
        order = edges.ranking(signed=signed)
        circuits = [order[: int(share * len(order))] for share in SHARES]
        runs = run_edge_circuits(problem.model, problem.batch, [*circuits, []], problem.ablation)
        metric = runs.mean(1)
        expected = (metric[:-1] - metric[-1]) / (full - metric[-1])
        accuracy = (runs[:-1] > 0).double().mean(1)
        assert curve.faithfulness == pytest.approx(expected.tolist(), abs=BOUND)
        assert curve.accuracy == pytest.approx(accuracy.tolist(), abs=BOUND)


def test_the_embedding_can_be_flipped():
    """Exact patching of the input, which no block holds."""
    problem = gpt2_problem()
    for circuit in ((), problem.nodes, problem.nodes[1:4]):
        circuits = [tuple({*circuit} ^ {node}) for node in problem.nodes]
        where = problem.model, problem.batch
        flipped = run_flips(*where, circuit, problem.nodes, problem.points, problem.ablation)
        assert (flipped - problem.metric(circuits)).abs().max() < BOUND


def test_a_search_has_one_order():
    task, model = find_task("wired-relay"), load("wired-relay")
    problem = mib_problem(task, model, "discover", 8)
    ranked = rank_items(problem, mib_method("eap+eliminate"), "node")
    assert ranked.signed == ranked.absolute
    assert sorted(ranked.signed) == list(range(len(problem.nodes)))


def bad(call, *words: str) -> None:
    with pytest.raises(UnweaveError) as error:
        call()
    for word in words:
        assert word in str(error.value)


def test_errors_say_what_there_is():
    problem = gpt2_problem()
    bad(lambda: read_level("nodes"), "'nodes'", "node")
    bad(lambda: mib_method("eapp"), "eapp", "eap")
    bad(lambda: mib_method("eap-ig:step=5"), "step")
    bad(lambda: rank_items(problem, mib_method("gim"), "edge"), "gim", "eap-ig")
    bad(lambda: rank_items(problem, mib_method("gim"), "neuron"), "gim", "eap")
    bad(lambda: rank_items(problem, mib_method("cdt"), "edge"), "cdt", "level edge")
    bad(lambda: mib_nodes(tiny_problem("bert", "masked lm").model), "decoders", "bert")


NODE = {
    "type": "object",
    "properties": {
        "in_graph": {"type": "boolean"},
        "score": {"type": "number"},
        "neurons": {"type": "array", "items": {"type": "boolean"}},
        "neurons_scores": {"type": "array", "items": {"type": "number"}},
    },
    "required": ["in_graph"],
    "additionalProperties": False,
}
SHAPE = {"n_layers": "integer", "n_heads": "integer", "parallel_attn_mlp": "boolean"}
SHAPE |= {"d_model": "integer"}
# What EAP-IG's Graph.from_json reads.
SUBMISSION = {
    "type": "object",
    "properties": {
        "cfg": {
            "type": "object",
            "properties": {name: {"type": kind} for name, kind in SHAPE.items()},
            "required": [*SHAPE],
        },
        "nodes": {
            "type": "object",
            "propertyNames": {"pattern": r"^(input|logits|m\d+|a\d+\.h\d+)$"},
            "additionalProperties": NODE,
        },
        "edges": {
            "type": "object",
            "propertyNames": {
                "pattern": r"^(input|m\d+|a\d+\.h\d+)->(m\d+|logits|a\d+\.h\d+<[qkv]>)$"
            },
            "additionalProperties": {**NODE, "required": ["in_graph", "score"]},
        },
    },
    "required": ["cfg", "nodes", "edges"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("level", ["node", "edge", "neuron"])
def test_packed_files_are_what_mib_reads(tmp_path: Path, level: MibLevel) -> None:
    model = load("wired-relay")
    methods = (mib_method("eap"), mib_method("eap-ig:steps=2"))
    table = MibTable(("wired-relay",), "wired-relay", methods, level, (3, 4), 4, 4)
    record = run_table(table, model, tmp_path, lambda line: None)
    assert [result["seed"] for result in record["results"]] == [3, 3, 4, 4]
    (path,) = pack(tmp_path, "eap-ig:steps=2", tmp_path / "out", "my_gpt2")
    assert path == tmp_path / "out" / level / "wired-relay_my-gpt2" / "importances.json"
    found = json.loads(path.read_text())
    jsonschema.validate(found, SUBMISSION)
    graph = graph_of(model)
    assert found["cfg"] == graph_config(model)
    assert [*found["nodes"]] == [*graph.sources, "logits"]
    assert [*found["edges"]] == ([*graph.edges] if level == "edge" else [])
    problem = mib_problem(find_task("wired-relay"), model, "discover", 4, 3)
    ranked: Ranked = rank_items(problem, methods[1], level)
    packed = {
        "node": lambda: [found["nodes"][name]["score"] for name in graph.sources],
        "edge": lambda: [edge["score"] for edge in found["edges"].values()],
        "neuron": lambda: [found["nodes"][name]["neurons_scores"] for name in graph.sources],
    }[level]()
    assert torch.tensor(packed).sub(ranked.found.values).abs().max() < 1e-6


def test_packing_names_what_is_missing(tmp_path: Path) -> None:
    bad(lambda: pack(tmp_path, None, tmp_path), "mib.json", "is not there")
    table = MibTable(("wired-relay",), "wired-relay", (mib_method("gim"),), "edge", (0,), 2, 2)
    run_table(table, load("wired-relay"), tmp_path, lambda line: None)
    bad(lambda: pack(tmp_path, "eap", tmp_path), "no method 'eap'", "gim")
    bad(lambda: pack(tmp_path, None, tmp_path), "gim failed on every task and seed")
    (tmp_path / "mib.json").write_text('{"schema_version": 1}')
    bad(lambda: pack(tmp_path, None, tmp_path), "is broken")
