"""Circuits in and out: our circuit.json, and the JSON that EAP-IG and the MIB benchmark read.

The layout of EAP-IG (`Graph.to_json`, `Graph.from_json`):

    cfg    n_layers, n_heads, parallel_attn_mlp, d_model
    nodes  by name: in_graph, and score where it was scored
    edges  by name: in_graph, score

Nodes are `input`, `a0.h0` …, `m0` …, `logits`. A node without a score is "not scored" there and is
always kept in the graph, so it carries no score here and is in the graph.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unweave.circuits import Circuit
from unweave.errors import UnweaveError
from unweave.experiments.files import read_json
from unweave.graph import Graph, graph_of_shape
from unweave.graph import edge_ends as graph_edge_ends
from unweave.sites import Site, parse

ENDS = ("input", "logits")
OURS = "unweave"  # a key of our own in an EAP-IG file: order, positions and provenance
ScoreByNode = Mapping[str, float | None]


@dataclass(frozen=True)
class Shape:
    """A model as EAP-IG's cfg describes it."""

    n_layers: int
    n_heads: int
    d_model: int
    parallel_attn_mlp: bool = False

    def graph(self) -> Graph:
        return graph_of_shape(((self.n_heads, True, self.parallel_attn_mlp),) * self.n_layers)

    def cfg(self) -> dict[str, Any]:
        return {
            "n_layers": self.n_layers,
            "n_heads": self.n_heads,
            "parallel_attn_mlp": self.parallel_attn_mlp,
            "d_model": self.d_model,
        }


