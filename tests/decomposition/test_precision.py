"""TF32: on by default where the GPU has it, checked by the run itself, off when it is too coarse.

There is no GPU here: a stand-in rounds the inputs of products while the switch is on.
"""

import pytest
import torch
from oracles.tiny import tiny_inputs, tiny_model, tiny_readout

from unweave.decomposition import api, jobs, precision, rules
from unweave.decomposition.api import decompose, relevance
from unweave.decomposition.edges import edge_relevance
from unweave.errors import UnweaveError
from unweave.testing.problem import tiny_problem


@pytest.fixture
def gpt2():
    return tiny_model("gpt2").to(torch.float32), tiny_inputs("gpt2", rows=3)


@pytest.fixture
def coarse(monkeypatch):
    """Makes the CPU look like such a GPU, its products rounded to `bits` of mantissa."""

    def switch_on(bits: int) -> list[bool]:
        linear, seen = rules.linear, []

        def rounded(x, *rest):
            on = torch.backends.cuda.matmul.allow_tf32
            seen.append(on)
            if on:
                mantissa, exponent = torch.frexp(x)
                x = torch.ldexp(torch.round(mantissa * 2**bits) / 2**bits, exponent)
            return linear(x, *rest)

        monkeypatch.setattr(rules, "linear", rounded)
        monkeypatch.setattr(jobs, "uses_tf32", lambda model, p: p in (None, "tf32"))
        return seen

    before = torch.backends.cuda.matmul.allow_tf32
    yield switch_on
    assert torch.backends.cuda.matmul.allow_tf32 == before


def score(gpt2, **options):
    model, inputs = gpt2
    other = tiny_inputs("gpt2", rows=3, seed=1)
    return relevance(
        model, inputs, "heads", tiny_readout(model, inputs), "removal", other, **options
    )


def test_a_gpu_with_tf32_uses_it_and_tells_by_how_much(gpt2, coarse):
    exact = score(gpt2)
    assert "precision" not in exact.about
    seen = coarse(10)
    scores = score(gpt2)
    assert any(seen)
    assert not all(seen)  # the rechecked sources, and the totals
    assert scores.sources == exact.sources
    assert scores.examples.shape == exact.examples.shape
    gap = (scores.values - exact.values).abs().max() / exact.values.abs().max()
    assert 1e-7 < gap < 1e-2
    told = scores.about["precision"]
    assert told.startswith("tf32, within ")
    assert told.endswith("of float32 on 3 sources")
    assert 0 < float(told.split()[2]) < 1e-2
    full = score(gpt2, precision="float32")
    assert (full.values - exact.values).abs().max() < 1e-6
    assert "precision" not in full.about


def test_products_that_are_too_coarse_are_switched_off(gpt2, coarse):
    exact = score(gpt2)
    coarse(2)
    with pytest.warns(UserWarning, match=r"TF32 changes relevant parts by .*full float32 is used"):
        scores = score(gpt2)
    assert (scores.values - exact.values).abs().max() < 1e-6
    assert "precision" not in scores.about


def test_a_decomposition_tells_it_too(gpt2, coarse):
    whole = decompose(*gpt2, ["a0.h1", "m1"], ["a2.h0", "logits"])
    assert whole.tf32 is None
    coarse(10)
    d = decompose(*gpt2, ["a0.h1", "m1"], ["a2.h0", "logits"])
    assert d.tf32 is not None
    assert 0 < d.tf32 < 1e-2
    assert d.rel["logits"].shape == whole.rel["logits"].shape
    assert (d.rel["logits"] - whole.rel["logits"]).abs().max() < 0.1


@pytest.mark.parametrize("variant", ["local", "exact"])
def test_edge_scores_tell_it_too(coarse, variant):
    problem = tiny_problem("gpt2", dtype=torch.float32)
    names = ["input->a1.h0<q>", "m0->a2.h1<v>", "a1.h2->m1", "m1->logits", "m0->a1.h0<k>"]

    def scored():
        return edge_relevance(
            problem.model, problem.batch, problem.ablation, variant=variant, edges=names
        )

    exact = scored()
    assert "precision" not in exact.about
    coarse(10)
    scores = scored()
    assert scores.about["precision"].startswith("tf32, within ")
    gap = (scores.values - exact.values).abs().max() / exact.values.abs().max()
    assert 0 < gap < 1e-2


def test_the_precision_of_the_weights_and_of_the_ablation(gpt2):
    model, inputs = gpt2
    wide = tiny_model("gpt2")
    base = api.activations(wide, inputs, [p.point for p in wide.heads()])
    ablation = api.Ablation("wide", base)
    for asked, dtype in (("float64", torch.float64), ("float32", torch.float32)):
        for given in (model, wide):
            d = decompose(given, inputs, ["a0.h1"], ablation=ablation, precision=asked)
            assert d.rel["logits"].dtype == dtype


def test_tf32_needs_a_gpu(gpt2):
    with pytest.raises(UnweaveError, match=r"'tf32' needs an NVIDIA GPU .* found cpu"):
        score(gpt2, precision="tf32")


def test_the_switch_is_set_back_when_a_block_fails():
    before = torch.backends.cuda.matmul.allow_tf32
    seen = []

    def fail():
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), precision.products(tf32=not before):
        fail()
    assert seen == [not before]
    assert torch.backends.cuda.matmul.allow_tf32 == before
