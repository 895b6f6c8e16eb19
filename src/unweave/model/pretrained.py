"""transformers' own models: from a folder, from tensors, from its GGUF reader.

What transformers raises becomes one line: it fails in its own ways for a config or file that is
damaged, and the whole of it is text that a user gave.
"""

import contextlib
import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from unweave.errors import UnweaveError, UnweaveWarning
from unweave.model.checkpoint import architecture
from unweave.model.configs import check_family, check_fields, check_heads, check_sizes
from unweave.model.folders import bin_tensors, safetensors_shapes

LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}

_SILENT = 60  # above logging.CRITICAL
# Heads that a checkpoint was trained with and its class leaves out: nothing that stays reads them.
_UNUSED_HEADS = re.compile(r"(.*\.)?pooler\..* | cls\.seq_relationship\..*", re.VERBOSE)
# The attention kernels of torch and transformers; others need packages and change only the speed.
_ATTENTION = (None, "eager", "sdpa")
_LONGEST_REASON = 300


def folder_model(
    folder: Path,
    config: Mapping[str, Any],
    dtype: torch.dtype | Literal["auto"] = torch.float32,
) -> Any:
    """transformers' model from a folder, with every weight found and every one used.

    Args:
        config: The folder's config.json.
        dtype: "auto" keeps what the folder has.
    """
    where = folder / "config.json"
    model_type = check_family(config, where)
    architecture(model_type)  # before gigabytes are read
    check_fields(config, where)
    shapes = safetensors_shapes(folder)
    state = bin_tensors(folder) if shapes is None else None
    shapes = {n: tuple(t.shape) for n, t in state.items()} if state is not None else shapes or {}
    check_sizes(config, shapes, where)  # transformers makes lists as long as the config says
    typed = _typed_config(folder)
    whole = typed.to_dict()
    check_heads(whole, where)
    check_sizes(whole, shapes, where)  # the defaults of what config.json leaves out, too
    model_class = named_class(where, typed.architectures, type(typed))
    model, info = _loaded(folder, model_class, typed, state, dtype)
    encoder = _encoder_class(model_class, typed, info["missing_keys"])
    if encoder is not None:
        warnings.warn(
            f"{folder} has no weights for the head of {model_class.__name__}, which its config "
            f"names: loaded {encoder.__name__}, the encoder without a head",
            UnweaveWarning,
            stacklevel=2,
        )
        model_class = encoder
        model, info = _loaded(folder, encoder, typed, state, dtype)
    _check_loaded(folder, model_class, info)
    return model.eval()


def _typed_config(folder: Path) -> Any:
    import transformers

    with quiet():
        try:
            typed = transformers.AutoConfig.from_pretrained(folder, **LOCAL)
        except Exception as error:  # its classes raise what their authors thought of
            raise UnweaveError(
                f"{folder / 'config.json'} is refused by transformers ({reason(error)}): correct "
                "it, or fetch it again"
            ) from error
    if typed._attn_implementation not in _ATTENTION:
        typed._attn_implementation = "eager"
    return typed


def named_class(where: Path, names: Sequence[str], family: Any) -> Any:
    """transformers' class that a config names, of the family that it names.

    Args:
        where: The config.json.
        names: Its architectures.
        family: The config class of its model_type, or that model_type.
    """
    import transformers

    config_class = transformers.CONFIG_MAPPING[family] if isinstance(family, str) else family
    found = getattr(transformers, names[0], None)
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        raise UnweaveError(
            f"{where} says architectures = {names}: expected a class of transformers, such as "
            "LlamaForCausalLM; write it there"
        )
    if found.config_class is not config_class:
        other = getattr(found.config_class, "model_type", "another family")
        raise UnweaveError(
            f"{where} says architectures = {names}, a class of {other}, and model_type = "
            f"{config_class.model_type!r}: correct one, they have to be of one "
            "family"
        )
    return found


def _loaded(
    folder: Path,
    model_class: Any,
    typed: Any,
    state: Mapping[str, Tensor] | None,
    dtype: torch.dtype | Literal["auto"],
) -> tuple[Any, dict[str, Any]]:
    """The model and what transformers says about each weight."""
    options: dict[str, Any] = {
        "config": typed,
        "dtype": dtype,
        "output_loading_info": True,
        "ignore_mismatched_sizes": True,  # reported, so that the error can name them
    }
    with quiet():
        try:
            if state is None:
                return model_class.from_pretrained(folder, use_safetensors=True, **options, **LOCAL)
            return model_class.from_pretrained(None, state_dict=dict(state), **options)
        except Exception as error:  # whatever its classes and loaders raise
            raise UnweaveError(
                f"{folder} cannot be read by transformers ({reason(error)}): fetch it again"
            ) from error


