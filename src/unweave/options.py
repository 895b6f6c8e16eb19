"""Options of scores and searches: each has a type, a range or choices, checked before any work."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from unweave.errors import UnweaveError
from unweave.registry import nearest

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Option:
    """One option.

    Args:
        default: Its value unless given; also decides the type.
        help: What it means, for `unweave methods`.
        low, high: The range of a number, both ends included.
        choices: The words that a text may be; empty for any.
        check: Raises `UnweaveError` for a text that has another grammar.
    """

    default: Any
    help: str
    low: int | float = -math.inf
    high: int | float = math.inf
    choices: tuple[str, ...] = ()
    check: Callable[[str], object] | None = None

    @property
    def expected(self) -> str:
        """What a value has to be, in words."""
        kind = type(self.default)
        if self.choices:
            return " or ".join(self.choices)
        if kind in (int, float):
            noun = "a whole number" if kind is int else "a number"
            low = "" if self.low == -math.inf else f" from {self.low:g}"
            high = "" if self.high == math.inf else f" to {self.high:g}"
            return noun + low + high
        return "true or false" if kind is bool else f"a text such as {self.default!r}"

    def checked(self, owner: str, name: str, value: Any) -> Any:
        """The value, once it is known to have a meaning.

        Raises:
            UnweaveError: Naming the option, the value and what was expected.
        """
        kind = type(self.default)
        if kind is float and type(value) is int:
            value = float(value)
        fits = type(value) is kind
        if fits and kind in (int, float):
            fits = math.isfinite(value) and self.low <= value <= self.high
        if fits and self.choices:
            fits = value in self.choices
        if not fits:
            raise UnweaveError(f"{owner}: {name} is {value!r}, expected {self.expected}")
        if self.check is not None:
            self.check(value)
        return value

    def read(self, owner: str, name: str, text: str) -> Any:
        """A value from the command line, where everything is text."""
        kind = type(self.default)
        if kind is str:
            return self.checked(owner, name, text)
        words = {"true": True, "false": False}
        try:
            value = words[text.lower()] if kind is bool else kind(text)
        except (ValueError, KeyError, OverflowError):
            value = text
        return self.checked(owner, name, value)


def filled(owner: str, known: Mapping[str, Option], given: Options) -> dict[str, Any]:
    """All options with the given ones in place of their defaults, each checked.

    Args:
        owner: Whose options they are, for errors ("search eliminate").

    Raises:
        UnweaveError: For an unknown name, or a value outside its meaning.
    """
    for name in given:
        if name not in known:
            close = nearest(name, known) if known else "it has none"
            raise UnweaveError(f"{owner} has no option {name!r}: {close}")
    return {
        name: option.checked(owner, name, given.get(name, option.default))
        for name, option in known.items()
    }
