"""`load`: a model by name, folder, file or object, as a `Model`.

Every way in ends in the same three things: a config, tensors by name, and a tokenizer. Weights are
used where they lie, in a memory map or in the given object; nothing but tensors is unpickled
(safetensors, GGUF and `weights_only=True`), and no code that comes with a model is run.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unweave.asked import asked_memory, asked_precision
from unweave.errors import UnweaveError
from unweave.model import sources
from unweave.model.assembling import LoadedParts, LoadOptions, assemble, finish
from unweave.model.checkpoint import Checkpoint, architecture, read_network
from unweave.model.configs import check_family, check_fields, check_heads, check_sizes
from unweave.model.devices import device_of
from unweave.model.folders import has_tokenizer, is_lens, lens_tensors, read_config
from unweave.model.gguf_cache import GgufModel, read_gguf
from unweave.model.model import Model
from unweave.model.onnx_file import onnx_tensors
from unweave.model.pretrained import (
    configure,
    defaults,
    folder_model,
    from_tensors,
    gguf_tensors,
    named_class,
)
from unweave.model.probe import with_classes
from unweave.model.sources import DEFAULT
from unweave.model.synthetic import synthetic_models, tokenizer_parts
from unweave.model.tokenizing import bare_tokenizer, folder_tokenizer, rebuilt_tokenizer
from unweave.model.weights import Network

_LENS_TOKENIZER = "NeelNanda/gpt-neox-tokenizer-digits"  # for checkpoints that do not name theirs


@dataclass(frozen=True, eq=False)
class ReferenceModel:
    """A network and transformers' model of the same weights.

    Args:
        network: Ours, as `load` gives it.
        reference: transformers', in evaluation mode.
        note: What is independent of our own reading of the file, for the report.
    """

    network: Network
    reference: Any
    note: str = ""


def load(
    x: Any = DEFAULT,
    *,
    dtype: torch.dtype | Literal["auto"] | None = None,
    device: torch.device | str | None = None,
    tokenizer: Any | None = None,
    bos: bool | None = None,
    device_map: str | Mapping[str, Any] | None = None,
    memory: str | int | None = None,
) -> Model:
    """Loads a model.

    Args:
        x: A name of a bundled model ("smollm2-135m"), of TransformerLens ("attn-only-4l") or on the
            Hugging Face hub ("gpt2"); a folder with `config.json` and safetensors; a `.gguf` file;
            an `.onnx` file beside its `config.json`; a model that code builds
            ("wired-induction", "tracr:reverse"); or a transformers model, whose weights are then
            shared.
        dtype: float32 by default. A model object keeps its own, but a 16-bit one is measured in
            float32 unless its dtype is given: rounding to 16 bits moves faithfulness by a percent.
            "auto" keeps 16-bit weights as they are stored and widens each layer when it is used.
        device: The CPU by default; a model object stays where it is.
        tokenizer: A transformers tokenizer, or the name or folder of one, instead of the model's.
        bos: Whether text gets a BOS token in front; by default what the model was trained with.
        device_map: Where weights are stored, for models that do not fit one device: "auto" fills
            the GPUs and leaves the rest in CPU memory, or {"": "cuda:0", "blocks.7": "cpu", …}
            with "embed", "blocks.0", …, "head". `device` computes; weights come to it by layer.
        memory: With device_map="auto", what weights and work may take on each GPU ("16GB"): half
            of it holds weights. Give the same to the call that works.

    Raises:
        UnweaveError: When it cannot be loaded, with the reason and what to do.
    """
    given = None if tokenizer is None else _tokenizer(tokenizer)
    if not isinstance(x, str | Path):
        source = _from_object(x)
        options = LoadOptions(dtype, device, given, bos, device_map, memory)
        return assemble(_name(x), source, options)
    if device_map is None and asked_memory() and device_of(device or "cpu").type == "cuda":
        # A promise for weights and work together: what does not fit stays in CPU memory.
        device_map, memory = "auto", asked_memory()
    where = device if device_map is not None else device or "cpu"
    options = LoadOptions(dtype or _default_dtype(), where, given, bos, device_map, memory)
    if x in synthetic_models:
        return _from_code(str(x), options)
    source = _source(sources.find(x), "auto" if dtype == "auto" else torch.float32)
    model, known = assemble(str(x), source, options), sources.BUNDLED.get(str(x))
    return with_classes(model, known.examples) if known and known.examples else model


def _default_dtype() -> torch.dtype:
    return torch.float64 if asked_precision() == "float64" else torch.float32


def from_transformers(
    model: Any,
    name: str | None = None,
    tokenizer: Any | None = None,
    dtype: torch.dtype | None = None,
) -> Model:
    """A transformers model as a `Model` that shares its weights."""
    source = _from_object(model)
    return assemble(name or _name(model), source, LoadOptions(dtype, tokenizer=tokenizer))


def comparison(x: Any = DEFAULT) -> ReferenceModel:
    """What `unweave check` compares: our network and transformers' model. No tokenizer is needed.

    A GGUF file is read by transformers' own reader too, where it has one.

    Raises:
        UnweaveError: Also when transformers has no class for this kind of checkpoint.
    """
    path = sources.find(x) if isinstance(x, str | Path) and x not in synthetic_models else None
    if path is not None and path.suffix == ".gguf":
        return _gguf_comparison(path)
    reference = oracle(x)
    # `load` shares the weights of the same object, so this is the network that it gives.
    return ReferenceModel(_network(_from_object(reference)), reference)


def oracle(x: Any = DEFAULT) -> Any:
    """transformers' own model with the weights that `load(x)` uses, in evaluation mode.

    Raises:
        UnweaveError: Also when transformers has no class for this kind of checkpoint.
    """
    if not isinstance(x, str | Path):
        return _checked_object(x).eval()
    if x in synthetic_models:
        raise UnweaveError(f"{x} is built by code: transformers has no class to compare it with")
    path = sources.find(x)
    if path.suffix == ".gguf":
        gguf = read_gguf(path, configure)
        return from_tensors(gguf.model_class, gguf.config, gguf.tensors, path.stem)
    if path.suffix == ".onnx":
        source = _from_onnx(path)
        assert source.checkpoint is not None
        _network(source)  # names what is wrong before transformers does
        found = source.checkpoint
        return from_tensors(found.model_class, found.config, found.tensors, str(x))
    config = read_config(path)
    if is_lens(config):
        raise UnweaveError(
            f"{x} is a TransformerLens checkpoint: transformers has no class to compare it with"
        )
    return folder_model(path, config)


def _gguf_comparison(path: Path) -> ReferenceModel:
    gguf = read_gguf(path, configure)
    network = _network(_gguf_source(path, gguf))
    found = gguf_tensors(path, gguf.model_class, gguf.config)
    if found is None:
        reference = from_tensors(gguf.model_class, gguf.config, gguf.tensors, path.stem)
        return ReferenceModel(network, reference, "weights as unweave reads them")
    fields, tensors = found
    for name, theirs in fields.items():
        ours = gguf.config.get(name, theirs)
        known = name == "model_type" or name.endswith("_token_id")  # of the tokenizer
        if not known and not _same(ours, theirs):
            raise UnweaveError(
                f"{path}: unweave reads {name} = {ours!r}, transformers {theirs!r}: report it"
            )
    reference = from_tensors(gguf.model_class, gguf.config, tensors, path.stem)
    return ReferenceModel(network, reference, "weights read by transformers' own GGUF reader")


def _same(ours: Any, theirs: Any) -> bool:
    # Files have float32; the config that was written had 1e-05.
    if isinstance(ours, float) and isinstance(theirs, float):
        return abs(ours - theirs) <= 1e-6 * abs(ours)
    return ours == theirs


def _network(source: LoadedParts) -> Network:
    assert source.checkpoint is not None
    return read_network(source.model_type, source.checkpoint)


def _source(path: Path, dtype: torch.dtype | Literal["auto"] = torch.float32) -> LoadedParts:
    """What a file or folder on this machine holds; "auto" keeps a folder's dtype."""
    if path.suffix == ".gguf":
        return _from_gguf(path)
    if path.suffix == ".onnx":
        return _from_onnx(path)
    config = read_config(path)
    return _from_lens(path, config) if is_lens(config) else _from_folder(path, config, dtype)


