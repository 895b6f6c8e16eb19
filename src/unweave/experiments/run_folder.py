"""The folder of a run: the only module that writes or reads one.

state.json             specification and search so far (gone once the run is finished)
scores.safetensors     scores of every node, relevance of all pairs
edges.safetensors      scores of every edge, of a run that searched edges
patterns.safetensors   attention patterns of the circuit's heads on one prompt
run.json               specification, versions, prompts, rounds, verdict
circuit.json           the circuit
explain.json           what each node does, with every measurement
evaluation.json        what `unweave evaluate` adds
paths.json             what `unweave paths` adds

Every file is written whole or not at all, so that a run can go on from its folder. While a run is
under way its folder is locked.
"""

import hashlib
import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from unweave.circuits import Circuit, EdgeScores, NodeSummary, Scores
from unweave.errors import UnweaveError
from unweave.experiments.edge_files import check_edge, read_edge_scores
from unweave.experiments.files import plain, read_checked, read_json, write_json, write_whole
from unweave.experiments.locking import check_out, entries, locked
from unweave.experiments.schema import EVALUATION, PATHS, RUN, check_file, sized_circuit
from unweave.experiments.specification import Specification
from unweave.search.search import SavedState
from unweave.sites import parse

SCHEMA = 2
Json = Mapping[str, Any]
S = TypeVar("S")
_AGAIN = "discover again"


@dataclass(frozen=True)
class RunFolder:
    """A folder that holds one run: how it is written.

    Args:
        identity: Specification and fingerprint: two runs with the same are the same run.
        resume: Whether it may hold a run already.
    """

    path: Path
    identity: Json
    resume: bool = False

    @staticmethod
    def open(path: Path, identity: Json, resume: bool) -> "RunFolder":
        """A new or empty folder to begin a run in, or one that holds this run.

        Raises:
            UnweaveError: When the folder cannot be written, holds something else, or holds a run
                that is not the same.
        """
        folder = RunFolder(path, plain(identity), resume)
        folder._check()
        return folder

    def _check(self) -> None:
        check_out(self.path, self.resume)
        if entries(self.path):
            name = "run.json" if (self.path / "run.json").exists() else "state.json"
            begun = read_json(self.path / name, "a run of unweave discover")
            _check_identity(self.path, begun.get("identity"), self.identity)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the folder, and keeps it to this process; a run that fails leaves no new folder.

        Raises:
            UnweaveError: When it cannot be made or written, or another process uses it.
        """
        with locked(self.path):
            self._check()  # again: another process may have been here in between
            yield

    def begin(self) -> None:
        """Claims the folder, once the run is known to be possible."""
        if not (self.path / "state.json").exists():
            self._state({})

    def circuit(self) -> Circuit | None:
        """The circuit, once the run is finished."""
        if not (self.path / "run.json").exists():
            return None
        # A process may have died between the last two steps of `finish`.
        (self.path / "state.json").unlink(missing_ok=True)
        return read_run(self.path).circuit

    def scores(self) -> Scores | None:
        """The scores that an interrupted run computed; None when it did not get so far.

        Without the order that the search gave them at its end: it starts from the scores' own.
        """
        scores = self._kept_scores("scores", "scores.safetensors", read_scores)
        return scores and replace(scores, order=())

    def save_scores(self, scores: Scores) -> None:
        self._keep_scores("scores", "scores.safetensors", scores.save)

    def edge_scores(self) -> EdgeScores | None:
        """The scores of edges that an interrupted run computed, without the search's order."""
        scores = self._kept_scores("edge_scores", "edges.safetensors", read_edge_scores)
        return scores and replace(scores, order=())

    def save_edge_scores(self, scores: EdgeScores) -> None:
        self._keep_scores("edge_scores", "edges.safetensors", scores.save)

    def _kept_scores(self, key: str, name: str, read: Callable[[Path], S | None]) -> S | None:
        """What the state's own file holds; None for any other file of that name."""
        path = self.path / name
        if not path.exists() or self._saved().get(key) != _digest(path.read_bytes()):
            return None
        return read(path)

    def _keep_scores(self, key: str, name: str, write: Callable[[Path], object]) -> None:
        """Writes a file; the state knows which one it goes with, and another one is not used."""
        path = self.path / name
        write_whole(path, write)
        self._state({**self._saved(), key: _digest(path.read_bytes())})

    @property
    def edge_search(self) -> SavedState:
        """Where the search for edges keeps its state, beside that for nodes."""
        return _EdgeSearch(self)

    def save_patterns(self, patterns: Mapping[str, Tensor]) -> None:
        tensors = {name: value.cpu() for name, value in patterns.items()}
        write_whole(self.path / "patterns.safetensors", lambda path: save_file(tensors, path))

    def save_explanation(self, explanation: Json) -> None:
        write_json(self.path / "explain.json", explanation)

    def load(self) -> dict[str, Any] | None:
        """The state of the search of an interrupted run."""
        return self._saved().get("search")

    def save(self, state: Json) -> None:
        """Keeps the state of the search."""
        self._keep("search", state)

    def _keep(self, name: str, state: Json) -> None:
        self._state({**self._saved(), name: plain(state)})

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

    def _state(self, saved: Json) -> None:
        # The checksum finds edits, so that what a search reads is what it wrote.
        record = {"schema_version": SCHEMA, "identity": self.identity, "saved": saved}
        write_json(self.path / "state.json", {**record, "checksum": _checksum(saved)})

    def _saved(self) -> dict[str, Any]:
        path = self.path / "state.json"
        state = read_json(path, "the state of a run")
        saved = state.get("saved")
        if not isinstance(saved, dict) or state.get("checksum") != _checksum(saved):
            raise UnweaveError(f"{path} was changed: delete {self.path}, and {_AGAIN}")
        return saved


