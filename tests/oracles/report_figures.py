"""Every figure of a report, computed again from a run's files.

Reads JSON and safetensors itself and imports nothing of unweave, so that a slip in the report's
reading, signs or orders cannot repeat here. Figures are texts as the page prints them.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file


class Files:
    """What a run folder holds, as it stands there."""

    def __init__(self, folder: Path) -> None:
        self.run = json.loads((folder / "run.json").read_text("utf-8"))
        self.circuit = json.loads((folder / "circuit.json").read_text("utf-8"))
        path = folder / "evaluation.json"
        self.evaluation = json.loads(path.read_text("utf-8")) if path.exists() else {}
        tensors = load_file(folder / "scores.safetensors")
        with safe_open(folder / "scores.safetensors", "pt") as file:
            names = json.loads(file.metadata()["names"])
        self.scores = dict(zip(names["sources"], tensors["values"].tolist(), strict=True))
        examples = tensors["examples"].double().tolist()
        self.examples = dict(zip(names["sources"], examples, strict=True))
        order = names["order"] or sorted(self.scores, key=lambda s: -abs(self.scores[s]))
        nodes = [node["site"] for node in self.circuit["nodes"]]
        self.order = [*nodes, *(site for site in order if site not in nodes)]
        self.prompts: dict[str, list[Any]] = self.run["prompts"]


def num(value: Any, digits: int = 3) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    if value and (abs(value) < 1e-3 or abs(value) >= 1e5):
        mantissa, exponent = f"{value:.1e}".split("e")
        text = f"{mantissa}e{int(exponent):+d}"
    else:
        rounded = float(f"{value:.{digits}g}")
        text = str(int(rounded)) if rounded == int(rounded) else repr(rounded)
    return text.replace("-", "−")


def signed(value: Any, digits: int = 3) -> str:
    return ("+" if value is not None and value > 0 else "") + num(value, digits)


def interval(ends: Sequence[float] | None) -> str:
    return f" [{num(ends[0])}, {num(ends[1])}]" if ends else ""


def percent(value: float) -> str:
    return f"{math.floor(100 * value + 0.5)}%"


def tiles(files: Files) -> dict[str, str]:
    run, circuit = files.run, files.circuit
    held_out, found = len(files.prompts["evaluate"]), len(files.prompts["discover"])
    return {
        "nodes in the circuit": f"{len(circuit['nodes'])} of {run['nodes_total']}",
        f"faithfulness on {held_out} held-out prompts": f"{circuit['faithfulness']:.3g} 95% "
        f"interval {circuit['interval'][0]:.3g} to {circuit['interval'][1]:.3g}",
        f"faithfulness on {found} discovery prompts": f"{circuit['faithfulness_on_discovery']:.3g} "
        "where it was found",
        "logit difference of the model": f"{run['metric']['full']:.3g} with every node ablated "
        f"{run['metric']['empty']:.3g}",
        "model answers correctly": f"{run['accuracy']['correct']:.0%} of {found} discovery prompts",
        "time": f"{sum(run['seconds'].values()):.1f} s",
    }


def node_rows(files: Files, by: str) -> list[list[str]]:
    """The circuit's nodes in a table sorted by "effect", "score" or "order"."""
    facts = {node["site"]: node for node in files.circuit["nodes"]}
    evaluated = files.evaluation.get("minimality", {}).get("effects", {})
    rows = []
    for place, site in enumerate(files.order[: len(facts)], 1):
        node = facts[site]
        effect = node.get("effect", evaluated.get(site))
        row: dict[str, Any] = {"order": -place, "effect": effect, "score": files.scores[site]}
        spread = stdev(files.examples[site])
        cells = [str(place), site]
        if effect is not None:
            cells.append(signed(effect) + interval(node.get("interval")))
        cells.append(f"{signed(files.scores[site])} ± {num(spread, 2)}")
        if "group" in node:
            cells += [node["group"], percent(node["frequency"]), ", ".join(node["roles"]) or "–"]
        rows.append((row[by], cells))
    return [cells for _, cells in sorted(rows, key=lambda row: -row[0])]


