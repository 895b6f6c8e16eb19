"""`Scores`: what a method found out about sites."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor

from unweave.errors import UnweaveError


@dataclass(frozen=True, eq=False)
class Scores:
    """Relevance of sources to a metric, and to every target that was asked for.

    Args:
        sources: Site names.
        values: Mean over examples of each source's relevance to the metric.
        examples: The same for each example.
        targets: Site names of inner targets.
        pairs: By measure ("ratio", "share", "signed"): relevance of each source to each target.
        about: Where the scores come from: method, rules, baseline, model.
    """

    sources: tuple[str, ...]
    values: Float[Tensor, " source"]
    examples: Float[Tensor, "source batch"]
    targets: tuple[str, ...] = ()
    pairs: Mapping[str, Float[Tensor, "source target"]] = field(default_factory=dict)
    about: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.sources) != len(self.values):
            raise UnweaveError(
                f"{len(self.values)} scores for {len(self.sources)} sources: expected one each"
            )

    def ranking(self, signed: bool = False) -> list[str]:
        """Sources by score, the largest first; by magnitude unless `signed`."""
        keys = self.values if signed else self.values.abs()
        # A stable order among equals keeps runs reproducible.
        order = torch.argsort(keys, descending=True, stable=True)
        return [self.sources[i] for i in order.tolist()]

    def __getitem__(self, source: str) -> float:
        if source not in self.sources:
            raise UnweaveError(f"no score for {source!r}: {len(self.sources)} sources were scored")
        return float(self.values[self.sources.index(source)])

    def save(self, path: str | Path) -> None:
        """Writes the scores as safetensors, names and provenance in its metadata."""
        tensors = {"values": self.values, "examples": self.examples}
        tensors |= {f"pairs.{name}": value for name, value in self.pairs.items()}
        names = {"sources": self.sources, "targets": self.targets, "about": dict(self.about)}
        metadata = {name: json.dumps(value) for name, value in names.items()}
        contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        save_file(contiguous, path, metadata)

    @staticmethod
    def load(path: str | Path) -> "Scores":
        """Reads scores back."""
        from safetensors import safe_open

        tensors = load_file(path)
        with safe_open(path, "pt") as file:
            metadata = {k: json.loads(v) for k, v in (file.metadata() or {}).items()}
        pairs = {
            name.removeprefix("pairs."): value
            for name, value in tensors.items()
            if name.startswith("pairs.")
        }
        return Scores(
            tuple(metadata["sources"]),
            tensors["values"],
            tensors["examples"],
            tuple(metadata["targets"]),
            pairs,
            metadata["about"],
        )

    def __repr__(self) -> str:
        top = ", ".join(f"{s} {self[s]:+.3g}" for s in self.ranking()[:5])
        return f"Scores({len(self.sources)} sources; top: {top})"
