"""`load`: a model by name, folder, file or object, as a `Model`. Alone here, transformers is used.

Every way in ends in the same three things: a config, tensors by name, and a tokenizer. Weights are
used where they lie, in a memory map or in the given object; nothing is unpickled (safetensors, GGUF
and `weights_only=True`), and no code that comes with a model is run.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from unweave.errors import UnweaveError
from unweave.model import cache, sources
from unweave.model.checkpoint import Checkpoint, architecture, read_network
from unweave.model.folders import (
    check_safetensors,
    has_tokenizer,
    is_lens,
    lens_tensors,
    read_config,
)
from unweave.model.model import Model
from unweave.model.sources import DEFAULT

LENS = "transformer_lens"
_LENS_TOKENIZER = "NeelNanda/gpt-neox-tokenizer-digits"  # for checkpoints that do not name theirs

# Heads that a checkpoint was trained with and its class leaves out: nothing that stays reads them.
_UNUSED_HEADS = re.compile(r"(.*\.)?pooler\..* | cls\.seq_relationship\..*", re.VERBOSE)


@dataclass(frozen=True, eq=False)
class Source:
    """A model before it is read.

    Args:
        model_type: The name of its architecture.
        tokenizer: Makes the tokenizer, or None; asked only when the caller gave none.
        adds_bos: Whether it is known to want BOS; None asks the tokenizer.
    """

    model_type: str
    checkpoint: Checkpoint
    tokenizer: Callable[[], Any | None]
    adds_bos: bool | None = None


def load(
    x: Any = DEFAULT,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    tokenizer: Any | None = None,
    bos: bool | None = None,
) -> Model:
    """Loads a model.

    Args:
        x: A name of a bundled model ("smollm2-135m"), of TransformerLens ("attn-only-4l") or on the
            Hugging Face hub ("gpt2"); a folder with `config.json` and safetensors; a `.gguf` file;
            or a transformers model, whose weights are then shared.
        dtype: float32 by default; a model object keeps its own.
        device: The CPU by default; a model object stays where it is.
        tokenizer: A transformers tokenizer, or the name or folder of one, instead of the model's.
        bos: Whether text gets a BOS token in front; by default what the model was trained with.

    Raises:
        UnweaveError: When it cannot be loaded, with the reason and what to do.
    """
    if isinstance(x, str | Path):
        name, source = str(x), _source(sources.find(x))
        dtype, device = dtype or torch.float32, device or "cpu"
    else:
        source = _from_object(x)
        name = getattr(x.config, "name_or_path", None) or type(x).__name__
    return _model(name, source, dtype, device, tokenizer, bos)


def from_transformers(
    model: Any,
    name: str | None = None,
    tokenizer: Any | None = None,
    dtype: torch.dtype | None = None,
) -> Model:
    """A transformers model as a `Model` that shares its weights."""
    source = _from_object(model)
    default = model.config.name_or_path or type(model).__name__
    return _model(name or default, source, dtype, None, tokenizer, None)


def oracle(x: Any = DEFAULT) -> Any:
    """transformers' own model with the weights that `load(x)` uses, in evaluation mode.

    Raises:
        UnweaveError: Also when transformers has no class for this kind of checkpoint.
    """
    if not isinstance(x, str | Path):
        return _checked_object(x).eval()
    path = sources.find(x)
    if path.suffix == ".gguf":
        return _gguf_oracle(path)
    if is_lens(read_config(path)):
        raise UnweaveError(
            f"{x} is a TransformerLens checkpoint: transformers has no class to compare it with"
        )
    return _pretrained(path)


def _model(
    name: str,
    source: Source,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
    tokenizer: Any | None,
    bos: bool | None,
) -> Model:
    network = read_network(source.model_type, source.checkpoint)
    if dtype is not None:
        network = network.to(dtype)
    if device is not None:
        try:
            network = network.to(torch.device(device))
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise UnweaveError(f"device {device!s} cannot be used: {reason}; try cpu") from error
    if tokenizer is None:
        tokenizer, adds_bos = source.tokenizer(), source.adds_bos
    else:
        tokenizer, adds_bos = _tokenizer(tokenizer), None
    model = Model(name, network, source.model_type, tokenizer)
    if model.family != "decoder" or tokenizer is None:
        bos = bool(bos)
    elif bos is None:
        wants = _adds_bos(tokenizer) if adds_bos is None else adds_bos
        has_bos = tokenizer.bos_token_id is not None
        bos = has_bos and (wants or architecture(source.model_type).needs_bos)
    if bos and (model.family != "decoder" or getattr(tokenizer, "bos_token_id", None) is None):
        raise UnweaveError(f"bos=True, but {name} takes no BOS token in front: leave bos out")
    return Model(name, network, source.model_type, tokenizer, bos)


def _adds_bos(tokenizer: Any) -> bool:
    # Tokenizers differ in how they say so; all of them show it.
    return tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]


def _source(path: Path) -> Source:
    """What a file or folder on this machine holds."""
    if path.suffix == ".gguf":
        return _from_gguf(path)
    config = read_config(path)
    return _from_lens(path, config) if is_lens(config) else _from_folder(path, config)


def _checked_object(x: Any) -> Any:
    if not isinstance(x, nn.Module) or not hasattr(getattr(x, "config", None), "to_dict"):
        raise UnweaveError(
            f"cannot load a {type(x).__name__}: expected a name, a folder, a .gguf file or a "
            "transformers model"
        )
    return x


def _from_object(x: Any) -> Source:
    model = _checked_object(x)
    # Tied weights are one object in `parameters`, and stay one here.
    shared: dict[int, Tensor] = {}
    tensors = {
        name: shared.setdefault(id(tensor), tensor.detach())
        for name, tensor in model.state_dict(keep_vars=True).items()
    }
    if any(tensor.is_meta for tensor in tensors.values()):
        raise UnweaveError(
            f"{type(model).__name__} has weights that are not in memory (meta device): "
            "load it without device_map or offloading"
        )
    config = model.config
    checkpoint = Checkpoint(config.to_dict(), _defaults(config), tensors, type(model).__name__)
    return Source(config.model_type, checkpoint, lambda: _tokenizer_at_hand(config.name_or_path))


def _defaults(config: Any) -> dict[str, Any]:
    return type(config)().to_dict()


def _tokenizer_at_hand(name: str | None) -> Any | None:
    folder = sources.at_hand(name) if name else None
    return None if folder is None else _folder_tokenizer(folder)


def _from_folder(folder: Path, config: Mapping[str, Any]) -> Source:
    if not config.get("model_type"):
        raise UnweaveError(f"{folder / 'config.json'} names no model_type: which family is it?")
    architecture(config["model_type"])  # before gigabytes are read
    source = _from_object(_pretrained(folder))
    return Source(source.model_type, source.checkpoint, lambda: _folder_tokenizer(folder))


def _pretrained(folder: Path) -> Any:
    """transformers' model from a folder, float32, with every weight found and every one used."""
    import transformers

    check_safetensors(folder)
    with _quiet():
        try:
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
            model_class = _model_class(folder, config)
            model, info = model_class.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
            )
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UnweaveError(f"{folder} cannot be read by transformers: {reason}") from error
    unexpected = [name for name in info["unexpected_keys"] if not _UNUSED_HEADS.fullmatch(name)]
    for names, fault in ((info["missing_keys"], "lacks"), (unexpected, "has unknown")):
        if names:
            raise UnweaveError(
                f"{folder} {fault} weights for {model_class.__name__}: "
                f"{', '.join(sorted(names)[:4])} ({len(names)} in all); is the class in "
                "config.json (architectures) right?"
            )
    return model.eval()


