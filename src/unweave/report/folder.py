"""A run as the report shows it: what its folder holds, and what is derived from that."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from unweave.experiments.compare import read_comparison
from unweave.experiments.run_folder import Json, Run, read_run


@dataclass(frozen=True, eq=False)
class ShownRun(Run):
    """A finished run, maybe beside other methods.

    Args:
        comparison: compare.json of other methods on the same task and model; mostly empty.
    """

    comparison: Json = field(default_factory=dict)

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


def read_shown(folder: Path, comparison: Json | None = None) -> ShownRun:
    """Reads a run folder.

    Args:
        comparison: What `unweave compare` wrote; kept where model and task are the run's. The
            folder's own compare.json unless given.

    Raises:
        UnweaveError: When it is not a run folder, or a file of it is broken or of another version.
    """
    found = read_run(folder)
    run = ShownRun(**{one.name: getattr(found, one.name) for one in fields(found)})
    if comparison is None:
        own = folder / "compare.json"
        comparison = read_comparison(own) if own.exists() else {}
    return run if not comparison else _with_comparison(run, comparison)


def _with_comparison(run: ShownRun, found: Json) -> ShownRun:
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
