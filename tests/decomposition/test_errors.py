"""Bad input is told apart and named; nothing fails with a trace of torch."""

import re
from dataclasses import replace

import pytest
import torch
from oracles.tiny import tiny_inputs, tiny_model, tiny_readout

from unweave.ablation import Ablation
from unweave.decomposition.api import decompose, relevance
from unweave.decomposition.memory import memory_budget
from unweave.errors import UnweaveError
from unweave.metrics import MARGIN
from unweave.model.checkpoint import Tiny
from unweave.model.loading import from_transformers
from unweave.model.model import Model
from unweave.model.program import Inputs
from unweave.model.weights import Linear
from unweave.sites import Point
from unweave.testing.oracle import build


@pytest.fixture
def gpt2() -> tuple[Model, Inputs]:
    return tiny_model("gpt2"), tiny_inputs("gpt2", length=6)


@pytest.mark.parametrize(
    ("site", "message"),
    [
        ("a3.h0", "a3.h0: this model has layers 0–2"),
        ("m9", "m9: this model has layers 0–2"),
        ("resid4", "resid4: this model has layers 0–3"),
        ("a0.h4", "a0.h4: layer 0 has heads 0–3"),
        ("m1.n96", "m1.n96: layer 1 has neurons 0–95"),
        ("c0.h0", "c0.h0: this model has no cross-attention"),
        ("enc.a0.h0", "enc.a0.h0: this model has no encoder"),
        ("head 3", "'head 3' is not a site: expected e.g. a9.h6"),
        ("a0.h0@6", "a0.h0@6: position 6 is outside a prompt of 6 tokens"),
        ("a0.h0@-7", "a0.h0@-7: position -7 is outside a prompt of 6 tokens"),
        ("a0.h0@S2", "a0.h0@S2: no position is named 'S2'; known: end, late"),
        ("a0.h0@late", "a0.h0@late: position 6 is outside prompt 1 of 6 tokens"),
    ],
)
def test_sites_that_do_not_exist_are_named(gpt2, site, message):
    named = {"end": torch.tensor([5, 4]), "late": torch.tensor([5, 6])}
    for sources, targets in (([site], ["logits"]), (["a0.h0"], [site])):
        with pytest.raises(UnweaveError, match=re.escape(message)):
            decompose(*gpt2, sources, targets, positions=named)


def test_the_message_of_a_model_with_twelve_layers():
    config = {"n_layer": 12, "n_embd": 8, "n_head": 2, "vocab_size": 61, "n_positions": 16}
    model = from_transformers(build(Tiny("GPT2LMHeadModel", config)))
    with pytest.raises(UnweaveError, match=re.escape("a12.h0: this model has layers 0–11")):
        decompose(model, torch.ones(1, 3, dtype=torch.long), ["a12.h0"])


@pytest.mark.parametrize(
    ("name", "variant", "site", "message"),
    [
        ("llama", "grouped heads", "a0.h2.k", "a0.h2.k: layer 0 has key-value heads 0–1"),
        ("gpt2", "attention only", "m0", "m0: this model is attention-only, it has no MLPs"),
        ("t5", "relu", "enc.logits", "enc.logits: an encoder has no logits"),
        ("t5", "relu", "enc.a3.h0", "enc.a3.h0: this model has layers 0–2"),
        ("t5", "relu", "a2.h0", "a2.h0: this model has layers 0–1"),
        ("t5", "relu", "a0.h0@5", "a0.h0@5: position 5 is outside a prompt of 5 tokens"),
        ("t5", "relu", "c0.h0.k@6", "c0.h0.k@6: position 6 is outside a prompt of 6 tokens"),
    ],
)
def test_sites_that_this_architecture_does_not_have(name, variant, site, message):
    model, inputs = tiny_model(name, variant), tiny_inputs(name, variant)
    with pytest.raises(UnweaveError, match=re.escape(message)):
        decompose(model, inputs, ["a0.h0"], [site])


def test_the_position_of_the_shortest_prompt_counts():
    model = tiny_model("gpt2")
    inputs = model.inputs(torch.ones(2, 4, dtype=torch.long))
    shorter = Inputs(torch.tensor([[True] * 4, [True, True, False, False]]), inputs.tokens)
    with pytest.raises(UnweaveError, match=r"a0\.h0@2: position 2 is outside a prompt of 2 tokens"):
        decompose(model, shorter, ["a0.h0@2"])


def test_positions_for_another_number_of_prompts(gpt2):
    named = {"end": torch.tensor([5, 5, 5])}
    with pytest.raises(UnweaveError, match=r"a0\.h0@end: 3 positions are given for 2 prompts"):
        decompose(*gpt2, ["a0.h0@end"], positions=named)


def test_logits_are_no_source_and_no_source_is_none(gpt2):
    with pytest.raises(UnweaveError, match="logits cannot be a source"):
        decompose(*gpt2, ["logits"])
    with pytest.raises(UnweaveError, match="no source given"):
        decompose(*gpt2, [])


