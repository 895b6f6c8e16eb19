"""The folder of a run: the only module that writes or reads one.

state.json             specification and search so far (gone once the run is finished)
scores.safetensors     scores of every node, relevance of all pairs
patterns.safetensors   attention patterns of the circuit's heads on one prompt
run.json               specification, versions, prompts, rounds, verdict
circuit.json           the circuit
evaluation.json        what `unweave evaluate` adds

Every file is written whole or not at all, so that a run can go on from its folder. While a run is
under way its folder is locked.
"""

import fcntl
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from unweave.circuits import Circuit, Scores
from unweave.errors import UnweaveError
from unweave.experiments.files import plain, read_json, write_json
from unweave.experiments.specification import Specification

SCHEMA = 2
Json = Mapping[str, Any]
_LOCK = ".lock"


@dataclass(frozen=True)
class RunFolder:
    """A folder that holds one run: how it is written.

    Args:
        identity: Specification and fingerprint: two runs with the same are the same run.
    """

    path: Path
    identity: Json

    @staticmethod
    def open(path: Path, identity: Json, resume: bool) -> "RunFolder":
        """Begins a run in a new or empty folder, or goes on with the one that is there.

        Raises:
            UnweaveError: When the folder cannot be written, holds something else, or holds a run
                that is not the same.
        """
        folder = RunFolder(path, plain(identity))
        if path.is_dir() and any(name.name != _LOCK for name in path.iterdir()):
            if not resume:
                raise UnweaveError(
                    f"{path} is not empty: add --resume to go on, or choose another --out"
                )
            name = "run.json" if (path / "run.json").exists() else "state.json"
            begun = read_json(path / name, "a run of unweave discover")
            _check_identity(path, begun.get("identity"), folder.identity)
        return folder

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the folder, and keeps it to this process; a run that fails leaves no new folder.

        Raises:
            UnweaveError: When it cannot be made or written, or another process uses it.
        """
        path, new = self.path / _LOCK, not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = path.open("w")
        except OSError as error:
            raise UnweaveError(
                f"cannot write into {self.path}: {error.strerror}; choose another folder with --out"
            ) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UnweaveError(
                    f"another run uses {self.path}: wait for it, or choose another --out"
                ) from error
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
                if new and not any(self.path.iterdir()):
                    self.path.rmdir()

    def begin(self) -> None:
        """Claims the folder, once the run is known to be possible."""
        for part in self.path.glob(".*.part"):
            part.unlink(missing_ok=True)
        if not (self.path / "state.json").exists():
            self._state({})

    def circuit(self) -> Circuit | None:
        """The circuit, once the run is finished."""
        if not (self.path / "run.json").exists():
            return None
        return Circuit.from_json(read_json(self.path / "circuit.json", "a circuit"))

    def scores(self) -> Scores | None:
        """The scores, once they are computed."""
        return read_scores(self.path / "scores.safetensors")

    def save_scores(self, scores: Scores) -> None:
        self._whole("scores.safetensors", scores.save)

    def save_patterns(self, patterns: Mapping[str, Tensor]) -> None:
        tensors = {name: value.cpu() for name, value in patterns.items()}
        self._whole("patterns.safetensors", lambda path: save_file(tensors, path))

    def load(self) -> dict[str, Any] | None:
        """The state of the search of an interrupted run."""
        state = read_json(self.path / "state.json", "the state of a run")
        return state.get("search")

    def save(self, state: Json) -> None:
        """Keeps the state of the search."""
        self._state({"search": state})

    def finish(self, circuit: Circuit, record: Json) -> None:
        """Writes the circuit and the run's record; with the latter the run is finished."""
        write_json(self.path / "circuit.json", circuit.to_json())
        about = {
            "schema_version": SCHEMA,
            "command": shlex.join(["unweave", *sys.argv[1:]]),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": {
                "unweave": version("unweave"),
                "torch": version("torch"),
                "transformers": version("transformers"),
                "python": platform.python_version(),
            },
            "identity": self.identity,
        }
        write_json(self.path / "run.json", {**about, **record})
        (self.path / "state.json").unlink(missing_ok=True)

    def _state(self, more: Json) -> None:
        record = {"schema_version": SCHEMA, "identity": self.identity, **more}
        write_json(self.path / "state.json", record)

    def _whole(self, name: str, write: "Callable[[Path], None]") -> None:
        part = self.path / f".{name}.{os.getpid()}.part"
        try:
            write(part)
            part.replace(self.path / name)
        finally:
            part.unlink(missing_ok=True)