def read_circuit(path: str | Path) -> Circuit:
    """Reads a circuit from our circuit.json, from a run folder, or from an EAP-IG file.

    Node names may be spelled as other tools print them: `9.6`, `A9.6`, `(9, 6)`, `MLP 5`.

    Raises:
        UnweaveError: When the file is neither, or names a node that is not a site.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "circuit.json"
    record = read_json(path, "circuit.json of unweave discover, or a graph of EAP-IG")
    nodes = record.get("nodes")
    try:
        if isinstance(nodes, Mapping) and isinstance(record.get("edges"), Mapping):
            return from_eap_ig(record)
        if isinstance(nodes, list):
            # Version 2 says more about each node; what a `Circuit` holds is the same in both.
            version = record.get("schema_version")
            known = Circuit.SCHEMA if version in (1, 2) else version
            return Circuit.from_json(
                {**record, "schema_version": known, "nodes": [_node(node) for node in nodes]}
            )
    except (UnweaveError, KeyError, TypeError, ValueError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise UnweaveError(f"{path}: {reason}") from error
    raise UnweaveError(
        f"{path} is not a circuit: expected a list of nodes (ours), or nodes and edges (EAP-IG)"
    )


def _node(node: Any) -> dict[str, Any]:
    if not isinstance(node, Mapping):
        node = {"site": node}
    site = node.get("site")
    if isinstance(site, list) and len(site) == 2:
        site = f"{site[0]}.{site[1]}"
    if not isinstance(site, str):
        raise UnweaveError(f"a node is {site!r}: expected a name such as a9.h6")
    score = node.get("score")
    return {"site": str(parse(site)), "score": score if isinstance(score, int | float) else None}


def to_eap_ig(
    circuit: Circuit,
    shape: Shape,
    scores: ScoreByNode | None = None,
    pairs: Mapping[tuple[str, str], float] | None = None,
    rated: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """A circuit of heads and MLPs as a graph of EAP-IG.

    A node at single positions is in the graph when it is at any of them, and scores their sum. An
    edge is in the graph when both of its ends are; its score is the relevance of its source to its
    target (the same for q, k and v), to the logits the source's own score, and 0 where neither was
    measured. Of a circuit of edges, its own edges and their ends are in the graph, each edge with
    its own score.

    Args:
        scores: Of all nodes, by site; None for one that was not scored.
        pairs: Relevance of a source to a target, by their sites.
        rated: Scores of edges, by name; those of a circuit of edges at least.

    Raises:
        UnweaveError: For a node that this format has no name for.
    """
    graph = shape.graph()
    if circuit.level == "edge":
        return _edges_to_eap_ig(circuit, shape, graph, scores or {}, rated or {})
    known = set(graph.sources)
    chosen = {_whole(node, known) for node in circuit.nodes}
    every = dict(zip(circuit.nodes, circuit.scores, strict=True)) | dict(scores or {})
    total: dict[str, float] = {}
    for name, score in every.items():
        if score is not None and math.isfinite(score):
            whole = _whole(name, known)
            total[whole] = total.get(whole, 0.0) + score
    between: dict[tuple[str, str], float] = {}
    for (source, target), value in (pairs or {}).items():
        if math.isfinite(value):
            key = _whole(source, known), _whole(target, known)
            between[key] = between.get(key, 0.0) + value

    def kept(name: str) -> bool:
        return name in chosen or name in ENDS or name not in total

    nodes = {
        name: {"in_graph": kept(name), **({"score": total[name]} if name in total else {})}
        for name in graph.nodes
    }
    edges = {}
    for edge in graph.edges:
        source, target = edge_ends(edge)
        score = total.get(source) if target == "logits" else between.get((source, target))
        edges[edge] = {"score": score or 0.0, "in_graph": kept(source) and kept(target)}
    return {"cfg": shape.cfg(), "nodes": nodes, "edges": edges, OURS: circuit.to_json()}


def _edges_to_eap_ig(
    circuit: Circuit, shape: Shape, graph: Graph, scores: ScoreByNode, rated: Mapping[str, float]
) -> dict[str, Any]:
    own = {edge.name: edge.score for edge in circuit.edges}
    if strange := sorted(own.keys() - graph.index.keys()):
        raise UnweaveError(
            f"{strange[0]} has no place in a graph of EAP-IG of this shape: export edges instead"
        )
    values = {**rated, **own}
    ends = {*ENDS, *(end for edge in own for end in edge_ends(edge))}
    nodes = {}
    for name in graph.nodes:
        score = scores.get(name)
        scored = {} if score is None or not math.isfinite(score) else {"score": score}
        nodes[name] = {"in_graph": name in ends, **scored}
    edges = {}
    for name in graph.edges:
        score = values.get(name, 0.0)
        finite = score if math.isfinite(score) else 0.0
        edges[name] = {"score": finite, "in_graph": name in own}
    return {"cfg": shape.cfg(), "nodes": nodes, "edges": edges, OURS: circuit.to_json()}


def from_eap_ig(record: Mapping[str, Any]) -> Circuit:
    """Reads a graph of EAP-IG: the nodes in it that were scored, or all where none was.

    What we wrote ourselves is read back in order, with positions and provenance, unless the graph
    was changed since.
    """
    nodes = {name: node for name, node in record["nodes"].items() if name not in ENDS}
    found = {
        str(parse(name)): (_score(node), bool(node["in_graph"])) for name, node in nodes.items()
    }
    scored = any(score is not None for score, _ in found.values())
    chosen = [
        n for n, (score, inside) in found.items() if inside and (score is not None or not scored)
    ]
    if isinstance(ours := record.get(OURS), Mapping):
        own = Circuit.from_json(ours)
        inside = {*ENDS, *(name for name, (_, there) in found.items() if there)}
        wholes = {_whole(node, set(found)) for node in own.nodes}
        kept = {name for name, edge in record["edges"].items() if edge["in_graph"]}
        if own.level == "edge" and kept == {edge.name for edge in own.edges}:
            return own
        if wholes <= inside and {*chosen} <= wholes:
            return own
    chosen.sort(key=lambda name: -abs(found[name][0] or 0.0))
    scores = tuple(math.nan if (s := found[name][0]) is None else s for name in chosen)
    return Circuit(tuple(chosen), scores, math.nan, math.nan, len(found), "–", "–", "EAP-IG")


def _score(node: Mapping[str, Any]) -> float | None:
    score = node.get("score")
    return float(score) if isinstance(score, int | float) and math.isfinite(score) else None


def edge_ends(edge: str) -> tuple[str, str]:
    """Source and target node of an edge, "a0.h0->a5.h1<q>"."""
    return edge_parts(edge)[:2]


def edge_parts(edge: str) -> tuple[str, str, str]:
    """Source, target and branch (q, k, v or "") of an edge, "a0.h0->a5.h1<q>"."""
    return graph_edge_ends(edge)


def _whole(name: str, known: set[str]) -> str:
    """The node of EAP-IG's graph that a site belongs to."""
    site = parse(name)
    whole = "input" if site.point.kind == "embed" else str(Site(site.point, site.unit))
    if whole not in known and whole not in ENDS:
        raise UnweaveError(
            f"{name} has no place in a graph of EAP-IG: expected heads and MLPs of its cfg; "
            "export csv instead"
        )
    return whole
