"""The data of the page: one compact, strict JSON object a run.

Nodes are numbered by their order, so that the first n are the circuit of size n. What does not fit
into the page's limits is left out, and the page lists it.
"""

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.experiments.files import plain
from unweave.report.circuit_files import edge_parts
from unweave.report.folder import ShownRun
from unweave.report.layout import NodeLayout, context_index, node_layout
from unweave.report.prompts import patterns, prompts
from unweave.roles.shares import NAMED

PAIRED_NODES = 150  # of this many first nodes every pair is kept
NEIGHBOURS = 6  # of every other node this many strongest inputs and outputs, as its details list
_END_NUMBERS = {"input": -1, "logits": -2}  # of an edge, in place of a node's number


@dataclass(frozen=True)
class PageLimits:
    """How much of what can be large goes into the page.

    Args:
        pairs: Pairs of nodes a measure.
        prompts: Bytes of prompts a split.
        patterns: Bytes of attention.
    """

    pairs: int = 30_000
    prompts: int = 200_000
    patterns: int = 300_000

    def scaled(self, share: float) -> "PageLimits":
        """Limits with a share of each part."""
        return PageLimits(
            *(int(share * part) for part in (self.pairs, self.prompts, self.patterns))
        )


def page_data(run: ShownRun, limits: PageLimits | None = None) -> dict[str, Any]:
    """What the page draws, as plain data without NaN or infinities.

    Args:
        limits: None for those of a page that has one run.
    """
    limits, record = limits or PageLimits(), run.record
    found = node_layout(run.ranking, run.example)
    index = {site: i for i, site in enumerate(run.ranking)}
    pairs, missing_pairs = _pairs(run, index, limits.pairs)
    edges, missing_edges = _circuit_edges(run, index)
    attention, missing_heads = patterns(run, limits.patterns)
    texts = {split: prompts(run, split, limits.prompts) for split in ("discover", "evaluate")}
    left_out = [missing_pairs, missing_edges, missing_heads]
    left_out += [note for _, note in texts.values()]
    return plain(
        {
            "name": run.name,
            "commands": _commands(run),
            **{key: run.about(key) for key in ("model", "task", "method")},
            **_some(record, "command", "created", "seed", "versions", "options", "accuracy"),
            **_some(record, "metric", "seconds", "forwards", "elimination", "summary"),
            "curve": record.get("curve") or record.get("edge_curve"),
            **_some(record, "verdict", "overshoot", "words", "published"),
            "paths": run.paths,
            "explained": _some(record.get("explanation") or {}, "prompts", "passes", "reason"),
            "level": run.circuit.level,
            "counted": _counted(run),
            "total": record.get("nodes_total") or run.circuit.total or len(run.ranking),
            "size": len(run.circuit.nodes),
            "faithfulness": run.circuit.faithfulness,
            "interval": run.found.get("interval"),
            "faithfulness_on_discovery": run.circuit.found,
            "held_out": run.held_out,
            "discovery": len(run.prompts("discover")) or None,
            "rows": found.rows,
            "heads": found.heads,
            "positions": [
                {"name": p, "index": context_index(p, run.example)} for p in found.positions
            ],
            "nodes": _nodes(run, found),
            "pairs": pairs,
            "edges": edges,
            "feeders": _feeders(run, index),
            "rounds": _rounds(run, index),
            "evaluation": _evaluation(run.evaluation),
            "comparison": run.comparison,
            "patterns": attention,
            "prompts": {split: data for split, (data, _) in texts.items()},
            "left_out": [note for note in left_out if note],
        }
    )


def _counted(run: ShownRun) -> dict[str, Any]:
    """What curves and random circuits count: the edges of a circuit of edges, else nodes."""
    circuit, total = run.circuit, run.record.get("nodes_total") or run.circuit.total
    if circuit.level == "edge":
        total = circuit.edges_total
        return {"what": "edges", "size": len(circuit.edges), "total": total}
    return {"what": "nodes", "size": circuit.size, "total": total or len(run.ranking)}


