"""Dequantised weights kept between runs, one safetensors file for each source file.

A file is called `<name>-<checksum of the source>-<checksum of itself>.safetensors`. The first
checksum finds it; the second, CRC-32 over all bytes, is verified before the file is used, so that
one which was cut short, edited or damaged is thrown away and made again. CRC-32 is meant against
accidents, not against an enemy, and takes a fifth of a second for half a gigabyte.

Writing goes tensor by tensor into a temporary file that gets its name at the very end: memory
holds one tensor, and nobody sees half a file. That is why the format, a length, a JSON header and
the bytes, is written here; it is read with the safetensors library.
"""

import hashlib
import json
import os
import re
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from safetensors import SafetensorError, safe_open
from torch import Tensor

from unweave.errors import UnweaveError

_CHUNK = 1 << 22


@dataclass(frozen=True, eq=False)
class Content:
    """What a file is to hold.

    Args:
        about: Anything that JSON can carry.
        shapes: Tensor shapes by name.
        values: The tensors in that order, in float32, made one at a time.
    """

    about: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    values: Iterable[np.ndarray]


@dataclass(frozen=True, eq=False)
class Cached:
    """What a file holds; the tensors are memory-mapped."""

    about: dict[str, Any]
    tensors: dict[str, Tensor]


def folder() -> Path:
    """$UNWEAVE_CACHE, or `unweave` in the user's cache folder."""
    if own := os.environ.get("UNWEAVE_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "unweave"


def is_cached(source: Path, version: str) -> bool:
    """Whether there is a file for this source (which is not verified before it is used)."""
    return any(_matches(source, version))


def load_or_build(source: Path, version: str, build: Callable[[], Content]) -> Cached:
    """The cached content of a source file, built when there is none that is whole.

    Args:
        source: The file that the content is made from.
        version: What else the content depends on; another version is another file.
        build: Makes the content.
    """
    for path in _matches(source, version):
        cached = _read(path)
        if cached is not None:
            return cached
        path.unlink(missing_ok=True)
    path = _write(_stem(source, version), build())
    cached = _read(path)
    if cached is None:
        raise UnweaveError(
            f"{path} changed while it was written: is the disk full or failing? "
            "Set UNWEAVE_CACHE to a folder on another disk"
        )
    return cached


def _stem(source: Path, version: str) -> str:
    digest = hashlib.blake2b(version.encode(), digest_size=8)
    try:
        with source.open("rb") as file:
            for chunk in _chunks(file):
                digest.update(chunk)
    except OSError as error:
        raise UnweaveError(f"{source} cannot be read: {error.strerror}") from error
    name = re.sub(r"[^\w.-]", "_", source.stem)
    return f"{name}-{digest.hexdigest()}"


def _matches(source: Path, version: str) -> Iterator[Path]:
    name = re.compile(re.escape(_stem(source, version)) + r"-[0-9a-f]{8}\.safetensors")
    home = folder()
    if home.is_dir():
        yield from (path for path in sorted(home.iterdir()) if name.fullmatch(path.name))


def _read(path: Path) -> Cached | None:
    try:
        with path.open("rb") as file:
            if f"{_crc(_chunks(file)):08x}" != path.stem[-8:]:
                return None
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["about"])
            return Cached(about, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except (OSError, SafetensorError):
        return None


def _write(stem: str, content: Content) -> Path:
    home = folder()
    try:
        home.mkdir(parents=True, exist_ok=True)
        descriptor, part = tempfile.mkstemp(dir=home, suffix=".part")
        try:
            with open(descriptor, "wb") as file:
                checksum = _crc(_written(file, content))
            path = home / f"{stem}-{checksum:08x}.safetensors"
            os.replace(part, path)
        except BaseException:
            os.unlink(part)
            raise
    except OSError as error:
        raise UnweaveError(
            f"cannot write the cache in {home} ({error.strerror}): make room there, or set "
            "UNWEAVE_CACHE to another folder"
        ) from error
    return path


def _written(file: BinaryIO, content: Content) -> Iterator[bytes | memoryview]:
    """Writes piece by piece and passes each on."""
    for piece in _pieces(content):
        file.write(piece)
        yield piece


def _pieces(content: Content) -> Iterator[bytes | memoryview]:
    header: dict[str, Any] = {"__metadata__": {"about": json.dumps(content.about)}}
    end = 0
    for name, shape in content.shapes.items():
        start, end = end, end + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # aligns the tensors
    yield len(text).to_bytes(8, "little")
    yield text
    for shape, values in zip(content.shapes.values(), content.values, strict=True):
        assert values.shape == shape
        yield np.ascontiguousarray(values, dtype="<f4").data.cast("B")


def _crc(pieces: Iterable[bytes | memoryview]) -> int:
    crc = 0
    for piece in pieces:
        crc = zlib.crc32(piece, crc)
    return crc


def _chunks(file: BufferedReader) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(_CHUNK))
    while size := file.readinto(buffer):
        yield buffer[:size]
