"""Run folders as `unweave discover` and `unweave evaluate` write them, without a model.

Schema version 2. `checked=False` leaves out what only a run with a verdict has.
"""

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


ROLES = ("name mover", "S-inhibition", "induction", "")
GROUPS = ("core", "supporting", "interchangeable")


def metric_of(index: int) -> dict[str, float]:
    """Of one prompt; the circuit is wrong on every fifth."""
    model = 3.2 + math.sin(index)
    circuit = -0.4 if index % 5 == 3 else model - 0.3 * math.cos(3 * index)
    return {"model": model, "circuit": circuit, "ablated": 0.1 + 0.01 * index}


def details(index: int, words: list[str], nodes: tuple[str, ...]) -> dict[str, Any]:
    """What is known of a held-out prompt; words and effects of the first three only."""
    known: dict[str, Any] = {"metric": metric_of(index)}
    if index < 3:
        scored = [{"text": w, "score": math.cos(i + index)} for i, w in enumerate(words)]
        known["words"] = {"target": f"{words[1]} − {words[3]}", "metric": 3.2, "words": scored}
        known["effects"] = {n: math.sin(3 * i + index) for i, n in enumerate(nodes)}
    return known


def node_facts(index: int) -> dict[str, Any]:
    """What circuit.json says about a node; effects come in another order than nodes."""
    effect = -4.5e-4 if index == 7 else 0.9 * math.sin(1 + 2 * index)
    return {
        "effect": effect,
        "interval": [effect - 0.1, effect + 0.1],
        "group": GROUPS[index % 3],
        "frequency": 1 - index / 40,
        "swaps": ["a1.h1"] if index % 3 == 2 else [],
        "roles": [role] if (role := ROLES[index % 4]) else [],
        "sentence": f"Node {index} attends from `to` to the receiver.",
    }


