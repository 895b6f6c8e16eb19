"""Objects and folders: shared, read whole, with their tokenizer and BOS."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles.closeness import assert_close
from oracles.tiny_folders import GPT2, LENS, TOKENS, lens_folder, lens_state, words
from oracles.transformer_lens import forward
from safetensors.torch import load_file, save_file

from unweave.errors import UnweaveError, UnweaveWarning
from unweave.model.checkpoint import Tiny, architectures
from unweave.model.loading import from_transformers, load, oracle
from unweave.model.weights import Linear, tensors
from unweave.testing.oracle import build

BERT = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}


def edit_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_object_is_shared_not_copied() -> None:
    reference = build(GPT2)
    model = load(reference)
    stored = {t.untyped_storage().data_ptr() for t in reference.state_dict().values()}
    used = {t.untyped_storage().data_ptr() for t in tensors(model.network)}
    assert used == stored
    head = model.network.head.steps[0]
    assert isinstance(head, Linear)
    assert head.weight is model.network.body.embedding.tokens  # tied, and one object
    with torch.no_grad():
        expected = reference(TOKENS).logits
    assert_close(model.logits(TOKENS), expected)
    assert oracle(reference) is reference
    assert model.name == "GPT2LMHeadModel"
    assert from_transformers(reference, name="mine").name == "mine"


def test_object_keeps_its_dtype_unless_another_is_given() -> None:
    reference = build(GPT2).double()
    assert load(reference).network.dtype == torch.float64
    assert load(reference, dtype=torch.bfloat16).network.dtype == torch.bfloat16
    assert from_transformers(reference, dtype=torch.float32).network.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_object_in_16_bits_is_measured_in_float32(dtype: torch.dtype) -> None:
    reference = build(GPT2).to(dtype)
    with pytest.warns(UnweaveWarning, match="is measured in float32"):
        model = load(reference)
    wide = build(GPT2).to(dtype).float()
    with torch.no_grad():
        expected = wide(TOKENS).logits
    assert_close(model.logits(TOKENS), expected)
    assert load(reference, dtype=dtype).network.dtype == dtype  # asked for: no warning


def test_object_brings_the_tokenizer_it_was_saved_with(folder: Path) -> None:
    from transformers import GPT2LMHeadModel

    words(folder)
    model = load(GPT2LMHeadModel.from_pretrained(folder))
    assert model.encode("abc")[0] == [1, 2, 3]


@pytest.mark.parametrize(
    ("x", "message"),
    [(3, "cannot load a int: expected a name"), (torch.nn.Linear(1, 1), "cannot load a Linear")],
)
def test_other_objects(x: Any, message: str) -> None:
    with pytest.raises(UnweaveError, match=message):
        load(x)


def test_object_without_weights() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config(**GPT2.config))
    with pytest.raises(UnweaveError, match="not in memory"):
        load(model)


def test_folder(saved: Path) -> None:
    model = load(saved)
    with torch.no_grad():
        expected = build(GPT2)(TOKENS).logits
    assert_close(model.logits(TOKENS), expected)
    assert torch.equal(oracle(str(saved))(TOKENS).logits, build(GPT2)(TOKENS).logits)
    assert load(saved, dtype=torch.float64).network.dtype == torch.float64


def test_missing_tokenizer_matters_only_to_text(saved: Path) -> None:
    model = load(saved)
    assert model.tokenizer is None
    with pytest.raises(UnweaveError, match="has no tokenizer: pass token ids, or load it with"):
        model.logits("text")
    with pytest.raises(UnweaveError, match="has no tokenizer: give a folder with"):
        load(saved, tokenizer=saved)


@pytest.mark.parametrize("first", [None, "<s>"])
def test_bos_follows_the_tokenizer(first: str | None, folder: Path) -> None:
    words(folder, first)
    model = load(folder)
    assert model.prepend_bos is (first is not None)
    assert model.encode("ab")[0] == ([1, 2] if first is None else [0, 1, 2])
    assert load(folder, bos=True).encode("ab")[0] == [0, 1, 2]
    assert load(folder, bos=False).encode("ab")[0] == [1, 2]


def test_tokenizer_of_another_folder(saved: Path, tmp_path: Path) -> None:
    words(tmp_path)
    assert load(saved, tokenizer=tmp_path).encode("cab")[0] == [3, 1, 2]
    assert load(saved, tokenizer=load(saved, tokenizer=tmp_path).tokenizer).encode("a")[0] == [1]


def test_bos_is_no_matter_of_encoders(tmp_path: Path) -> None:
    build(Tiny("BertModel", BERT)).save_pretrained(tmp_path)
    words(tmp_path, "<s>")
    assert not load(tmp_path).prepend_bos
    with pytest.raises(UnweaveError, match="bos=True, but"):
        load(tmp_path, bos=True)


def test_heads_that_the_class_leaves_out(tmp_path: Path) -> None:
    """bert-base-uncased: trained with a pooler that BertForMaskedLM does not have."""
    build(Tiny("BertForPreTraining", BERT)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"architectures": ["BertForMaskedLM"]})
    )
    assert load(tmp_path).logits(TOKENS).shape == (1, 4, 61)


def test_minilm_equals_transformers() -> None:
    model, reference = load("minilm"), oracle("minilm")
    reference.set_attn_implementation("eager")  # sdpa is our kernel too, and then all bits agree
    inputs = model.inputs(["a short text", "another text that is somewhat longer"])
    with torch.no_grad():
        hidden = reference(inputs.tokens, attention_mask=inputs.mask.long()).last_hidden_state
    assert_close(model.logits(inputs)[inputs.mask], hidden[inputs.mask])
    assert model.family == "encoder"


def test_transformer_lens_folder(tmp_path: Path, unreachable: None) -> None:
    model = load(lens_folder(tmp_path))
    assert_close(model.logits(TOKENS)[0], forward(LENS, lens_state(), TOKENS[0]))
    assert model.tokenizer is None
    with pytest.raises(UnweaveError, match="transformers has no class to compare it with"):
        oracle(tmp_path)


def test_device_that_is_not_there(saved: Path) -> None:
    with pytest.raises(UnweaveError, match="device nonsense cannot be used"):
        load(saved, device="nonsense")


@pytest.mark.parametrize("device", ["meta", torch.device("meta")])
def test_device_without_numbers(saved: Path, device: Any) -> None:
    with pytest.raises(UnweaveError, match="device meta cannot be used"):
        load(saved, device=device)


def test_sentence_encoder_without_the_head_that_its_config_names(tmp_path: Path) -> None:
    """sentence-transformers/all-mpnet-base-v2: MPNetForMaskedLM, and no weights for its head."""
    encoder = build(architectures["mpnet"].tiny["base model"])
    encoder.save_pretrained(tmp_path)
    edit_config(tmp_path, architectures=["MPNetForMaskedLM"])
    with pytest.warns(UnweaveWarning, match="no weights for the head of MPNetForMaskedLM"):
        model = load(tmp_path)
    with torch.no_grad():
        expected = encoder(TOKENS).last_hidden_state
    assert_close(model.logits(TOKENS), expected)


def test_head_with_one_weight_missing_is_damage(tmp_path: Path) -> None:
    build(architectures["mpnet"].tiny["masked lm"]).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    state = load_file(path)
    del state["lm_head.dense.weight"]
    save_file(state, path, metadata={"format": "pt"})
    with pytest.raises(UnweaveError, match=r"lacks weights for MPNetForMaskedLM: lm_head\.dense"):
        load(tmp_path)


def test_decoder_without_its_head_is_damage(tmp_path: Path) -> None:
    build(Tiny("GPT2Model", GPT2.config)).save_pretrained(tmp_path)
    edit_config(tmp_path, architectures=["GPT2LMHeadModel"], tie_word_embeddings=False)
    with pytest.raises(UnweaveError, match=r"lacks weights for GPT2LMHeadModel: lm_head\.weight"):
        load(tmp_path)


@pytest.mark.parametrize("shards", [1, 2])
def test_bin_weights(folder: Path, shards: int) -> None:
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(state)
    if shards == 1:
        torch.save(state, folder / "pytorch_model.bin")
    else:
        places = {name: f"pytorch_model-{i % 2}.bin" for i, name in enumerate(names)}
        for file in {*places.values()}:
            torch.save({n: state[n] for n in names if places[n] == file}, folder / file)
        index = {"metadata": {}, "weight_map": places}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with torch.no_grad():
        expected = build(GPT2)(TOKENS).logits
    assert_close(load(folder).logits(TOKENS), expected)
    assert torch.equal(oracle(folder)(TOKENS).logits, build(GPT2)(TOKENS).logits)


@pytest.mark.parametrize("kernel", ["flash_attention_2", "flex_attention", "foo"])
def test_attention_kernels_are_no_matter_of_the_model(folder: Path, kernel: str) -> None:
    edit_config(folder, attn_implementation=kernel, _attn_implementation=kernel)
    assert load(folder).logits(TOKENS).shape == (1, 4, 61)


LLAMA = next(iter(architectures["llama"].tiny.values()))
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, 64),
        ({"max_position_embeddings": 40}, 40),
        ({"rope_parameters": YARN | {"original_max_position_embeddings": 32}}, 128),
    ],
)
def test_rotary_models_have_a_limit(fields: dict[str, Any], limit: int) -> None:
    model = from_transformers(build(Tiny(LLAMA.model_class, {**LLAMA.config, **fields})))
    assert model.token_limit == limit
    assert model.logits(torch.ones(1, limit, dtype=torch.long)).shape == (1, limit, 61)
    with pytest.raises(UnweaveError, match=f"has {limit + 1} tokens and .* takes at most {limit}"):
        model.logits(torch.ones(1, limit + 1, dtype=torch.long))


@pytest.mark.parametrize("family", ["bloom", "t5"])
def test_positions_without_a_limit(family: str) -> None:
    model = from_transformers(build(next(iter(architectures[family].tiny.values()))))
    assert model.token_limit is None