def _check_loaded(folder: Path, model_class: Any, info: Mapping[str, Any]) -> None:
    unexpected = [name for name in info["unexpected_keys"] if not _UNUSED_HEADS.fullmatch(name)]
    unread = _UNUSED_HEADS if model_class.__name__.endswith("Model") else re.compile("(?!)")
    missing = [name for name in info["missing_keys"] if not unread.fullmatch(name)]
    for names, fault in ((missing, "lacks"), (unexpected, "has unknown")):
        if names:
            raise UnweaveError(
                f"{folder} {fault} weights for {model_class.__name__}: "
                f"{', '.join(sorted(names)[:4])} ({len(names)} in all); is the class in "
                "config.json (architectures) right?"
            )
    if info["mismatched_keys"]:
        name, stored, wanted = sorted(info["mismatched_keys"])[0]
        raise UnweaveError(
            f"{folder}: {name} has shape {list(stored)}, and config.json makes it {list(wanted)} "
            f"({len(info['mismatched_keys'])} such tensors): is it the config of these weights?"
        )


def _encoder_class(model_class: Any, typed: Any, missing: Any) -> Any | None:
    """The class without a head, where an encoder's weights are whole but for the head's.

    Sentence encoders are saved like this: the config still names the class that was trained.
    """
    from transformers import AutoModel
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    masked = model_class.__name__ in MODEL_FOR_MASKED_LM_MAPPING_NAMES.values()
    inside = f"{model_class.base_model_prefix}."
    # The output bias alone, or one tensor of several, is damage.
    head = {name for name in missing if not name.startswith(inside)}
    whole = bool(head) and len(head) == len(missing)
    if not (masked and whole) or typed.is_encoder_decoder:
        return None
    expected = _head_names(model_class, typed)
    return AutoModel._model_mapping[type(typed)] if expected <= head else None


def _head_names(model_class: Any, typed: Any) -> set[str]:
    """The names of the head's own weights, those tied to the encoder left out."""
    with torch.device("meta"):
        model = model_class(typed)
    tied = {*getattr(model, "all_tied_weights_keys", {})}
    inside = f"{model_class.base_model_prefix}."
    return {n for n, _ in model.named_parameters() if not n.startswith(inside)} - tied


def configure(model_type: str, fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The whole config of a family, given some fields, and the defaults of its class."""
    from transformers import CONFIG_MAPPING

    with quiet():
        try:
            config = CONFIG_MAPPING[model_type](**fields)
            return config.to_dict(), defaults(config)
        except Exception as error:  # its classes raise what their authors thought of
            raise UnweaveError(
                f"transformers refuses this {model_type} ({reason(error)}): correct its config"
            ) from error


def defaults(config: Any) -> dict[str, Any]:
    """The defaults of a config's class."""
    return type(config)().to_dict()


def from_tensors(
    class_name: str, fields: Mapping[str, Any], tensors: Mapping[str, Tensor], name: str
) -> Any:
    """A transformers model that uses tensors as they are."""
    import transformers

    model_class = getattr(transformers, class_name)
    with quiet():
        config = model_class.config_class.from_dict(fields)
        # Without a folder, from_pretrained takes the tensors as they are, uncopied.
        model = model_class.from_pretrained(
            None, config=config, state_dict=dict(tensors), dtype=torch.float32
        )
    model.config.name_or_path = name
    return model.eval()


def gguf_tensors(
    path: Path, class_name: str, fields: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """Config fields and tensors that transformers' own GGUF reader finds; None without a reader.

    Its reader of configs leaves out what published models share (biases, head widths, soft caps),
    so that the model it fills is given ours.
    """
    try:
        import transformers
        from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
    except ImportError:
        return None
    model_class = getattr(transformers, class_name)
    # It draws a progress bar whatever the verbosity.
    with quiet(), contextlib.redirect_stderr(io.StringIO()):
        with torch.device("meta"):
            empty = model_class(model_class.config_class.from_dict(dict(fields)))
        found = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=empty)
    tensors = {name: tensor.float() for name, tensor in found["tensors"].items()}
    return found["config"], tensors


def reason(error: BaseException) -> str:
    """What a library says, in one line; its class alone where it says nothing."""
    text = " ".join(str(error).split())
    if isinstance(error, KeyError | ZeroDivisionError | AssertionError) or not text:
        text = f"{type(error).__name__} {text}".strip()
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars, reports and warnings: what matters is an error here."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(_SILENT)
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
