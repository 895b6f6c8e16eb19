"""`load`: a model by name, folder, file or object, as a `Model`. Alone here, transformers is used.

Every way in ends in the same three things: a config, tensors by name, and a tokenizer. Weights are
used where they lie, in a memory map or in the given object; nothing is unpickled (safetensors, GGUF
and `weights_only=True`), and no code that comes with a model is run.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from unweave.errors import UnweaveError
from unweave.model import sources
from unweave.model.assembling import Source, Wishes, assemble, finish
from unweave.model.checkpoint import Checkpoint, architecture
from unweave.model.folders import (
    check_safetensors,
    has_tokenizer,
    is_lens,
    lens_tensors,
    read_config,
)
from unweave.model.gguf_cache import read_gguf
from unweave.model.model import Model
from unweave.model.onnx_file import onnx_tensors
from unweave.model.probe import with_classes
from unweave.model.sources import DEFAULT
from unweave.model.synthetic import built, tokenizer_parts

_LENS_TOKENIZER = "NeelNanda/gpt-neox-tokenizer-digits"  # for checkpoints that do not name theirs

_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}

# Heads that a checkpoint was trained with and its class leaves out: nothing that stays reads them.
_UNUSED_HEADS = re.compile(r"(.*\.)?pooler\..* | cls\.seq_relationship\..*", re.VERBOSE)


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
            an `.onnx` file beside its `config.json`; a model that code builds
            ("wired-induction", "tracr:reverse"); or a transformers model, whose weights are then
            shared.
        dtype: float32 by default; a model object keeps its own.
        device: The CPU by default; a model object stays where it is.
        tokenizer: A transformers tokenizer, or the name or folder of one, instead of the model's.
        bos: Whether text gets a BOS token in front; by default what the model was trained with.

    Raises:
        UnweaveError: When it cannot be loaded, with the reason and what to do.
    """
    given = None if tokenizer is None else _tokenizer(tokenizer)
    if not isinstance(x, str | Path):
        source = _from_object(x)
        return assemble(_name(x), source, Wishes(dtype, device, given, bos))
    wishes = Wishes(dtype or torch.float32, device or "cpu", given, bos)
    if x in built:
        return _from_code(str(x), wishes)
    source = _source(sources.find(x))
    model, known = assemble(str(x), source, wishes), sources.BUNDLED.get(str(x))
    return with_classes(model, known.examples) if known and known.examples else model


def from_transformers(
    model: Any,
    name: str | None = None,
    tokenizer: Any | None = None,
    dtype: torch.dtype | None = None,
) -> Model:
    """A transformers model as a `Model` that shares its weights."""
    source = _from_object(model)
    return assemble(name or _name(model), source, Wishes(dtype, tokenizer=tokenizer))


def oracle(x: Any = DEFAULT) -> Any:
    """transformers' own model with the weights that `load(x)` uses, in evaluation mode.

    Raises:
        UnweaveError: Also when transformers has no class for this kind of checkpoint.
    """
    if not isinstance(x, str | Path):
        return _checked_object(x).eval()
    path = sources.find(x)
    if path.suffix == ".gguf":
        gguf = read_gguf(path, _configure)
        return _oracle_of(gguf.model_class, gguf.config, gguf.tensors, path.stem)
    if path.suffix == ".onnx":
        config = sources.config_beside(path)
        fields, _ = _configure(config["model_type"], config)
        return _oracle_of(config["architectures"][0], fields, onnx_tensors(path), str(x))
    config = read_config(path)
    if is_lens(config):
        raise UnweaveError(
            f"{x} is a TransformerLens checkpoint: transformers has no class to compare it with"
        )
    return _pretrained(path, config)


def _source(path: Path) -> Source:
    """What a file or folder on this machine holds."""
    if path.suffix == ".gguf":
        return _from_gguf(path)
    if path.suffix == ".onnx":
        return _from_onnx(path)
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


def _name(model: Any) -> str:
    return model.config.name_or_path or type(model).__name__


def _defaults(config: Any) -> dict[str, Any]:
    return type(config)().to_dict()


def _tokenizer_at_hand(name: str | None) -> Any | None:
    """The tokenizer beside the weights that an object was loaded from, if it says from where."""
    if not name:
        return None
    folder = Path(name) if Path(name).is_dir() else sources.at_hand(name)
    return None if folder is None else _folder_tokenizer(folder)


