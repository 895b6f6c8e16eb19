"""The contract of every method; exact patching and ACDC against one run at a time."""

from dataclasses import replace

import pytest
import torch
from oracles.copies import copies
from oracles.patched import patched
from unweave.testing.method import check_method, tiny_problem

from unweave.circuits import Scores
from unweave.errors import UnweaveError
from unweave.graph import graph_of
from unweave.metrics import LOGIT_DIFFERENCE, PROBABILITY_DIFFERENCE
from unweave.patching.circuits import run_circuits
from unweave.patching.edges import run_edge_circuits, run_edges
from unweave.scores.problem import Method, Problem, methods, node_scores
from unweave.sites import Point, parse


@pytest.mark.parametrize("name", list(methods))
def test_contract(name):
    check_method(name)


def broken(change) -> Method:
    return replace(methods["eap"], name="broken", score=change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p, o: node_scores(p, torch.zeros(len(p.nodes), len(p.batch))), "every score is 0"),
        (lambda p, o: node_scores(p, torch.rand(len(p.nodes), len(p.batch))), "other scores"),
        (
            lambda p, o: Scores(("a0.h0",), torch.ones(1), torch.ones(1, len(p.batch))),
            "expected",
        ),
    ],
)
def test_contract_notices(change, message):
    with pytest.raises(AssertionError, match=message):
        check_method(broken(change))


def test_errors_name_what_there_is():
    problem = tiny_problem("gpt2")
    with pytest.raises(UnweaveError, match="eap-ig has no option 'step': did you mean steps"):
        methods["eap-ig"].run(problem, step=3)
    with pytest.raises(UnweaveError, match=r"patching scores nodes, not edges: .*eap, eap-ig"):
        methods["patching"].run_edges(problem)
    with pytest.raises(UnweaveError, match="tau is 0"):
        methods["acdc"].run(problem, tau=0)
    with pytest.raises(UnweaveError, match="no path on 'input': did you mean inputs"):
        methods["eap-ig"].run(problem, on="input")
    unaligned = replace(problem, batch=replace(problem.batch, aligned=False))
    with pytest.raises(UnweaveError, match="on='activations', or eap"):
        methods["eap-ig"].run(unaligned)
    assert methods["eap-ig"].run(unaligned, on="activations").values.isfinite().all()
    with pytest.raises(UnweaveError, match="sandwich norms"):
        methods["acdc"].run_edges(tiny_problem("gemma2"))


@pytest.mark.parametrize("metric", [LOGIT_DIFFERENCE, PROBABILITY_DIFFERENCE], ids=lambda m: m.name)
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gpt_neox", "bert", "t5"])
def test_patching_leaves_one_out(name, metric):
    problem = tiny_problem(name, "masked lm" if name == "bert" else None, metric=metric)
    if name == "gpt2":
        places = (None, "end", 2)
        nodes = tuple(node.at(where) for node in problem.nodes for where in places)
        problem = replace(problem, nodes=nodes)
    scores = methods["patching"].run(problem)
    # A node without a position is kept with its positions: leave one of those out at a time.
    whole = run_circuits(problem.model, problem.batch, [()], [], problem.ablation)[0]
    base = problem.ablation.values
    logits = Point("logits")
    for i, node in enumerate(problem.nodes):
        site = node
        if isinstance(node.position, str):
            effects = []
            for row in range(len(problem.batch)):
                one = slice(row, row + 1)
                at = node.at(int(problem.batch.positions[node.position][row]))
                some = {p: v[one] for p, v in base.items()}
                inputs = problem.batch.clean.select(one)
                out = patched(problem.model.network, inputs, [at], some)[logits]
                readout = problem.batch.readout.select(one)
                effects.append(whole[row] - readout.measure(out[[0], readout.read])[0])
            effect = torch.stack(effects)
        else:
            out = patched(problem.model.network, problem.batch.clean, [site], base)[logits]
            rows = torch.arange(len(out))
            read = problem.batch.readout.read
            effect = whole - problem.batch.readout.measure(out[rows, read])
        assert (scores.examples[i] - effect).abs().max() < 1e-10, str(node)
    if name != "gpt2":
        circuits = [tuple(n for n in problem.nodes if n != node) for node in problem.nodes]
        without = problem.metric(circuits)
        assert (scores.examples - (whole - without)).abs().max() < 1e-10


