"""Runs that die at one of their writes, and what a run folder holds besides times."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from unweave.experiments import files
from unweave.experiments.files import read_json

TIMES = {"created", "seconds", "command", "forwards"}


def result(folder: Path) -> dict[str, Any]:
    """Everything that a run writes, without times and costs."""
    run = read_json(folder / "run.json", "a run")
    found: dict[str, Any] = {path.name: path.read_bytes() for path in folder.iterdir()}
    return found | {"run.json": {k: v for k, v in run.items() if k not in TIMES}}


class Death(BaseException):
    """What a kill is to the process: nothing catches it."""


class Deadly:
    """The writer of files, which dies at one write: before the file is there, or just after."""

    def __init__(self, at: int, after: bool) -> None:
        self.at, self.after, self.count, self.write = at, after, 0, files.write_whole

    def __call__(self, path: Path, write: Callable[[Path], object]) -> None:
        self.count += 1
        if self.count == self.at and not self.after:
            path.with_name(f".{path.name}.1.part").write_bytes(b"half")
            raise Death
        self.write(path, write)
        if self.count == self.at:
            raise Death
