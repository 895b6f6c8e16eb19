"""The contract of every score; exact patching and circuits of edges against one run at a time."""

from dataclasses import replace

import pytest
import torch
from oracles.copies import copies
from oracles.patched import patched

from unweave.circuits import Scores
from unweave.errors import UnweaveError
from unweave.graph import graph_of
from unweave.metrics import LOGIT_DIFFERENCE, PROBABILITY_DIFFERENCE
from unweave.patching.edges import run_edge_circuits, run_edges
from unweave.scores.score import Score, node_scores
from unweave.scores.score import scores as registered
from unweave.sites import Point
from unweave.testing.problem import tiny_problem
from unweave.testing.score import check_score


@pytest.mark.parametrize("name", list(registered))
def test_contract(name):
    check_score(name)


def broken(change) -> Score:
    return replace(registered["eap"], name="broken", nodes=change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p, o: node_scores(p, torch.zeros(len(p.nodes), len(p.batch))), "every score is 0"),
        (lambda p, o: node_scores(p, torch.rand(len(p.nodes), len(p.batch))), "other scores"),
        (
            lambda p, o: Scores(("a0.h0",), torch.ones(1), torch.ones(1, len(p.batch))),
            "expected",
        ),
        (lambda p, o: node_scores(p, torch.ones(len(p.nodes), len(p.batch))), "expected 0"),
    ],
)
def test_contract_notices(change, message):
    with pytest.raises(AssertionError, match=message):
        check_score(broken(change))


def test_errors_name_what_there_is():
    problem = tiny_problem("gpt2")
    with pytest.raises(UnweaveError, match="eap-ig has no option 'step': did you mean steps"):
        registered["eap-ig"].run(problem, {"step": 3})
    with pytest.raises(UnweaveError, match=r"patching rates nodes, not edges: .*eap, eap-ig"):
        registered["patching"].run_edges(problem)
    with pytest.raises(UnweaveError, match="on is 'input', expected inputs or activations"):
        registered["eap-ig"].run(problem, {"on": "input"})
    with pytest.raises(UnweaveError, match="unknown score 'eapig': did you mean eap"):
        registered["eapig"]
    unaligned = replace(problem, batch=replace(problem.batch, aligned=False))
    with pytest.raises(UnweaveError, match="on='activations', or eap"):
        registered["eap-ig"].run(unaligned)
    found = registered["eap-ig"].run(unaligned, {"on": "activations"})
    assert found.values.isfinite().all()


def test_the_sweep_runs_on_the_first_prompts():
    """Two of four prompts: the scores of a problem that has no others."""
    problem = tiny_problem("gpt2", rows=4)
    score = registered["decomposition"]
    half = score.run(problem, {"prompts": 2})
    assert half.examples.shape[1] == 2
    alone = score.run(problem.select(slice(0, 2)), {"prompts": 1000})
    assert (half.values - alone.values).abs().max() < 1e-12
    assert half.pairs == {}
    pairs = score.run(problem, {"pairs": True})
    assert pairs.targets == pairs.sources
    assert set(pairs.pairs) == {"ratio", "share", "signed"}


@pytest.mark.parametrize("metric", [LOGIT_DIFFERENCE, PROBABILITY_DIFFERENCE], ids=lambda m: m.name)
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gpt_neox", "bert", "t5"])
def test_patching_leaves_one_out(name, metric):
    problem = tiny_problem(name, "masked lm" if name == "bert" else None, metric=metric)
    if name == "gpt2":
        places = (None, "end", 2)
        nodes = tuple(node.at(where) for node in problem.nodes for where in places)
        problem = replace(problem, nodes=nodes)
    scores = registered["patching"].run(problem)
    whole, base, logits = problem.reference.full, problem.ablation.values, Point("logits")
    for i, node in enumerate(problem.nodes):
        effects = []
        for row in range(len(problem.batch)):
            one, at = slice(row, row + 1), node
            if isinstance(node.position, str):
                at = node.at(int(problem.batch.positions[node.position][row]))
            some = {p: v[one] for p, v in base.items()}
            inputs = problem.batch.clean.select(one)
            out = patched(problem.model.network, inputs, [at], some)[logits]
            readout = problem.batch.readout.select(one)
            effects.append(whole[row] - readout.measure(out[[0], readout.read])[0])
        assert (scores.examples[i] - torch.stack(effects)).abs().max() < 1e-10, str(node)


@pytest.mark.parametrize(
    "shape",
    [("gpt2", None), ("llama", None), ("qwen3", None), ("gpt_neox", "parallel")],
    ids=str,
)
def test_circuits_of_edges(shape, monkeypatch):
    problem = tiny_problem(*shape)
    graph, batch, base = graph_of(problem.model), problem.batch, problem.ablation
    whole = problem.metric([problem.nodes])
    run = run_edge_circuits(problem.model, batch, [graph.edges], base)
    assert (run - whole).abs().max() < 1e-12
    # Without any edge out of a node, it is ablated.
    removed = torch.zeros(len(problem.nodes), *graph.mask.shape, dtype=torch.bool)
    for row, node in zip(removed, problem.nodes, strict=True):
        column = graph.sources.index(str(node))
        row[:, column] = graph.mask[:, column]
    left = run_edges(problem.model, batch, removed, base)
    circuits = [tuple(n for n in problem.nodes if n != node) for node in problem.nodes]
    assert (left - problem.metric(circuits)).abs().max() < 1e-12
    monkeypatch.setattr("unweave.patching.edges._CPU_BYTES", 1)
    assert (run_edges(problem.model, batch, removed, base) - left).abs().max() < 1e-12
    with pytest.raises(UnweaveError, match=r"edge of this model: did you mean"):
        run_edge_circuits(problem.model, batch, [["a0.h0->a1.h9<q>"]], base)


def test_a_random_circuit_of_edges():
    problem = tiny_problem("llama")
    batch = problem.batch
    order = registered["random"].run_edges(problem, {"seed": 3}).ranking()
    kept = set(order[: len(order) // 2])
    with torch.no_grad():
        base = copies(problem.model.network, batch.corrupted.tokens).written

        def shift(destination, written):
            missing = [u for u in written if f"{u}->{destination}" not in kept]
            return sum((base[u] - written[u] for u in missing), torch.zeros(()))

        run = copies(problem.model.network, batch.clean.tokens, shift)
    slow = batch.readout.measure(run.logits[torch.arange(len(batch)), batch.readout.read])
    fast = run_edge_circuits(problem.model, batch, [kept], problem.ablation)[0]
    assert (fast - slow).abs().max() < 1e-10