@dataclass(frozen=True)
class _EdgeSearch:
    """The state of a search for edges within a folder's state."""

    folder: RunFolder

    def load(self) -> dict[str, Any] | None:
        return self.folder._saved().get("edge_search")

    def save(self, state: Mapping[str, Any]) -> None:
        self.folder._keep("edge_search", state)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _checksum(saved: Json) -> str:
    return _digest(json.dumps(saved, sort_keys=True).encode())


def _check_identity(path: Path, old: Any, new: Json) -> None:
    before, after = _flat(old), _flat(new)
    # A field that an older version did not have means None.
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    if not names:
        return
    changed = ", ".join(f"{n} was {before.get(n)!r}, is {after.get(n)!r}" for n in names)
    raise UnweaveError(
        f"{path} holds another run ({changed}): resume with the same options, or choose another "
        "--out"
    )


def _flat(identity: Any) -> dict[str, Any]:
    """Specification, its options, and the hashes of task and model, each under its own name."""

    def part(record: Any, name: str) -> dict[str, Any]:
        found = record.get(name) if isinstance(record, Mapping) else None
        return dict(found) if isinstance(found, Mapping) else {}

    specification = part(identity, "specification")
    hashes = {f"hash of {name}": one for name, one in part(identity, "fingerprint").items()}
    options = part(specification, "options")
    specification.pop("options", None)
    return {**specification, **options, **hashes}


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run as its folder holds it: how it is read.

    Args:
        record: run.json: command, versions, prompts, rounds, ….
        scores: Of every node; None when the folder holds none.
        evaluation: evaluation.json; empty when the run was not evaluated.
        found: circuit.json, with what it says about each node and edge.
        patterns: By head, its attention on the first held-out prompts.
        edge_scores: Of every edge; None when edges were not searched.
        paths: paths.json; empty where they were not asked for.
    """

    folder: Path
    record: Json
    circuit: Circuit
    found: Json = field(default_factory=dict)
    scores: Scores | None = None
    evaluation: Json = field(default_factory=dict)
    patterns: Mapping[str, Float[Tensor, "prompt query key"]] = field(default_factory=dict)
    edge_scores: EdgeScores | None = None
    paths: Json = field(default_factory=dict)

    @property
    def specification(self) -> Specification:
        """How it was run.

        Raises:
            UnweaveError: When run.json does not say so.
        """
        try:
            return Specification.from_dict(self.record["identity"]["specification"])
        except (KeyError, TypeError, UnweaveError) as error:
            raise UnweaveError(
                f"{self.folder / 'run.json'} does not say how the run was made ({error}): {_AGAIN}"
            ) from error


def read_run(folder: Path) -> Run:
    """Reads a finished run.

    Raises:
        UnweaveError: When it is not a run folder, or a file of it is broken or of another version.
    """
    if not os.path.isdir(folder):  # Path.is_dir raises for a name that is too long
        raise UnweaveError(f"no run folder {folder}: make one with unweave discover TASK")
    if (folder / "state.json").exists():
        raise UnweaveError(f"the run in {folder} is not finished: continue with --resume")
    record = read_json(folder / "run.json", "run.json of unweave discover")
    if record.get("schema_version") != SCHEMA:
        raise UnweaveError(
            f"{folder / 'run.json'} has schema_version {record.get('schema_version')!r}, this "
            f"unweave reads {SCHEMA}: use the version of unweave that wrote it, or discover again"
        )
    check_file(folder / "run.json", record, RUN, _AGAIN)
    circuit, listed = _read_circuit(folder / "circuit.json")
    return Run(
        folder,
        record,
        circuit,
        listed,
        read_scores(folder / "scores.safetensors"),
        read_evaluation(folder / "evaluation.json"),
        _patterns(folder / "patterns.safetensors"),
        read_edge_scores(folder / "edges.safetensors"),
        _paths(folder / "paths.json"),
    )


def save_explanation(
    run: Run, explanation: Json, summary: Json, summaries: Mapping[str, NodeSummary]
) -> None:
    """Adds what each node does to a finished run.

    Args:
        explanation: Every measurement, for explain.json.
        summary: Roles and sentences, for run.json.
        summaries: The same by node, for circuit.json.
    """
    write_json(run.folder / "explain.json", explanation)
    nodes = [
        node | (summaries[node["site"]].to_json() if node["site"] in summaries else {})
        for node in run.found["nodes"]
    ]
    write_json(run.folder / "circuit.json", {**run.found, "nodes": nodes})
    write_json(run.folder / "run.json", {**run.record, "explanation": summary})


def _read_circuit(path: Path) -> tuple[Circuit, dict[str, Any]]:
    listed = read_json(path, "circuit.json of unweave discover")
    # An older circuit is an error of its own.
    if listed.get("schema_version") == Circuit.SCHEMA:
        check_file(path, listed, sized_circuit, _AGAIN)
    try:
        circuit = Circuit.from_json(listed)
        for name in circuit.nodes:
            parse(name)
        for edge in circuit.edges:
            check_edge(edge.name)
    except UnweaveError as error:
        raise UnweaveError(f"{path} is broken ({error}): {_AGAIN}") from error
    return circuit, listed


def save_paths(run: Run, record: Json) -> None:
    """Adds the strongest paths to a finished run."""
    write_json(run.folder / "paths.json", record)


def _paths(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    found = read_json(path, "paths.json of unweave paths")
    check_file(path, found, PATHS, "delete it, and run unweave paths again")
    return found


def read_evaluation(path: Path) -> dict[str, Any]:
    """What `unweave evaluate` wrote; empty where it did not.

    Raises:
        UnweaveError: When the file is broken.
    """
    if not path.exists():
        return {}
    found = read_json(path, "evaluation.json of unweave evaluate")
    check_file(path, found, EVALUATION, "delete it, and evaluate again")
    return found


def read_scores(path: Path) -> Scores | None:
    """Scores of a run; None where there are none.

    Raises:
        UnweaveError: When the file is broken.
    """
    return read_checked(path, Scores.load, _check_scores)


def _check_scores(scores: Scores) -> None:
    """Raises for names and tensors that do not fit each other."""
    names = {*scores.sources}
    for name in (*scores.sources, *scores.targets):
        parse(name)
    if len(names) != len(scores.sources):
        raise ValueError("a source is named twice")
    if scores.order and {*scores.order} != names:
        raise ValueError("the order does not name every source once")
    count, targets = len(scores.sources), len(scores.targets)
    if scores.values.ndim != 1 or scores.examples.shape[:1] != (count,):
        raise ValueError(f"values for {count} sources have another shape")
    if scores.examples.ndim != 2 or not scores.examples.is_floating_point():
        raise ValueError("scores of examples are not a matrix of numbers")
    if any(matrix.shape != (count, targets) for matrix in scores.pairs.values()):
        raise ValueError(f"relevance of pairs is not {count} × {targets}")


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
