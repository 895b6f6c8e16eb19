"""Everything that a run folder holds, read for showing: missing parts stay empty."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from unweave.circuits import Circuit, Scores
from unweave.errors import UnweaveError
from unweave.experiments.files import read_json
from unweave.report.circuit_files import read_circuit

SCHEMA_VERSIONS = (1, 2)
Json = Mapping[str, Any]
Patterns = Mapping[str, Float[Tensor, "prompt query key"]]


@dataclass(frozen=True, eq=False)
class Run:
    """A run of `unweave discover`, and what was found out about it since.

    Args:
        record: run.json: command, versions, prompts, rounds, verdict, ….
        found: circuit.json, with what it says about each node and edge.
        scores: Of every node; None when the folder holds none.
        evaluation: evaluation.json; empty when the run was not evaluated.
        comparison: compare.json of other methods on the same task and model; mostly empty.
        patterns: By head, its attention on the first held-out prompts.
    """

    folder: Path
    record: Json
    circuit: Circuit
    found: Json = field(default_factory=dict)
    scores: Scores | None = None
    evaluation: Json = field(default_factory=dict)
    comparison: Json = field(default_factory=dict)
    patterns: Patterns = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    def about(self, key: str) -> str:
        """Model, task or method, from the record or else from the circuit."""
        return str(self.record.get(key) or getattr(self.circuit, key))

    @functools.cached_property
    def ranking(self) -> tuple[str, ...]:
        """All nodes: the circuit's in its order, then the others by score."""
        first = tuple(dict.fromkeys(self.circuit.nodes))
        rest = self.scores.ranking() if self.scores is not None else []
        return tuple(dict.fromkeys((*first, *rest)))

    @property
    def rounds(self) -> list[Json]:
        """The rounds of the search."""
        return [step for step in self.record.get("rounds") or [] if isinstance(step, Mapping)]

    def relevance(self, step: Json) -> tuple[Mapping[str, Any], bool]:
        """Relevance of every node to a round's targets, and whether it has a sign.

        A round records magnitudes: it sums them over its targets. Relevance to the logits is the
        score, whose sign the scores still know.
        """
        if self.scores is not None and list(step.get("targets") or ()) == ["logits"]:
            return {site: self.score(site) for site in self.scores.sources}, True
        found = step.get("relevance") or {}
        signed = any(isinstance(v, int | float) and v < 0 for v in found.values())
        return found, signed

    @functools.cached_property
    def facts(self) -> Mapping[str, Json]:
        """What circuit.json says about each of its nodes, by site."""
        listed = [node for node in self.found.get("nodes") or [] if isinstance(node, Mapping)]
        return dict(zip(self.circuit.nodes, listed, strict=False))

    @property
    def held_out(self) -> int | None:
        """How many held-out prompts the circuit's faithfulness was measured on."""
        return self.found.get("prompts") or len(self.prompts("evaluate")) or None

    def score(self, site: str) -> float | None:
        """What a node scored; None for one that was not scored."""
        return self._values.get(site)

    @functools.cached_property
    def _values(self) -> Mapping[str, float]:
        found = dict(zip(self.circuit.nodes, self.circuit.scores, strict=True))
        if self.scores is not None:
            found |= dict(zip(self.scores.sources, self.scores.values.tolist(), strict=True))
        return found

    @property
    def example(self) -> Json:
        """The prompt that attention patterns were taken on: the first held-out one."""
        found = self.prompts("evaluate") or self.prompts("discover")
        return found[0] if found else {}

    def prompts(self, split: str = "discover") -> list[Json]:
        found = self.record.get("prompts", {})
        chosen = found.get(split, []) if isinstance(found, Mapping) else []
        return [p for p in chosen if isinstance(p, Mapping)]


def read_run(folder: Path, comparison: Json | None = None) -> Run:
    """Reads a run folder.

    Args:
        comparison: What `unweave compare` wrote; kept where model and task are the run's. The
            folder's own compare.json unless given.

    Raises:
        UnweaveError: When it is no run folder, or a file of it is broken or of another version.
    """
    if not folder.is_dir():
        raise UnweaveError(f"no run folder {folder}: make one with unweave discover TASK")
    circuit = read_circuit(folder / "circuit.json")
    record = _optional(folder / "run.json")
    version = record.get("schema_version", SCHEMA_VERSIONS[-1])
    if version not in SCHEMA_VERSIONS:
        raise UnweaveError(
            f"{folder / 'run.json'} has schema_version {version!r}, this unweave reads "
            f"{' and '.join(map(str, SCHEMA_VERSIONS))}: use the version of unweave that wrote it, "
            "or discover again"
        )
    run = Run(
        folder,
        _renamed(record),
        circuit,
        read_json(folder / "circuit.json", "circuit.json"),
        _scores(folder / "scores.safetensors"),
        _optional(folder / "evaluation.json"),
        patterns=_patterns(folder / "patterns.safetensors"),
    )
    found = _optional(folder / "compare.json") if comparison is None else comparison
    return run if not found else _with_comparison(run, found)


def _renamed(record: Json) -> Json:
    """A record of version 1 with the names of version 2."""
    names = {"plan": "specification", "iterations": "rounds"}
    return {names.get(key, key): value for key, value in record.items()}


def _with_comparison(run: Run, found: Json) -> Run:
    def same(line: Any) -> bool:
        return isinstance(line, Mapping) and line.get("task") == run.about("task")

    if found.get("model") != run.about("model"):
        return run
    figures = {
        name: [line for line in lines if same(line)]
        for name, lines in found.get("figures", {}).items()
        if isinstance(lines, Sequence)
    }
    mine = {"figures": figures, "summary": [r for r in found.get("summary", []) if same(r)]}
    return replace(run, comparison=mine)


def _optional(path: Path) -> Json:
    return read_json(path, f"{path.name} as unweave writes it") if path.exists() else {}


def _scores(path: Path) -> Scores | None:
    if not path.exists():
        return None
    try:
        return Scores.load(path)
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise UnweaveError(
            f"{path} cannot be read ({error}): run unweave discover again, or delete the file to "
            "do without scores"
        ) from error


def _patterns(path: Path) -> Patterns:
    if not path.exists():
        return {}
    try:
        found = load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise UnweaveError(
            f"{path} cannot be read ({error}): delete it to do without attention patterns"
        ) from error
    stacked = {name: value[None] if value.ndim == 2 else value for name, value in found.items()}
    return {name: value.to(torch.float32) for name, value in stacked.items() if value.ndim == 3}
