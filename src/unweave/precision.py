"""The precision that a command was asked for, where a call does not name one itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

from unweave.errors import UnweaveError

Precision = Literal["float32", "tf32", "float64"]

_asked: ContextVar[Precision | None] = ContextVar("unweave_precision", default=None)


def ask(precision: str | None) -> None:
    """From here on models are loaded and swept in this precision.

    Raises:
        UnweaveError: For one that is not known.
    """
    if precision is not None and precision not in get_args(Precision):
        raise UnweaveError(f"precision {precision}: expected {', '.join(get_args(Precision))}")
    _asked.set(precision)


@contextmanager
def precision_kept() -> Iterator[None]:
    """What is asked for within this block ends with it."""
    token = _asked.set(None)
    try:
        yield
    finally:
        _asked.reset(token)


def asked() -> Precision | None:
    """What was asked for; None leaves it to the device: TF32 for sweeps where there is."""
    return _asked.get()
