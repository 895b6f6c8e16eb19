"""What a command was asked for as a whole, where a call does not say it itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, cast, get_args

from unweave.errors import UnweaveError
from unweave.scoped import scoped

Precision = Literal["float32", "tf32", "float64"]

_precision: ContextVar[Precision | None] = ContextVar("unweave_precision", default=None)
_memory: ContextVar[str | None] = ContextVar("unweave_memory", default=None)


@contextmanager
def forgotten() -> Iterator[None]:
    """What is asked for within this block ends with it."""
    with scoped(_precision, None), scoped(_memory, None):
        yield


@contextmanager
def preferred(precision: str | None) -> Iterator[None]:
    """Within this block models are loaded and swept in this precision, unless one was asked for."""
    before = _precision.set(asked_precision() or checked_precision(precision))
    try:
        yield
    finally:
        _precision.reset(before)


def checked_precision(precision: str | None) -> Precision | None:
    """A precision that is known, or None.

    Raises:
        UnweaveError: For any other.
    """
    if precision is not None and precision not in get_args(Precision):
        raise UnweaveError(f"precision {precision}: expected {', '.join(get_args(Precision))}")
    return cast(Precision | None, precision)


def ask_precision(precision: str | None) -> None:
    """From here on models are loaded and swept in this precision.

    Raises:
        UnweaveError: For one that is not known.
    """
    _precision.set(checked_precision(precision))


def asked_precision() -> Precision | None:
    """None leaves it to the device: TF32 for sweeps where there is."""
    return _precision.get()


def ask_memory(memory: str | None) -> None:
    """From here on weights and work together take no more on a device."""
    _memory.set(memory)


def asked_memory() -> str | None:
    """None takes half of what is free for the work."""
    return _memory.get()
