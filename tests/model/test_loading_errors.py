"""Checkpoints that are broken: one line, exit code 2, the value and the remedy."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles.tiny_folders import lens_folder, words
from safetensors.torch import load_file, save_file

from unweave.errors import UnweaveError
from unweave.model.loading import load


def edit(field: str, value: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {field: value}))

    return change


def retensor(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        state = load_file(folder / "model.safetensors")
        copies = {name: tensor.clone() for name, tensor in state.items()}
        change(copies)
        save_file(copies, folder / "model.safetensors", metadata={"format": "pt"})

    return rewrite


def cut_weights(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def pickle_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


BREAKAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "has no config.json: give a folder"),
    "broken config": (lambda f: (f / "config.json").write_text("{"), "is not a JSON object"),
    "no family": (edit("model_type", None), "names no model_type"),
    "unsupported": (edit("model_type", "gpt_2"), "'gpt_2' is not supported: did you mean gpt2"),
    "unknown class": (
        edit("architectures", ["Mine"]),
        "architectures = ['Mine']: expected a class",
    ),
    "unknown field": (edit("magic_option", 3), "does not know: magic_option = 3"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no *.safetensors"),
    "not a state dict": (pickle_weights, "is not a whole state dict of tensors"),
    "truncated": (cut_weights, "is not a whole safetensors file"),
    "tensor missing": (
        retensor(lambda state: state.pop("transformer.h.1.ln_1.weight")),
        "lacks weights for GPT2LMHeadModel: transformer.h.1.ln_1.weight",
    ),
    "tensor unknown": (
        retensor(lambda state: state.update(magic=torch.ones(3))),
        "has unknown weights for GPT2LMHeadModel: magic",
    ),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_broken_folder(breakage: str, folder: Path, error_of: Callable[[str], str]) -> None:
    apply, message = BREAKAGES[breakage]
    apply(folder)
    line = error_of(str(folder))
    assert message in line
    assert str(folder) in line or breakage in ("unsupported", "unknown field")


def test_unsupported_says_how_to_add_one(folder: Path, error_of: Callable[[str], str]) -> None:
    edit("model_type", "mamba")(folder)
    assert "model/architectures/<family>.py" in error_of(str(folder))


def test_broken_tokenizer(folder: Path) -> None:
    words(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(UnweaveError, match=r"the tokenizer in .* cannot be read: .*tokenizer=…"):
        load(folder)


def test_truncated_gguf(tmp_path: Path, error_of: Callable[[str], str]) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00")
    assert f"{path} is not a whole GGUF file" in error_of(str(path))


def test_wrong_kind_of_file(saved: Path, error_of: Callable[[str], str]) -> None:
    line = error_of(str(saved / "model.safetensors"))
    assert "is a .safetensors file: expected a .gguf file, or a folder" in line


@pytest.mark.parametrize("content", [b"no checkpoint", None])
def test_broken_lens_checkpoint(content: bytes | None, tmp_path: Path) -> None:
    lens_folder(tmp_path)
    if content is None:
        (tmp_path / "model_final.pth").unlink()
    else:
        (tmp_path / "model_final.pth").write_bytes(content)
    with pytest.raises(UnweaveError, match=r"expected one \.pth|not a whole state dict"):
        load(tmp_path)
