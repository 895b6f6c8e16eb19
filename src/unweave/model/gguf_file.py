"""GGUF files: metadata as plain values, tensors dequantised one at a time."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize

from unweave.errors import UnweaveError

SLAB = 1024  # rows dequantised at once: bounds the temporaries, and stays in the CPU's cache


@dataclass(frozen=True, eq=False)
class GgufFile:
    """An open file: its metadata as plain values, its tensors by llama.cpp's names."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Any]

    @property
    def architecture(self) -> str:
        return self.metadata["general.architecture"]

    def get(self, key: str, default: Any = None) -> Any:
        """A field of the model's own section."""
        return self.metadata.get(f"{self.architecture}.{key}", default)


class _Reader(GGUFReader):
    """The package's reader over a plain array: it slices once per word of the vocabulary, which
    on its `np.memmap` costs more than all the rest."""

    @property
    def data(self) -> np.ndarray:
        return self._data

    @data.setter
    def data(self, mapped: np.ndarray) -> None:
        self._data = np.asarray(mapped)


def open_gguf(path: Path) -> GgufFile:
    """Opens a file and checks that all of it is there.

    Raises:
        UnweaveError: When it is no GGUF file, damaged or shorter than it says.
    """
    try:
        reader = _Reader(path)
        metadata = {
            # Everything but GGUF's own header counts is content.
            name: value.contents()
            for name, value in reader.fields.items()
            if not name.startswith("GGUF.")
        }
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
        # The reader slices a memory map without asking whether the bytes are there.
        raise UnweaveError(
            f"{path} is not a whole GGUF file (truncated or damaged): fetch it again"
        ) from error
    if not metadata.get("general.architecture"):
        raise UnweaveError(f"{path} names no general.architecture: is it a language model?")
    return GgufFile(path, metadata, {tensor.name: tensor for tensor in reader.tensors})


def dequantised(file: GgufFile, name: str) -> np.ndarray:
    """One tensor in float32, in llama.cpp's order of rows."""
    tensor = file.tensors[name]
    shape = tuple(reversed(tensor.shape.tolist()))
    values = np.empty(shape, dtype=np.float32)
    rows = values.reshape(-1, shape[-1])
    packed = tensor.data.reshape(len(rows), -1)
    try:
        for start in range(0, len(rows), SLAB):
            part = slice(start, start + SLAB)
            rows[part] = dequantize(packed[part], tensor.tensor_type)
    except NotImplementedError as error:
        raise UnweaveError(
            f"{file.path}: {name} is quantised as {tensor.tensor_type.name}, which the gguf "
            "package cannot undo: use a file in another quantisation, such as Q8_0"
        ) from error
    return values