def verdict(chosen: tuple[str, ...], total: int) -> dict[str, Any]:
    def at(value: float, interval: list[float]) -> dict[str, Any]:
        ends = {"empty": 0.1, "full": 3.2}
        metric = 0.1 + value * 3.1
        return {"value": value, "interval": interval, "metric": metric, "prompts": 23, **ends}

    knockouts = [
        {"removed": list(chosen[:k]), "circuit": 0.9 - 0.2 * k, "model": 0.9 - 0.1 * k}
        for k in (1, 2, 4)
    ]
    return {
        "prompts": 12,
        "sentence": f"{len(chosen)} nodes reproduce the behaviour on new prompts within 3%.",
        "faithfulness": {
            "mean": at(0.97, [0.93, 1.01]),
            "counterfactual": at(0.85, [0.8, 0.9]),
            "zero": at(-0.04, [-0.2, 0.1]),
        },
        "templates": {
            "seen": at(1.01, [0.95, 1.07]) | {"prompts": 14},
            "new": at(0.9, [0.81, 0.99]) | {"prompts": 9},
        },
        "random": [{"size": 20, "fraction": 20 / total, "faithfulness": [0.1, -0.2, 0.4]}],
        "completeness": {"mean_gap": 0.7 / 3, "worst_gap": 0.4, "knockouts": knockouts},
        "minimality": {"effects": {}, "idle": list(chosen[2:4]), "prompts": 17},
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
    checked: bool = True,
    edges: bool = False,
    held_out: int = 23,
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
    signed = torch.randn(len(sites), len(sites), generator=generator) ** 3 * later
    share = signed.abs() / (1 + signed.abs())
    pairs = {"ratio": signed.abs(), "share": share, "signed": signed}
    scores = Scores(tuple(sites), values, examples, tuple(sites), pairs, {"method": method})
    scores.save(folder / "scores.safetensors")
    words = [*WORDS[:3], *TEXTS, *WORDS[3:]] if hostile else WORDS
    named = {p: (3 * i + 1) % len(words) for i, p in enumerate(positions or ("IO", "S2", "end"))}
    heads_only = [n for n in names if n[0] == "a"][: 4 * heads]
    length = len(words)
    shape = (len(heads_only), 2, length, length)
    patterns = torch.rand(shape, generator=generator).mul(8).exp().tril()
    patterns /= patterns.sum(-1, keepdim=True)
    # Of two prompts, or of the first only, as version 1 had it.
    kept = {
        n: p.clone() if checked else p[0].clone() for n, p in zip(heads_only, patterns, strict=True)
    }
    save_file(kept, folder / "patterns.safetensors")
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
    about = circuit.to_json() | {"schema_version": 2, "score": "decomposition"}
    about |= {"search": "algorithm1", "prompts": held_out, "interval": [0.93, 1.01]}
    if checked and not hostile:
        about["nodes"] = [n | node_facts(i) for i, n in enumerate(about["nodes"])]
    if edges:
        about["edges"] = edge_list(chosen)
    write_json(folder / "circuit.json", about)
    # As the search records it: magnitudes.
    relevance = dict(zip(sites, values.abs().tolist(), strict=True))
    sizes = sorted({0, 1, 4, max(size, 1), 30, 60, len(sites)})
    curve = [math.nan if hostile else 1 - math.exp(-s / 6) for s in sizes]
    record = {
        "schema_version": 2,
        "command": f"unweave discover {TEXTS[0] if hostile else 'ioi'} --out {folder.name}",
        "created": "2026-01-02T03:04:05+00:00",
        "versions": {"unweave": "0.1.0", "torch": "2.13", "transformers": "5", "python": "3.11"},
        "model": model,
        "task": task,
        "method": method,
        "seed": seed,
        "specification": {"task": task, "model": model},
        "ablation": "mean",
        "options": {
            "rules": "removal",
            "text": TEXTS[0],
            "nested": {"a": [1, None]},
            "evaluate": None,
            "options": {},
            "pairs": True,
        },
        "accuracy": {"metric": 3.2, "correct": 0.98},
        "metric": {"name": "logit difference", "formula": "l", "full": 3.2, "empty": 0.1},
        "prompts": {
            "discover": [prompt(words, named) for _ in range(8)],
            "check": [prompt(words, named) for _ in range(2)],
            "evaluate": [
                prompt(words, named) | (details(i, words, chosen) if checked else {})
                for i in range(held_out)
            ],
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
        "rounds": [
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
        "curve": {
            "sizes": sizes,
            "faithfulness": curve,
            "low": [f - 0.05 for f in curve],
            "high": [f + 0.05 for f in curve],
            "prompts": 16,
        },
        "summary": areas({"sizes": sizes, "faithfulness": curve}, len(sites)) | {"prompts": 16},
        "nodes_total": len(sites),
        "shape": {"layers": layers, "heads": heads, "d_model": 64 * heads, "parallel": False},
        "seconds": {"scores": 1.5, "circuit": 4.0, TEXTS[0] if hostile else "evaluation": 0.5},
    }
    if checked and not hostile:
        record["verdict"] = verdict(chosen, len(sites))
        record["forwards"] = {"scores": 51, "circuit": 320}
        record["overshoot"] = [{"site": sites[-1], "effect": -0.2}]
        write_json(folder / "paths.json", paths([site.partition("@")[0] for site in chosen]))
    if hostile:  # as another program might have written it, NaN and all
        (folder / "run.json").write_text(json.dumps(record), "utf-8")
    else:
        write_json(folder / "run.json", record)
    if evaluated:
        write_json(folder / "evaluation.json", evaluation(len(sites), chosen, hostile))
    return folder


def paths(heads: list[str]) -> dict[str, Any]:
    """What `unweave paths` writes."""

    def told(share: float, measured: float, *steps: str) -> dict[str, Any]:
        found = {"interval": [share - 0.05, share + 0.05], "measured": measured}
        found["measured_interval"] = [measured - 0.1, measured + 0.1]
        return {"path": [*steps, "logits"], "share": share, **found}

    listed = [told(0.62, 0.9, "input@IO", f"{heads[0]}<v>")] if heads else []
    if len(heads) > 1:
        listed += [
            told(-0.2, -0.31, "input@elsewhere", f"{heads[1]}<k>", f"{heads[0]}<q>"),
            told(0.03, 0.04, heads[1], "m99", f"{heads[0]}<v>"),  # a node that no graph shows
        ]
    shares = {"left": 0.55, "left_after_all": 0.4, "error": 1e-6}
    about = {"prompts": 16, "ablation": "mean", "metric": "logit difference", "known": 400}
    return {"schema_version": 1, "total": 3.3, "expanded": 64, "paths": listed, **shares, **about}


def areas(curve: dict[str, Any], nodes: int) -> dict[str, Any]:
    """Curve gap, curve area and the first crossings of a curve."""
    x = torch.tensor(curve["sizes"], dtype=torch.double) / nodes
    y = torch.tensor(curve["faithfulness"], dtype=torch.double)
    first = {
        f"k{level}": next(
            (
                s
                for s, f in zip(curve["sizes"], curve["faithfulness"], strict=True)
                if f >= level / 100
            ),
            None,
        )
        for level in (80, 95)
    }
    return {
        "curve_gap": float(torch.trapezoid((1 - y).abs(), x)),
        "curve_area": float(torch.trapezoid(y, x)),
        **first,
    }


def edge_list(chosen: tuple[str, ...]) -> list[dict[str, Any]]:
    """Edges from lower to higher nodes of a circuit, from the input and to the logits."""
    heads = sorted((n for n in chosen if n[0] == "a"), key=lambda n: int(n[1:].partition(".")[0]))
    low, high = heads[0], heads[-1]
    names = (f"input->{low}<k>", f"{low}->{high}<q>", f"{low}->{high}<v>", f"{high}->logits")
    return [
        {"edge": name, "score": 0.5 - 0.3 * i, "effect": 0.4 - 0.3 * i}
        for i, name in enumerate(names)
    ]


def evaluation(nodes: int, chosen: tuple[str, ...], hostile: bool = False) -> dict[str, Any]:
    size = len(chosen)
    fractions = [tenth / 10 for tenth in range(1, 11)]
    sizes = [round(nodes * f) for f in fractions]
    shares = [
        {"size": s, "fraction": f, "draws": 10, "beaten": min(1, 1.6 - f), "farther": 1 - f / 3}
        for s, f in zip(sizes, fractions, strict=True)
    ]
    grid = [0, 2, 8, 30, nodes]
    curve = {"sizes": grid, "faithfulness": [0, 0.5, 0.9, 1.02, 1], "nodes": nodes}
    zero = {**curve, "faithfulness": [0, 0.3, 0.7, 1.1, 1]}
    value = {"metric": 3.0, "empty": 0.1, "full": 3.2, "value": 2.9 / 3.1}
    name = HOSTILE if hostile else "published"
    points = [[90 + i, 0.1 - i / 100, 0.8 - i / 20] for i in range(10)]
    return {
        "schema_version": 1,
        "nodes": nodes,
        "size": size,
        "prompts": 16,
        "faithfulness": {"mean": value, "zero": value | {"metric": -0.02, "value": -0.12 / 3.1}},
        "ablation": "mean",
        "curves": {name: c | areas(c, nodes) for name, c in (("mean", curve), ("zero", zero))},
        "known": {name: 0.87},
        "roc": {
            name: {"auc": 0.91, "sweep_auc": 0.85, "points": points, "known": 26, "nodes": 144}
        },
        "random": [
            {"size": s, "fraction": f, "faithfulness": [f * f, f, math.nan if hostile else f / 2]}
            for s, f in zip(sizes, fractions, strict=True)
        ],
        "random_circuits": {
            "size": size,
            "faithfulness": 0.97,
            "shares": shares,
            "mark": 0.8,
            "up_to": 0.6,
            "up_to_farther": 0.6,
        },
        "completeness": {
            "mean_gap": 0.28,
            "worst_gap": 0.28,
            "knockouts": [{"removed": [*chosen[:2]], "circuit": 0.2, "model": 0.48}],
        },
        "minimality": {
            "effects": {n: 0.5 * math.cos(3 * i) for i, n in enumerate(chosen)},
            "idle": [*chosen[-2:]],
        },
        "stability": {
            "size": size,
            "draws": 100,
            "overlap": 0.83,
            "between": 0.71,
            "kept": {n: 1 - i / 20 for i, n in enumerate(chosen)},
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
