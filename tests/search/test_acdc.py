"""ACDC: decisions made in batches are those of one run at a time."""

import pytest
import torch
from oracles.copies import copies
from oracles.patched import patched

from unweave.errors import UnweaveError
from unweave.graph import graph_of
from unweave.scores.problem import Problem
from unweave.scores.score import scores as registered
from unweave.search.acdc import prune_edges
from unweave.search.search import searches
from unweave.sites import Point
from unweave.testing.problem import tiny_problem


def divergence(full: torch.Tensor, logits: torch.Tensor, read: torch.Tensor) -> float:
    rows = torch.arange(len(read))
    p, q = full[rows, read].softmax(-1), logits[rows, read].softmax(-1)
    return float((p * (p / q).log()).sum(-1).mean())


def kept_one_at_a_time(problem: Problem, tau: float) -> set[str]:
    network, batch, base = problem.model.network, problem.batch, problem.ablation.values

    def logits(gone) -> torch.Tensor:
        return patched(network, batch.clean, gone, base)[Point("logits")]

    full = logits([])
    removed, now = [], 0.0
    for node in sorted(problem.nodes, key=lambda node: node.point.depth, reverse=True):
        after = divergence(full, logits([*removed, node]), batch.readout.read)
        if after - now < tau:
            removed.append(node)
            now = after
    return {str(node) for node in problem.nodes if node not in removed}


@pytest.mark.parametrize(("name", "tau"), [("gpt2", 0.03), ("gpt2", 0.1), ("llama", 0.3)])
def test_nodes_equal_one_run_at_a_time(name, tau):
    problem = tiny_problem(name)
    kept = kept_one_at_a_time(problem, tau)
    assert 0 < len(kept) < len(problem.nodes)
    scores = registered["random"].run(problem)
    for window in (1, 3, 16):
        found = searches["acdc"].run(problem, scores, {"tau": tau, "window": window})
        assert set(found.circuit) == kept
        assert set(found.ranking[: len(kept)]) == kept
        assert found.rounds[0].faithfulness == pytest.approx(
            float(problem.faithfulness([found.sites])[0])
        )


def test_scores_do_not_matter_to_it():
    problem = tiny_problem("gpt2")
    one, two = (registered["random"].run(problem, {"seed": seed}) for seed in (0, 1))
    search = searches["acdc"]
    assert search.run(problem, one, {"tau": 0.1}) == search.run(problem, two, {"tau": 0.1})


@pytest.mark.parametrize(("name", "tau"), [("gpt2", 0.003), ("gpt2", 0.03), ("llama", 0.01)])
def test_edges_equal_one_run_at_a_time(name, tau):
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
            after = divergence(full, level(removed | {edge}), batch.readout.read)
            if after - now < tau:
                removed.add(edge)
                now = after
    kept = set(graph.edges) - removed
    assert 0 < len(kept) < len(graph.edges)
    for window in (1, 8):
        scores = prune_edges(problem, searches["acdc"].filled({"tau": tau, "window": window}))
        chosen = {e for e, v in zip(scores.edges, scores.values, strict=True) if v >= tau}
        assert chosen == kept


def test_edges_refuse_sandwich_norms():
    with pytest.raises(UnweaveError, match="sandwich norms"):
        prune_edges(tiny_problem("gemma2"), searches["acdc"].filled({}))
