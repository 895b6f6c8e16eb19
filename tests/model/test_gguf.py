"""GGUF files: written as llama.cpp writes them, read back."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from oracles.closeness import assert_close
from oracles.gguf_writer import MODELS, SIZES, VOCABULARY, tiny_gguf, write_gguf
from tokenizers import Tokenizer

from unweave.errors import UnweaveError
from unweave.model import gguf_families
from unweave.model.checkpoint import Tiny
from unweave.model.gguf_tokenizer import tokenizer_parts
from unweave.model.loading import comparison, load, oracle
from unweave.testing import find_parity
from unweave.testing.oracle import build

TEXT = " Mary gave 17 drinks to<s>"
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize("family", MODELS)
def test_family_is_read_back_exactly(family: str, tmp_path: Path) -> None:
    reference, path = tiny_gguf(tmp_path, family)
    back = oracle(path)
    expected, found = reference.state_dict(), back.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        # A shift by 1 costs the last bits of float32; everything else is the same to the bit.
        allowed = 1e-6 if family.startswith("gemma") and "norm" in name else 0.0
        torch.testing.assert_close(found[name], tensor, atol=allowed, rtol=0)
    tokens = torch.arange(3, 21)[None]
    with torch.no_grad():
        wanted = reference(tokens).logits
    assert_close(load(path).logits(tokens), wanted)


@pytest.mark.parametrize("family", MODELS)
def test_check_compares_with_transformers_own_reader(family: str, tmp_path: Path) -> None:
    reference, path = tiny_gguf(tmp_path, family)
    found = comparison(path)
    assert "transformers' own GGUF reader" in found.note
    for name, tensor in found.reference.state_dict().items():
        torch.testing.assert_close(tensor, reference.state_dict()[name], atol=1e-6, rtol=0)
    assert find_parity(found.network, found.reference).passed


def test_a_mistake_of_our_reader_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, path = tiny_gguf(tmp_path)
    monkeypatch.setattr(gguf_families, "_unpermuted", lambda values, heads: values)
    found = comparison(path)
    assert not find_parity(found.network, found.reference).passed


def test_a_field_that_is_read_differently_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, path = tiny_gguf(tmp_path, metadata={"llama.context_length": 48})
    usual = gguf_families._shortest
    monkeypatch.setattr(gguf_families, "_shortest", lambda v: 49 if v == 48 else usual(v))
    wanted = "unweave reads max_position_embeddings = 49, transformers 48"
    with pytest.raises(UnweaveError, match=wanted):
        comparison(path)


def test_quantised_matrices(tmp_path: Path) -> None:
    reference, path = tiny_gguf(tmp_path, quantisation=gguf.GGMLQuantizationType.Q8_0)
    expected = reference.state_dict()
    for name, tensor in oracle(path).state_dict().items():
        apart = (tensor - expected[name]).abs().max() / expected[name].abs().max()
        # Half a step of 127, and the step itself is rounded to float16.
        assert apart <= (1 / 220 if tensor.ndim > 1 else 0), name


def test_llama3_scaling_is_found_from_its_divisors(tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    model = build(Tiny("LlamaForCausalLM", SIZES | {"rope_parameters": rope, "head_dim": 32}))
    plain = 1 / 500000.0 ** (np.arange(0, 32, 2) / 32)
    divisors = (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
    fields = {"llama.rope.freq_base": 500000.0, "llama.attention.key_length": 32}

    def write(name: str, freqs: np.ndarray) -> Path:
        extra = {"rope_freqs.weight": freqs}
        return write_gguf(tmp_path / name, model, "llama", metadata=fields, tensors=extra)

    assert oracle(write("same.gguf", divisors)).config.rope_parameters == rope
    with pytest.raises(UnweaveError, match=r"other\.gguf: rope_freqs.weight is not Llama 3's"):
        load(write("other.gguf", divisors**2))


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_rope_scaling(kind: str, tmp_path: Path) -> None:
    fields = {
        "llama.rope.scaling.type": kind,
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 16,
    }
    _, path = tiny_gguf(tmp_path, metadata=fields)
    found = oracle(path).config.rope_parameters
    assert (found["rope_type"], found["factor"]) == (kind, 4.0)
    assert found["original_max_position_embeddings"] == 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metadata": {"llama.expert_count": 8}}, r"llama\.expert_count = 8"),
        ({"metadata": {"llama.rope.dimension_count": 4}}, "rotates 4 of 8 dimensions"),
        (
            {"metadata": {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.new": 1.0}},
            r"llama\.rope\.scaling\.new is not supported",
        ),
        ({"tensors": {"blk.0.ffn_magic.weight": np.ones(3, np.float32)}}, "ffn_magic"),
    ],
)
def test_what_is_not_known_is_an_error(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    _, path = tiny_gguf(tmp_path, **options)
    with pytest.raises(UnweaveError, match=message):
        load(path)


def test_unknown_family(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "lamma")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UnweaveError, match=r"family 'lamma' are not supported: did you mean llama"):
        load(path)


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.01, 0.3, 0.7, 0.9999])
def test_truncated_file(share: float, tmp_path: Path) -> None:
    _, whole = tiny_gguf(tmp_path)
    content = whole.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(UnweaveError, match=r"cut\.gguf is not a whole GGUF file"):
        load(path)


def test_text_becomes_tokens_and_back(tmp_path: Path) -> None:
    model = load(tiny_gguf(tmp_path)[1])
    ids, spans = model.encode(TEXT)
    pieces = [VOCABULARY[i] for i in ids]
    assert pieces[0] == "ĠMary"
    assert "17" not in pieces  # digits stand alone, whatever the merges say
    assert pieces[-1] == "<s>"
    assert TEXT[slice(*spans[0])] == " Mary"
    assert "".join(TEXT[start:end] for start, end in spans) == TEXT
    assert model.tokenizer is not None
    assert model.tokenizer.decode(ids) == TEXT
    assert (model.tokenizer.bos_token, model.tokenizer.eos_token) == ("<s>", "</s>")


@pytest.mark.parametrize(
    ("family", "metadata", "expected"),
    [
        ("llama", {}, False),
        ("llama", {"tokenizer.ggml.add_bos_token": False}, False),
        ("llama", {"tokenizer.ggml.add_bos_token": True}, True),
        ("llama", {"tokenizer.ggml.pre": "llama-bpe"}, True),
        ("gemma2", {"tokenizer.ggml.add_bos_token": False}, True),  # the family needs it
    ],
)
def test_bos(family: str, metadata: dict[str, Any], expected: bool, tmp_path: Path) -> None:
    _, path = tiny_gguf(tmp_path, family, metadata=metadata)
    model = load(path)
    assert model.prepend_bos is expected
    assert ("with BOS" in repr(model)) is expected
    assert (model.encode("a")[0][0] == 0) is expected
    assert load(path, bos=not expected).prepend_bos is not expected


def test_unknown_pre_tokenizer_gives_none(tmp_path: Path) -> None:
    _, path = tiny_gguf(tmp_path, metadata={"tokenizer.ggml.pre": "novel"})
    model = load(path)
    assert model.logits(torch.tensor([[1, 2]])).shape == (1, 2, len(VOCABULARY))
    with pytest.raises(UnweaveError, match="has no tokenizer: pass token ids"):
        model.logits("text")


def test_sentencepiece_vocabulary() -> None:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "\n"]
    tokens += ["▁", "M", "a", "r", "y", "ar", "▁M", "▁Mar", "▁Mary", "  "]
    types = [2, 3, 3, *([6] * 256), 4, *([1] * 9), 4]
    fields = {"model": "llama", "tokens": tokens, "token_type": types, "unknown_token_id": 0}
    metadata = {f"tokenizer.ggml.{key}": value for key, value in fields.items()}

    def pieces(text: str, **more: Any) -> list[str]:
        parts = tokenizer_parts(metadata | {f"tokenizer.ggml.{k}": v for k, v in more.items()})
        assert parts is not None
        assert parts.adds_bos
        tokenizer = Tokenizer.from_str(parts.json)
        coded = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(coded.ids, skip_special_tokens=False) == text
        return coded.tokens

    assert pieces("Mary Mary") == ["▁Mary", "▁Mary"]
    assert pieces(" Mary", add_space_prefix=False) == ["▁Mary"]
    assert pieces("é\nMa", add_space_prefix=False) == ["<0xC3>", "<0xA9>", "\n", "M", "a"]
    assert pieces("a  y", add_space_prefix=False) == ["a", "▁▁", "y"]