def _checked_object(x: Any) -> Any:
    if not isinstance(x, nn.Module) or not hasattr(getattr(x, "config", None), "to_dict"):
        raise UnweaveError(
            f"cannot load a {type(x).__name__}: expected a name, a folder, a .gguf file or a "
            "transformers model"
        )
    return x


def _from_object(x: Any) -> LoadedParts:
    model = _checked_object(x)
    # Tied weights are one object in `parameters`, and stay one here.
    shared: dict[int, Tensor] = {}
    tensors = {
        name: shared.setdefault(id(tensor), tensor.detach())
        for name, tensor in model.state_dict(keep_vars=True).items()
    }
    if any(tensor.is_meta for tensor in tensors.values()):
        raise UnweaveError(
            f"{type(model).__name__} has weights that are not in memory (meta device): load it "
            "without offloading, and give load(…, device_map='auto') instead"
        )
    config = model.config
    checkpoint = Checkpoint(config.to_dict(), defaults(config), tensors, type(model).__name__)
    return LoadedParts(
        config.model_type, checkpoint, lambda: _available_tokenizer(config.name_or_path)
    )


def _name(model: Any) -> str:
    return model.config.name_or_path or type(model).__name__


def _available_tokenizer(name: str | None) -> Any | None:
    """The tokenizer beside the weights that an object was loaded from, if it says from where."""
    if not name:
        return None
    folder = Path(name) if os.path.isdir(name) else sources.available(name)
    return None if folder is None else folder_tokenizer(folder)