def _model_class(folder: Path, config: Any) -> Any:
    import transformers

    name = (config.architectures or [None])[0]
    model_class = None if name is None else getattr(transformers, name, None)
    if model_class is None:
        raise UnweaveError(
            f"{folder / 'config.json'} says architectures = {config.architectures}: expected a "
            "class of transformers, such as LlamaForCausalLM; write it there"
        )
    return model_class


def _from_lens(folder: Path, config: Mapping[str, Any]) -> Source:
    name = config.get("tokenizer_name") or _LENS_TOKENIZER

    def tokenizer() -> Any | None:
        own = _folder_tokenizer(folder)
        return _tokenizer_at_hand(name) if own is None else own

    checkpoint = Checkpoint(config, {}, lens_tensors(folder), "HookedTransformer")
    return Source(LENS, checkpoint, tokenizer)


def _from_gguf(path: Path) -> Source:
    cached = _gguf_cache(path)
    about, parts = cached.about, cached.about["tokenizer"]
    checkpoint = Checkpoint(
        about["config"], about["defaults"], cached.tensors, about["model_class"]
    )
    return Source(
        about["model_type"],
        checkpoint,
        lambda: None if parts is None else _rebuilt_tokenizer(parts),
        None if parts is None else parts["adds_bos"],
    )


