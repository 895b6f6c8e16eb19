"""Fused kernels against the rules as they are written, their twins.

Without a GPU, Triton's interpreter runs the same kernels on the CPU where triton is installed
(`conftest.py` asks for it). On a GPU they are compiled.
"""

import math
import sys
from types import ModuleType

import pytest
import torch
from oracles.closeness import assert_close

from unweave.decomposition import fused, rules
from unweave.decomposition.precision import products
from unweave.decomposition.rules import AttentionTotals
from unweave.model.algebra import (
    RotaryTable,
    Scoring,
    activate,
    attention_mix,
    attention_scores,
    normalise,
    pattern_of,
    rotate_pairs,
)
from unweave.model.weights import Activation, Linear, Norm
from unweave.model.window import Window

SOURCES, BATCH, POSITIONS, WIDTH = 11, 3, 5, 40
ACTIVATIONS = [
    Activation("silu"),
    Activation("gelu"),
    Activation("gelu_tanh"),
    Activation("gelu_tanh", 0.79788456),
    Activation("quick_gelu"),
    Activation("relu"),
]


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    pytest.importorskip("triton")
    from unweave.decomposition import kernels

    return kernels


@pytest.fixture
def normal():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    draw = torch.Generator(device).manual_seed(0)
    return lambda *shape: torch.randn(*shape, generator=draw, device=device)


@pytest.fixture(autouse=True)
def as_written():
    """The rules that kernels are compared with never use them."""
    with fused.fusing(False):
        yield


@pytest.mark.parametrize("f", ACTIVATIONS, ids=str)
def test_gates_and_activations(kernels: ModuleType, normal, f: Activation) -> None:
    # Totals are sliced where sources begin behind the first position.
    gate, up = (normal(BATCH, POSITIONS + 2, WIDTH)[:, 2:] for _ in range(2))
    rel_gate, rel_up = (normal(SOURCES, BATCH, POSITIONS, WIDTH) for _ in range(2))
    out, parameter = activate(gate, f) * up, f.parameter or math.sqrt(2 / math.pi)
    found = kernels.gate(rel_gate, rel_up, gate, up, out, f.name, parameter)
    assert_close(found, rules.gate_removal(rel_gate, rel_up, gate, up, f, out))
    out = activate(gate, f)
    found = kernels.gate(rel_gate, None, gate, None, out, f.name, parameter)
    assert_close(found, rules.activation_secant(rel_gate, gate, f, out))


@pytest.mark.parametrize("heads", [(), (3,)], ids=["whole", "per head"])
@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("affine", [True, False])
def test_norms(kernels: ModuleType, normal, heads: tuple, kind, affine: bool) -> None:
    bias = normal(WIDTH) if affine and kind == "layer" else None
    w = Norm(kind, 1e-5, normal(WIDTH) if affine else None, bias, 1.0 if affine else 0.0)
    total = normal(BATCH, POSITIONS, *heads, WIDTH)
    rel, out = normal(SOURCES, BATCH, POSITIONS, *heads, WIDTH), normalise(total, w)
    assert_close(kernels.norm(rel, total, w, out), rules.norm_removal(rel, total, w, out))


@pytest.mark.parametrize("width", [8, 12], ids=["all", "some"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_positions(kernels: ModuleType, normal, interleaved: bool, width: int) -> None:
    table = RotaryTable(normal(BATCH, POSITIONS, 4), normal(BATCH, POSITIONS, 4), interleaved)
    x = normal(SOURCES, BATCH, POSITIONS, 3, width)
    assert_close(kernels.rotate(x, table), rotate_pairs(x, table))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "queries", "keys", "start", "bias", "softcap"),
    [
        (6, 2, 24, 5, 5, 0, False, None),
        (6, 2, 24, 3, 5, 2, False, None),
        (4, 4, 16, 5, 5, 0, True, None),
        (9, 3, 64, 14, 14, 0, False, 5.0),
        (6, 2, 24, 5, 7, 0, False, None),
        (8, 1, 16, 17, 20, 3, True, None),
    ],
)
def test_attention(
    kernels: ModuleType, normal, heads, kv_heads, width, queries, keys, start, bias, softcap
) -> None:
    q = normal(BATCH, queries, heads, width)
    k, v = (normal(BATCH, keys, kv_heads, width) for _ in range(2))
    order = torch.arange(keys, device=q.device)
    mask = (order[None, :] <= order[keys - queries :, None])[None, None].repeat(BATCH, 1, 1, 1)
    mask[0, :, 0] = False  # a query of left padding sees no key
    shift = normal(1, heads, queries, keys).expand(BATCH, -1, -1, -1) if bias else None
    scoring = Scoring(0.3, mask, shift, softcap)
    pattern = pattern_of(attention_scores(q, k), scoring)
    z = attention_mix(pattern, v)
    rel_q = normal(SOURCES, BATCH, queries, heads, width)
    rel_k, rel_v = (normal(SOURCES, BATCH, keys - start, kv_heads, width) for _ in range(2))
    rels, totals = (rel_q, rel_k, rel_v), AttentionTotals(q, k, v, z, pattern, scoring, start)
    assert kernels.fits_attention(queries, keys, heads // kv_heads, width)
    found = kernels.attention(
        rels, (q, k, v, z), mask, shift, scoring.scale, softcap, start, tf32=False
    )
    assert_close(found, rules.attention_removal(*rels, totals))


def test_two_halves_have_sixteen_bits(kernels: ModuleType, normal) -> None:
    x = normal(7, WIDTH)
    high, low = kernels.halves(x).float().split(WIDTH, -1)
    # Triton's interpreter cuts bits off where a GPU rounds.
    bound = 2.0**-16 if x.is_cuda else 2.0**-14
    assert ((high + low - x).abs() <= bound * x.abs()).all()


def test_a_product_of_halves_is_that_of_the_whole(kernels: ModuleType, normal, monkeypatch) -> None:
    """The product itself needs a GPU: here the same in float32."""
    weight = normal(9, WIDTH).bfloat16()
    window = Window([[weight]], torch.float32, weight.device)
    rel, w = normal(2, 3, 4, WIDTH), Linear(weight, None, window)
    assert fused.linear(rel, w) is None, "no TF32, no halves"
    seen = []

    def product(a, b, out_dtype):
        seen.append(a.shape)
        return a.float() @ b.float()

    monkeypatch.setattr(fused, "kernels_for", lambda x: kernels)
    monkeypatch.setattr(fused, "_widens", lambda device: True)
    monkeypatch.setattr(window, "has_halves", lambda stored: True)
    monkeypatch.setattr(torch, "mm", product)
    with products(tf32=True):
        found = [fused.linear(rel, w), fused.linear(rel, w)]
    fused.forget()
    exact = rel.double() @ weight.double().T
    for one in found:
        assert ((one - exact).abs().max() / exact.abs().max()) < 2.0**-13
    assert seen == [(24, 2 * WIDTH)] * 2


def test_without_the_compiler_rules_run_as_they_are_written(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "unweave.decomposition.kernels", None)
    fused._kernels.cache_clear()
    try:
        with pytest.warns(UserWarning, match=r"Triton cannot be used.*install triton"):
            assert fused._kernels() is None
        assert fused._kernels() is None  # told once
    finally:
        fused._kernels.cache_clear()