def _from_folder(
    folder: Path, config: Mapping[str, Any], dtype: torch.dtype | Literal["auto"]
) -> LoadedParts:
    source = _from_object(folder_model(folder, config, dtype))
    return LoadedParts(source.model_type, source.checkpoint, lambda: folder_tokenizer(folder))


def _from_lens(folder: Path, config: Mapping[str, Any]) -> LoadedParts:
    def tokenizer() -> Any | None:
        if has_tokenizer(folder):
            return folder_tokenizer(folder)
        try:
            return _tokenizer(config.get("tokenizer_name") or _LENS_TOKENIZER)
        except UnweaveError:  # another repository, maybe out of reach; text will ask for it
            return None

    where, tensors = folder / "config.json", lens_tensors(folder)
    check_fields(config, where)
    check_sizes(config, {name: tuple(t.shape) for name, t in tensors.items()}, where)
    checkpoint = Checkpoint(config, {}, tensors, "HookedTransformer")
    return LoadedParts("transformer_lens", checkpoint, tokenizer)


def _from_gguf(path: Path) -> LoadedParts:
    return _gguf_source(path, read_gguf(path, configure))


def _gguf_source(path: Path, model: GgufModel) -> LoadedParts:
    checkpoint = Checkpoint(model.config, model.defaults, model.tensors, model.model_class)
    parts = model.tokenizer
    if parts is None:
        return LoadedParts(model.model_type, checkpoint, lambda: None)
    return LoadedParts(
        model.model_type, checkpoint, lambda: rebuilt_tokenizer(parts), parts["adds_bos"]
    )


def _from_code(name: str, options: LoadOptions) -> Model:
    synthetic = synthetic_models[name]()
    parts = tokenizer_parts(synthetic.vocabulary)
    source = LoadedParts("synthetic", None, lambda: rebuilt_tokenizer(parts), adds_bos=True)
    return finish(name, synthetic.network, source, options)


def _from_onnx(path: Path) -> LoadedParts:
    config, where = sources.config_beside(path), path.parent / "config.json"
    model_type = check_family(config, where)
    architecture(model_type)
    check_fields(config, where)
    named_class(where, config["architectures"], model_type)
    tensors = onnx_tensors(path)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    check_sizes(config, shapes, where)
    fields, known = configure(model_type, config)
    check_heads(fields, where)
    check_sizes(fields, shapes, where)
    checkpoint = Checkpoint(fields, known, tensors, config["architectures"][0])
    return LoadedParts(model_type, checkpoint, lambda: bare_tokenizer(path.parent))


def _tokenizer(x: Any) -> Any:
    """What the caller gave as tokenizer: an object, or the name or folder of one."""
    if not isinstance(x, str | Path):
        return x
    folder = sources.find(x)
    found = folder_tokenizer(folder) if folder.is_dir() else _source(folder).tokenizer()
    if found is None:
        raise UnweaveError(f"{folder} has no tokenizer: give a folder with tokenizer.json")
    return found
