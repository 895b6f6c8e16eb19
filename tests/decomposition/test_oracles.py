"""The engine against slow twins: two streams for `paper`, patched runs for `removal`, one backward
pass for `linear`."""

import pytest
import torch
from oracles.patched import held, patched
from oracles.tiny import all_sites, side_of, tiny_inputs, tiny_model, tiny_readout, trimmed
from oracles.two_stream import two_stream

from unweave.ablation import activations, counterfactual
from unweave.decomposition.api import decompose, relevance
from unweave.metrics import LOGIT_DIFFERENCE, MARGIN, PROBABILITY_DIFFERENCE
from unweave.model.model import Model
from unweave.model.program import Inputs
from unweave.sites import Site, parse

BOUND = 1e-10

DECODER_SOURCES = [
    ["a0.h1"],
    ["a1.h2@3"],
    ["a0.h0", "a0.h3@2", "a2.h1"],
    ["a1.h1.q"],
    ["a1.h1.k@1"],
    ["a0.h1.v"],
    ["m1"],
    ["m0.n5@4"],
    ["m0.n5", "m2.n7"],
    ["resid1@2"],
    ["embed@3"],
    ["embed"],
    ["a0.h2@1", "m1@4", "resid2@0"],
    ["resid3@5"],
]
WITHOUT_MLP = [s for s in DECODER_SOURCES if not any(name.startswith("m") for name in s)]
SHAPES = {
    ("gpt2", "default"): DECODER_SOURCES,
    ("gpt2", "attention only"): WITHOUT_MLP,
    ("gpt2", "solu"): DECODER_SOURCES[3:9],
    ("bert", "masked lm"): DECODER_SOURCES,
    ("bert", "classifier"): DECODER_SOURCES[5:9],
    ("llama", "one key head, biases"): [
        [name.replace("h1.k", "h0.k").replace("h1.v", "h0.v") for name in s]
        for s in DECODER_SOURCES
    ],
    ("gemma2", "short window, soft-caps"): DECODER_SOURCES,
    ("gemma3_text", "short window, two bases"): DECODER_SOURCES[:8],
    ("gpt_neox", "parallel"): DECODER_SOURCES[2:9],
}


def targets_of(model: Model) -> list[str]:
    """Every head's output at every layer, and a few others."""
    kinds = ("z", "q", "mlp", "resid", "neuron", "cz", "v")
    wanted = [str(site) for site in all_sites(model) if site.point.kind in kinds]
    return [*wanted, "logits"]


def pick(x: torch.Tensor, site: Site) -> torch.Tensor:
    return x if site.unit is None else x[:, :, site.unit]


def other_inputs(name: str, variant: str | None, inputs: Inputs) -> Inputs:
    """Counterfactual prompts of the same shape."""
    return tiny_inputs(name, variant, inputs.mask.shape[1], len(inputs.mask), seed=1)


@pytest.mark.parametrize("zero", [True, False], ids=["zero", "counterfactual"])
@pytest.mark.parametrize("shape", SHAPES, ids=", ".join)
@pytest.mark.filterwarnings("ignore:target .* lies upstream")
def test_paper_equals_two_streams(shape, zero):
    model, inputs = tiny_model(*shape), tiny_inputs(*shape, rows=1)
    sources = SHAPES[shape] if zero else SHAPES[shape][1::2]
    base = {}
    if not zero:
        points = {parse(name).point for source in sources for name in source}
        base = counterfactual(model, other_inputs(*shape, inputs), points).values
    ablation = "zero" if zero else other_inputs(*shape, inputs)
    names = targets_of(model)
    d = decompose(model, inputs, sources, names, rules="paper", ablation=ablation)
    types = None if inputs.types is None else inputs.types[0]
    assert inputs.tokens is not None
    for i, source in enumerate(sources):
        sites = [parse(name) for name in source]
        slow = two_stream(
            model.network, inputs.tokens[0], sites, {p: v[0] for p, v in base.items()}, types
        )
        for name in names:
            site = parse(name)
            beta, gamma = (pick(x[None], site) for x in slow[site.point])
            scale = max(1.0, float(d.total[name].abs().max()))
            assert (d.total[name] - (beta + gamma)).abs().max() < BOUND * scale, (source, name)
            assert (d.rel[name][i] - beta).abs().max() < BOUND * scale, (source, name)


ENCODER_DECODER_SOURCES = [
    ["enc.a0.h1"],
    ["enc.a1.h2@1"],
    ["c1.h0"],
    ["c0.h1@2"],
    ["a0.h2"],
    ["a1.h0@3", "enc.m1@0"],
    ["c1.h1.k@1"],
    ["c0.h2.v@3"],
    ["c1.h3.q"],
    ["embed@2"],
    ["enc.embed@4"],
    ["m1.n3", "enc.a2.h0.k"],
    ["enc.resid2@1"],
    ["enc.resid3"],
]
PATCHED = {
    ("gpt2", "default"): DECODER_SOURCES,
    ("gpt2", "attention only"): WITHOUT_MLP,
    ("gpt2", "solu"): DECODER_SOURCES[3:9],
    ("llama", "full heads, tied"): DECODER_SOURCES,
    ("gemma2", "short window, soft-caps"): DECODER_SOURCES,
    ("gemma3_text", "full heads, untied, windows only"): DECODER_SOURCES,
    ("gpt_neox", "parallel"): DECODER_SOURCES,
    ("bloom", "default"): DECODER_SOURCES[:6],
    ("bert", "masked lm"): DECODER_SOURCES,
    ("vit", "classifier"): DECODER_SOURCES[:6],
    ("t5", "relu"): ENCODER_DECODER_SOURCES,
    ("t5", "gated gelu, unscaled head"): ENCODER_DECODER_SOURCES,
    ("bart", "tied"): ENCODER_DECODER_SOURCES,
}


