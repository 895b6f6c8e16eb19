"""The last step of every way to load: records, dtype, device, tokenizer, and BOS or not."""

import ctypes
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from unweave.errors import UnweaveError, UnweaveWarning
from unweave.model.checkpoint import Checkpoint, architecture, read_network
from unweave.model.devices import device_of, unusable
from unweave.model.model import Model
from unweave.model.sizes import free_memory, memory_size
from unweave.model.weights import Attention, Network, tensors
from unweave.model.window import placement_of, windowed

# Parameters of mallopt, from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, eq=False)
class LoadedParts:
    """A model before it is read.

    Args:
        model_type: The name of its architecture.
        checkpoint: Its config and tensors; None for a network that code built.
        tokenizer: Makes its tokenizer, or None; called only when the caller gave none.
        adds_bos: Whether it is known to be trained with BOS; None asks the tokenizer.
    """

    model_type: str
    checkpoint: Checkpoint | None
    tokenizer: Callable[[], Any | None]
    adds_bos: bool | None = None


@dataclass(frozen=True, eq=False)
class LoadOptions:
    """What the caller of `load` asked for; None leaves it to the model."""

    dtype: torch.dtype | Literal["auto"] | None = None
    device: torch.device | str | None = None
    tokenizer: Any | None = None
    bos: bool | None = None
    device_map: str | Mapping[str, Any] | None = None
    memory: str | int | None = None


def assemble(name: str, source: LoadedParts, options: LoadOptions) -> Model:
    """Reads the records strictly and puts the model together."""
    assert source.checkpoint is not None
    return finish(name, read_network(source.model_type, source.checkpoint), source, options)


def finish(name: str, network: Network, source: LoadedParts, options: LoadOptions) -> Model:
    """A network with dtype, device, tokenizer and BOS as the options say."""
    _keep_freed_memory()
    network = _stored(name, network, options)
    if options.tokenizer is None:
        tokenizer, adds_bos = source.tokenizer(), source.adds_bos
    else:
        tokenizer, adds_bos = options.tokenizer, None
    context = None if source.checkpoint is None else _context(network, source.checkpoint.config)
    model = Model(name, network, source.model_type, tokenizer, context=context)
    return replace(model, prepend_bos=_prepends_bos(model, adds_bos, options.bos))


def _stored(name: str, network: Network, options: LoadOptions) -> Network:
    """The network in the dtype and on the devices that were asked for.

    16-bit weights that are not asked for as such stay as they are, and every layer is widened to
    float32 when it is used: rounding to 16 bits moves the metric.
    """
    half = network.dtype in _HALF and options.dtype in (None, "auto")
    if isinstance(options.dtype, torch.dtype) and options.dtype != network.dtype:
        network = network.to(options.dtype)
    if half and options.dtype is None:
        kind = str(network.dtype).removeprefix("torch.")
        warnings.warn(
            f"{name} is in {kind} and is measured in float32, widened layer by layer: "
            f"load(…, dtype=torch.{kind}) measures in {kind}, dtype='auto' says that this is meant",
            UnweaveWarning,
            stacklevel=4,
        )
    wide = torch.float32 if half else None
    several = list(dict.fromkeys(tensor.device for tensor in tensors(network)))
    if options.device_map is not None:
        where = placement_of(network, options.device_map, options.device, _room(options.memory))
        if wide is None and set(where.parts.values()) == {where.device}:
            return _on_device(network, where.device)  # all of it fits
        return windowed(network, wide, where)
    if len(several) > 1 and options.device is None:
        # A model object that was placed by transformers (hf_device_map) stays where it is.
        first = next((d for d in several if d.type != "cpu"), torch.device("cpu"))
        return windowed(network, wide, device=first)
    # Rotary tables come from the config, not from the weights' device.
    network = _on_device(network, network.device if options.device is None else options.device)
    return windowed(network, wide) if half else network


def _room(memory: str | int | None) -> Callable[[torch.device], int]:
    """Bytes that weights may take on a device: half of what is free or given, the rest is work."""

    def room(device: torch.device) -> int:
        return (free_memory(device) if memory is None else memory_size(memory)) // 2

    return room


def _context(network: Network, config: Mapping[str, Any]) -> int | None:
    """The positions that a rotary model was made for; yarn's factor may stretch them."""
    bodies = (branch.body for block in network.body.blocks for branch in block.branches)
    if not any(isinstance(body, Attention) and body.rotary for body in bodies):
        return None
    limit = config.get("max_position_embeddings") or config.get("n_positions")
    rope = config.get("rope_parameters") or {}
    original = rope.get("original_max_position_embeddings")
    stretched = int(original * rope["factor"]) if original and rope.get("factor") else 0
    return None if limit is None else max(limit, stretched)


def _keep_freed_memory() -> None:
    """Lets the process keep what it frees, for its next tensors (on Linux with glibc).

    glibc hands the memory of large tensors back to the system and takes it anew, page by page: a
    tenth of the time of a sweep on a CPU. Blocks up to 32 MiB, its own limit, come from the heap,
    and the heap keeps up to 1 GiB that is free (mallopt(3)).
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)


def _on_device(network: Network, device: torch.device | str) -> Network:
    try:
        return network.to(device_of(device))
    except RuntimeError as error:  # its memory is full
        raise unusable(device, error) from error


def _prepends_bos(model: Model, adds_bos: bool | None, asked: bool | None) -> bool:
    """As the caller asks; else as the file says, the tokenizer does or the family needs.

    An encoder's tokenizer adds its own special tokens, so that BOS is a matter of decoders.
    """
    tokenizer = model.tokenizer
    possible = model.family == "decoder" and getattr(tokenizer, "bos_token_id", None) is not None
    if asked is not None:
        if asked and not possible:
            raise UnweaveError(
                f"bos=True, but {model.name} is not a decoder with a BOS token in its tokenizer: "
                "leave bos out"
            )
        return asked
    if not possible or tokenizer is None:
        return False
    if adds_bos is None:
        adds_bos = _shows_bos(model.name, tokenizer)
    return adds_bos or architecture(model.architecture).needs_bos


def _shows_bos(name: str, tokenizer: Any) -> bool:
    """Tokenizers differ in how they say that they add BOS; all of them show it."""
    try:
        return list(tokenizer("a")["input_ids"][:1]) == [tokenizer.bos_token_id]
    except Exception as error:  # the tokenizers library raises bare Exceptions
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UnweaveError(
            f"the tokenizer of {name} cannot encode a letter ({reason}): repair it, or load with "
            "tokenizer=…"
        ) from error
