"""Attribution and circuits through cross-attention, against plain runs with sites replaced."""

from dataclasses import replace

import pytest
import torch
from oracles.patched import patched
from oracles.tiny import side_of, tiny_inputs, tiny_model, tiny_readout

from unweave.ablation import counterfactual
from unweave.batch import Batch
from unweave.decomposition.api import decompose, relevance
from unweave.metrics import LOGIT_DIFFERENCE
from unweave.patching.circuits import run_circuits
from unweave.sites import Point, parse

FAMILIES = ["t5", "marian", "bart"]


def tiny_batch(name: str) -> tuple:
    model = tiny_model(name)
    clean, corrupted = tiny_inputs(name, seed=0), tiny_inputs(name, seed=1)
    readout = tiny_readout(model, clean, LOGIT_DIFFERENCE)
    rows = torch.arange(len(clean.mask))
    texts = ("",) * len(rows)
    return model, Batch(
        clean, corrupted, readout, readout.read, {}, torch.zeros_like(rows), True, texts, texts
    )


def metric(batch: Batch, seen: dict) -> torch.Tensor:
    rows = torch.arange(len(batch))
    return batch.readout.measure(seen[Point("logits")][rows, batch.readout.read])


@pytest.mark.parametrize("name", FAMILIES)
def test_removal_of_source_words_equals_patched_runs(name):
    model, batch = tiny_batch(name)
    words = [["enc.embed@0"], ["enc.embed@2", "enc.embed@3"], ["enc.resid1@1"]]
    sources = [*words, ["c0.h1"], ["c1.h0.v"]]
    scores = relevance(model, batch, sources, rules="removal", ablation="counterfactual", pairs=())
    points = {parse(site).point for source in sources for site in source}
    base = counterfactual(model, batch.corrupted, points).values
    whole = metric(batch, patched(model.network, batch.clean, [], {}))
    for row, source in enumerate(sources):
        left = patched(model.network, batch.clean, [parse(site) for site in source], base)
        assert torch.allclose(scores.examples[row], whole - metric(batch, left), atol=1e-9)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("rules", ["paper", "paper, attention=frozen, clamp=everywhere"])
def test_both_embeddings_together_give_the_logits(name, rules):
    model, batch = tiny_batch(name)
    found = decompose(model, batch.clean, [["enc.embed", "embed"]], "logits", rules)
    # The bias of an output whose weights are all 0 (padding's) has nothing to be shared by.
    rest = found.rest("logits").abs().amax((0, 1, 2))
    weights = model.network.head.steps[-1].matrix
    assert rest[weights.abs().amax(1) > 0].max() < 1e-6


@pytest.mark.parametrize("name", FAMILIES)
def test_circuits_equal_patched_runs(name):
    model, batch = tiny_batch(name)
    heads = model.heads()
    points = {site.point for site in heads}
    ablation = counterfactual(model, batch.corrupted, points)
    circuits = [(), tuple(heads[::2]), (heads[0], heads[-1].at(1), heads[1].at(2))]
    values = run_circuits(model, batch, circuits, points, ablation)
    for row, circuit in enumerate(circuits):
        kept = {(s.point, s.unit, s.position) for s in circuit}
        lengths = {p: side_of(p, batch.clean).mask.shape[1] for p in points}
        gone = [
            replace(site, position=i)
            for site in heads
            for i in range(lengths[site.point])
            if not {(site.point, site.unit, None), (site.point, site.unit, i)} & kept
        ]
        seen = patched(model.network, batch.clean, gone, ablation.values)
        assert torch.allclose(values[row], metric(batch, seen), atol=1e-9)
