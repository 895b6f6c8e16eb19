"""Every file in `model/architectures` against transformers; a new file needs no new test."""

import functools
from dataclasses import replace

import pytest
import torch

from unweave.errors import UnweaveError
from unweave.model.checkpoint import Checkpoint, Tiny, architectures, read_network
from unweave.model.weights import Activation, Attention, Branch, Head, Network, tensors
from unweave.testing import check_architecture, find_parity, parity, random_inputs
from unweave.testing.architecture import negative_control, network_of
from unweave.testing.oracle import Widened, arguments_for, build, forward
from unweave.testing.parity import Delta, relative_bound

FAMILIES = [name for name in architectures if architectures[name].tiny]
VARIANTS = [(name, variant) for name in FAMILIES for variant in architectures[name].tiny]


@functools.cache
def oracle_of(name: str, variant: str | None = None, dtype: torch.dtype = torch.float32):
    """A tiny model of transformers, by default of the family's first variant; do not change it."""
    family = architectures[name]
    return build(family.tiny[variant or next(iter(family.tiny))], dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_agrees_with_transformers(name, variant, dtype):
    oracle = oracle_of(name, variant, dtype)
    report = find_parity(network_of(oracle), oracle, name)
    assert report.passed, str(report)
    assert report.agreement == 1.0


@pytest.mark.parametrize("name", FAMILIES)
def test_wrong_config_is_noticed(name):
    report = negative_control(name)
    assert not report.passed
    assert report.worst > 1e-3


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_weights_are_views_of_the_checkpoint(name, variant):
    oracle = oracle_of(name, variant)
    storages = {tensor.untyped_storage().data_ptr() for tensor in oracle.state_dict().values()}
    weights = list(tensors(network_of(oracle)))
    assert weights
    assert all(weight.untyped_storage().data_ptr() in storages for weight in weights)


@pytest.mark.parametrize("name", FAMILIES)
def test_unknown_config_field_is_named(name):
    with pytest.raises(UnweaveError, match="attention_flavour = 'sour'"):
        network_of(oracle_of(name), {"attention_flavour": "sour"})


@pytest.mark.parametrize("name", FAMILIES)
def test_unread_and_missing_tensors_are_named(name):
    oracle, state = oracle_of(name), oracle_of(name).state_dict()

    def read(changed: dict[str, torch.Tensor]) -> Network:
        config, defaults = oracle.config.to_dict(), type(oracle.config)().to_dict()
        checkpoint = Checkpoint(config, defaults, changed, type(oracle).__name__)
        return read_network(oracle.config.model_type, checkpoint)

    with pytest.raises(UnweaveError, match=r"nobody read: adapter\.weight"):
        read({**state, "adapter.weight": torch.zeros(2)})
    for dimensions in (2, 1):  # a matrix, and a norm's weight
        lost = next(
            key
            for key in state
            if ".0." in key and state[key].ndim == dimensions and key.endswith(".weight")
        )
        with pytest.raises(UnweaveError, match=f"tensor '{lost}' is missing"):
            read({key: tensor for key, tensor in state.items() if key != lost})


def test_only_transformer_lens_is_left_to_another_oracle():
    assert set(architectures) - set(FAMILIES) == {"transformer_lens"}
    with pytest.raises(UnweaveError, match="'transformer_lens' has no tiny configs"):
        check_architecture("transformer_lens")


def test_check_architecture_reports_each_variant_and_dtype():
    reports = check_architecture("gpt2")
    assert [report.name for report in reports][:2] == [
        "gpt2, default, float32",
        "gpt2, default, float64",
    ]
    assert len(reports) == 2 * len(architectures["gpt2"].tiny)
    cases = {delta.case for delta in reports[0].deltas}
    assert cases == {"5 tokens", "5 tokens, padded", "12 tokens", "12 tokens, padded"}
    components = [delta.component for delta in reports[0].deltas][:5]
    assert components == ["embed", "block 0", "block 1", "block 2", "logits"]


def with_branch(network: Network, i: int, change) -> Network:
    """The network with branch `i` of block 1 changed: 0 is its attention, 1 its MLP."""
    blocks, branches = list(network.body.blocks), list(network.body.blocks[1].branches)
    branches[i] = change(branches[i])
    blocks[1] = replace(blocks[1], branches=tuple(branches))
    return replace(network, body=replace(network.body, blocks=tuple(blocks)))


def unscaled(network: Network) -> Network:
    return with_branch(network, 0, lambda b: replace(b, body=replace(b.body, scale=1.0)))


def test_check_architecture_fails_on_a_mapping_that_is_wrong(monkeypatch):
    gpt2 = architectures["gpt2"]
    tiny = {"default": gpt2.tiny["default"]}
    wrong = replace(gpt2, tiny=tiny, read=lambda c: unscaled(gpt2.read(c)))
    monkeypatch.setitem(architectures._entries, "gpt2", wrong)
    message = "gpt2, default, float32: first diverges at block 1, attention.out"
    with pytest.raises(AssertionError, match=message):
        check_architecture("gpt2")


def test_check_architecture_fails_when_the_control_agrees(monkeypatch):
    gpt2 = architectures["gpt2"]
    tiny = {"default": gpt2.tiny["default"]}
    harmless = replace(gpt2, tiny=tiny, wrong={"initializer_range": 0.1})
    monkeypatch.setitem(architectures._entries, "gpt2", harmless)
    with pytest.raises(AssertionError, match="agrees, though its config is wrong"):
        check_architecture("gpt2")


def without_bias(b: Branch) -> Branch:
    assert isinstance(b.body, Attention)
    return replace(b, body=replace(b.body, v=replace(b.body.v, bias=None)))


@pytest.mark.parametrize(
    ("place", "change"),
    [
        (
            "embed",
            lambda n: replace(
                n, body=replace(n.body, embedding=replace(n.body.embedding, scale=2.0))
            ),
        ),
        (
            "block 1, attention.pre",
            lambda n: with_branch(n, 0, lambda b: replace(b, pre=replace(b.pre, eps=1.0))),
        ),
        ("block 1, attention.v", lambda n: with_branch(n, 0, without_bias)),
        ("block 1, attention.out", unscaled),
        (
            "block 1, mlp.out",
            lambda n: with_branch(
                n, 1, lambda b: replace(b, body=replace(b.body, activation=Activation("silu")))
            ),
        ),
        (
            "logits, final",
            lambda n: replace(n, body=replace(n.body, norm=replace(n.body.norm, eps=1.0))),
        ),
        ("logits, head", lambda n: replace(n, head=Head((2.0, *n.head.steps)))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_first_diverging_component_is_named(place, change):
    oracle = oracle_of("opt")
    report = find_parity(change(network_of(oracle)), oracle)
    assert f"first diverges at {place} (5 tokens)" in str(report)


@pytest.mark.parametrize("factor", [2.0**-20, 2.0**20])
def test_bounds_are_relative_to_what_is_compared(factor, monkeypatch):
    """What rounding explains in an output explains as much of one a million times the size."""
    oracle, usual = oracle_of("gpt2"), parity.forward
    network = network_of(oracle)
    plain = find_parity(network, oracle).deltas

    def scaled(*args):
        output, others = usual(*args)
        return output * factor, others

    def times(factor: float) -> Network:
        return replace(network, head=Head((*network.head.steps, factor)))

    monkeypatch.setattr(parity, "forward", scaled)
    report = find_parity(times(factor), oracle)
    assert report.passed, str(report)
    for one, other in zip(plain, report.deltas, strict=True):
        size = factor if one.component == "logits" else 1.0
        assert other.bound == pytest.approx(size * one.bound)
    assert not find_parity(times(factor * (1 + 1e-3)), oracle).passed


def test_bounds_grow_with_the_number_of_operations():
    """As a random walk does: with the root of the terms of a sum, and of the components."""
    network, tiny = network_of(oracle_of("gpt2")), architectures["gpt2"].tiny["default"]
    components = len(network.body.blocks) + 2
    deep = replace(network, body=replace(network.body, blocks=network.body.blocks * 4))
    wide = network_of(build(replace(tiny, config={**tiny.config, "n_embd": 96})))
    bound = relative_bound(network)
    assert relative_bound(deep) / bound == pytest.approx((4 - 6 / components) ** 0.5)
    assert relative_bound(wide) / bound == pytest.approx(2.0)
    assert 1e-6 < bound < 1e-4


def test_nan_is_no_agreement():
    assert not Delta("5 tokens", "logits", float("nan"), 1e-5).passed


def test_float64_oracle_is_really_float64():
    """Without `Widened`, transformers' float64 is right to float32's precision only."""
    oracle = oracle_of("llama", dtype=torch.float64)
    inputs = random_inputs(oracle.config, 12)
    exact, _ = forward(oracle, inputs, {}, {})
    with torch.no_grad():
        rounded = oracle(**arguments_for(oracle, inputs)).logits
    assert (exact - rounded).abs().max() > 1e-8
    with Widened():
        assert torch.zeros(2, dtype=torch.float32).float().dtype == torch.float64


def test_unknown_transformers_class_is_named():
    with pytest.raises(
        UnweaveError, match="no class 'GPT2LMHeadModle': did you mean GPT2LMHeadModel"
    ):
        build(Tiny("GPT2LMHeadModle", {}))


def test_other_dtypes_need_a_tolerance():
    oracle = oracle_of("gpt2")
    with pytest.raises(UnweaveError, match=r"no tolerance is known for torch\.bfloat16"):
        find_parity(network_of(oracle).to(torch.bfloat16), oracle)


@pytest.mark.parametrize(
    ("family", "said", "message"),
    [("t5", False, "has an encoder"), ("bart", None, "has an encoder"), ("gpt2", True, "has no")],
)
def test_a_config_that_denies_the_encoder_is_named(family, said, message):
    oracle = build(next(iter(architectures[family].tiny.values())))
    network = network_of(oracle)
    oracle.config.is_encoder_decoder = said
    with pytest.raises(UnweaveError, match=f"is_encoder_decoder = {said} .* the model {message}"):
        find_parity(network, oracle)


def test_random_inputs_cover_what_a_config_asks_for():
    text = random_inputs(oracle_of("roberta", "two types, other padding").config, 12, "either")
    pad = oracle_of("roberta", "two types, other padding").config.pad_token_id
    assert text.mask.sum(1).tolist() == [12, 10, 6]
    assert text.mask[1, 0]
    assert text.mask[2, -1]
    assert ((text.tokens == pad) == ~text.mask).all()
    assert text.types is not None
    assert text.types.unique().tolist() == [0, 1]
    both = random_inputs(oracle_of("t5").config, 12, "right")
    assert both.decoder is not None
    assert both.mask.shape[1] != both.decoder.mask.shape[1]
    image = random_inputs(oracle_of("vit").config, 0, dtype=torch.float64)
    assert image.tokens is None
    assert image.pixels is not None
    assert image.pixels.dtype == torch.float64
