"""The data of the page: one compact, strict JSON object a run.

Nodes are numbered by importance, so that the first n are the circuit of size n. Of all pairs only
those are kept that the page can show (see `_edges`), so that a run with thousands of nodes still
makes a small file.
"""

import base64
import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.experiments.files import plain
from unweave.report.folder import Run
from unweave.report.layout import Places, context_index, places

CORE = 150  # of so many first nodes every pair is kept
NEIGHBOURS = 6  # of every other node so many strongest inputs and outputs, as its details list
MOST_EDGES = 30_000  # a measure
MOST_PROMPTS = 100  # a split
PATTERN_BYTES = 300_000


def page_data(run: Run, alone: bool = True) -> dict[str, Any]:
    """What the page draws, as plain data without NaN or infinities.

    Args:
        alone: Beside other runs, only a circuit's own edges are drawn, and no attention.
    """
    record, evaluation = run.record, run.evaluation
    found = places(run.ranking, run.example)
    index = {site: i for i, site in enumerate(run.ranking)}
    linked = index if alone else {site: index[site] for site in run.circuit.nodes}
    return plain(
        {
            "name": run.name,
            **{key: run.about(key) for key in ("model", "task", "method")},
            **_some(record, "command", "created", "seed", "versions", "options", "accuracy"),
            **_some(record, "metric", "seconds", "elimination", "curve"),
            "total": record.get("nodes_total") or evaluation.get("nodes") or len(run.ranking),
            "size": len(run.circuit.nodes),
            "faithfulness": run.circuit.faithfulness,
            "rows": found.rows,
            "heads": found.heads,
            "positions": [
                {"name": p, "index": context_index(p, run.example)} for p in found.positions
            ],
            "nodes": _nodes(run, found),
            "edges": _edges(run, linked),
            "iterations": _iterations(run, index),
            "evaluation": _evaluation(evaluation),
            "comparison": run.comparison,
            "patterns": _patterns(run, PATTERN_BYTES if alone else 0),
            "words": record.get("words"),
            "prompts": {split: _prompts(run, split) for split in ("discover", "evaluate")},
        }
    )


def _some(record: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: record.get(key) for key in keys}


def _nodes(run: Run, found: Places) -> dict[str, list[Any]]:
    order = {p: i for i, p in enumerate(found.positions)}
    spread: dict[str, float] = {}
    scores = run.scores
    if scores is not None and scores.examples.ndim == 2 and scores.examples.shape[1] > 1:
        deviations = scores.examples.to(torch.float64).std(1).tolist()
        spread = dict(zip(scores.sources, deviations, strict=True))
    columns: dict[str, list[Any]] = {
        key: [] for key in ("site", "kind", "row", "unit", "position", "score", "spread")
    }
    for site in run.ranking:
        place = found.by_site.get(site)
        columns["site"].append(site)
        columns["kind"].append(place and place.kind)
        columns["row"].append(place and place.row)
        columns["unit"].append(place and place.unit)
        at = None if place is None or place.position is None else order[place.position]
        columns["position"].append(at)
        columns["score"].append(short(run.score(site)))
        columns["spread"].append(short(spread.get(site)))
    return columns


def short(value: float | None, digits: int = 4) -> float | None:
    """A number with a few digits; None for what is no number."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def _edges(run: Run, index: Mapping[str, int]) -> dict[str, dict[str, list[list[Any]]]]:
    """By measure, pairs of nodes: all among the first, of the others their strongest.

    Targets and values stand in one list for each source, which takes a third less room than to
    name the source of every pair.
    """
    scores = run.scores
    if scores is None:
        return {}
    found = {}
    for name, matrix in scores.pairs.items():
        rows = torch.tensor([index.get(s, -1) for s in scores.sources], dtype=torch.long)
        columns = torch.tensor([index.get(t, -1) for t in scores.targets], dtype=torch.long)
        if matrix.shape != (len(rows), len(columns)) or not matrix.numel():
            continue
        chosen = strongest(matrix, rows, columns)
        pairs = chosen.nonzero()
        order = matrix[chosen].abs().argsort(descending=True, stable=True)[:MOST_EDGES]
        targets: list[list[Any]] = [[] for _ in index]
        values: list[list[Any]] = [[] for _ in index]
        source, target = pairs[order].T
        kept = (rows[source].tolist(), columns[target].tolist(), matrix[source, target].tolist())
        for s, t, value in zip(*kept, strict=True):
            targets[s].append(t)
            values[s].append(short(value, 3))
        found[name] = {"targets": targets, "values": values}
    return found


def strongest(matrix: Float[Tensor, "source target"], rows: Tensor, columns: Tensor) -> Tensor:
    """Which pairs are kept."""
    valid = matrix.isfinite() & (matrix != 0) & (rows >= 0)[:, None] & (columns >= 0)
    valid &= rows[:, None] != columns
    keys = torch.where(valid, matrix.abs(), -1.0)
    kept = (rows < CORE)[:, None] & (columns < CORE)
    for dim in (0, 1):
        many = min(NEIGHBOURS, keys.shape[dim])
        kept = kept.scatter(dim, keys.topk(many, dim).indices, True)
    return kept & valid


def _iterations(run: Run, index: Mapping[str, int]) -> list[dict[str, Any]]:
    steps = []
    for step in run.record.get("iterations") or []:
        relevance = step.get("relevance") or {}
        values: list[float | None] = [None] * len(index)
        for site, value in relevance.items():
            if site in index and isinstance(value, int | float):
                values[index[site]] = short(float(value), 3)
        named = {
            key: [index[s] for s in step.get(key) or [] if s in index]
            for key in ("selected", "dropped")
        }
        steps.append(
            {**_some(step, "targets", "size", "loss", "faithfulness"), **named} | {"values": values}
        )
    if not steps and run.scores is not None:
        values = [short(run.score(site), 3) for site in index]
        steps.append({"targets": ["logits"], "selected": [], "dropped": [], "values": values})
    return steps


def _evaluation(record: Mapping[str, Any]) -> dict[str, Any]:
    names = ("prompts", "ablation", "faithfulness", "curves", "known", "roc", "random", "chance")
    return {name: record[name] for name in names if record.get(name)}


def _patterns(run: Run, room: int) -> dict[str, Any]:
    """Attention as one byte an entry, the most important heads first while they fit."""
    tokens = run.example.get("tokens") or []
    data: dict[str, str] = {}
    for site in run.ranking:
        name = site.partition("@")[0]
        pattern = run.patterns.get(name)
        if pattern is None or name in data or pattern.shape != (len(tokens), len(tokens)):
            continue
        room -= pattern.numel()
        if room < 0:
            break
        levels = (pattern.nan_to_num(0.0).clamp(0, 1) * 255).round().to(torch.uint8)
        data[name] = base64.b64encode(levels.contiguous().numpy().tobytes()).decode("ascii")
    return {"tokens": [str(token) for token in tokens], "data": data}


def _prompts(run: Run, split: str) -> dict[str, Any]:
    found = run.prompts(split)
    keys = ("clean", "corrupted", "answers", "distractors", "tokens", "positions")
    return {"total": len(found), "shown": [_some(p, *keys) for p in found[:MOST_PROMPTS]]}
