"""A GGUF file as config, tensors and tokenizer, converted once and then read from the cache."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import Tensor

from unweave.model import cache

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
    from unweave.model.gguf_file import open_gguf
    from unweave.model.gguf_tokenizer import tokenizer_parts

    file = open_gguf(path)
    model_type = families.model_type_of(file)
    config, defaults = configure(model_type, families.config_fields(file))
    parts = tokenizer_parts(file.metadata)
    about = {
        "model_type": model_type,
        "model_class": families.FAMILIES[file.architecture].model_class,
        "config": config,
        "defaults": defaults,
        "tokenizer": None if parts is None else asdict(parts),
    }
    shapes = {
        target: tuple(reversed(file.tensors[name].shape.tolist()))
        for name, target in families.tensor_names(file).items()
    }
    return cache.Content(about, shapes, families.tensors(file))
