"""Model folders: config.json and weights, checked before anybody reads them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from unweave.errors import UnweaveError

_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "*.model", "*.spm")


def has_tokenizer(folder: Path) -> bool:
    return any(True for pattern in _TOKENIZER_FILES for _ in folder.glob(pattern))


def has_weights(folder: Path) -> bool:
    return any(folder.glob("*.safetensors")) or any(folder.glob("*final.pth"))


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as it is."""
    if not folder.is_dir():
        raise UnweaveError(
            f"{folder} is a {folder.suffix or 'plain'} file: expected a .gguf file, or a folder "
            "with config.json and safetensors"
        )
    path = folder / "config.json"
    if not path.is_file():
        raise UnweaveError(f"{folder} has no config.json: give a folder that save_pretrained wrote")
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise UnweaveError(f"{path} is not a JSON object ({error}): fetch it again") from error


def is_lens(config: Mapping[str, Any]) -> bool:
    """Whether a config is one of TransformerLens's training runs: they name no model_type."""
    return "model_type" not in config and {"d_model", "n_heads", "n_layers"} <= config.keys()


def lens_tensors(folder: Path) -> dict[str, Tensor]:
    """The state dict of a TransformerLens checkpoint, read without unpickling objects."""
    files = sorted(folder.glob("*.pth"))
    final = [file for file in files if file.name.endswith("final.pth")] or files
    if len(final) != 1:
        found = ", ".join(file.name for file in files) or "none"
        raise UnweaveError(
            f"{folder} should hold one .pth file, or one that ends in final.pth; found: {found}"
        )
    try:
        state = torch.load(final[0], map_location="cpu", weights_only=True)  # noqa: TID251
    except Exception as error:  # torch raises its zip reader's, unpickler's and own errors
        raise UnweaveError(
            f"{final[0]} is not a whole state dict of tensors (truncated, damaged, or with other "
            "objects in it): fetch it again"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(t, Tensor) for t in state.values()):
        raise UnweaveError(f"{final[0]} is not a state dict: expected tensors by name")
    return state


def check_safetensors(folder: Path) -> None:
    """Raises unless the folder's weights are whole safetensors files."""
    files = sorted(folder.glob("*.safetensors"))
    if not files and any(folder.glob("*.bin")):
        raise UnweaveError(pickled(str(folder)))
    if not files:
        raise UnweaveError(f"{folder} has no *.safetensors: give a folder with weights")
    for file in files:
        try:
            safe_open(file, framework="pt")
        except (SafetensorError, OSError) as error:
            raise UnweaveError(
                f"{file} is not a whole safetensors file (truncated or damaged): fetch it again"
            ) from error


def pickled(where: str) -> str:
    """The message for weights that exist as a pickle only."""
    return (
        f"{where} has pickled weights only, which are not loaded since a pickle can run code: "
        "convert them once with transformers' save_pretrained (it writes safetensors), or load "
        "them yourself and pass the model object"
    )
