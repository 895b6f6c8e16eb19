"""Run folders as `unweave discover` and `unweave evaluate` write them, without a model."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from unweave.circuits import Circuit, Scores
from unweave.experiments.files import write_json

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"
TEXTS = [
    HOSTILE,
    "\"quoted\" 'twice' `so`",
    "a\nb\r\n\tc",
    "🧵👩‍👩‍👧 emoji",
    "שלום עולם",
    "\u202eevil",
    "{{7*7}}",
]
WORDS = ["When", " Mary", " and", " John", " went", " out", ",", " John", " gave", " it", " to"]


def prompt(words: list[str], positions: dict[str, int]) -> dict[str, Any]:
    text = "".join(words)
    return {
        "clean": text,
        "corrupted": text.replace("John", "Ann"),
        "answers": [words[1]],
        "distractors": [words[3]],
        "tokens": words,
        "positions": positions,
    }


def write_run(
    folder: Path,
    layers: int = 12,
    heads: int = 12,
    size: int = 14,
    positions: tuple[str, ...] = (),
    mlps: bool = True,
    evaluated: bool = True,
    hostile: bool = False,
    seed: int = 0,
    method: str = "cdt",
) -> Path:
    """Writes a run with made-up numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    names = [f"a{a}.h{h}" for a in range(layers) for h in range(heads)]
    names += [f"m{a}" for a in range(layers)] if mlps else []
    depth = {n: int(n[1:].partition(".")[0]) + (0.5 if n[0] == "m" else 0.0) for n in names}
    sites = [f"{n}@{p}" for n in names for p in positions] if positions else names
    values = torch.randn(len(sites), generator=generator) ** 3
    if hostile:
        values[::3] = math.nan
        values[1] = math.inf
    examples = values[:, None] + 0.1 * torch.randn(len(sites), 5, generator=generator)
    at = torch.tensor([depth[s.partition("@")[0]] for s in sites])
    later = at[:, None] < at
    pairs = {
        name: torch.randn(len(sites), len(sites), generator=generator) ** 3 * later
        for name in ("ratio", "share", "signed")
    }
    scores = Scores(tuple(sites), values, examples, tuple(sites), pairs, {"method": method})
    scores.save(folder / "scores.safetensors")
    words = [*WORDS[:3], *TEXTS, *WORDS[3:]] if hostile else WORDS
    named = {p: (3 * i + 1) % len(words) for i, p in enumerate(positions or ("IO", "S2", "end"))}
    heads_only = [n for n in names if n[0] == "a"][: 4 * heads]
    length = len(words)
    patterns = torch.rand(len(heads_only), length, length, generator=generator).mul(8).exp().tril()
    save_file(
        {
            n: (p / p.sum(-1, keepdim=True)).clone()
            for n, p in zip(heads_only, patterns, strict=True)
        },
        folder / "patterns.safetensors",
    )
    chosen = tuple(scores.ranking()[:size])
    model, task = (HOSTILE, TEXTS[1]) if hostile else ("gpt2", "ioi")
    faithfulness = math.nan if hostile else 0.97
    circuit = Circuit(
        chosen,
        tuple(scores[s] for s in chosen),
        faithfulness,
        faithfulness,
        len(sites),
        task,
        model,
        method,
    )
    write_json(folder / "circuit.json", circuit.to_json())
    relevance = dict(zip(sites, values.tolist(), strict=True))
    sizes = sorted({0, 1, 4, max(size, 1), 30, 60, len(sites)})
    curve = [math.nan if hostile else 1 - math.exp(-s / 6) for s in sizes]
    record = {
        "schema_version": 1,
        "command": f"unweave discover {TEXTS[0] if hostile else 'ioi'} --out {folder.name}",
        "created": "2026-01-02T03:04:05+00:00",
        "versions": {"unweave": "0.1.0", "torch": "2.13", "transformers": "5", "python": "3.11"},
        "model": model,
        "task": task,
        "method": method,
        "seed": seed,
        "options": {"rules": "removal", "text": TEXTS[0], "nested": {"a": [1, None]}},
        "accuracy": {"metric": 3.2, "correct": 0.98},
        "metric": {"name": "logit difference", "formula": "l", "full": 3.2, "empty": 0.1},
        "prompts": {
            split: [prompt(words, named) for _ in range(8)] for split in ("discover", "evaluate")
        },
        "words": {
            "text": "".join(words),
            "target": f"{words[1]} − {words[3]}",
            "predicted": words[1],
            "metric": 3.2,
            "words": [
                {"text": w, "score": math.nan if hostile and i == 2 else math.sin(i)}
                for i, w in enumerate(words)
            ],
        },
        "iterations": [
            {
                "targets": ["logits"] if not i else list(chosen[:4]),
                "relevance": relevance,
                "selected": sites[: 2 * size],
                "dropped": sites[size : 2 * size],
                "size": size,
                "loss": 0.1,
                "faithfulness": faithfulness,
            }
            for i in range(2)
        ],
        "elimination": [{"size": s, "loss": 1 / s, "removed": []} for s in (40, 20, 10, 5)],
        "curve": {"sizes": sizes, "faithfulness": curve},
        "nodes_total": len(sites),
        "shape": {"layers": layers, "heads": heads, "d_model": 64 * heads, "parallel": False},
        "seconds": {"scores": 1.5, "circuit": 4.0, TEXTS[0] if hostile else "evaluation": 0.5},
    }
    if hostile:  # as another program might have written it, NaN and all
        (folder / "run.json").write_text(json.dumps(record), "utf-8")
    else:
        write_json(folder / "run.json", record)
    if evaluated:
        write_json(folder / "evaluation.json", evaluation(len(sites), size, hostile))
    return folder