def _check_identity(path: Path, old: Any, new: Json) -> None:
    if old == new:
        return
    before, after = _flat(old), _flat(new)
    names = [name for name in after if before.get(name) != after[name]]
    changed = ", ".join(f"{n} was {before.get(n)!r}, is {after[n]!r}" for n in names)
    raise UnweaveError(
        f"{path} holds another run ({changed or 'of another version'}): resume with the same "
        "options, or choose another --out"
    )


def _flat(record: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in record.items() if isinstance(record, Mapping) else ():
        found |= _flat(value) if isinstance(value, Mapping) else {name: value}
    return found


def new_folder(task: str, model: str, seed: int, root: Path = Path("runs")) -> Path:
    """A folder that no other run has, named after the experiment and made at once."""
    stem = f"{task}-{Path(model).stem}-seed{seed}-{datetime.now(UTC):%Y%m%d-%H%M%S}"[:200]
    for number in range(1, 1000):
        path = root / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UnweaveError(
                f"cannot write into {root}: {error.strerror}; choose another folder with --out"
            ) from error
        return path
    raise UnweaveError(f"a thousand runs named {stem} are there: choose a folder with --out")


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run as its folder holds it: how it is read.

    Args:
        record: run.json: command, versions, prompts, rounds, ….
        scores: Of every node; None when the folder holds none.
        evaluation: evaluation.json; empty when the run was not evaluated.
        found: circuit.json, with what it says about each node and edge.
        patterns: By head, its attention on the first held-out prompts.
    """

    folder: Path
    record: Json
    circuit: Circuit
    found: Json = field(default_factory=dict)
    scores: Scores | None = None
    evaluation: Json = field(default_factory=dict)
    patterns: Mapping[str, Float[Tensor, "prompt query key"]] = field(default_factory=dict)

    @property
    def specification(self) -> Specification:
        """How it was run.

        Raises:
            UnweaveError: When run.json does not say so.
        """
        try:
            return Specification.from_dict(self.record["identity"]["specification"])
        except (KeyError, TypeError, ValueError) as error:
            raise UnweaveError(
                f"{self.folder / 'run.json'} does not say how the run was made ({error}): discover "
                "again"
            ) from error


def read_run(folder: Path) -> Run:
    """Reads a finished run.

    Raises:
        UnweaveError: When it is not a run folder, or a file of it is broken or of another version.
    """
    if not folder.is_dir():
        raise UnweaveError(f"no run folder {folder}: make one with unweave discover TASK")
    if (folder / "state.json").exists():
        raise UnweaveError(f"the run in {folder} is not finished: go on with --resume")
    record = read_json(folder / "run.json", "run.json of unweave discover")
    if record.get("schema_version") != SCHEMA:
        raise UnweaveError(
            f"{folder / 'run.json'} has schema_version {record.get('schema_version')!r}, this "
            f"unweave reads {SCHEMA}: use the version of unweave that wrote it, or discover again"
        )
    circuit = folder / "circuit.json"
    listed = read_json(circuit, "circuit.json of unweave discover")
    try:
        found = Circuit.from_json(listed)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnweaveError(f"{circuit} is broken ({error!r}): discover again") from error
    evaluation = folder / "evaluation.json"
    return Run(
        folder,
        record,
        found,
        listed,
        read_scores(folder / "scores.safetensors"),
        read_json(evaluation, "evaluation.json") if evaluation.exists() else {},
        _patterns(folder / "patterns.safetensors"),
    )


def read_scores(path: Path) -> Scores | None:
    """Scores of a run; None where there are none.

    Raises:
        UnweaveError: When the file is broken.
    """
    if not path.exists():
        return None
    try:
        return Scores.load(path)
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise UnweaveError(
            f"{path} cannot be read ({error}): delete it, and discover again to have scores"
        ) from error


def _patterns(path: Path) -> dict[str, Tensor]:
    if not path.exists():
        return {}
    try:
        found = load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise UnweaveError(
            f"{path} cannot be read ({error}): delete it to do without attention patterns"
        ) from error
    return {name: value.to(torch.float32) for name, value in found.items() if value.ndim == 3}
