"""The last step of every way to load: records, dtype, device, tokenizer, and BOS or not."""

import ctypes
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from unweave.errors import UnweaveError, UnweaveWarning
from unweave.model.checkpoint import Checkpoint, architecture, read_network
from unweave.model.model import Model
from unweave.model.weights import Attention, Network

# Parameters of mallopt, from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


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

    dtype: torch.dtype | None = None
    device: torch.device | str | None = None
    tokenizer: Any | None = None
    bos: bool | None = None


def assemble(name: str, source: LoadedParts, options: LoadOptions) -> Model:
    """Reads the records strictly and puts the model together."""
    assert source.checkpoint is not None
    return finish(name, read_network(source.model_type, source.checkpoint), source, options)


def finish(name: str, network: Network, source: LoadedParts, options: LoadOptions) -> Model:
    """A network with dtype, device, tokenizer and BOS as wished."""
    _keep_freed_memory()
    dtype = options.dtype or _measured(name, network)
    if dtype != network.dtype:
        network = network.to(dtype)
    if options.device is not None:
        network = _on_device(network, options.device)
    if options.tokenizer is None:
        tokenizer, adds_bos = source.tokenizer(), source.adds_bos
    else:
        tokenizer, adds_bos = options.tokenizer, None
    context = None if source.checkpoint is None else _context(network, source.checkpoint.config)
    model = Model(name, network, source.model_type, tokenizer, context=context)
    return replace(model, prepend_bos=_prepends_bos(model, adds_bos, options.bos))


def _measured(name: str, network: Network) -> torch.dtype:
    """The dtype of the runs: its own, but float32 for 16 bits, whose rounding moves the metric."""
    if network.dtype not in (torch.bfloat16, torch.float16):
        return network.dtype
    kind = str(network.dtype).removeprefix("torch.")
    warnings.warn(
        f"{name} is in {kind} and is measured in float32, with a copy of its weights: "
        f"load(…, dtype=torch.{kind}) keeps it as it is",
        UnweaveWarning,
        stacklevel=4,
    )
    return torch.float32


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
        target = torch.device(device)
        moved = network.to(target)
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UnweaveError(f"device {device!s} cannot be used ({reason}): try cpu") from error
    if target.type == "meta":
        raise UnweaveError("device meta cannot be used (it holds no numbers): try cpu")
    return moved


def _prepends_bos(model: Model, adds_bos: bool | None, wish: bool | None) -> bool:
    """The caller's wish; else what the file says, what the tokenizer does, what the family needs.

    An encoder's tokenizer adds its own special tokens, so that BOS is a matter of decoders.
    """
    tokenizer = model.tokenizer
    possible = model.family == "decoder" and getattr(tokenizer, "bos_token_id", None) is not None
    if wish is not None:
        if wish and not possible:
            raise UnweaveError(
                f"bos=True, but {model.name} is no decoder with a BOS token in its tokenizer: "
                "leave bos out"
            )
        return wish
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