def _from_folder(folder: Path, config: Mapping[str, Any]) -> Source:
    source = _from_object(_pretrained(folder, config))
    return Source(source.model_type, source.checkpoint, lambda: _folder_tokenizer(folder))


def _pretrained(folder: Path, config: Mapping[str, Any]) -> Any:
    """transformers' model from a folder, float32, with every weight found and every one used."""
    import transformers

    if not config.get("model_type"):
        raise UnweaveError(f"{folder / 'config.json'} names no model_type: which family is it?")
    architecture(config["model_type"])  # before gigabytes are read
    check_safetensors(folder)
    with _quiet():
        try:
            typed = transformers.AutoConfig.from_pretrained(folder, **_LOCAL)
            model_class = _model_class(folder, typed)
            model, info = model_class.from_pretrained(
                folder,
                config=typed,
                dtype=torch.float32,
                use_safetensors=True,
                output_loading_info=True,
                **_LOCAL,
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

    model_class = getattr(transformers, (config.architectures or [""])[0], None)
    if not (
        isinstance(model_class, type) and issubclass(model_class, transformers.PreTrainedModel)
    ):
        raise UnweaveError(
            f"{folder / 'config.json'} says architectures = {config.architectures}: expected a "
            "class of transformers, such as LlamaForCausalLM; write it there"
        )
    return model_class


def _from_lens(folder: Path, config: Mapping[str, Any]) -> Source:
    def tokenizer() -> Any | None:
        if has_tokenizer(folder):
            return _folder_tokenizer(folder)
        try:
            return _tokenizer(config.get("tokenizer_name") or _LENS_TOKENIZER)
        except UnweaveError:  # another repository, maybe out of reach; text will ask for it
            return None

    checkpoint = Checkpoint(config, {}, lens_tensors(folder), "HookedTransformer")
    return Source("transformer_lens", checkpoint, tokenizer)


def _from_gguf(path: Path) -> Source:
    model = read_gguf(path, _configure)
    checkpoint = Checkpoint(model.config, model.defaults, model.tensors, model.model_class)
    parts = model.tokenizer
    if parts is None:
        return Source(model.model_type, checkpoint, lambda: None)
    return Source(
        model.model_type, checkpoint, lambda: _rebuilt_tokenizer(parts), parts["adds_bos"]
    )


def _configure(model_type: str, fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[model_type](**fields)
    return config.to_dict(), _defaults(config)


def _rebuilt_tokenizer(parts: Mapping[str, Any]) -> Any:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    rebuilt = Tokenizer.from_str(parts["json"])
    return PreTrainedTokenizerFast(tokenizer_object=rebuilt, **parts["special"])


def _from_code(name: str, wishes: Wishes) -> Model:
    made = built[name]()
    parts = tokenizer_parts(made.vocabulary)
    source = Source("built", None, lambda: _rebuilt_tokenizer(parts), adds_bos=True)
    return finish(name, made.network, source, wishes)


def _from_onnx(path: Path) -> Source:
    config = sources.config_beside(path)
    fields, defaults = _configure(config["model_type"], config)
    checkpoint = Checkpoint(fields, defaults, onnx_tensors(path), config["architectures"][0])
    return Source(config["model_type"], checkpoint, lambda: _bare_tokenizer(path.parent))


def _bare_tokenizer(folder: Path) -> Any | None:
    """The tokenizer of a folder that has tokenizer.json alone, with BERT's special tokens."""
    if (folder / "config.json").exists() or not (folder / "tokenizer.json").exists():
        return _folder_tokenizer(folder)
    special = {
        f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")
    }
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    return _rebuilt_tokenizer({"json": text, "special": special})


def _oracle_of(
    class_name: str, fields: Mapping[str, Any], tensors: Mapping[str, Tensor], name: str
) -> Any:
    """A transformers model that uses tensors as they are."""
    import transformers

    model_class = getattr(transformers, class_name)
    config = model_class.config_class.from_dict(fields)
    with _quiet():
        # Without a folder, from_pretrained takes the tensors as they are, uncopied.
        model = model_class.from_pretrained(
            None, config=config, state_dict=dict(tensors), dtype=torch.float32
        )
    model.config.name_or_path = name
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
            return AutoTokenizer.from_pretrained(folder, **_LOCAL)
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
