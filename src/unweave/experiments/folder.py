"""The folder of a run: every file is written whole or not at all, so a run can go on from it.

state.json             the plan, and the search so far (gone once the run is finished)
scores.safetensors     scores of every node, relevance of all pairs
patterns.safetensors   attention patterns of the circuit's heads on one prompt
run.json               options, versions, prompts, every iteration
circuit.json           the circuit
"""

import os
import platform
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from unweave.circuits import Circuit, Scores
from unweave.errors import UnweaveError
from unweave.experiments.files import plain, read_json, write_json
from unweave.experiments.specification import Plan
from unweave.search.algorithm1 import Search

SCHEMA = 1


@dataclass(frozen=True)
class RunFolder:
    """A folder that holds one run."""

    path: Path
    plan: Mapping[str, Any]

    @staticmethod
    def open(path: Path, plan: Plan, resume: bool) -> "RunFolder":
        """Begins a run in a new or empty folder, or goes on with the one that is there.

        Raises:
            UnweaveError: When the folder cannot be written, holds something else, or holds a run
                with another plan.
        """
        folder = RunFolder(path, plain(plan.to_dict()))
        try:
            path.mkdir(parents=True, exist_ok=True)
            empty = not any(path.iterdir())
        except OSError as error:
            raise UnweaveError(
                f"cannot use the folder {path}: {error.strerror}; choose another with --out"
            ) from error
        if not os.access(path, os.W_OK):
            raise UnweaveError(f"cannot write into {path}: choose another folder with --out")
        if empty:
            return folder
        if not resume:
            raise UnweaveError(
                f"{path} is not empty: add --resume to go on, or choose another --out"
            )
        name = "run.json" if (path / "run.json").exists() else "state.json"
        begun = read_json(path / name, "a run of unweave discover")
        if begun.get("plan") != folder.plan:
            raise UnweaveError(
                f"{path} holds a run with other options ({_difference(begun, folder.plan)}): "
                "resume with the same ones, or choose another --out"
            )
        return folder

    def begin(self) -> None:
        """Claims the folder, once the run is known to be possible."""
        if not (self.path / "state.json").exists():
            write_json(self.path / "state.json", {"schema_version": SCHEMA, "plan": self.plan})

    def circuit(self) -> Circuit | None:
        """The circuit, once the run is finished."""
        if not (self.path / "run.json").exists():
            return None
        return Circuit.from_json(read_json(self.path / "circuit.json", "a circuit"))

    def scores(self) -> Scores | None:
        """The scores, once they are computed."""
        file = self.path / "scores.safetensors"
        return Scores.load(file) if file.exists() else None

    def save_scores(self, scores: Scores) -> None:
        self._whole("scores.safetensors", scores.save)

    def save_patterns(self, patterns: Mapping[str, Tensor]) -> None:
        tensors = {name: value.cpu() for name, value in patterns.items()}
        self._whole("patterns.safetensors", lambda path: save_file(tensors, path))

    def search(self) -> Search | None:
        """The search of an interrupted run."""
        state = read_json(self.path / "state.json", "the state of a run")
        return Search.from_dict(state["search"]) if "search" in state else None

    def save_search(self, search: Search) -> None:
        record = {"schema_version": SCHEMA, "plan": self.plan, "search": search.to_dict()}
        write_json(self.path / "state.json", record)

    def finish(self, circuit: Circuit, record: Mapping[str, Any]) -> None:
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
            "plan": self.plan,
        }
        write_json(self.path / "run.json", {**about, **record})
        (self.path / "state.json").unlink(missing_ok=True)

    def _whole(self, name: str, write: "Callable[[Path], None]") -> None:
        part = self.path / f".{name}.{os.getpid()}.part"
        try:
            write(part)
            part.replace(self.path / name)
        finally:
            part.unlink(missing_ok=True)


def _difference(begun: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    old = begun.get("plan") or {}
    changed = [name for name in plan if old.get(name) != plan[name]]
    return ", ".join(f"{name} was {old.get(name)!r}, is {plan[name]!r}" for name in changed)