def divergences(full: torch.Tensor, logits: torch.Tensor, read: torch.Tensor) -> float:
    rows = torch.arange(len(read))
    p, q = full[rows, read].softmax(-1), logits[rows, read].softmax(-1)
    return float((p * (p / q).log()).sum(-1).mean())


@pytest.mark.parametrize(("name", "tau"), [("gpt2", 0.03), ("gpt2", 0.1), ("llama", 0.3)])
def test_acdc_nodes_equal_one_run_at_a_time(name, tau):
    problem = tiny_problem(name)
    network, batch, base = problem.model.network, problem.batch, problem.ablation.values
    logits = Point("logits")

    def level(gone):
        return patched(network, batch.clean, gone, base)[logits]

    full = level([])
    removed, now = [], 0.0
    for node in sorted(problem.nodes, key=lambda n: (n.point.depth, n.unit or 0), reverse=True):
        after = divergences(full, level([*removed, node]), batch.readout.read)
        if after - now < tau:
            removed.append(node)
            now = after
    kept = {str(node) for node in problem.nodes if node not in removed}
    assert 0 < len(kept) < len(problem.nodes)
    for window in (1, 3, 16):
        scores = methods["acdc"].run(problem, tau=tau, window=window)
        chosen = {s for s, v in zip(scores.sources, scores.values, strict=True) if v >= tau}
        assert chosen == kept
        assert set(scores.ranking()[: len(kept)]) == kept


@pytest.mark.parametrize(("name", "tau"), [("gpt2", 0.003), ("gpt2", 0.03), ("llama", 0.01)])
def test_acdc_edges_equal_one_run_at_a_time(name, tau):
    problem = tiny_problem(name, rows=1, layers=2)
    graph, batch = graph_of(problem.model), problem.batch
    with torch.no_grad():
        base = copies(problem.model.network, batch.corrupted.tokens).written

    def level(gone: set[str]) -> torch.Tensor:
        def shift(destination, written):
            missing = [u for u in written if f"{u}->{destination}" in gone]
            return sum((base[u] - written[u] for u in missing), torch.zeros(()))

        with torch.no_grad():
            return copies(problem.model.network, batch.clean.tokens, shift).logits

    full = level(set())
    removed, now = set(), 0.0
    for node in reversed(graph.nodes):
        into = [(s, d) for s, d in (e.split("->") for e in graph.edges) if d.split("<")[0] == node]
        order = {"q": 0, "k": 1, "v": 2}
        into.sort(key=lambda e: (graph.sources.index(e[0]), order.get(e[1][-2:-1], 0)))
        for source, destination in reversed(into):
            edge = f"{source}->{destination}"
            after = divergences(full, level(removed | {edge}), batch.readout.read)
            if after - now < tau:
                removed.add(edge)
                now = after
    kept = set(graph.edges) - removed
    assert 0 < len(kept) < len(graph.edges)
    for window in (1, 8):
        scores = methods["acdc"].run_edges(problem, tau=tau, window=window)
        chosen = {e for e, v in zip(scores.edges, scores.values, strict=True) if v >= tau}
        assert chosen == kept


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
    monkeypatch.setattr("unweave.patching.edges._BYTES", 1)
    assert (run_edges(problem.model, batch, removed, base) - left).abs().max() < 1e-12
    with pytest.raises(UnweaveError, match="is no edge of this model: did you mean"):
        run_edge_circuits(problem.model, batch, [["a0.h0->a1.h9<q>"]], base)


def test_a_random_circuit_of_edges():
    problem: Problem = tiny_problem("llama")
    graph, batch = graph_of(problem.model), problem.batch
    order = methods["random"].run_edges(problem, seed=3).ranking()
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
    assert str(parse("a0.h0")) in graph.sources
