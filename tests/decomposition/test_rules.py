"""Each rule against its formula, rule sets by name and by mixture, and the contract suite."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles.tiny import FAMILIES, tiny_inputs, tiny_model, tiny_readout
from oracles.two_stream import f as activation_of
from oracles.two_stream import share, two_case
from torch import Tensor

from unweave.decomposition import engine, rules
from unweave.decomposition.api import decompose, relevance
from unweave.decomposition.completeness import check_part
from unweave.decomposition.rules import AttentionTotals
from unweave.decomposition.ruleset import CHOICES, OPERATIONS, RuleSet, find_rules, rulesets
from unweave.errors import UnweaveError
from unweave.metrics import MARGIN, PROBABILITY_DIFFERENCE
from unweave.model.algebra import Scoring, activate
from unweave.model.weights import Activation, Linear, Norm
from unweave.testing import check_rules
from unweave.testing.rules import ACTIVATIONS

SEEDS = st.integers(0, 10**6)
BOUND = 1e-12


def drawn(seed: int):
    draw = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=draw, dtype=torch.float64)


def close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a - b).abs().max() < BOUND * b.abs().max().clamp(min=1))


# --- formulas ----------------------------------------------------------------------------------


@given(SEEDS, st.booleans())
def test_linear(seed, has_bias):
    normal = drawn(seed)
    w = Linear(normal(5, 6), normal(5) if has_bias else None)
    rel, total = normal(3, 2, 4, 6), normal(2, 4, 6)
    out = total @ w.weight.T + (0 if w.bias is None else w.bias)
    a, c = rel @ w.weight.T, (total - rel) @ w.weight.T
    shared = a if w.bias is None else a + w.bias * a.abs() / (a.abs() + c.abs())
    assert close(rules.linear_shared_bias(rel, w, out), shared)
    assert close(rules.linear_without_bias(rel, w, out), a)


def test_a_bias_goes_to_nobody_where_both_parts_are_0():
    w = Linear(torch.zeros(1, 2), torch.ones(1))
    rel = torch.ones(1, 1, 1, 2)
    assert rules.linear_shared_bias(rel, w, torch.ones(1, 1, 1)).item() == 0.0


def test_all_of_a_bias_goes_to_the_only_part():
    """Rounding in c = (T′ − b) − a may not take a share, however small a is."""
    normal = drawn(0)
    for dtype, bound in ((torch.float64, 1e-14), (torch.float32, 1e-5)):
        w = Linear(normal(200, 64).to(dtype), normal(200).to(dtype))
        total = normal(2, 30, 64).to(dtype)
        out = torch.nn.functional.linear(total, w.weight, w.bias)
        rel = rules.linear_shared_bias(total[None].clone(), w, out)
        assert (rel[0] - out).abs().max() < bound * out.abs().max()


@given(SEEDS, st.sampled_from(["layer", "rms"]), st.booleans(), st.sampled_from([0.0, 1.0]))
def test_norm(seed, kind, has_bias, shift):
    normal = drawn(seed)
    w = Norm(kind, 0.1, normal(6), normal(6) if has_bias else None, shift)
    rel, total = normal(3, 2, 4, 6), normal(2, 4, 6)

    def centred(x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True) if kind == "layer" else x

    def scale(x: Tensor) -> Tensor:
        return torch.sqrt((centred(x) ** 2).mean(-1, keepdim=True) + 0.1)

    bias = torch.zeros(6) if w.bias is None else w.bias
    gain = w.weight + shift
    whole = centred(total) / scale(total) * gain + bias
    held = centred(rel) / scale(total) * gain
    shared = held + bias * share(rel, total - rel)
    left = centred(total - rel) / scale(total - rel) * gain + bias
    assert close(rules.norm_shared_bias(rel, total, w, whole), shared)
    assert close(rules.norm_frozen(rel, total, w, whole), held)
    assert close(rules.norm_removal(rel, total, w, whole), whole - left)


@pytest.mark.parametrize("name", ACTIVATIONS)
@given(seed=SEEDS)
def test_activation_and_gate(name, seed):
    normal = drawn(seed)
    f = Activation(name, 1.5 if name == "softcap" else None)

    def value(x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x) if name == "quick_gelu" else activation_of(x, f)

    rel, total = normal(3, 2, 4, 6), normal(2, 4, 6)
    rel_up, up = normal(3, 2, 4, 6), normal(2, 4, 6)
    out, whole = value(total), total.expand_as(rel).contiguous()
    slope = torch.autograd.functional.jvp(value, whole, rel)[1]
    assert close(rules.activation_secant(rel, total, f, out), out - value(total - rel))
    assert close(rules.activation_slope(rel, total, f, out), slope)
    assert close(rules.activation_ratio(rel, total, f, out), rel * out / total)
    gates = (rel, rel_up, total, up, f, out * up)
    lost = out - value(total - rel)
    assert close(rules.gate_product(*gates), lost * rel_up)
    assert close(rules.gate_frozen(*gates), out * rel_up)
    assert close(rules.gate_removal(*gates), out * up - value(total - rel) * (up - rel_up))
    assert close(rules.gate_half(*gates), (out / total * rel * up + out * rel_up) / 2)


def test_the_ratio_of_an_activation_at_0_is_its_slope_there():
    zero, rel = torch.zeros(1, 1, 1).double(), torch.ones(1, 1, 1, 1).double()
    for name, slope in (("gelu", 0.5), ("silu", 0.5), ("tanh", 1.0), ("relu", 1.0)):
        f = Activation(name)
        assert rules.activation_ratio(rel, zero, f, zero).item() == pytest.approx(slope, abs=1e-6)


def looped_pattern(q: Tensor, k: Tensor, scoring: Scoring) -> Tensor:
    """softmax(mask(cap(scale·q·k) + bias)) of one source and example, [head, query, key]."""
    group = q.shape[1] // k.shape[1]
    pattern = torch.zeros(q.shape[1], len(q), len(k), dtype=q.dtype)
    for head in range(q.shape[1]):
        for query in range(len(q)):
            scores = torch.stack([q[query, head] @ x[head // group] for x in k]) * scoring.scale
            if scoring.softcap:
                scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
            if scoring.bias is not None:
                scores = scores + scoring.bias[0, head, query]
            weights = torch.exp(scores) * scoring.mask[0, 0, query]
            pattern[head, query] = weights / weights.sum()
    return pattern


def looped_mix(pattern: Tensor, v: Tensor) -> Tensor:
    group = len(pattern) // v.shape[1]
    heads = [pattern[head] @ v[:, head // group] for head in range(len(pattern))]
    return torch.stack(heads, 1)


@given(
    SEEDS,
    st.sampled_from([1, 2, 4]),
    st.sampled_from([0, 2]),
    st.sampled_from([None, 1.5]),
    st.booleans(),
)
def test_attention(seed, kv_heads, start, softcap, has_bias):
    """Pruned keys have β = 0; the looped formulas hold them as zeros."""
    normal = drawn(seed)
    q, k, v = normal(5, 4, 3), normal(5, kv_heads, 3), normal(5, kv_heads, 3)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()[None, None]
    scoring = Scoring(0.7, mask, normal(1, 4, 5, 5) if has_bias else None, softcap)
    bias = scoring.bias if scoring.bias is None else scoring.bias[:, :, start:]
    seen = Scoring(0.7, mask[:, :, start:], bias, softcap)
    rel_q, rel_k, rel_v = (
        torch.cat((torch.zeros(start, *x.shape[1:]).double(), normal(5 - start, *x.shape[1:])))
        for x in (q, k, v)
    )
    pattern = looped_pattern(q, k, scoring)
    z = looped_mix(pattern, v)
    totals = AttentionTotals(
        q[None, start:], k[None], v[None], z[None, start:], pattern[None, :, start:], seen, start
    )
    parts = [x[None, None, start:] for x in (rel_q, rel_k, rel_v)]

    relevant = looped_mix(looped_pattern(rel_q, rel_k, scoring), rel_v)
    frozen = looped_mix(pattern, rel_v)
    left = looped_mix(looped_pattern(q - rel_q, k - rel_k, scoring), v - rel_v)
    assert close(rules.attention_relevant(*parts, totals)[0, 0], relevant[start:])
    assert close(rules.attention_frozen(*parts, totals)[0, 0], frozen[start:])
    assert close(rules.attention_removal(*parts, totals)[0, 0], (z - left)[start:])


NUMBERS = st.one_of(st.sampled_from([0.0, -0.0, 1.0, -1.0]), st.floats(-10, 10, width=32))


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=20))
def test_the_clamp_is_the_two_case_rule(pairs):
    beta, gamma = torch.tensor(pairs, dtype=torch.float64).T
    expected, rest = two_case(beta, gamma)
    total = beta + gamma
    found = rules.clamp(beta[None, None, None], total[None, None])[0, 0, 0]
    assert (found - expected).abs().max() < BOUND
    assert ((total - found) - rest).abs().max() < BOUND
    assert (found >= total.clamp(max=0)).all()
    assert (found <= total.clamp(min=0)).all()


# --- sets --------------------------------------------------------------------------------------


def test_a_set_by_name_with_changes():
    paper = rulesets["paper"]
    assert find_rules("paper") is paper is find_rules(paper)
    mixed = find_rules(" paper ,attention = removal, clamp=none")
    assert mixed.attention is rules.attention_removal
    assert mixed.clamp == frozenset()
    kept = [op for op in OPERATIONS if op not in ("attention", "clamp")]
    assert all(getattr(mixed, op) == getattr(paper, op) for op in kept)
    assert mixed.name == "paper, attention=removal, clamp=none"
    assert mixed.guarantee != paper.guarantee
    assert set(OPERATIONS) == set(CHOICES)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_choice_can_be_mixed_and_runs(operation):
    model, inputs = tiny_model("llama"), tiny_inputs("llama", length=3, rows=1)
    for choice in CHOICES[operation]:
        d = decompose(model, inputs, ["a0.h1"], rules=f"removal, {operation}={choice}")
        assert torch.isfinite(d.rel["logits"]).all()
        assert (d.rel["logits"] != 0).any()


def test_registered_sets_are_those_of_the_method():
    assert set(rulesets) >= {"paper", "frozen", "removal", "linear"}
    for name in rulesets:
        assert rulesets[name].name == name
        assert rulesets[name].guarantee


def my_frozen(q: Tensor, k: Tensor, v: Tensor, totals: AttentionTotals) -> Tensor:
    """A rule as a user would write it: A β_v, by einsum."""
    pattern = totals.pattern[..., totals.key_start :]
    group = totals.q.shape[2] // v.shape[3]
    return torch.einsum("bhqk,sbkhd->sbqhd", pattern, v.repeat_interleave(group, 3))


def test_a_rule_of_ones_own():
    model, inputs = tiny_model("llama"), tiny_inputs("llama")
    own = rulesets["paper"].with_rules(attention=my_frozen, clamp="none")
    assert own.name == "paper, attention=my_frozen, clamp=none"
    sources = ["a0.h1", "m0@3"]
    d = decompose(model, inputs, sources, ["a2.h1", "logits"], rules=own)
    same = decompose(
        model, inputs, sources, ["a2.h1", "logits"], rules="paper, attention=frozen, clamp=none"
    )
    for name in d.rel:
        assert (d.rel[name] - same.rel[name]).abs().max() < BOUND * 10
    check_rules(own)


def test_a_rule_that_stops_relevance_stops_it():
    model, inputs = tiny_model("gpt2"), tiny_inputs("gpt2")
    blocked = rulesets["removal"].with_rules(attention=lambda q, k, v, totals: torch.zeros_like(q))
    blocked = replace(blocked, conserves=False)
    d = decompose(model, inputs, ["a0.h1"], ["a1.h0", "m1", "logits"], rules=blocked)
    assert (d.rel["a1.h0"] == 0).all()
    assert (d.rel["m1"] != 0).any()


@pytest.mark.parametrize("metric", [None, MARGIN, PROBABILITY_DIFFERENCE])
def test_a_linear_rule_of_ones_own_holds_at_the_head_too(metric):
    """Reading a metric must not take a short way that only βW allows."""
    model, inputs = tiny_model("gpt2"), tiny_inputs("gpt2")
    readout = tiny_readout(model, inputs)
    readout = readout if metric is None else replace(readout, metric=metric)
    own = rulesets["linear"].with_rules(linear=lambda rel, w, out: 0.5 * rel @ w.matrix.T)
    own = replace(own, conserves=False)
    scores = relevance(model, inputs, ["a0.h1", "m1"], readout, own, pairs=())
    d = decompose(model, inputs, ["a0.h1", "m1"], "logits", rules=own)
    rows = torch.arange(2)
    gradient = readout.gradient(d.total["logits"][rows, readout.read])
    expected = torch.einsum("sbo,bo->sb", d.rel["logits"][:, rows, readout.read], gradient)
    assert (scores.examples - expected).abs().max() < BOUND * 100


@pytest.mark.parametrize("readout_rule", ["gradient", "paper", "difference"])
@pytest.mark.parametrize("metric", [MARGIN, PROBABILITY_DIFFERENCE], ids=lambda m: m.name)
@pytest.mark.parametrize("shape", [("gpt2", "default"), ("bert", "masked lm")], ids=", ".join)
def test_a_metric_is_read_as_the_set_says(shape, metric, readout_rule):
    """By its gradient at T, as m(β), or as m(T) − m(T − β)."""
    model, inputs = tiny_model(*shape), tiny_inputs(*shape)
    readout, sources = tiny_readout(model, inputs, metric), ["a0.h1", "m2@1"]
    named = f"paper, readout={readout_rule}"
    scores = relevance(model, inputs, sources, readout, named, pairs=())
    d = decompose(model, inputs, sources, "logits", rules="paper")
    rows = torch.arange(2)
    total = d.total["logits"][rows, readout.read]
    rel = d.rel["logits"][:, rows, readout.read]
    expected = {
        "gradient": torch.einsum("sbo,bo->sb", rel, readout.gradient(total)),
        "paper": readout.measure(rel),
        "difference": readout.measure(total) - readout.measure(total - rel),
    }[readout_rule]
    assert (scores.examples - expected).abs().max() < BOUND * 100


@pytest.mark.parametrize("name", FAMILIES)
def test_every_set_runs_on_every_family(name):
    model, inputs = tiny_model(name), tiny_inputs(name, length=4, rows=1)
    sources = ["a0.h1", "m1@1"] + (["enc.a0.h1"] if model.network.encoder is not None else [])
    for rule_set in rulesets:
        d = decompose(model, inputs, sources, "logits", rules=rule_set)
        assert torch.isfinite(d.rel["logits"]).all()
        assert (d.rel["logits"][0] != 0).any()


# --- the contract suite ------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*rulesets, "paper, attention=removal, clamp=everywhere"])
def test_sets_fulfil_their_contract(name):
    check_rules(name)


def spoilt(operation: str, rule) -> RuleSet:
    return rulesets["removal"].with_rules(**{operation: rule})


def changes_its_input(rel, total, f, out):
    rel.mul_(0.5)
    return rel * 2


def keeps_a_constant(rel, total, f, out):
    return out - activate(total - rel, f) + 1e-3


def mixes_sources(rel, total, f, out):
    return rel - rel.mean(0)


def mixes_examples(rel, total, f, out):
    return rel - rel.mean(1, keepdim=True)


def loses_a_source(rel, total, f, out):
    return rel[0].expand(1, *rel.shape[1:])


def divides_by_nothing(rel, total, f, out):
    return rel / torch.where(rel > 0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (changes_its_input, "activation: gelu: changes its arguments"),
        (keeps_a_constant, r"activation: gelu: 1\.0e-03 is relevant where nothing was"),
        (mixes_sources, "activation: gelu: sources mix"),
        (mixes_examples, "activation: gelu: examples mix"),
        (loses_a_source, r"activation: gelu: shape \(1, 2, 3, 6\), expected \(4, 2, 3, 6\)"),
        (divides_by_nothing, "activation: gelu: not finite"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_contract_suite_finds_a_bad_rule(rule, message):
    with pytest.raises(AssertionError, match=message):
        check_rules(spoilt("activation", rule))


def test_the_contract_suite_knows_sets_by_name():
    with pytest.raises(UnweaveError, match="unknown rule set 'papre'"):
        check_rules("papre")


def tripled(rule):
    return lambda *args: 3 * rule(*args)


@pytest.mark.parametrize("operation", ["linear", "norm", "activation", "gate", "attention"])
@pytest.mark.parametrize("base", list(rulesets))
def test_a_rule_that_returns_three_times_its_part_is_an_error(base, operation):
    """Totals are right and β + γ = T whatever a rule returns: the split itself is checked."""
    family = "llama" if operation == "gate" else "gpt2"
    model, inputs = tiny_model(family), tiny_inputs(family)
    known = rulesets[base]
    wrong = known.with_rules(**{operation: tripled(getattr(known, operation))})
    message = rf"break the split: with all of its input relevant, the rule of {operation}"
    with pytest.raises(UnweaveError, match=message):
        decompose(model, inputs, ["a0.h0"], rules=wrong)
    with pytest.raises(UnweaveError, match=message):
        relevance(model, inputs, ["a0.h0"], tiny_readout(model, inputs), wrong)
    declared = replace(wrong, conserves=False)
    assert decompose(model, inputs, ["a0.h0"], rules=declared).completeness < BOUND


@pytest.mark.parametrize("wrong", [False, True])
def test_a_check_that_is_looked_at_later_says_the_same(wrong, monkeypatch):
    """A GPU is not waited for: its check begins at once and is read afterwards."""
    model, inputs = tiny_model("gpt2"), tiny_inputs("gpt2")
    known = rulesets["removal"]
    rules = known.with_rules(linear=tripled(known.linear)) if wrong else known

    def found(conserves: bool = True) -> float:
        declared = replace(rules, conserves=conserves)
        return decompose(model, inputs, ["a0.h0"], rules=declared).completeness

    at_once = [found(False)] if wrong else [found(False), found()]

    def later(*given, **_):
        return check_part(*given, later=True)

    monkeypatch.setattr(engine, "check_part", later)
    # Without a promise of the rules there is nothing but totals to look at.
    assert found(False) == pytest.approx(at_once[0], abs=BOUND)
    if wrong:
        with pytest.raises(UnweaveError, match="the rule of linear"):
            found()
    else:
        assert found() == pytest.approx(at_once[1], abs=BOUND)