def test_a_target_upstream_of_every_source_scores_0_with_a_warning(gpt2):
    model, inputs = gpt2
    with pytest.warns(UserWarning, match="target a0.h1 lies upstream of every source"):
        d = decompose(model, inputs, ["a2.h0", "m1"], ["a0.h1", "a2.h3", "logits"])
    assert (d.rel["a0.h1"] == 0).all()
    assert (d.relevance("a0.h1") == 0).all()
    assert d.total["a0.h1"].shape == (2, 6, 6)
    assert (d.relevance("logits") > 0).all()
    with pytest.warns(UserWarning, match="target embed lies upstream"):
        alone = decompose(model, inputs, ["a2.h0"], "embed")
    assert (alone.rel["embed"] == 0).all()
    assert alone.completeness < 1e-12
    scores = relevance(model, inputs, ["a2.h0"], tiny_readout(model, inputs), pairs=["a0.h1"])
    assert scores.pairs.keys() == {"ratio", "share", "signed"}
    assert all(float(value) == 0 for value in scores.pairs.values())


def test_sources_behind_the_last_target_are_left_out_of_the_work(gpt2):
    """Some enter before the run stops, some after: the progress bar must not divide by 0."""
    model = tiny_model("gpt2", "four layers")
    sources = ["a1.h0", "a3.h0"]
    d = decompose(model, gpt2[1], sources, "a1.h0")
    assert (d.rel["a1.h0"][0] == d.total["a1.h0"]).all()
    assert (d.rel["a1.h0"][1] == 0).all()


def broken(model: Model, value: float) -> dict[str, Model]:
    """The model with one bad weight, by the stage in which it shows."""
    network = model.network

    def spoilt(w: Linear) -> Linear:
        weight = w.weight.clone()
        weight[0, 3] = value
        return replace(w, weight=weight)

    def with_block(change) -> Model:
        blocks = list(network.body.blocks)
        branches = list(blocks[1].branches)
        branches[0] = replace(branches[0], body=change(branches[0].body))
        blocks[1] = replace(blocks[1], branches=tuple(branches))
        body = replace(network.body, blocks=tuple(blocks))
        return replace(model, network=replace(network, body=body))

    steps = (spoilt(network.head.steps[0]),)
    headless = replace(network, head=replace(network.head, steps=steps))
    return {
        "after block 1": with_block(lambda a: replace(a, v=spoilt(a.v))),
        "after head": replace(model, network=headless),
    }


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", ["after block 1", "after head"])
def test_weights_that_are_not_finite_are_named(gpt2, place, value):
    model = broken(gpt2[0], value)[place]
    with pytest.raises(UnweaveError, match=f"activations are not finite {place}: look for NaN"):
        decompose(model, gpt2[1], ["a0.h0"])
    readout = tiny_readout(model, gpt2[1])
    for rules in ("paper", "removal", "linear"):
        with pytest.raises(UnweaveError, match=r"not finite.*look for NaN or infinite values"):
            relevance(model, gpt2[1], ["a0.h0"], readout, rules)
        with pytest.raises(UnweaveError, match=r"not finite.*look for NaN or infinite values"):
            relevance(model, gpt2[1], ["a0.h0"], replace(readout, metric=MARGIN), rules)


def test_a_model_may_be_broken_behind_the_last_target(gpt2):
    model = broken(gpt2[0], float("nan"))["after block 1"]
    d = decompose(model, gpt2[1], ["a0.h0"], "m0")
    assert torch.isfinite(d.rel["m0"]).all()


def test_overflow_of_a_rule_set_is_told(gpt2):
    """Removal with scales held at the total overflows by itself only in deep models."""
    model, inputs = gpt2
    values = torch.full((2, 6, 4, 6), 1e308, dtype=torch.float64)
    huge = Ablation("huge", {Point("z", 0): -values})
    with pytest.raises(UnweaveError, match=r"'removal' overflowed for a0\.h0"):
        relevance(model, inputs, ["a0.h0"], tiny_readout(model, inputs), "removal", huge, pairs=())


