"""Model folders: config.json and weights, checked before anybody reads them."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from unweave.errors import UnweaveError

# As safetensors and as torch call them.
_FLOATS = ("F16", "BF16", "F32", "F64", "FLOAT16", "BFLOAT16", "FLOAT32", "FLOAT64")
# Tensors that are not weights: positions, masks.
_BUFFERS = re.compile(r"(.*\.)?(position_ids|token_type_ids|masked_bias|attn\.(mask|IGNORE))")
_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "*.model", "*.spm")


def has_tokenizer(folder: Path) -> bool:
    return any(True for pattern in _TOKENIZER_FILES for _ in folder.glob(pattern))


def has_weights(folder: Path) -> bool:
    patterns = ("*.safetensors", "*final.pth", "pytorch_model*.bin")
    return any(True for pattern in patterns for _ in folder.glob(pattern))


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as it is."""
    if not folder.is_dir():
        raise UnweaveError(
            f"{folder} is a {folder.suffix or 'plain'} file: expected a .gguf file, or a folder "
            "with config.json and safetensors"
        )
    path = folder / "config.json"
    if os.access(folder, os.X_OK) and not path.is_file():  # of a closed folder reading says more
        raise UnweaveError(f"{folder} has no config.json: give a folder that save_pretrained wrote")
    return read_json(path)


def read_json(path: Path) -> dict[str, Any]:
    """A file that holds one JSON object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnweaveError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UnweaveError(f"{path} is not a JSON object ({error}): fetch it again") from error
    if not isinstance(found, dict):
        kind = type(found).__name__
        raise UnweaveError(f"{path} is not a JSON object (found a {kind}): fetch it again")
    return found


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
            f"{folder}: expected one .pth file, or one that ends in final.pth, found {found}"
        )
    return _floats(final[0], _state_dict(final[0]))


def safetensors_shapes(folder: Path) -> dict[str, tuple[int, ...]] | None:
    """The shapes of a folder's tensors by name; None where its weights are in .bin files.

    Raises:
        UnweaveError: Unless the weights are whole files of a float type. transformers would cast
            integers to floats without a word.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files and any(folder.glob("*.bin")):
        return None
    if not files:
        raise UnweaveError(f"{folder} has no *.safetensors: give a folder with weights")
    shapes = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118
                    part = opened.get_slice(name)
                    shapes[name] = tuple(part.get_shape())
                    _check_stored(file, name, part.get_dtype(), shapes[name])
        except (SafetensorError, OSError) as error:
            raise UnweaveError(
                f"{file} is not a whole safetensors file (truncated or damaged): fetch it again"
            ) from error
    return shapes


def bin_tensors(folder: Path) -> dict[str, Tensor]:
    """The state dict of a folder whose weights are in .bin files, in one or in shards."""
    index = folder / "pytorch_model.bin.index.json"
    names = ["pytorch_model.bin"]
    if index.is_file():
        places = read_json(index).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(f, str) for f in places.values()):
            raise UnweaveError(f"{index} has no weight_map of files by tensor: fetch it again")
        names = sorted({*places.values()})
    state: dict[str, Tensor] = {}
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise UnweaveError(f"{folder} has no {name}: give a folder with all of its weights")
        state |= _floats(folder / name, _state_dict(folder / name))
    return state


def _floats(path: Path, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, none of them a weight of another type."""
    for name, tensor in state.items():
        kind = str(tensor.dtype).removeprefix("torch.")
        _check_stored(path, name, kind, tuple(tensor.shape))
    return state


def _state_dict(path: Path) -> dict[str, Tensor]:
    """Tensors by name from torch's own format; nothing else in a file is unpickled."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)  # noqa: TID251
    except Exception as error:  # torch raises its zip reader's, unpickler's and own errors
        raise UnweaveError(
            f"{path} is not a whole state dict of tensors (truncated, damaged, or with other "
            "objects in it): fetch it again"
        ) from error
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(t, Tensor) for name, t in state.items()
    ):
        raise UnweaveError(f"{path} is not a state dict: expected tensors by name")
    return state


def _check_stored(file: Path, name: str, kind: str, shape: tuple[int, ...]) -> None:
    if kind.upper() in _FLOATS or _BUFFERS.fullmatch(name):
        return
    if name.endswith(".bias") and len(shape) == 4:  # GPT-2's and GPT-Neo's causal masks
        return
    raise UnweaveError(
        f"{file}: {name} is stored as {kind}: expected 16, 32 or 64-bit floats; load the "
        "unquantised checkpoint, or a .gguf file of the model"
    )
