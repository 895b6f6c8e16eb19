"""`check_rules`: the contract of a rule set, in `decompose/rulesets` or one's own."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unweave.ablation import activations
from unweave.decomposition.api import decompose
from unweave.decomposition.rules import AttentionTotals
from unweave.decomposition.ruleset import RuleSet, find_rules
from unweave.model import algebra
from unweave.model.checkpoint import architecture
from unweave.model.loading import from_transformers
from unweave.model.weights import Activation, Linear, Norm
from unweave.sites import Point
from unweave.testing.inputs import random_inputs
from unweave.testing.oracle import build

# LayerNorm with biases; post-norm; gates, grouped heads and RMSNorm; soft-caps; cross-attention.
FAMILIES = ("gpt2", "bert", "llama", "gemma2", "t5")
ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "tanh", "solu", "softcap")
_BOUND = 1e-12


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a rule on drawn tensors.

    Args:
        name: The operation and what it is called on.
        rels: Relevant parts, the rule's first arguments.
        apply: The rule as a function of them and of totals.
        totals: What it is called with besides.
        out: The output's total.
    """

    name: str
    rels: tuple[Tensor, ...]
    apply: Callable[..., Tensor]
    totals: tuple[Tensor, ...]
    out: Tensor

    def __call__(self, *rels: Tensor) -> Tensor:
        return self.apply(*rels)


def check_rules(rules: str | RuleSet) -> None:
    """Checks what every rule set has to fulfil, whatever its rules mean.

    Each rule, on drawn tensors in float64: its result has the output's shape and is finite, nothing
    relevant stays nothing, sources and examples do not mix, and no argument is changed. The whole
    set, on a tiny model of several families: totals are those of a plain run, β is 0 before the
    source, and a source that equals its ablation has β = 0 everywhere.

    Args:
        rules: A set, its name, or a name with changes.

    Raises:
        AssertionError: Naming the operation or the family, and what does not hold.
    """
    found = find_rules(rules)
    for call in calls(found):
        _check_call(call)
    for family in FAMILIES:
        _check_family(found, family)


def calls(rules: RuleSet) -> Iterator[Call]:
    """Every rule of a set on drawn tensors: with and without biases, pruned keys, masks, caps."""
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    yield from _linear_calls(rules, normal)
    yield from _norm_calls(rules, normal)
    for name in ACTIVATIONS:
        f = Activation(name, 2.0 if name == "softcap" else None)
        yield from _activation_calls(rules, f, normal)
    for key_start in (0, 2):
        for kv_heads in (4, 2):
            for options in ({}, {"softcap": 1.5}, {"bias": normal(2, 4, 5, 5)}):
                yield _attention_call(rules, kv_heads, key_start, options, normal)


def _linear_calls(rules: RuleSet, normal: Callable[..., Tensor]) -> Iterator[Call]:
    total, rel = normal(2, 3, 6), normal(4, 2, 3, 6)
    for name, bias in (("no bias", None), ("a bias", normal(5))):
        w = Linear(normal(5, 6), bias)
        out = torch.nn.functional.linear(total, w.matrix, w.offset)
        yield Call(
            f"linear with {name}",
            (rel,),
            lambda rel, w=w, out=out: rules.linear(rel, w, out[: rel.shape[1]]),
            (w.weight, out),
            out,
        )


def _norm_calls(rules: RuleSet, normal: Callable[..., Tensor]) -> Iterator[Call]:
    total, rel = normal(2, 3, 6), normal(4, 2, 3, 6)
    norms = {
        "LayerNorm": Norm("layer", 1e-5, normal(6), normal(6)),
        "LayerNorm without gain": Norm("layer", 1e-5),
        "RMSNorm": Norm("rms", 1e-6, normal(6), shift=1.0),
        "RMSNorm with a bias": Norm("rms", 1e-6, normal(6), normal(6)),
    }
    for name, w in norms.items():
        out = algebra.normalise(total, w)

        def apply(rel: Tensor, w: Norm = w, out: Tensor = out) -> Tensor:
            return rules.norm(rel, total[: rel.shape[1]], w, out[: rel.shape[1]])

        yield Call(f"norm: {name}", (rel,), apply, (total, out), out)