def test_several_devices_are_named(gpt2):
    model, inputs = gpt2
    readout = tiny_readout(model, inputs)
    elsewhere = Inputs(inputs.mask.to("meta"), inputs.tokens.to("meta"))
    message = re.escape("on several devices (cpu, meta): move them to one with model.to(…)")
    with pytest.raises(UnweaveError, match=message):
        decompose(model, elsewhere, ["a0.h0"])
    with pytest.raises(UnweaveError, match=message):
        relevance(model, elsewhere, ["a0.h0"], readout)
    steps = (replace(model.network.head.steps[0], weight=torch.ones(61, 24, device="meta")),)
    head = replace(model.network.head, steps=steps)
    mixed = replace(model, network=replace(model.network, head=head))
    with pytest.raises(UnweaveError, match=message):
        decompose(mixed, inputs, ["a0.h0"], ablation=inputs)
    with pytest.raises(UnweaveError, match=message):
        relevance(mixed, inputs, ["a0.h0"], readout)
    away = Ablation("given", {Point("z", 0): torch.zeros(2, 6, 4, 6, device="meta")})
    with pytest.raises(UnweaveError, match=message):
        decompose(model, inputs, ["a0.h0"], ablation=away)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("papr", "unknown rule set 'papr': did you mean paper?"),
        ("paper, atention=frozen", "rules have no operation 'atention': did you mean attention or"),
        ("paper, attention=frosen", "attention has no rule 'frosen': did you mean frozen?"),
        ("paper, clamp", "expected operation=choice, found 'clamp'"),
        ("paper,", "expected operation=choice, found ''"),
        ("paper, readout=loud", "readout has no rule 'loud'"),
    ],
)
def test_unknown_rules_are_named(gpt2, rules, message):
    with pytest.raises(UnweaveError, match=re.escape(message)):
        decompose(*gpt2, ["a0.h0"], rules=rules)


@pytest.mark.parametrize(
    "memory", ["", "much", "GB", ".", "1.2.3GB", "-4GB", "4 XB", "0", "0GB", 0, -1, "4GB8"]
)
def test_malformed_memory_is_named(gpt2, memory):
    with pytest.raises(UnweaveError, match=re.escape(f"memory {memory!r} is not a size")):
        decompose(*gpt2, ["a0.h0"], memory=memory)


def test_memory_is_read_in_the_usual_spellings():
    cpu = torch.device("cpu")
    assert memory_budget("4GB", cpu) == memory_budget(" 4 gb", cpu) == 4 * 10**9
    assert memory_budget("1.5MiB", cpu) == memory_budget("1500k", cpu) == 1_500_000
    assert memory_budget("77", cpu) == memory_budget(77, cpu) == memory_budget("77B", cpu) == 77
    assert memory_budget(None, cpu) > 10**6


def test_ablations_that_do_not_fit(gpt2):
    model, inputs = gpt2
    with pytest.raises(UnweaveError, match=r"\(2, 5\) tokens, the clean ones \(2, 6\)"):
        decompose(model, inputs, ["a0.h0"], ablation=tiny_inputs("gpt2", length=5))
    for word in ("mean", "counterfactual"):
        with pytest.raises(UnweaveError, match=f"ablation '{word}' needs prompts"):
            decompose(model, inputs, ["a0.h0"], ablation=word)
    given = Ablation("given", {Point("z", 1): torch.zeros(2, 6, 4, 6).double()})
    with pytest.raises(UnweaveError, match="'given' holds nothing for a0: record it there too"):
        decompose(model, inputs, ["a0.h0"], ablation=given)
    short = Ablation("short", {Point("z", 0): torch.zeros(2, 5, 4, 6).double()})
    with pytest.raises(UnweaveError, match=r"\(2, 5, 4, 6\) at a0, the prompts have \(2, 6"):
        decompose(model, inputs, ["a0.h0"], ablation=short)


def test_columns_that_do_not_exist(gpt2):
    for column in (61, -1):
        message = f"logit column {column} does not exist: expected 0–60"
        with pytest.raises(UnweaveError, match=message):
            decompose(*gpt2, ["a0.h0"], columns=[0, column])
    base = tiny_model("gpt2", "base model")
    with pytest.raises(UnweaveError, match="the model has no output head"):
        decompose(base, gpt2[1], ["a0.h0"], columns=[0])


def test_columns_are_the_columns_of_the_whole(gpt2):
    few = decompose(*gpt2, ["a0.h0", "m1@2"], columns=[7, 60, 3])
    whole = decompose(*gpt2, ["a0.h0", "m1@2"])
    assert (few.rel["logits"] - whole.rel["logits"][..., [7, 60, 3]]).abs().max() < 1e-12
    assert (few.total["logits"] - whole.total["logits"][..., [7, 60, 3]]).abs().max() < 1e-12


def test_a_metric_needs_a_head_and_answers(gpt2):
    with pytest.raises(UnweaveError, match="no metric: pass target=Readout"):
        relevance(*gpt2, ["a0.h0"])
    base = tiny_model("gpt2", "base model")
    with pytest.raises(UnweaveError, match="has no output head to read a metric from"):
        relevance(base, gpt2[1], ["a0.h0"], tiny_readout(*gpt2))


def test_a_target_that_was_not_asked_for(gpt2):
    d = decompose(*gpt2, ["a0.h0"], ["a1.h1", "logits"])
    with pytest.raises(UnweaveError, match=r"'a1\.h2' was not a target: known are a1\.h1"):
        d.relevance("a1.h2")


def test_text_without_a_tokenizer(gpt2):
    with pytest.raises(UnweaveError, match="has no tokenizer: pass token ids"):
        decompose(gpt2[0], "a text", ["a0.h0"])
