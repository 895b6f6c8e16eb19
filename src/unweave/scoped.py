"""Values that hold within a block of code, for whatever is called there."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Value = TypeVar("Value")


@contextmanager
def scoped(variable: ContextVar[Value], value: Value) -> Iterator[Value]:
    """Within this block the variable has this value; after it, the one that it had before."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
