"""Values that hold within a block of code, for whatever is called there."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def scoped(variable: ContextVar[T], value: T) -> Iterator[T]:
    """Within this block the variable has this value; after it, the one that it had before."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