def _gguf_cache(path: Path) -> cache.Cached:
    return cache.load_or_build(path, gguf_version(), lambda: _gguf_content(path))


def gguf_version() -> str:
    """What a cached file depends on beyond its source: this format, and transformers' configs."""
    return f"1, transformers {version('transformers')}"


def _gguf_content(path: Path) -> cache.Content:
    from transformers import CONFIG_MAPPING

    from unweave.model import gguf_families as families
    from unweave.model.gguf_file import open_gguf
    from unweave.model.gguf_tokenizer import tokenizer_parts

    file = open_gguf(path)
    model_type = families.model_type_of(file)
    config = CONFIG_MAPPING[model_type](**families.config_fields(file))
    parts = tokenizer_parts(file.metadata)
    about = {
        "model_type": model_type,
        "model_class": families.FAMILIES[file.architecture].model_class,
        "config": config.to_dict(),
        "defaults": _defaults(config),
        "tokenizer": None if parts is None else asdict(parts),
    }
    shapes = {
        target: tuple(reversed(file.tensors[name].shape.tolist()))
        for name, target in families.tensor_names(file).items()
    }
    return cache.Content(about, shapes, families.tensors(file))


def _rebuilt_tokenizer(parts: Mapping[str, Any]) -> Any:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    rebuilt = Tokenizer.from_str(parts["json"])
    return PreTrainedTokenizerFast(tokenizer_object=rebuilt, **parts["special"])


def _gguf_oracle(path: Path) -> Any:
    import transformers

    cached = _gguf_cache(path)
    model_class = getattr(transformers, cached.about["model_class"])
    config = model_class.config_class.from_dict(cached.about["config"])
    with _quiet():
        # Without a folder, from_pretrained takes the tensors as they are, uncopied.
        model = model_class.from_pretrained(
            None, config=config, state_dict=dict(cached.tensors), dtype=torch.float32
        )
    return model.eval()


def _tokenizer(x: Any) -> Any:
    """What the caller gave as tokenizer: an object, or the name or folder of one."""
    if not isinstance(x, str | Path):
        return x
    folder = sources.find(x)
    found = _folder_tokenizer(folder) if folder.is_dir() else _source(folder).tokenizer()
    if found is None:
        raise UnweaveError(f"{folder} has no tokenizer: give a folder with tokenizer.json")
    return found


def _folder_tokenizer(folder: Path) -> Any | None:
    if not has_tokenizer(folder):
        return None
    from transformers import AutoTokenizer

    with _quiet():
        try:
            return AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # the tokenizers library raises bare Exceptions
            reason = str(error).strip().splitlines()[0]
            raise UnweaveError(
                f"the tokenizer in {folder} cannot be read: {reason}; mend it, or load with "
                "tokenizer=…"
            ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' progress bars and load reports: what matters there is an error here."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
