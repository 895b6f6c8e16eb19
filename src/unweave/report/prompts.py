"""Prompts of a run for the page: their metrics, texts, scores and attention."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.report.folder import Json, ShownRun

KEYS = ("clean", "corrupted", "answers", "distractors", "tokens", "positions", "words", "effects")
METRICS = ("model", "circuit", "ablated")


def prompts(run: ShownRun, split: str, room: int) -> tuple[dict[str, Any], str]:
    """The metrics of every prompt, and the texts that fit into `room` bytes.

    Texts are kept where the circuit is farthest from the model, and always of the first prompt,
    whose attention and words are known.

    Returns:
        The data, and what was left out; "" for nothing.
    """
    found = run.prompts(split)
    metrics = [_metric(prompt) for prompt in found]
    order = _worst_first(found)
    shown, scores = [], _scores(run) if split == "discover" else []
    for i in order:
        record = {key: found[i][key] for key in KEYS if found[i].get(key)}
        if i < len(scores):
            record["scores"] = scores[i]
        room -= len(json.dumps(record))
        if room < 0:
            break
        shown.append({"index": i, **record})
    columns = {name: [m.get(name) for m in metrics] for name in METRICS} if any(metrics) else {}
    data = {"total": len(found), "metrics": columns, "shown": sorted(shown, key=_index)}
    missing = len(found) - len(shown)
    name = "discovery" if split == "discover" else "held-out"
    return data, f"the texts of {missing} of {len(found)} {name} prompts" if missing else ""


def _worst_first(found: Sequence[Json]) -> list[int]:
    """The first prompt, then those in detail, then those where the circuit is farthest off."""
    gaps = [_gap(_metric(prompt)) for prompt in found]
    detailed = [bool(prompt.get("effects")) for prompt in found]
    return sorted(range(len(found)), key=lambda i: (i != 0, not detailed[i], -gaps[i]))


def _index(record: Mapping[str, Any]) -> int:
    return record["index"]


def _metric(prompt: Json) -> dict[str, float]:
    found = prompt.get("metric")
    if not isinstance(found, Mapping):
        return {}
    return {
        name: float(found[name]) for name in METRICS if isinstance(found.get(name), int | float)
    }


def _gap(metric: Mapping[str, float]) -> float:
    return abs(metric["model"] - metric["circuit"]) if {"model", "circuit"} <= set(metric) else 0.0


def _scores(run: ShownRun) -> list[list[float]]:
    """For each scored discovery prompt, the scores of the circuit's nodes."""
    scores = run.scores
    if scores is None or scores.examples.ndim != 2:
        return []
    rows = {site: i for i, site in enumerate(scores.sources)}
    nodes = run.circuit.nodes
    if not nodes or not set(nodes) <= set(rows):
        return []
    columns = scores.examples[[rows[node] for node in nodes]].T.tolist()
    return [[float(f"{value:.7g}") for value in column] for column in columns]


def patterns(run: ShownRun, room: int) -> tuple[dict[str, Any], str]:
    """Attention as one byte an entry: of each prompt the first nodes' heads, while they fit.

    Prompts come in the order of `prompts`, so that those with a text come first.

    Returns:
        Tokens of the example prompt; by head, a text for each prompt (None: left out); what was
        left out.
    """
    found = run.prompts("evaluate") or [run.example]
    heads = dict.fromkeys(site.partition("@")[0] for site in run.ranking)
    wanted = [head for head in heads if head in run.patterns]
    data: dict[str, list[str | None]] = {head: [None] * len(found) for head in wanted}
    kept = every = 0
    for i in _worst_first(found):
        words = _tokens(found[i])
        for head in wanted:
            pattern = _of_prompt(run.patterns[head], i, len(words))
            if pattern is None:
                continue
            every += 1
            room -= pattern.numel()
            if room >= 0:
                data[head][i] = _bytes(pattern)
                kept += 1
    note = f"attention: {every - kept} of {every} patterns" if kept < every else ""
    return {
        "tokens": _tokens(found[0]),
        "data": {head: _cut(texts) for head, texts in data.items() if any(texts)},
    }, note


def _cut(texts: list[str | None]) -> list[str | None]:
    """Without what is missing at the end."""
    last = max(i for i, text in enumerate(texts) if text)
    return texts[: last + 1]


def _tokens(prompt: Json) -> list[str]:
    return [str(token) for token in prompt.get("tokens") or []]


def _of_prompt(
    stack: Float[Tensor, "prompt query key"], index: int, length: int
) -> Float[Tensor, "query key"] | None:
    """The pattern of one prompt, its padding cut; None where it was not kept."""
    if index >= len(stack) or not length or stack.shape[1] < length:
        return None
    if len(stack) == 1 and stack.shape[1] != length:
        return None
    return stack[index, :length, :length]


def _bytes(pattern: Float[Tensor, "query key"]) -> str:
    levels = (pattern.nan_to_num(0.0).clamp(0, 1) * 255).round().to(torch.uint8)
    return base64.b64encode(levels.contiguous().numpy().tobytes()).decode("ascii")


def informative_query(pattern: Float[Tensor, "query key"]) -> int:
    """The query that looks most at a token other than itself and the first, where heads rest."""
    away = pattern.clone()
    away.fill_diagonal_(0.0)
    away[:, 0] = 0.0
    last = len(pattern) - 1
    return int(away.argmax()) // pattern.shape[1] if away.numel() and away.max() > 0 else last
