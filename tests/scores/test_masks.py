"""Gated runs against circuits and small steps, the hard-concrete draw, and wired circuits found."""

from dataclasses import replace

import pytest
import torch

from unweave.ablations.kind import prepared
from unweave.behaviours.file import find_task
from unweave.errors import UnweaveError
from unweave.graph import graph_of
from unweave.model.loading import load
from unweave.patching.edges import run_edges
from unweave.patching.gates import run_gated_edges, run_gated_nodes
from unweave.scores.masks import drawn_gates, open_probability
from unweave.scores.problem import Problem
from unweave.scores.score import scores
from unweave.testing.problem import paired_ablation, tiny_problem

FAMILIES = ["gpt2", "llama", "gpt_neox"]
STEP = 1e-6


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("family", [*FAMILIES, "gemma2", "bert"])
def test_gates_of_0_and_1_are_circuits_of_nodes(family):
    problem = tiny_problem(family, "masked lm" if family == "bert" else None)
    keep = draw(len(problem.nodes)) > 0.4
    circuit = [node for node, kept in zip(problem.nodes, keep.tolist(), strict=True) if kept]
    gates, where = keep.double(), (problem.model, problem.batch)
    found = run_gated_nodes(*where, problem.nodes, gates, problem.ablation)
    assert (found - problem.metric([circuit])[0]).abs().max() < 1e-12


def test_gates_at_positions_are_circuits_too():
    problem = tiny_problem("gpt2")
    nodes = tuple(head.at(p) for head in problem.model.heads() for p in ("start", "end", "other"))
    problem = replace(problem, nodes=nodes)
    keep = draw(len(nodes)) > 0.4
    circuit = [node for node, kept in zip(nodes, keep.tolist(), strict=True) if kept]
    where = problem.model, problem.batch
    found = run_gated_nodes(*where, nodes, keep.double(), problem.ablation)
    assert (found - problem.metric([circuit])[0]).abs().max() < 1e-12


@pytest.mark.parametrize("family", FAMILIES)
def test_gates_of_0_and_1_are_circuits_of_edges(family):
    problem = tiny_problem(family, layers=2)
    mask = graph_of(problem.model).mask
    keep = (draw(*mask.shape) > 0.4) & mask
    where = problem.model, problem.batch
    found = run_gated_edges(*where, keep.double(), problem.ablation)
    circuit = run_edges(*where, (mask & ~keep)[None], problem.ablation)[0]
    assert (found - circuit).abs().max() < 1e-12


def small_steps(metric, gates: torch.Tensor, places) -> torch.Tensor:
    """(m(g + ε) − m(g − ε))/2ε of some gates, one at a time."""
    found = []
    for place in places:
        shift = torch.zeros_like(gates)
        shift[place] = STEP
        with torch.no_grad():
            found.append((metric(gates + shift) - metric(gates - shift)) / (2 * STEP))
    return torch.stack(found)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_gates_equal_small_steps(family):
    problem = tiny_problem(family, layers=2)
    where = problem.model, problem.batch

    def of_nodes(gates):
        return run_gated_nodes(*where, problem.nodes, gates, problem.ablation).sum()

    def of_edges(gates):
        return run_gated_edges(*where, gates, problem.ablation).sum()

    mask = graph_of(problem.model).mask
    some = [tuple(place) for place in mask.nonzero().tolist()[::7]]
    cases = (
        (of_nodes, (len(problem.nodes),), range(len(problem.nodes))),
        (of_edges, tuple(mask.shape), some),
    )
    for metric, shape, places in cases:
        gates = (0.2 + 0.6 * draw(*shape)).requires_grad_()
        (gradient,) = torch.autograd.grad(metric(gates), gates)
        slow = small_steps(metric, gates.detach(), places)
        fast = torch.stack([gradient[place] for place in places])
        assert slow.abs().max() > 1e-4
        assert (fast - slow).abs().max() < 1e-7 * max(1.0, float(slow.abs().max()))


def test_the_chance_of_an_open_gate_is_its_share_of_draws():
    for logit in (-3.0, -1.0, 0.0, 2.0):
        logits = torch.full((200_000,), logit, dtype=torch.float64)
        gates = drawn_gates(logits, draw(200_000))
        assert 0 <= float(gates.min()) <= float(gates.max()) <= 1
        share = float((gates > 0).double().mean())
        assert share == pytest.approx(float(open_probability(logits[0])), abs=5e-3)


def wired(name: str, n: int = 12) -> Problem:
    task, model = find_task(name), load(name)
    batch, nodes = task.batch(model, n), tuple(model.heads())
    ablation = prepared(task, model, "counterfactual", {node.point for node in nodes})(batch)
    return Problem(model, batch, nodes, ablation)


@pytest.mark.parametrize("name", ["wired-induction", "wired-relay"])
def test_masks_find_a_wired_circuit(name):
    problem = wired(name)
    known = find_task(name).known_circuit(name)
    assert known is not None
    needed = {str(site) for site in known.under("counterfactual")}
    found = scores["masks"].run(problem)
    kept = {s for s, v in zip(found.sources, found.values.tolist(), strict=True) if v > 0.5}
    assert kept == needed


def test_masks_find_the_edges_of_a_wired_circuit():
    """The edges that stay open give the model's metric, and they are few."""
    problem = wired("wired-induction")
    graph = graph_of(problem.model)
    ablation = paired_ablation(problem.model, problem.batch, problem.nodes)
    problem = replace(problem, ablation=ablation)
    found = scores["masks"].run_edges(problem)
    kept = [e for e, v in zip(found.edges, found.values.tolist(), strict=True) if v > 0.5]
    assert 0 < len(kept) < len(graph.edges) / 4
    removed = graph.removed([kept, graph.edges, []])
    own, full, empty = run_edges(problem.model, problem.batch, removed, ablation).mean(1)
    assert float((own - empty) / (full - empty)) == pytest.approx(1.0, abs=0.1)


def test_the_same_prompts_twice_are_nothing_to_learn_from():
    problem = tiny_problem("gpt2")
    batch = replace(problem.batch, corrupted=problem.batch.clean)
    same = paired_ablation(problem.model, batch, problem.nodes)
    with pytest.raises(UnweaveError, match="no effect to be faithful to"):
        scores["masks"].run(replace(problem, batch=batch, ablation=same))
