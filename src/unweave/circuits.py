"""`Scores`, `EdgeScores` and `Circuit`: what a method found out about sites and edges."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor

from unweave.display.frames import frame
from unweave.display.graphs import graph_svg
from unweave.display.grids import grid_of, heatmap_svg
from unweave.display.tables import bar_table, block
from unweave.errors import UnweaveError

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure


class _Ranked:
    """Names with a score each, ranked; the field that holds the names is called `kind`."""

    kind: ClassVar[str]
    values: Tensor
    order: tuple[str, ...]

    def __post_init__(self) -> None:
        names = self._names
        if len(names) != len(self.values):
            raise UnweaveError(
                f"{len(self.values)} scores for {len(names)} {self.kind}: expected one each"
            )

    def ranking(self, signed: bool = False) -> list[str]:
        """Names as the method ranks them: by magnitude of score, or by score when `signed`."""
        if self.order and not signed:
            return list(self.order)
        keys, names = self.values if signed else self.values.abs(), self._names
        # A stable order among equals keeps runs reproducible.
        return [names[i] for i in torch.argsort(keys, descending=True, stable=True).tolist()]

    def __getitem__(self, name: str) -> float:
        names = self._names
        if name not in names:
            raise UnweaveError(
                f"no score for {name!r}: {len(names)} {self.kind} were scored, such as "
                f"{names[0] if names else 'none'}"
            )
        return float(self.values[names.index(name)])

    @property
    def _names(self) -> tuple[str, ...]:
        return getattr(self, self.kind)


@dataclass(frozen=True, eq=False)
class Scores(_Ranked):
    """Relevance of sources to a metric, and to every target that was asked for.

    Args:
        sources: Site names.
        values: Mean over examples of each source's relevance to the metric.
        examples: The same for each example that was scored.
        targets: Site names of inner targets.
        pairs: By measure ("ratio", "share", "signed"): relevance of each source to each target.
        about: Where the scores come from: method, rules, ablation, model.
        order: Sources in the order that the method itself ranks them, where that is not their
            magnitude; empty otherwise.
    """

    kind: ClassVar[str] = "sources"
    sources: tuple[str, ...]
    values: Float[Tensor, " source"]
    examples: Float[Tensor, "source batch"]
    targets: tuple[str, ...] = ()
    pairs: Mapping[str, Float[Tensor, "source target"]] = field(default_factory=dict)
    about: Mapping[str, str] = field(default_factory=dict)
    order: tuple[str, ...] = ()

    def save(self, path: str | Path) -> None:
        """Writes the scores as safetensors, names and provenance in its metadata."""
        tensors = {"values": self.values, "examples": self.examples}
        tensors |= {f"pairs.{name}": value for name, value in self.pairs.items()}
        names = {
            "sources": self.sources,
            "targets": self.targets,
            "about": dict(self.about),
            "order": self.order,
        }
        _save(path, tensors, names)

    @staticmethod
    def load(path: str | Path) -> "Scores":
        """Reads scores back."""
        tensors, metadata = _load(path)
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
            tuple(metadata["order"]),
        )

    def __repr__(self) -> str:
        top = ", ".join(f"{s} {self[s]:+.3g}" for s in self.ranking()[:5])
        return f"Scores({len(self.sources)} sources; top: {top})"

    def to_frame(self) -> "DataFrame":
        """A data frame with a row for each source, as the method ranks them (needs pandas)."""
        order = self.ranking()
        rows = [self.sources.index(source) for source in order]
        spread = self.examples.std(1, correction=0)
        values, deviations = self.values[rows].tolist(), spread[rows].tolist()
        return frame({"source": order, "score": values, "standard_deviation": deviations})

    def plot(self) -> "Figure":
        """A plotly heatmap, layers × heads."""
        from unweave.display.figures import head_heatmap

        title = f"Scores of {len(self.sources)} nodes"
        return head_heatmap(self.sources, self.values.tolist(), title)

    def _repr_html_(self) -> str:
        values = dict(zip(self.sources, self.values.tolist(), strict=True))
        rows = [(source, values[source]) for source in self.ranking()]
        picture = heatmap_svg(grid_of(self.sources, self.values.tolist()))
        title = f"Scores of {len(rows)} nodes"
        return block(title, tuple(self.about.values()), picture, bar_table(rows))


@dataclass(frozen=True, eq=False)
class EdgeScores(_Ranked):
    """Relevance of edges to a metric.

    Args:
        edges: Names such as `a0.h0->a5.h1<q>`, `input->m0`, `m11->logits`.
        values: Mean over examples of each edge's score.
        about: Where the scores come from: method, ablation, model.
        order: Edges in the order that the method itself ranks them, where that is not their
            magnitude; empty otherwise.
    """

    kind: ClassVar[str] = "edges"
    edges: tuple[str, ...]
    values: Float[Tensor, " edge"]
    about: Mapping[str, str] = field(default_factory=dict)
    order: tuple[str, ...] = ()

    def save(self, path: str | Path) -> None:
        """Writes the scores as safetensors, names and provenance in its metadata."""
        names = {"edges": self.edges, "about": dict(self.about), "order": self.order}
        _save(path, {"values": self.values}, names)

    @staticmethod
    def load(path: str | Path) -> "EdgeScores":
        """Reads scores back."""
        tensors, metadata = _load(path)
        edges, order = tuple(metadata["edges"]), tuple(metadata["order"])
        return EdgeScores(edges, tensors["values"], metadata["about"], order)

    def __repr__(self) -> str:
        top = ", ".join(f"{e} {self[e]:+.3g}" for e in self.ranking()[:5])
        return f"EdgeScores({len(self.edges)} edges; top: {top})"

    def to_frame(self) -> "DataFrame":
        """A data frame with a row for each edge, the largest score first (needs pandas)."""
        names, scores = self.ranking(), dict(zip(self.edges, self.values.tolist(), strict=True))
        ends = [name.partition("->") for name in names]
        return frame(
            {
                "edge": names,
                "source": [source for source, _, _ in ends],
                "target": [target for _, _, target in ends],
                "score": [scores[name] for name in names],
            }
        )

    def _repr_html_(self) -> str:
        scores = dict(zip(self.edges, self.values.tolist(), strict=True))
        rows = [(name, scores[name]) for name in self.ranking()]
        title = f"Scores of {len(rows)} edges"
        return block(title, tuple(self.about.values()), bar_table(rows))


GROUPS = ("core", "supporting", "interchangeable")


@dataclass(frozen=True)
class Evidence:
    """How certain one node of a circuit is.

    Args:
        effect: How much faithfulness falls when the node leaves the circuit, on prompts that it
            was not found on.
        interval: The 95% interval of the effect over prompts.
        frequency: The share of resampled prompts on which the node is worth its price.
        group: "core" (faithfulness changes by more than .1 without it, and so does that of the
            whole model), "supporting" (by less) or "interchangeable".
        swaps: Nodes outside the circuit that can take its place at the same loss.
        whole: How much the faithfulness of the whole model falls without it, where every other node
            is there; measured where that of the circuit changes by more than .1, at both ends of
            the interval, and nothing can take its place.
    """

    effect: float
    interval: tuple[float, float]
    frequency: float | None = None
    group: str | None = None
    swaps: tuple[str, ...] = ()
    whole: float | None = None

    @property
    def core(self) -> bool:
        return self.group == "core"

    @property
    def half(self) -> float:
        """Half the width of the interval: the effect ± this."""
        return (self.interval[1] - self.interval[0]) / 2

    def to_json(self) -> dict[str, Any]:
        found = {"effect": self.effect, "interval": list(self.interval)}
        return found | {
            "frequency": self.frequency,
            "group": self.group,
            "swaps": list(self.swaps),
            "whole": self.whole,
        }

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> "Evidence | None":
        """Reads it back from a node of `circuit.json`; None where it was not measured."""
        if record.get("effect") is None:
            return None
        low, high = record.get("interval") or (None, None)
        return Evidence(
            float(record["effect"]),
            (_number(low), _number(high)),
            record.get("frequency"),
            record.get("group"),
            tuple(record.get("swaps") or ()),
            record.get("whole"),
        )


@dataclass(frozen=True)
class NodeSummary:
    """What one node of a circuit does.

    Args:
        roles: Every role whose evidence it meets; none is "unclear".
        sentence: Made from its measurements.
        at: Label of the position where it matters; "" where no label holds half of that.
        feeders: Nodes that its query, key or value comes from, where its output fell when that was
            patched out.
    """

    roles: tuple[str, ...]
    sentence: str
    at: str = ""
    feeders: tuple[str, ...] = ()

    @property
    def role(self) -> str:
        """The names of its roles, or "unclear"."""
        return ", ".join(self.roles) or "unclear"

    def to_json(self) -> dict[str, Any]:
        found = {"roles": list(self.roles), "sentence": self.sentence, "at": self.at}
        return found | {"feeders": list(self.feeders)}

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> "NodeSummary | None":
        """Reads it back from a node of `circuit.json`; None where it was not explained."""
        if record.get("sentence") is None:
            return None
        roles = tuple(record.get("roles") or ())
        feeders = tuple(record.get("feeders") or ())
        return NodeSummary(roles, record["sentence"], record.get("at") or "", feeders)


@dataclass(frozen=True)
class CircuitEdge:
    """An edge of a circuit, `a0.h0->a5.h1<q>`: a node feeds a head's q, k or v, an MLP, the logits.

    Args:
        effect: How much faithfulness falls without it, on prompts that it was not found on; NaN
            where that was not measured.
        interval: The 95% interval of the effect over prompts.
    """

    name: str
    score: float
    effect: float = math.nan
    interval: tuple[float, float] = (math.nan, math.nan)

    def to_json(self) -> dict[str, Any]:
        return {
            "edge": self.name,
            "score": self.score,
            "effect": self.effect,
            "interval": list(self.interval),
        }

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> "CircuitEdge":
        low, high = record.get("interval") or (None, None)
        score, effect = (_number(record.get(key)) for key in ("score", "effect"))
        return CircuitEdge(record["edge"], score, effect, (_number(low), _number(high)))


@dataclass(frozen=True)
class Circuit:
    """The nodes that carry a behaviour, and the edges among them where these were searched.

    Args:
        nodes: Site names, the most important first.
        scores: The score of each node.
        faithfulness: On prompts that nothing was chosen on.
        found: Faithfulness on the prompts that it was found on.
        total: How many nodes the model has.
        interval: The 95% interval of the faithfulness over prompts.
        prompts: How many prompts it was measured on.
        evidence: By node, how certain it is; empty where that was not measured.
        edges: Edges among the nodes that were tested, the most important first.
        edges_total: Of a circuit of edges, how many edges the model has: faithfulness is then that
            of the edges alone, and the nodes are their ends.
        summaries: By node, what it does; empty where the circuit was not explained.
    """

    nodes: tuple[str, ...]
    scores: tuple[float, ...]
    faithfulness: float
    found: float
    total: int
    task: str
    model: str
    method: str
    interval: tuple[float, float] = (math.nan, math.nan)
    prompts: int = 0
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    edges: tuple[CircuitEdge, ...] = ()
    edges_total: int = 0
    summaries: Mapping[str, NodeSummary] = field(default_factory=dict)

    SCHEMA: ClassVar[int] = 2

    @property
    def size(self) -> int:
        return len(self.nodes)

    @property
    def level(self) -> str:
        """What it is made of: "node" or "edge"."""
        return "edge" if self.edges_total else "node"

    @property
    def parts(self) -> str:
        """What it is made of in words: "12 of 144 nodes", "30 of 32491 edges among 9 nodes"."""
        if self.level == "edge":
            return f"{len(self.edges)} of {self.edges_total} edges among {self.size} nodes"
        return f"{self.size} of {self.total} nodes"

    @property
    def core(self) -> tuple[str, ...]:
        """The nodes without which faithfulness changes by more than .1."""
        return tuple(n for n in self.nodes if n in self.evidence and self.evidence[n].core)

    def explain(self, node: str | None = None) -> str:
        """What each node does, or one of them: its name, its roles and its sentence.

        Raises:
            UnweaveError: For a node that is not in the circuit, or one that was not explained.
        """
        if node is not None and node not in self.nodes:
            raise UnweaveError(f"{node} is not in the circuit: it has {', '.join(self.nodes)}")
        wanted = [n for n in self.nodes if node in (None, n)]
        if missing := [name for name in wanted if name not in self.summaries]:
            raise UnweaveError(
                f"{missing[0]} was not explained: run unweave explain on the run's folder, or call "
                "unweave.roles.explain with a problem and the circuit's nodes"
            )
        shown = ((name, self.summaries[name]) for name in wanted)
        return "\n".join(f"{name}  {one.role}\n  {one.sentence}" for name, one in shown)

    def to_json(self) -> dict[str, Any]:
        """The record that `circuit.json` holds."""
        nodes = [
            {"site": site, "score": score}
            | (self.evidence[site].to_json() if site in self.evidence else {})
            | (self.summaries[site].to_json() if site in self.summaries else {})
            for site, score in zip(self.nodes, self.scores, strict=True)
        ]
        edges = {"edges": [edge.to_json() for edge in self.edges]} if self.edges else {}
        if self.level == "edge":
            edges |= {"level": "edge", "edges_total": self.edges_total}
        return {
            "schema_version": self.SCHEMA,
            "task": self.task,
            "model": self.model,
            "method": self.method,
            "size": self.size,
            "total": self.total,
            "faithfulness": self.faithfulness,
            "interval": list(self.interval),
            "prompts": self.prompts,
            "faithfulness_on_discovery": self.found,
            "nodes": nodes,
            **edges,
        }

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> "Circuit":
        """Reads the record back.

        Raises:
            UnweaveError: For a schema that this version does not know.
        """
        if record.get("schema_version") != Circuit.SCHEMA:
            raise UnweaveError(
                f"circuit has schema_version {record.get('schema_version')!r}: expected "
                f"{Circuit.SCHEMA}; write it again with this version of unweave"
            )
        low, high = record.get("interval") or (None, None)
        found = {node["site"]: Evidence.from_json(node) for node in record["nodes"]}
        summaries = {node["site"]: NodeSummary.from_json(node) for node in record["nodes"]}
        return Circuit(
            tuple(node["site"] for node in record["nodes"]),
            tuple(_number(node.get("score")) for node in record["nodes"]),
            _number(record.get("faithfulness")),
            _number(record.get("faithfulness_on_discovery")),
            record["total"],
            record["task"],
            record["model"],
            record["method"],
            (_number(low), _number(high)),
            record.get("prompts") or 0,
            {site: evidence for site, evidence in found.items() if evidence is not None},
            tuple(CircuitEdge.from_json(edge) for edge in record.get("edges") or ()),
            record.get("edges_total") or 0,
            {site: summary for site, summary in summaries.items() if summary is not None},
        )

    def __repr__(self) -> str:
        shown = ", ".join(self.nodes[:6]) + (", …" if self.size > 6 else "")
        return (
            f"Circuit({self.task} on {self.model}: {self.parts}, "
            f"faithfulness {self.faithfulness:.2f}: {shown})"
        )

    def to_frame(self) -> "DataFrame":
        """A data frame with a row for each node and how certain it is (needs pandas).

        Of a circuit of edges: with a row for each edge.
        """
        if self.level == "edge":
            ends = [edge.name.partition("->") for edge in self.edges]
            return frame(
                {
                    "edge": [edge.name for edge in self.edges],
                    "source": [source for source, _, _ in ends],
                    "target": [target for _, _, target in ends],
                    "score": [edge.score for edge in self.edges],
                    "effect": [edge.effect for edge in self.edges],
                    "low": [edge.interval[0] for edge in self.edges],
                    "high": [edge.interval[1] for edge in self.edges],
                }
            )
        found = [self.evidence.get(node) for node in self.nodes]
        return frame(
            {
                "node": self.nodes,
                "score": self.scores,
                "effect": [None if one is None else one.effect for one in found],
                "low": [None if one is None else one.interval[0] for one in found],
                "high": [None if one is None else one.interval[1] for one in found],
                "group": [None if one is None else one.group for one in found],
                "frequency": [None if one is None else one.frequency for one in found],
                "role": [
                    self.summaries[n].role if n in self.summaries else None for n in self.nodes
                ],
            }
        )

    @property
    def effects(self) -> tuple[float, ...]:
        """By node, what faithfulness loses without it; the scores where that was not measured."""
        if not self.evidence:
            return self.scores
        return tuple(
            self.evidence[node].effect if node in self.evidence else math.nan for node in self.nodes
        )

    def plot(self) -> "Figure":
        """A plotly figure of the nodes in their layers, and of the edges among them."""
        from unweave.display.figures import circuit_graph

        title = f"{self.task} in {self.model}: {self.parts}"
        return circuit_graph(self.nodes, self.effects, title, self._lines)

    def _repr_html_(self) -> str:
        title = f"{self.parts}, faithfulness {self.faithfulness:.3f}"
        picture = graph_svg(self.nodes, self.effects, self._lines)
        if self.level == "edge":
            table = bar_table([(edge.name, edge.effect) for edge in self.edges])
        else:
            rows = list(zip(self.nodes, self.effects, strict=True))
            table = bar_table(rows, notes=[self._notes(node) for node in self.nodes])
        return block(title, (self.task, self.model, self.method), picture, table)

    @property
    def _lines(self) -> list[tuple[str, str]]:
        """Source and target of each edge; of a circuit of nodes, what feeds each of them."""
        ends = (edge.name.partition("<")[0].partition("->") for edge in self.edges)
        lines = [(source, target) for source, _, target in ends]
        return lines or [
            (source, node) for node, one in self.summaries.items() for source in one.feeders
        ]

    def _notes(self, node: str) -> tuple[str, ...]:
        """What a table of the nodes tells beside an effect: its error, its group, its role."""
        known, summary = self.evidence.get(node), self.summaries.get(node)
        measured = ("", "") if known is None else (f"±\u00a0{known.half:.2f}", known.group or "")
        return (*measured, "" if summary is None else summary.role)


def _save(path: str | Path, tensors: Mapping[str, Tensor], names: Mapping[str, Any]) -> None:
    # One entry of metadata: safetensors writes several in no fixed order, and equal scores should
    # give equal files.
    metadata = {"names": json.dumps(names)}
    contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    save_file(contiguous, path, metadata)


def _load(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors of a file, and the names in its metadata."""
    from safetensors import safe_open

    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        return tensors, json.loads((file.metadata() or {})["names"])


def _number(value: float | None) -> float:
    """JSON has no NaN: what is not known is null there."""
    return math.nan if value is None or math.isnan(value) else float(value)
