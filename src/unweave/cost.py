"""Cost in forward passes, counted and not timed: tokens pushed through a block, relevant parts too.

A backward pass counts twice its forward pass. Elementwise work, the embedding and the unembedding
are left out; on the models here they are below a tenth.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from unweave.scoped import scoped


@dataclass
class Meter:
    """Tokens × blocks so far.

    Args:
        backward: Of these, what passes with a backward pass cost.
    """

    tokens: float = 0.0
    backward: float = 0.0


_meters: ContextVar[tuple[Meter, ...]] = ContextVar("unweave_meters", default=())
_weight: ContextVar[float] = ContextVar("unweave_cost_weight", default=1.0)


@contextmanager
def metered() -> Iterator[Meter]:
    """Counts everything that is run within this block; blocks may be nested."""
    meter = Meter()
    with scoped(_meters, (*_meters.get(), meter)):
        yield meter


@contextmanager
def metered_apart() -> Iterator[Meter]:
    """Counts for itself alone: what is captured in this block is run, and counted, later."""
    meter = Meter()
    with scoped(_meters, (meter,)), scoped(_weight, 1.0):
        yield meter


@contextmanager
def with_backward() -> Iterator[None]:
    """Forward passes within this block are followed by a backward pass."""
    with weighted(3.0):
        yield


@contextmanager
def weighted(weight: float) -> Iterator[None]:
    """What is run within this block counts this many times."""
    with scoped(_weight, weight * _weight.get()):
        yield


def spend(tokens: int | float) -> None:
    """Called by the program for every block, with the tokens that pass it."""
    for meter in _meters.get():
        meter.tokens += tokens * _weight.get()
        meter.backward += tokens * _weight.get() if _weight.get() > 1 else 0.0
