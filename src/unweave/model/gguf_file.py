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
    on its `np.memmap` costs more than all the rest.

    Slices end within the file: past it the package's own are empty, and an array that claims 2⁶⁰
    entries would be read for ever.
    """

    @property
    def data(self) -> np.ndarray:
        return self._data

    @data.setter
    def data(self, mapped: np.ndarray) -> None:
        self._data = np.asarray(mapped)

    def _get(
        self, offset: Any, dtype: Any, count: Any = 1, override_order: Any = None
    ) -> np.ndarray:
        if int(offset) + np.dtype(dtype).itemsize * int(count) > len(self._data):
            raise ValueError("the file ends within a value")
        return super()._get(offset, dtype, count, override_order)


def open_gguf(path: Path) -> GgufFile:
    """Opens a file and checks that all of it is there.

    Raises:
        UnweaveError: When it is not a GGUF file, damaged or shorter than it says.
    """
    try:
        reader = _Reader(path)
        metadata = {
            # Everything but GGUF's own header counts is content.
            name: value.contents()
            for name, value in reader.fields.items()
            if not name.startswith("GGUF.")
        }
    except OSError as error:
        raise UnweaveError(f"{path} cannot be read: {error.strerror}") from error
    except Exception as error:  # the reader trusts every count and type of the file
        raise damaged(path) from error
    name = metadata.get("general.architecture")
    if not name or not isinstance(name, str):
        raise UnweaveError(f"{path} names no general.architecture: is it a language model?")
    return GgufFile(path, metadata, {tensor.name: tensor for tensor in reader.tensors})


def damaged(path: Path) -> UnweaveError:
    """The error for a file whose parts do not fit together."""
    return UnweaveError(f"{path} is not a whole GGUF file (truncated or damaged): fetch it again")


def dequantised(file: GgufFile, name: str) -> np.ndarray:
    """One tensor in float32, in llama.cpp's order of rows."""
    tensor = file.tensors[name]
    shape = tuple(reversed(tensor.shape.tolist()))
    values = np.empty(shape, dtype=np.float32)
    rows = values.reshape(-1, shape[-1])
    packed = tensor.data.reshape(len(rows), -1)
    try:
        with np.errstate(all="ignore"):  # a damaged scale overflows; the check below says so
            for start in range(0, len(rows), SLAB):
                part = slice(start, start + SLAB)
                rows[part] = dequantize(packed[part], tensor.tensor_type)
    except NotImplementedError as error:
        raise UnweaveError(
            f"{file.path}: {name} is quantised as {tensor.tensor_type.name}, which the gguf "
            "package cannot undo: use a file in another quantisation, such as Q8_0"
        ) from error
    if not np.isfinite(values).all():
        raise UnweaveError(f"{file.path}: {name} holds values that are not finite: fetch it again")
    return values
