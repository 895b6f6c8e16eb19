"""Tiny float64 models of every family for the tests of the engine, and batches for them."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from unweave.batch import Readout
from unweave.metrics import LOGIT_DIFFERENCE, Metric
from unweave.model.checkpoint import Tiny, architectures
from unweave.model.loading import from_transformers
from unweave.model.model import Model
from unweave.model.program import Inputs
from unweave.model.weights import Activation, Branch, Linear, Mlp, Network, Norm
from unweave.sites import Point, Site
from unweave.testing.inputs import random_inputs
from unweave.testing.oracle import build

FAMILIES = [name for name in architectures if architectures[name].tiny]
VARIANTS = [(name, variant) for name in FAMILIES for variant in architectures[name].tiny]
# Shapes that no class of transformers has: GPT-2's records, changed.
CHANGED = [("gpt2", "attention only"), ("gpt2", "solu"), ("gpt2", "four layers")]
CASES = VARIANTS + CHANGED


@functools.cache
def _oracle(name: str, variant: str) -> Any:
    """Weights, biases and gains are all random."""
    known = architectures[name].tiny
    tiny = known.get(variant, next(iter(known.values())))
    if variant == "four layers":
        tiny = Tiny(tiny.model_class, {**tiny.config, "n_layer": 4})
    return build(tiny, torch.float64)


@functools.cache
def tiny_model(name: str, variant: str | None = None) -> Model:
    """A model of a family, by default of its first variant; do not change it."""
    variant = variant or next(iter(architectures[name].tiny))
    model = from_transformers(_oracle(name, variant), f"{name}, {variant}")
    if variant == "attention only":
        return replace(model, network=_with_branches(model.network, lambda b: b[:1]))
    if variant == "solu":
        return replace(model, network=_with_branches(model.network, _solu))
    return model


def _with_branches(network: Network, change: Any) -> Network:
    blocks = tuple(replace(b, branches=change(b.branches)) for b in network.body.blocks)
    return replace(network, body=replace(network.body, blocks=blocks))


def _solu(branches: tuple[Branch, ...]) -> tuple[Branch, ...]:
    attention, mlp = branches
    assert isinstance(mlp.body, Mlp)
    draw = torch.Generator().manual_seed(0)
    gain, bias = torch.randn(2, len(mlp.body.inp.matrix), generator=draw, dtype=torch.float64)
    body = replace(mlp.body, activation=Activation("solu"), norm=Norm("layer", 1e-5, gain, bias))
    return attention, replace(mlp, body=body)


def outputs_of(model: Model) -> int:
    """How many logits the model has; 0 where it has no output head."""
    linears = [step for step in model.network.head.steps if isinstance(step, Linear)]
    return len(linears[-1].matrix) if linears else 0


def tiny_readout(
    model: Model, inputs: Inputs, metric: Metric = LOGIT_DIFFERENCE, seed: int = 0
) -> Readout:
    """Each example has its own answer, distractors (the first has fewer) and read position."""
    draw = torch.Generator().manual_seed(seed)
    mask, many = (inputs.decoder or inputs).mask, outputs_of(model)
    ids = torch.stack([torch.randperm(many, generator=draw)[:3] for _ in mask])
    distractors = ids[:, 1:].clone()
    distractors[0, -1] = -1
    reals = [row.nonzero().flatten().tolist() for row in mask]
    read = torch.tensor([real[-1 - i % len(real)] for i, real in enumerate(reals)])
    return Readout(metric, ids[:, :1], distractors, read)


def tiny_inputs(
    name: str, variant: str | None = None, length: int = 6, rows: int = 2, seed: int = 0
) -> Inputs:
    """A batch without padding; an encoder-decoder's decoder side has another length."""
    variant = variant or next(iter(architectures[name].tiny))
    config = _oracle(name, variant).config
    whole = random_inputs(config, length, dtype=torch.float64, seed=seed)
    return whole.select(slice(0, rows))


def ragged(
    inputs: Inputs, lengths: Sequence[int], width: int, side: Literal["right", "left"] = "right"
) -> Inputs:
    """The first tokens of each row, padded to a width."""
    index = torch.arange(width)
    many = torch.tensor(lengths)[:, None]
    place = index.expand(len(lengths), -1) if side == "right" else index - (width - many)
    mask = (place >= 0) & (place < many)

    def padded(x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        return x.gather(1, place.clamp(0, x.shape[1] - 1)).masked_fill(~mask, 0)

    return Inputs(mask, padded(inputs.tokens), padded(inputs.types))


def trimmed(inputs: Inputs, row: int) -> Inputs:
    """One row alone, its padding gone."""
    one = inputs.select(slice(row, row + 1))
    decoder = None if one.decoder is None else trimmed(one.decoder, 0)
    real = one.mask[0]
    tokens = None if one.tokens is None else one.tokens[:, real]
    types = None if one.types is None else one.types[:, real]
    return Inputs(one.mask[:, real], tokens, types, one.pixels, decoder)


def side_of(point: Point, inputs: Inputs) -> Inputs:
    """The tokens that an activation has positions of: cross-attention's keys are the encoder's."""
    if inputs.decoder is None or point.stack == "enc" or point.kind in ("ck", "cv"):
        return inputs
    return inputs.decoder


def all_sites(model: Model) -> list[Site]:
    """Every site of a model but the logits, with a few of its neurons."""
    sites = []
    stacks = (("enc", model.network.encoder), ("", model.network.body))
    for name, stack in stacks:
        if stack is None:
            continue
        sites.append(Site(Point("embed", 0, name)))
        for layer, block in enumerate(stack.blocks):
            sites.append(Site(Point("resid", layer, name)))
            for letter, attention in (("", block.attention), ("c", block.cross)):
                if attention is None:
                    continue
                for kind in "qkvz":
                    count = attention.kv_heads if kind in "kv" else attention.heads
                    point = Point(f"{letter}{kind}", layer, name)
                    sites += [Site(point, unit) for unit in range(count)]
            if block.mlp is not None:
                sites += [Site(Point("neuron", layer, name), unit) for unit in (0, 7)]
                sites.append(Site(Point("mlp", layer, name)))
        sites.append(Site(Point("resid", len(stack.blocks), name)))
    return sites
