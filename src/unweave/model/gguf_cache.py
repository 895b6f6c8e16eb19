"""A GGUF file as config, tensors and tokenizer, converted once and then read from the cache."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unweave.errors import UnweaveError
from unweave.model import cache
from unweave.model.checkpoint import Checkpoint, read_network
from unweave.model.configs import check_fields, check_heads, check_sizes

if TYPE_CHECKING:
    from unweave.model.gguf_file import GgufFile
    from unweave.model.gguf_tokenizer import TokenizerParts

# From a model_type and config fields to the whole config and the defaults of its class.
Configure = Callable[[str, Mapping[str, Any]], tuple[dict[str, Any], dict[str, Any]]]


@dataclass(frozen=True, eq=False)
class GgufModel:
    """What a file holds, in transformers' terms.

    Args:
        tokenizer: The fields of `gguf_tokenizer.TokenizerParts`; None where the file's tokenizer
            is not one that can be rebuilt.
        tensors: Memory-mapped, float32.
    """

    model_type: str
    model_class: str
    config: dict[str, Any]
    defaults: dict[str, Any]
    tokenizer: dict[str, Any] | None
    tensors: dict[str, Tensor]


def read_gguf(path: Path, configure: Configure) -> GgufModel:
    """Reads a file, through the cache."""
    cached = cache.load_or_build(path, _version(), lambda: _convert(path, configure))
    return GgufModel(**cached.about, tensors=cached.tensors)


def is_cached(path: Path) -> bool:
    return cache.is_cached(path, _version())


def _version() -> str:
    # Beyond its source, a cached file depends on this format and on transformers' config classes.
    return f"1, transformers {version('transformers')}"


def _convert(path: Path, configure: Configure) -> cache.Content:
    # Needed only the first time: reading from the cache must not wait for these imports.
    from unweave.model import gguf_families as families
    from unweave.model.gguf_file import damaged, open_gguf

    file = open_gguf(path)
    model_type = families.model_type_of(file)
    shapes = {
        target: tuple(reversed(file.tensors[name].shape.tolist()))
        for name, target in families.tensor_names(file).items()
    }
    try:
        fields = families.config_fields(file)
    except (TypeError, ValueError, KeyError, IndexError, ZeroDivisionError) as error:
        raise damaged(path) from error
    model_class = families.FAMILIES[file.architecture].model_class
    with _naming(path):
        check_fields(fields, path)
        check_sizes(fields, shapes, path)
        config, defaults = configure(model_type, fields)
        check_heads(config, path)
        check_sizes(config, shapes, path)
        # The network without its values, so that a file that does not fit leaves no cache.
        empty = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
        read_network(model_type, Checkpoint(config, defaults, empty, model_class))
    parts = _tokenizer_parts(path, file.metadata)
    about = {
        "model_type": model_type,
        "model_class": model_class,
        "config": config,
        "defaults": defaults,
        "tokenizer": None if parts is None else asdict(parts),
    }
    return cache.Content(about, shapes, _values(file))


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors within this block name the file."""
    try:
        yield
    except UnweaveError as error:
        if str(path) in str(error):
            raise
        raise UnweaveError(f"{path}: {error}") from error


def _values(file: "GgufFile") -> Iterator[np.ndarray]:
    from unweave.model import gguf_families as families
    from unweave.model.gguf_file import damaged

    try:
        yield from families.tensors(file)
    except (ValueError, IndexError, TypeError, ZeroDivisionError) as error:
        raise damaged(file.path) from error


def _tokenizer_parts(path: Path, metadata: Mapping[str, Any]) -> "TokenizerParts | None":
    from unweave.model.gguf_tokenizer import tokenizer_parts

    try:
        return tokenizer_parts(metadata)
    except Exception as error:  # the tokenizers library raises bare Exceptions
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UnweaveError(
            f"{path}: the tokenizer's tables are damaged ({reason}): fetch the file again"
        ) from error