def _some(record: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: record.get(key) for key in keys}


def _commands(run: ShownRun) -> dict[str, str]:
    """Commands that the page suggests, ready for a shell."""
    folder = str(run.folder)
    return {
        "evaluate": shlex.join(["unweave", "evaluate", folder]),
        "explain": shlex.join(["unweave", "explain", folder]),
        "paths": shlex.join(["unweave", "paths", folder]),
        # Into another folder: discover does not write into one that holds a run.
        "discover": shlex.join(["unweave", "discover", run.about("task"), "--out", f"{folder}-2"]),
        "attribute": shlex.join(["unweave", "attribute", "--model", run.about("model")]),
    }


def effects(run: ShownRun) -> tuple[dict[str, Any], int | None]:
    """By node: how much faithfulness falls without it; and on how many prompts that was seen.

    circuit.json knows it with an interval; else the verdict or an evaluation measured it.
    """
    known = {site: f["effect"] for site, f in run.facts.items() if f.get("effect") is not None}
    verdict = (run.record.get("verdict") or {}).get("minimality") or {}
    if known or verdict.get("effects"):
        return known or dict(verdict["effects"]), verdict.get("prompts")
    evaluated = run.evaluation.get("minimality") or {}
    return dict(evaluated.get("effects") or {}), run.evaluation.get("prompts")


def _nodes(run: ShownRun, found: NodeLayout) -> dict[str, Any]:
    order = {p: i for i, p in enumerate(found.positions)}
    spread: dict[str, float] = {}
    scores = run.scores
    if scores is not None and scores.examples.ndim == 2 and scores.examples.shape[1] > 1:
        deviations = scores.examples.to(torch.float64).std(1).tolist()
        spread = dict(zip(scores.sources, deviations, strict=True))
    falls, prompts_of_effects = effects(run)
    rows = []
    for site in run.ranking:
        place, facts = found.by_site.get(site), run.facts.get(site, {})
        where = None if place is None or place.position is None else order[place.position]
        rows.append(
            {
                "site": site,
                **{key: place and getattr(place, key) for key in ("kind", "row", "unit")},
                "position": where,
                "score": short(run.score(site)),
                "spread": short(spread.get(site)),
                "effect": short(falls.get(site)),
                **_some(
                    facts,
                    *("interval", "group", "frequency", "swaps", "whole"),
                    *("roles", "sentence", "at"),
                ),
            }
        )
    columns: dict[str, Any] = {key: [row[key] for row in rows] for key in rows[0]} if rows else {}
    # Columns that say nothing take no room.
    filled = {k: v for k, v in columns.items() if k in _PLACED or any(x is not None for x in v)}
    if not rows:
        filled = {key: [] for key in _PLACED}
    return {**filled, "prompts_of_effects": prompts_of_effects if falls else None}


_PLACED = ("site", "kind", "row", "unit", "position", "score", "spread")