def evaluation(nodes: int, size: int, hostile: bool = False) -> dict[str, Any]:
    fractions = [tenth / 10 for tenth in range(1, 11)]
    sizes = [round(nodes * f) for f in fractions]
    shares = [
        {"size": s, "fraction": f, "draws": 10, "beaten": min(1, 1.6 - f), "farther": 1 - f / 3}
        for s, f in zip(sizes, fractions, strict=True)
    ]
    grid = [0, 2, 8, 30, nodes]
    curve = {"sizes": grid, "faithfulness": [0, 0.5, 0.9, 1.02, 1], "nodes": nodes}
    name = HOSTILE if hostile else "published"
    points = [[90 + i, 0.1 - i / 100, 0.8 - i / 20] for i in range(10)]
    return {
        "schema_version": 1,
        "nodes": nodes,
        "prompts": 16,
        "ablation": "mean",
        "curves": {"mean": curve, "zero": {**curve, "faithfulness": [0, 0.3, 0.7, 1.1, 1]}},
        "known": {name: 0.87},
        "roc": {
            name: {"auc": 0.91, "sweep_auc": 0.85, "points": points, "known": 26, "nodes": 144}
        },
        "random": [
            {"size": s, "fraction": f, "faithfulness": [f * f, f, math.nan if hostile else f / 2]}
            for s, f in zip(sizes, fractions, strict=True)
        ],
        "chance": {
            "size": size,
            "faithfulness": 0.97,
            "shares": shares,
            "mark": 0.8,
            "up_to": 0.6,
            "up_to_farther": 0.6,
        },
    }


def comparison(nodes: int, method: str = "eap") -> dict[str, Any]:
    """compare.json of `unweave compare` on the same task and model."""
    line = {"task": "ioi", "method": method, "line": method, "sizes": [0, 10, 50, nodes]}
    dot = {"task": "ioi", "method": method, "seconds": 0.3, "forwards": 3, "auc": 0.8}
    return {
        "schema_version": 1,
        "model": "gpt2",
        "rows": [],
        "summary": [],
        "figures": {
            "faithfulness_against_size": [{**line, "faithfulness": [0, 0.4, 0.9, 1]}],
            "runtime_against_auc": [dot, {**dot, "method": "cdt", "seconds": 4.0, "auc": 0.95}],
            "random_circuits_beaten": [],
        },
    }
