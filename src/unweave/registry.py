"""Registries by folder: a new architecture, task, rule set or method is one file."""

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from unweave.errors import UnweaveError

T = TypeVar("T")


def nearest(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """Names the closest known spellings, as the tail of an error message.

    Args:
        name: What was not found.
        known: What could have been meant.
        otherwise: Said when nothing is close; by default all that is known.
    """
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return otherwise or f"known: {', '.join(known)}"


class Registry(Generic[T]):
    """Named entries, collected by importing every module of one package.

    The package is imported on the first look-up, so that registering costs nothing at start.

    Args:
        noun: What an entry is called in error messages ("task").
        package: The package whose modules register entries ("unweave.behaviours").
    """

    def __init__(self, noun: str, package: str) -> None:
        self.noun = noun
        self.package = package
        self._entries: dict[str, T] = {}
        self._cells: set[str] = set()
        self._discovered = False

    def register(self, name: str, module: str = "") -> Callable[[T], T]:
        """Decorator (or plain call) that adds an entry under `name`.

        Args:
            module: Where the entry is written. What a notebook's cell (`__main__`) defines, the
                same cell may define anew.
        """

        def add(entry: T) -> T:
            known, cell = self._entries.get(name), module == "__main__"
            again = known is entry or (cell and name in self._cells)
            if known is not None and not again:
                raise UnweaveError(f"two {self.noun}s are registered as {name!r}: rename one")
            self._entries[name] = entry
            if cell:
                self._cells.add(name)
            return entry

        return add

    def _discover(self) -> dict[str, T]:
        if not self._discovered:
            self._discovered = True
            package = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self.package}.{module.name}")
        return self._entries

    def __getitem__(self, name: str) -> T:
        entries = self._discover()
        if name not in entries:
            raise UnweaveError(f"unknown {self.noun} {name!r}: {nearest(name, entries)}")
        return entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._discover()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._discover()))