def prompt_rows(files: Files) -> list[list[str]]:
    """Held-out prompts, the worst first; a wrong answer is marked."""
    rows = []
    for place, prompt in enumerate(files.prompts["evaluate"], 1):
        m = prompt["metric"]
        marks = [signed(m[k]) + (" wrong" if m[k] <= 0 else "") for k in ("model", "circuit")]
        gap = abs(m["model"] - m["circuit"])
        text = prompt["clean"]
        rows.append((gap, [str(place), text, *marks, signed(m["ablated"]), num(gap)]))
    return [cells for _, cells in sorted(rows, key=lambda row: -row[0])]


def ablation_rows(files: Files) -> list[list[str]]:
    rows = []
    sources = (("discover", files.run.get("verdict", {})), ("evaluate", files.evaluation))
    for by, record in sources:
        for name, f in record.get("faithfulness", {}).items():
            value = (f["metric"] - f["empty"]) / (f["full"] - f["empty"])
            ends = f.get("interval")
            told = f"{num(ends[0])} to {num(ends[1])}" if ends else "–"
            count = f.get("prompts", files.evaluation.get("prompts"))
            metrics = [num(f[key]) for key in ("metric", "full", "empty")]
            rows.append([name, f"{count} ({by})", num(value), told, *metrics])
    return rows


def random_fact(files: Files) -> tuple[str, str]:
    draws = files.run["verdict"]["random"][0]
    values = draws["faithfulness"]
    name = f"{len(values)} random circuits of {draws['size']} nodes"
    told = f"faithfulness on average, from {num(min(values))} to {num(max(values))}"
    on = f"on {files.run['verdict']['prompts']} held-out prompts (discover)"
    return name, f"{num(mean(values))} {told}, {on}"


def completeness_gaps(record: Mapping[str, Any]) -> tuple[float, float]:
    gaps = [abs(k["circuit"] - k["model"]) for k in record["knockouts"]]
    return mean(gaps), max(gaps)


def heatmap(files: Files, round_: int, position: str | None = None) -> list[list[float | None]]:
    """Layer × (heads, MLP): scores with their sign for the logits, else recorded magnitudes."""
    step = files.run["rounds"][round_]
    values = files.scores if step["targets"] == ["logits"] else step["relevance"]
    cells: dict[tuple[int, int], float] = {}
    layers = heads = 0
    mlp = any(site[0] == "m" for site in values)
    for site, value in values.items():
        name, _, at = site.partition("@")
        found = re.fullmatch(r"[am](\d+)(?:\.h(\d+))?", name)
        assert found is not None
        layer, head = int(found[1]), -1 if found[2] is None else int(found[2])
        layers, heads = max(layers, layer + 1), max(heads, head + 1)
        if position is None or at == position:
            cells[layer, head] = cells.get((layer, head), 0.0) + value
    columns = [*range(heads), *([-1] if mlp else [])]
    return [[cells.get((layer, head)) for head in columns] for layer in range(layers)]


def curve_names(files: Files) -> set[str]:
    """Lines of the faithfulness figure: each says its prompts."""
    run, ev = files.run, files.evaluation
    names = {f"cdt, on {run['curve']['prompts']} held-out prompts (discover)"}
    by = f"on {ev['prompts']} held-out prompts (evaluate)"
    names |= {f"cdt, {name} ablation, {by}" for name in ev["curves"]}
    names |= {f"{name} circuit, {by}" for name in ev["known"]}
    names.add(f"random circuits (mean, range), {by}")
    return names | {f"this circuit, on {files.circuit['prompts']} held-out prompts"}


def area_rows(files: Files) -> list[list[str]]:
    """Curve gap, curve area, k80 and k95 of every curve."""
    held_out = f"{files.run['curve']['prompts']} held-out prompts"
    evaluated = f"{files.evaluation['prompts']} held-out prompts"
    curves = {f"discover, {held_out}": files.run["curve"]}
    for name, curve in files.evaluation["curves"].items():
        curves[f"{name} ablation, evaluate, {evaluated}"] = curve
    total = files.run["nodes_total"]
    rows = []
    for name, curve in curves.items():
        points = list(zip(curve["sizes"], curve["faithfulness"], strict=True))

        def area(of: Callable[[float], float], at: Sequence[Any] = points) -> float:
            steps = pairwise(at)
            return sum((b - a) / total * (of(f) + of(g)) / 2 for (a, f), (b, g) in steps)

        first = [next((s for s, f in points if f >= level), None) for level in (0.8, 0.95)]
        values = [area(lambda f: abs(1 - f)), area(lambda f: f), *first]
        rows.append([name, *map(num, values)])
    return rows
