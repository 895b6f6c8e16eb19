"""A run folder for several processes: the first reads and writes it and shares what it holds."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from unweave.circuits import Circuit, Scores
from unweave.distributed import bytes_of_first, on_first, ranks
from unweave.experiments.files import plain
from unweave.experiments.run_folder import Json, RunFolder

_NAME = "scores.safetensors"


def open_folder(path: Path, identity: Json, resume: bool) -> RunFolder:
    """`RunFolder.open`, also where several processes share a run."""
    if ranks().count == 1:
        return RunFolder.open(path, identity, resume)
    folder = SharedFolder(path, plain(identity), resume)
    folder._check()
    return folder


class SharedFolder(RunFolder):
    """A run folder that only the first process has to see."""

    def _check(self) -> None:
        on_first(super()._check)

    def begin(self) -> None:
        if ranks().first:
            super().begin()

    def circuit(self) -> Circuit | None:
        def read() -> dict[str, Any] | None:
            found = super(SharedFolder, self).circuit()
            return None if found is None else found.to_json()

        record = on_first(read)
        return None if record is None else Circuit.from_json(record)

    def scores(self) -> Scores | None:
        def read() -> bytes | None:
            found = super(SharedFolder, self).scores()
            return None if found is None else (self.path / _NAME).read_bytes()

        data = bytes_of_first(read)
        if data is None:
            return None
        with TemporaryDirectory() as folder:
            path = Path(folder) / _NAME
            path.write_bytes(data)
            return replace(Scores.load(path), order=())

    def save_scores(self, scores: Scores) -> None:
        if ranks().first:
            super().save_scores(scores)

    def save_explanation(self, explanation: Json) -> None:
        if ranks().first:
            super().save_explanation(explanation)

    def load(self) -> dict[str, Any] | None:
        return on_first(super().load)

    def save(self, state: Json) -> None:
        if ranks().first:
            super().save(state)

    def finish(self, circuit: Circuit, record: Json) -> None:
        if ranks().first:
            super().finish(circuit, record)