def short(value: Any, digits: int = 7) -> float | None:
    """A number with a few digits, more than the page shows; None for what is not a number."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def _pairs(
    run: ShownRun, index: Mapping[str, int], most: int
) -> tuple[dict[str, dict[str, list[list[Any]]]], str]:
    """By measure, pairs of nodes: all among the first, of the others their strongest.

    Targets and values stand in one list for each source, which takes a third less room than to
    name the source of every pair.
    """
    scores = run.scores
    if scores is None or not most:
        return {}, "relevance between nodes" if scores is not None and scores.pairs else ""
    found, kept, every = {}, 0, 0
    for name, matrix in scores.pairs.items():
        rows = torch.tensor([index.get(s, -1) for s in scores.sources], dtype=torch.long)
        columns = torch.tensor([index.get(t, -1) for t in scores.targets], dtype=torch.long)
        if matrix.shape != (len(rows), len(columns)) or not matrix.numel():
            continue
        chosen = strongest(matrix, rows, columns)
        pairs = chosen.nonzero()
        order = matrix[chosen].abs().argsort(descending=True, stable=True)[:most]
        targets: list[list[Any]] = [[] for _ in index]
        values: list[list[Any]] = [[] for _ in index]
        source, target = pairs[order].T
        ends = (rows[source].tolist(), columns[target].tolist(), matrix[source, target].tolist())
        for s, t, value in zip(*ends, strict=True):
            targets[s].append(t)
            values[s].append(short(value, 3))
        found[name] = {"targets": targets, "values": values}
        kept, every = kept + len(order), every + int((matrix != 0).sum())
    note = f"relevance of {every - kept} of {every} pairs of nodes, the weakest"
    return found, note if kept < every else ""


def strongest(matrix: Float[Tensor, "source target"], rows: Tensor, columns: Tensor) -> Tensor:
    """Which pairs are kept."""
    valid = matrix.isfinite() & (matrix != 0) & (rows >= 0)[:, None] & (columns >= 0)
    valid &= rows[:, None] != columns
    keys = torch.where(valid, matrix.abs(), -1.0)
    kept = (rows < PAIRED_NODES)[:, None] & (columns < PAIRED_NODES)
    for dim in (0, 1):
        many = min(NEIGHBOURS, keys.shape[dim])
        kept = kept.scatter(dim, keys.topk(many, dim).indices, True)
    return kept & valid


def _circuit_edges(run: ShownRun, index: Mapping[str, int]) -> tuple[list[list[Any]], str]:
    """Edges of an edge circuit: source, target, q, k or v of the target, score, effect."""
    found, unknown = [], 0
    for edge in run.found.get("edges") or []:
        source, target, branch = edge_parts(str(edge.get("edge", "")))
        ends = [_END_NUMBERS.get(end, index.get(end)) for end in (source, target)]
        if None in ends:
            unknown += 1
        else:
            found.append([*ends, branch, short(edge.get("score")), short(edge.get("effect"))])
    return found, f"{unknown} edges whose ends are not nodes of this run" if unknown else ""


def _feeders(run: ShownRun, index: Mapping[str, int]) -> list[list[Any]]:
    """What the inputs of the circuit's nodes come from: source, target, q, k or v, share, and
    whether the target's output follows it. Nodes that write the answer feed the logits."""
    found = []
    for node in (run.record.get("explanation") or {}).get("nodes") or []:
        if node["node"] in index and abs(node.get("writes") or 0.0) >= NAMED:
            share = short(node["writes"], 3)
            found.append([index[node["node"]], _END_NUMBERS["logits"], "", share, True])
        for feeder in node.get("feeders") or []:
            ends = [index.get(feeder["source"]), index.get(node["node"])]
            if None not in ends:
                share = short(feeder.get("share"), 3)
                found.append([*ends, feeder["input"], share, feeder.get("held")])
    return found


def _rounds(run: ShownRun, index: Mapping[str, int]) -> list[dict[str, Any]]:
    steps = []
    for step in run.rounds:
        values, signed = run.relevance(step)
        named = {
            key: [index[s] for s in step.get(key) or [] if s in index]
            for key in ("selected", "dropped")
        }
        about = _some(step, "targets", "size", "loss", "faithfulness")
        steps.append({**about, **named, "signed": signed, "values": _by_index(values, index)})
    if not steps and run.scores is not None:
        values = {site: run.score(site) for site in index}
        steps.append({"targets": ["logits"], "selected": [], "dropped": [], "signed": True})
        steps[0]["values"] = _by_index(values, index)
    return steps


def _by_index(values: Mapping[str, Any], index: Mapping[str, int]) -> list[float | None]:
    return [short(values.get(site)) for site in index]


def _evaluation(record: Mapping[str, Any]) -> dict[str, Any]:
    names = ("prompts", "nodes", "ablation", "faithfulness", "curves", "known", "roc", "random")
    names += ("templates",)
    tests = ("random_circuits", "completeness", "minimality", "stability", "repeats")
    return {name: record[name] for name in (*names, *tests) if record.get(name)}
