"""Keys and values of cross-attention have the encoder's positions, not the decoder's."""

from dataclasses import replace

import pytest
import torch
from oracles.patched import patched
from oracles.tiny import tiny_inputs, tiny_model, tiny_readout

from unweave.ablation import counterfactual
from unweave.batch import Batch
from unweave.metrics import LOGIT_DIFFERENCE
from unweave.model.program import Inputs
from unweave.nodes.node import node_kinds
from unweave.scores.problem import Problem
from unweave.scores.score import scores
from unweave.sites import Point, Site

FAMILIES = ["t5", "bart"]
STEP = 1e-5


def problem_of(name: str) -> Problem:
    """Texts that are shorter than what the decoder reads."""
    model = tiny_model(name)

    def inputs(seed: int) -> Inputs:
        whole = tiny_inputs(name, seed=seed)
        assert whole.tokens is not None
        return replace(whole, mask=whole.mask[:, :3], tokens=whole.tokens[:, :3])

    clean, corrupted = inputs(0), inputs(1)
    assert clean.decoder is not None
    assert clean.decoder.mask.shape[1] > clean.mask.shape[1]
    readout = tiny_readout(model, clean, LOGIT_DIFFERENCE)
    rows, texts = torch.arange(len(clean.mask)), ("",) * len(clean.mask)
    batch = Batch(
        clean, corrupted, readout, readout.read, {}, torch.zeros_like(rows), True, texts, texts
    )
    nodes = tuple(site for site in node_kinds["qkv"].sites(model) if site.point.kind[0] == "c")
    ablation = counterfactual(model, corrupted, {site.point for site in nodes})
    return Problem(model, batch, nodes, ablation)


def metric(problem: Problem, sites: list[Site], values: dict[Point, torch.Tensor]) -> torch.Tensor:
    seen = patched(problem.model.network, problem.batch.clean, sites, values)
    rows = torch.arange(len(problem.batch))
    return problem.batch.readout.measure(
        seen[Point("logits")][rows, problem.batch.readout.read].double()
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_eap_is_the_slope_towards_the_ablation(name):
    problem = problem_of(name)
    found = scores["eap"].run(problem)
    plain = patched(problem.model.network, problem.batch.clean, [], {})
    for row, node in enumerate(problem.nodes):
        z, base = plain[node.point], problem.ablation.values[node.point]
        ends = [
            metric(problem, [node], {node.point: z + step * (base - z)}) for step in (-STEP, STEP)
        ]
        slope = (ends[0] - ends[1]) / (2 * STEP)
        assert torch.allclose(found.examples[row].double(), slope, rtol=1e-4, atol=1e-8), str(node)


@pytest.mark.parametrize("name", FAMILIES)
def test_circuits_with_positions_of_both_sides(name):
    """Position 2 of a key is the encoder's, of a query the decoder's."""
    problem = problem_of(name)
    query = next(node for node in problem.nodes if node.point.kind == "cq")
    key = next(node for node in problem.nodes if node.point.kind == "ck")
    kept = [query.at(2), key.at(1), key.at(2)]
    gone = [
        node.at(i)
        for node in problem.nodes
        for i in range(problem.ablation.values[node.point].shape[1])
        if node.at(i) not in kept
    ]
    for circuit in (kept, kept[::-1]):
        found = problem.metric([circuit])[0]
        expected = metric(problem, gone, dict(problem.ablation.values))
        assert torch.allclose(found.double(), expected, atol=1e-9)
