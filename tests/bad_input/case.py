"""What a table of bad inputs holds, and how to make the inputs.

Every module of this folder with a list CASES is a table; `test_bad_input.py` runs them all. A case
is one line:

    Case("heads = 0", "check {bad}", "n_head = 0", folder("gpt2", n_head=0)),

`{bad}` is a scratch folder, in which the last argument makes what is bad. The command has to exit
with 2, print one line that starts with "error:" and contains the words given, and write nothing.
"""

import json
import shlex
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from unweave.model.checkpoint import Tiny, architectures
from unweave.testing.oracle import build

Make = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """One bad input.

    Args:
        name: The test's name, unique in its table.
        command: What follows `unweave`, with {bad} for the scratch folder.
        says: Words that the error has to contain.
        make: Makes the bad input in the scratch folder, which exists.
        nobody: Whether it is run without root's rights, to which nothing is closed.
    """

    name: str
    command: str
    says: str
    make: Make = lambda folder: None
    nobody: bool = False

    def args(self, folder: Path) -> list[str]:
        return [part.replace("{bad}", str(folder)) for part in shlex.split(self.command)]


def steps(*makes: Make) -> Make:
    """Several changes, one after the other."""

    def make(folder: Path) -> None:
        for step in makes:
            step(folder)

    return make


def file(name: str, content: str | bytes = b"") -> Make:
    """A file with this content."""
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def mode(name: str, rights: int) -> Make:
    """Changes who may read and write a file or folder ("." for the scratch folder)."""
    return lambda folder: (folder / name).chmod(rights)


def folder(family: str, variant: str = "", /, **fields: Any) -> Make:
    """A tiny model as `save_pretrained` writes it, with these fields of config.json changed."""

    def make(target: Path) -> None:
        shutil.copytree(_saved(family, variant), target, dirs_exist_ok=True)
        edit("config.json", **fields)(target)

    return make


def edit(name: str, **fields: Any) -> Make:
    """Changes fields of a JSON file; `...` takes a field out."""

    def make(target: Path) -> None:
        found = json.loads((target / name).read_text()) | fields
        kept = {key: value for key, value in found.items() if value is not ...}
        (target / name).write_text(json.dumps(kept))

    return make


def tensors(change: Callable[[dict[str, Any]], object]) -> Make:
    """Changes the stored tensors of a folder."""

    def make(target: Path) -> None:
        path = target / "model.safetensors"
        state = {name: tensor.clone() for name, tensor in load_file(path).items()}
        change(state)
        save_file({n: t.contiguous() for n, t in state.items()}, path, metadata={"format": "pt"})

    return make


def damaged(name: str, change: Callable[[bytes], bytes]) -> Make:
    """Changes the bytes of a file."""

    def make(target: Path) -> None:
        path = next(target.glob(name))
        path.write_bytes(change(path.read_bytes()))

    return make


@cache
def _saved(family: str, variant: str) -> Path:
    known = architectures[family].tiny
    tiny: Tiny = known[variant] if variant else next(iter(known.values()))
    target = Path(tempfile.mkdtemp(prefix="unweave-bad-input-"))
    build(tiny).save_pretrained(target)
    return target