def _activation_calls(
    rules: RuleSet, f: Activation, normal: Callable[..., Tensor]
) -> Iterator[Call]:
    total, up = normal(2, 3, 6), normal(2, 3, 6)
    rel, rel_up = normal(4, 2, 3, 6), normal(4, 2, 3, 6)
    value = algebra.activate(total, f)
    out = value * up

    def alone(rel: Tensor) -> Tensor:
        rows = rel.shape[1]
        return rules.activation(rel, total[:rows], f, value[:rows])

    def gated(rel: Tensor, rel_up: Tensor) -> Tensor:
        rows = rel.shape[1]
        return rules.gate(rel, rel_up, total[:rows], up[:rows], f, out[:rows])

    yield Call(f"activation: {f.name}", (rel,), alone, (total, value), value)
    yield Call(f"gate: {f.name}", (rel, rel_up), gated, (total, up, out), out)


def _attention_call(
    rules: RuleSet,
    kv_heads: int,
    key_start: int,
    options: dict[str, Any],
    normal: Callable[..., Tensor],
) -> Call:
    q, k, v = normal(2, 5, 4, 6), normal(2, 5, kv_heads, 6), normal(2, 5, kv_heads, 6)
    mask = torch.ones(5, 5, dtype=torch.bool).tril().expand(2, 1, 5, 5)
    scoring = algebra.Scoring(0.4, mask, **options)
    pattern = algebra.pattern_of(algebra.attention_scores(q, k), scoring)
    z = algebra.attention_mix(pattern, v)
    rel_q, rel_k, rel_v = (normal(4, 2, 5 - key_start, x.shape[2], 6) for x in (q, k, v))

    def apply(rel_q: Tensor, rel_k: Tensor, rel_v: Tensor) -> Tensor:
        rows, queries = rel_q.shape[1], slice(key_start, None)
        bias = None if scoring.bias is None else scoring.bias[:rows, :, queries]
        seen = algebra.Scoring(scoring.scale, mask[:rows, :, queries], bias, scoring.softcap)
        totals = AttentionTotals(
            q[:rows, queries],
            k[:rows],
            v[:rows],
            z[:rows, queries],
            pattern[:rows, :, queries],
            seen,
            key_start,
        )
        return rules.attention(rel_q, rel_k, rel_v, totals)

    kind = f"attention: {kv_heads} key heads, from key {key_start}, {list(options) or 'plain'}"
    return Call(kind, (rel_q, rel_k, rel_v), apply, (q, k, v, z, pattern), z[:, key_start:])


def _check_call(call: Call) -> None:
    before = [x.clone() for x in (*call.rels, *call.totals)]
    rel = call(*call.rels)
    unchanged = zip((*call.rels, *call.totals), before, strict=True)
    assert all(torch.equal(x, y) for x, y in unchanged), f"{call.name}: changes its arguments"
    shape = (len(call.rels[0]), *call.out.shape)
    assert rel.shape == shape, f"{call.name}: shape {tuple(rel.shape)}, expected {shape}"
    assert torch.isfinite(rel).all(), f"{call.name}: not finite"
    nothing = call(*(torch.zeros_like(x) for x in call.rels)).abs().max()
    assert nothing < _BOUND, f"{call.name}: {nothing:.1e} is relevant where nothing was"
    first = call(*(x[:1].clone() for x in call.rels))
    assert _close(first, rel[:1]), f"{call.name}: sources mix"
    first = call(*(x[:, :1].clone() for x in call.rels))
    assert _close(first, rel[:, :1]), f"{call.name}: examples mix"


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a - b).abs().max() < _BOUND * b.abs().max().clamp(min=1))


def _check_family(rules: RuleSet, family: str) -> None:
    oracle = build(next(iter(architecture(family).tiny.values())), torch.float64)
    model, inputs = from_transformers(oracle), random_inputs(oracle.config, 5)
    sources, names = ["a0.h1", "m1", ["a1.h0@2", "m1@1"]], ["a0.h0", "resid1", "a1.h2", "logits"]
    d = decompose(model, inputs, sources, names, rules)
    assert d.completeness < _BOUND, f"{family}: incomplete by {d.completeness:.1e}"
    plain = activations(model, inputs, [Point("logits")])[Point("logits")]
    assert _close(d.total["logits"], plain), f"{family}: totals are not the plain run's"
    for name, rel in d.rel.items():
        assert torch.isfinite(rel).all(), f"{family}: not finite at {name}"
    assert (d.rel["resid1"][1:] == 0).all(), f"{family}: β is not 0 before its source"
    own = decompose(model, inputs, sources, "logits", rules, ablation=inputs)
    worst = own.rel["logits"].abs().max() / own.total["logits"].abs().max()
    assert worst < 1e3 * _BOUND, f"{family}: a source at its ablation has β = {worst:.1e}·T"
