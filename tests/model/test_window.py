"""Weights that stay as they are stored: the same numbers as a float32 copy, one layer at a time."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from oracles.closeness import assert_close
from torch import Tensor

from unweave.decomposition.api import relevance
from unweave.errors import UnweaveError, UnweaveWarning
from unweave.model.assembling import LoadedParts, LoadOptions, finish
from unweave.model.checkpoint import architectures
from unweave.model.devices import device_of
from unweave.model.loading import load
from unweave.model.weights import tensors
from unweave.model.window import Window, part_sizes, placement_of, unwindowed, windowed
from unweave.testing.oracle import build
from unweave.testing.problem import tiny_problem

CPU = torch.device("cpu")
FAMILIES = ["llama", "gpt2", "bart", "bloom", "gemma2"]
TINY = architectures["llama"].tiny["grouped heads"]
TOKENS = torch.tensor([[1, 2, 3, 4], [4, 3, 2, 1]])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_numbers_are_those_of_a_float32_copy(family: str, half: torch.dtype) -> None:
    problem = tiny_problem(family, dtype=torch.float32)
    stored = problem.model.network.to(half)
    copied = replace(problem.model, network=stored.to(torch.float32))
    narrow = replace(problem.model, network=windowed(stored, torch.float32))
    assert narrow.network.dtype == torch.float32
    clean = problem.batch.clean
    assert torch.equal(narrow.logits(clean), copied.logits(clean))
    found, expected = (
        relevance(model, problem.batch, "heads", ablation=problem.ablation)
        for model in (narrow, copied)
    )
    assert torch.equal(found.values, expected.values)
    # A model in half precision is swept in the same way, without a copy of its weights.
    asked = replace(problem.model, network=stored)
    assert torch.equal(
        relevance(asked, problem.batch, "heads", ablation=problem.ablation).values, found.values
    )


def test_matrices_stay_as_they_are_and_one_layer_is_held() -> None:
    problem = tiny_problem("llama", dtype=torch.float32)
    stored = problem.model.network.to(torch.bfloat16)
    network = windowed(stored, torch.float32)
    before = {x.data_ptr() for x in tensors(stored) if x.ndim > 1}
    assert {x.data_ptr() for x in tensors(network) if x.ndim > 1} == before
    window = network.window
    assert isinstance(window, Window)
    seen: list[int] = []
    here = window._here

    def counted(stored: Tensor, group: dict[tuple[int, str], Tensor]) -> Tensor:
        seen.append(len(window.held))
        return here(stored, group)

    window._here = counted
    replace(problem.model, network=network).logits(problem.batch.clean)
    assert len(seen) == sum(len(group) for group in window.groups), "each is widened once a run"
    assert max(seen) == 1
    assert window.bytes == max(4 * sum(x.numel() for x in group) for group in window.groups)
    assert unwindowed(network).dtype == torch.bfloat16


def test_another_dtype_or_device_leaves_the_window() -> None:
    problem = tiny_problem("llama", dtype=torch.float32)
    stored = problem.model.network.to(torch.bfloat16)
    model = replace(problem.model, network=windowed(stored, torch.float32))
    assert model.to(torch.float64).network.window is None
    assert model.to("cpu").network.dtype == torch.float32
    clean = problem.batch.clean
    assert_close(model.to(torch.float64).logits(clean).float(), model.logits(clean))
    wide = relevance(model, problem.batch, "heads", ablation=problem.ablation, precision="float64")
    copy = replace(problem.model, network=stored.to(torch.float64))
    exact = relevance(copy, problem.batch, "heads", ablation=problem.ablation, precision="float64")
    assert torch.equal(wide.values, exact.values)


def test_a_folder_is_kept_in_its_dtype(tmp_path: Path) -> None:
    reference = build(TINY).to(torch.bfloat16)
    reference.save_pretrained(tmp_path)
    model = load(tmp_path, dtype="auto")
    assert model.network.dtype == torch.float32
    assert {x.dtype for x in tensors(model.network) if x.ndim > 1} == {torch.bfloat16}
    copied = load(tmp_path)
    assert {x.dtype for x in tensors(copied.network)} == {torch.float32}
    assert torch.equal(model.logits(TOKENS), copied.logits(TOKENS))
    assert load(build(TINY), dtype="auto").network.window is None, "float32 needs no window"


def test_an_object_in_half_precision_shares_its_weights() -> None:
    reference = build(TINY).to(torch.float16)
    with pytest.warns(UnweaveWarning, match="is measured in float32, widened layer by layer"):
        model = load(reference)
    own = {x.data_ptr() for x in reference.parameters()}
    assert {x.data_ptr() for x in tensors(model.network) if x.ndim > 1} <= own


@pytest.mark.parametrize("family", ["llama", "bart"])
def test_a_map_places_parts_and_changes_no_number(family: str) -> None:
    problem = tiny_problem(family, dtype=torch.float32)
    network = problem.model.network
    where = placement_of(network, {"": "cpu", "blocks.1": "cpu"}, None, lambda device: 0)
    assert where.device == CPU
    assert list(where.parts) == list(part_sizes(network))
    placed = replace(problem.model, network=windowed(network, None, where))
    clean = problem.batch.clean
    assert torch.equal(placed.logits(clean), problem.model.logits(clean))
    found, expected = (
        relevance(model, problem.batch, "heads", ablation=problem.ablation)
        for model in (placed, problem.model)
    )
    assert torch.equal(found.values, expected.values)


def test_sizes_of_parts_add_up_to_the_weights() -> None:
    network = tiny_problem("gpt2", dtype=torch.float32).model.network
    whole = {id(x): x.numel() * 4 for x in tensors(network)}
    inside = sum(part_sizes(network).values())
    norm = sum(x.numel() * 4 for x in tensors(network.body.norm))
    assert inside + norm == sum(whole.values()), "a tied table counts once"


def test_auto_fills_gpus_in_order_and_leaves_the_rest_to_the_cpu(monkeypatch) -> None:
    network = tiny_problem("llama", dtype=torch.float32).model.network
    sizes = part_sizes(network)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    room = {0: sizes["embed"] + sizes["blocks.0"], 1: sizes["blocks.1"]}
    where = placement_of(network, "auto", None, lambda device: room[device.index])
    found = {name: str(device) for name, device in where.parts.items()}
    assert str(where.device) == "cuda:0"
    assert found["embed"] == found["blocks.0"] == "cuda:0"
    assert found["blocks.1"] == "cuda:1"
    assert found["blocks.2"] == found["head"] == "cpu"


@pytest.mark.parametrize(
    ("device_map", "message"),
    [
        ("balanced", "expected 'auto' or a device for each part"),
        ({"layers.0": "cpu"}, "names 'layers.0', which this model does not have"),
        ({"embed": "cpu"}, "no device for 'blocks.0'"),
    ],
)
def test_maps_that_do_not_fit(device_map, message: str) -> None:
    with pytest.raises(UnweaveError, match=message):
        load(build(TINY), device_map=device_map)


def test_a_map_to_one_device_is_that_device() -> None:
    model = load(build(TINY), device_map={"": "cpu"})
    assert model.network.window is None
    assert torch.equal(model.logits(TOKENS), load(build(TINY)).logits(TOKENS))


def test_memory_is_for_weights_and_work_where_weights_can_be_elsewhere() -> None:
    problem = tiny_problem("llama", dtype=torch.float32)
    half = build(TINY).to(torch.bfloat16)
    model = load(half, dtype="auto", device_map={"": "cpu"})
    with pytest.raises(UnweaveError, match="less than the weights that are stored on cpu take"):
        relevance(model, problem.batch, "heads", ablation="zero", memory="1KB")


def test_a_model_that_transformers_placed_stays_where_it_is() -> None:
    """`hf_device_map`: a CPU has no second device, so one that holds no numbers plays it."""
    network = load(build(TINY)).network
    away = network.to(torch.device("meta")).body.blocks[1:]
    body = replace(network.body, blocks=(network.body.blocks[0], *away))
    parts = LoadedParts("llama", None, lambda: None, adds_bos=False)
    found = finish("placed", replace(network, body=body), parts, LoadOptions()).network
    assert found.window is not None
    # Activations are computed on the other device, and what the CPU holds comes to it by layer.
    assert found.device.type == "meta"
    stored = unwindowed(found).body.blocks
    matrices = [{x.device.type for x in tensors(block) if x.ndim > 1} for block in stored]
    assert matrices == [{"cpu"}, *[{"meta"}] * (len(stored) - 1)]


def test_a_device_is_the_one_that_its_tensors_name() -> None:
    """As "cuda" is "cuda:0": else weights that are there travel, and prompts are elsewhere."""
    model = load(build(TINY), device="cpu:0", device_map={"": "cpu:0"})
    assert model.network.window is None
    assert model.network.device == torch.zeros(1).device
    assert str(device_of("cpu:0")) == "cpu"