def real_difference(
    ours: torch.Tensor, theirs: torch.Tensor, site: Site, inputs: Inputs
) -> torch.Tensor:
    """|Δ| at real tokens."""
    mask = side_of(site.point, inputs).mask
    if ours.shape[1] != mask.shape[1]:
        mask = torch.ones(ours.shape[:2], dtype=torch.bool)
    return (ours - theirs)[mask].abs().max()


@pytest.mark.parametrize("zero", [True, False], ids=["zero", "counterfactual"])
@pytest.mark.parametrize("shape", PATCHED, ids=", ".join)
@pytest.mark.filterwarnings("ignore:target .* lies upstream")
def test_removal_equals_activation_patching(shape, zero):
    model, inputs = tiny_model(*shape), tiny_inputs(*shape)
    sources, names = PATCHED[shape] if zero else PATCHED[shape][1::2], targets_of(model)
    base = {}
    if not zero:
        points = {parse(name).point for source in sources for name in source}
        base = counterfactual(model, other_inputs(*shape, inputs), points).values
    ablation = "zero" if zero else other_inputs(*shape, inputs)
    d = decompose(model, inputs, sources, names, rules="removal", ablation=ablation)
    for i, source in enumerate(sources):
        without = patched(model.network, inputs, [parse(name) for name in source], base)
        for name in names:
            site = parse(name)
            theirs = pick(without[site.point], site)
            scale = max(1.0, float(d.total[name].abs().max()))
            worst = real_difference(d.rest(name)[i], theirs, site, inputs)
            assert worst < BOUND * scale, (source, name)


METRICS = [LOGIT_DIFFERENCE, MARGIN, PROBABILITY_DIFFERENCE]


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
@pytest.mark.parametrize(
    "shape",
    [
        ("gpt2", "default"),
        ("llama", "grouped heads"),
        ("gemma2", "short window, soft-caps"),
        ("gpt_neox", "parallel"),
        ("bert", "masked lm"),
        ("bert", "classifier"),
        ("t5", "relu"),
    ],
    ids=", ".join,
)
def test_removal_scores_equal_the_change_of_the_metric(shape, metric):
    model, inputs = tiny_model(*shape), tiny_inputs(*shape)
    readout, other = tiny_readout(model, inputs, metric), other_inputs(*shape, inputs)
    rest = ENCODER_DECODER_SOURCES if inputs.decoder is not None else DECODER_SOURCES[2:]
    heads = ["heads"] if metric is LOGIT_DIFFERENCE else ["a1.h0@-1"]
    sources = [*heads, *(s for s in rest if not any(".k" in n or ".v" in n for n in s))]
    scores = relevance(model, inputs, sources, readout, "removal", other, pairs=())
    logits = next(p for p in patched(model.network, inputs, [], {}) if p.kind == "logits")
    every = [site.point for site in all_sites(model)]
    base = counterfactual(model, other, every).values

    def measure(source: list[Site]) -> torch.Tensor:
        out = patched(model.network, inputs, source, base)[logits]
        rows = torch.arange(len(out))
        return readout.measure(out[rows, readout.read if out.shape[1] > 1 else 0])

    whole = measure([])
    for i, name in enumerate(scores.sources):
        effect = whole - measure([parse(part) for part in name.split(" + ")])
        assert (scores.examples[i] - effect).abs().max() < BOUND, name
    assert torch.equal(scores.values, scores.examples.mean(1))


@pytest.mark.parametrize("metric", [LOGIT_DIFFERENCE, PROBABILITY_DIFFERENCE], ids=lambda m: m.name)
@pytest.mark.parametrize(
    "shape",
    [
        ("gpt2", "default"),
        ("gpt2", "solu"),
        ("llama", "grouped heads"),
        ("gemma2", "short window, soft-caps"),
        ("gemma3_text", "one key head, biases, soft-cap"),
        ("gpt_neox", "parallel"),
        ("bert", "masked lm"),
        ("t5", "relu"),
        ("bart", "tied"),
        ("phi", "query and key norms"),
    ],
    ids=", ".join,
)
def test_linear_equals_one_backward_pass(shape, metric):
    model, inputs = tiny_model(*shape), tiny_inputs(*shape)
    readout, other = tiny_readout(model, inputs, metric), other_inputs(*shape, inputs)
    sources = ["heads", "mlps"]
    scores = relevance(model, inputs, sources, readout, "linear", other, pairs=())
    seen = held(model.network, inputs)
    out = next(x for p, x in seen.items() if p.kind == "logits")
    readout.measure(out[torch.arange(len(out)), readout.read]).sum().backward()
    sites = [parse(name) for name in scores.sources]
    base = activations(model, other, {site.point for site in sites})
    for i, site in enumerate(sites):
        x = seen[site.point]
        assert x.grad is not None
        flow = pick(x.grad * (x.detach() - base[site.point]), site)
        assert (scores.examples[i] - flow.flatten(1).sum(1)).abs().max() < BOUND, str(site)


def test_the_twins_read_one_row_of_a_batch():
    """The two-stream twin has no batch: a row of a padded batch is the row alone."""
    model, inputs = tiny_model("gpt2"), tiny_inputs("gpt2", rows=2)
    alone = trimmed(inputs, 1)
    d = decompose(model, inputs, [["a0.h1"]], "logits")
    assert alone.tokens is not None
    slow = two_stream(model.network, alone.tokens[0], [parse("a0.h1")], {})
    beta, _ = slow[parse("logits").point]
    assert (d.rel["logits"][0, 1] - beta).abs().max() < BOUND
