"""The study behind the defaults: rule sets, readings of their scores, searches (docs/study.md).

    python benchmarks/rules.py --device cuda --out rules.json           # minutes on a GPU
    python benchmarks/rules.py --tasks ioi --seeds 0 --prompts 8 --held-out 16   # a CPU's share
    python benchmarks/rules.py --show rules*.json                       # tables of means

For every task and seed: one-pass scores by each rule set, scores of the peers (EAP, EAP-IG, exact
patching, random), and searches behind them, all as curve gap and k95 on held-out prompts.
Seeds 0–2, 50–52 and from 100 on are for choosing; those that are reported draw other prompts.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

import torch

from unweave.circuits import Scores
from unweave.decomposition.api import relevance
from unweave.decomposition.rules import attention_frozen, attention_removal
from unweave.decomposition.ruleset import RuleSet, find_rules
from unweave.errors import UnweaveError
from unweave.evaluation.curves import faithfulness_curve
from unweave.experiments.methods import find_method
from unweave.experiments.specification import Experiment, Specification
from unweave.model.loading import load
from unweave.model.model import Model
from unweave.model.weights import Linear
from unweave.scores.problem import Problem
from unweave.scores.score import scores as registered
from unweave.search.algorithm1 import relevance_to
from unweave.search.search import searches
from unweave.sites import Site, parse


def values_only(q: Any, k: Any, v: Any, totals: Any) -> Any:
    """½(A + A′)β_v: the values' part of what removal takes, averaged over the two orders."""
    pattern = attention_removal(q, k, torch.zeros_like(v), totals)
    return (attention_frozen(q, k, v, totals) + attention_removal(q, k, v, totals) - pattern) / 2


def halfway(q: Any, k: Any, v: Any, totals: Any) -> Any:
    """½(removal + frozen): all of the values' part, half of the pattern's."""
    return (attention_frozen(q, k, v, totals) + attention_removal(q, k, v, totals)) / 2


# Rules that are tried here and are no part of the product.
TRIED = {
    "attention=values": values_only,
    "attention=halfway": halfway,
    "clamp=last": frozenset({"mlp.add"}),
}
# From the two ends one change at a time, then mixtures.
SETS = """
    removal
    removal, attention=frozen
    removal, attention=values
    removal, attention=halfway
    removal, attention=relevant
    removal, gate=half
    removal, gate=frozen
    removal, gate=product
    removal, activation=slope
    removal, activation=ratio
    removal, norm=frozen
    removal, linear=shared, norm=shared
    removal, clamp=last
    removal, clamp=paper
    removal, clamp=everywhere
    removal, readout=gradient
    removal, readout=paper
    removal, gate=half, norm=frozen
    removal, gate=frozen, norm=frozen
    removal, gate=frozen, norm=frozen, clamp=paper
    frozen
    frozen, gate=removal
    linear
    paper
    paper, attention=frozen
    paper, attention=values
    paper, attention=halfway
    paper, attention=removal
    paper, gate=frozen
    paper, gate=half
    paper, gate=removal
    paper, activation=slope
    paper, norm=removal
    paper, clamp=none
    paper, clamp=last
    paper, linear=plain, norm=frozen
    paper, readout=gradient
    paper, attention=removal, clamp=none
    paper, attention=removal, gate=half, clamp=none
"""
READ_OTHERWISE = ("removal", "paper")  # also ranked by signed and by normalised scores
# By label: a method, and options that differ from its own.
SEARCHES: dict[str, tuple[str, dict[str, Any]]] = {
    "cdt (default)": ("cdt", {}),
    "cdt, swept on all prompts": ("cdt", {"prompts": 1000}),
    "cdt, pool of a sixth": ("cdt", {"pool": 0.17}),
    "cdt, nodes outside as they left": ("cdt", {"order": "left"}),
    "cdt, paper rules": ("cdt", {"rules": "paper"}),
    "eap, eliminate": ("eap+eliminate", {}),
    "eap-ig, eliminate": ("eap-ig+eliminate", {}),
    "removal, top": ("decomposition+top", {}),
    "cdt-paper": ("cdt-paper", {}),
    "cdt-paper, one round": ("cdt-paper", {"rounds": 1}),
    "cdt-paper, no pruning": ("cdt-paper", {"prune": False}),
    "cdt-paper, removal rules": ("cdt-paper", {"rules": "removal"}),
}
PEERS = ("eap", "eap-ig", "relp", "random")
PATCHING = "exact patching"


def rule_set(text: str) -> RuleSet:
    """A set by its name with changes, those of `TRIED` included."""
    base, *changes = text.split(", ")
    found = find_rules(base)
    for change in changes:
        op, _, choice = change.partition("=")
        found = found.with_rules(**{op: TRIED.get(change, choice)})
    return replace(found, name=text)


def sets_for(model: Model, linear_metric: bool) -> list[str]:
    """The sets that differ from one another on this model and metric."""
    block = model.network.body.blocks[0]
    head = [step for step in model.network.head.steps if isinstance(step, Linear)]
    missing = set()
    if block.mlp is None or block.mlp.gate is None:
        missing.add("gate")
    if block.mlp is None or block.mlp.gate is not None:
        missing.add("activation")
    if all(w.bias is None for w in (block.attention.v, block.attention.out, *head)):
        missing.add("linear")
    if linear_metric:
        missing.add("readout")

    def changed(text: str) -> set[str]:
        return {change.partition("=")[0] for change in text.split(", ")[1:]}

    sets = [line.strip() for line in SETS.strip().splitlines()]
    return [text for text in sets if not changed(text) & missing]


def score(problem: Problem, rules: RuleSet) -> Scores:
    return relevance(
        problem.model,
        problem.batch,
        list(problem.nodes),
        rules=rules,
        ablation=problem.ablation,
        pairs=(),
    )


def one_pass(problem: Problem) -> Iterator[tuple[str, list[Site] | str, float]]:
    """Label, ranking (or why there is none) and seconds, for every set and reading."""
    for text in sets_for(problem.model, problem.batch.readout.metric.linear):
        began, rules = time.perf_counter(), rule_set(text)
        try:
            scores = score(problem, rules)
        except UnweaveError as error:
            yield text, str(error), time.perf_counter() - began
            continue
        seconds = time.perf_counter() - began
        yield text, [parse(site) for site in scores.ranking()], seconds
        if text in READ_OTHERWISE:
            order = scores.values.argsort(descending=True).tolist()
            yield f"{text}: signed", [problem.nodes[i] for i in order], seconds
            values = relevance_to(scores, ("logits",), {"normalise": True})
            order = values.abs().argsort(descending=True).tolist()
            yield f"{text}: per layer", [problem.nodes[i] for i in order], seconds


def peers(problem: Problem) -> Iterator[tuple[str, list[Site], float]]:
    for label in (*PEERS, PATCHING):
        began = time.perf_counter()
        scores = registered["patching" if label == PATCHING else label].run(problem)
        yield label, [parse(site) for site in scores.ranking()], time.perf_counter() - began


def beaten(held_out: Problem, order: Sequence[Site], draws: int = 10) -> dict[str, float]:
    """Share of random circuits that the first nodes beat in closeness to 1, by size."""
    rng, shares = Random(0), {}
    for percent in (10, 20, 30, 40, 50, 60):
        size = max(1, len(held_out.nodes) * percent // 100)
        random = [tuple(rng.sample(held_out.nodes, size)) for _ in range(draws)]
        found = (1 - held_out.faithfulness([tuple(order[:size]), *random])).abs()
        shares[str(percent)] = float((found[0] < found[1:]).float().mean())
    return shares


def study(model: Model, name: str, seed: int, options: argparse.Namespace) -> list[dict]:
    specification = Specification(
        name,
        model.name,
        seed=seed,
        prompts=options.prompts,
        held_out=options.held_out,
        ablation=options.ablation,
    )
    experiment = Experiment.set_up(specification, model)
    discovery, held_out = experiment.discovery, experiment.held_out
    rows, orders = [], {}

    def add(label: str, kind: str, order: "list[Site] | str", seconds: float, **more: Any) -> None:
        row = {"task": name, "seed": seed, "label": label, "kind": kind, "seconds": seconds, **more}
        if isinstance(order, str):
            row |= {"curve_gap": None, "k95": None, "error": order}
            seen = order
        else:
            orders[label] = order
            curve = faithfulness_curve(held_out, order)
            row |= {"curve_gap": curve.gap, "curve_area": curve.area, "k95": curve.first(0.95)}
            row |= {"sizes": curve.sizes, "faithfulness": curve.faithfulness}
            seen = f"curve gap {curve.gap:.3f}  k95 {row['k95']!s:>4}  {seconds:6.1f} s"
        rows.append(row)
        print(f"{name:13s} {seed:3d} {label:48s} {seen}", flush=True)

    if "one-pass" in options.parts:
        for label, order, seconds in one_pass(discovery):
            add(label, "one pass", order, seconds)
    for label, order, seconds in peers(discovery):
        add(label, "peer", order, seconds)
    chosen = SEARCHES if "searches" in options.parts else {}
    chosen = {"cdt (default)": ("cdt", {})} | chosen if "default" in options.parts else chosen
    for label, (name_of_method, changes) in chosen.items():
        began = time.perf_counter()
        method = find_method(name_of_method).with_options(changes)
        scores = registered[method.score].run(discovery, method.filled_score())
        found = searches[method.search].run(discovery, scores, method.filled_search())
        seconds = time.perf_counter() - began
        order, circuit = [parse(site) for site in found.ranking], found.sites
        same = {peer: tuple(orders[peer][: len(circuit)]) for peer in (*PEERS, PATCHING)}
        ours, *theirs = held_out.faithfulness([circuit, *same.values()]).tolist()
        more: dict[str, Any] = {
            "size": len(circuit),
            "faithfulness_of_circuit": ours,
            "same_size": dict(zip(same, theirs, strict=True)),
            "circuit": list(map(str, circuit)),
        }
        if label == "cdt (default)":
            more["beaten"] = beaten(held_out, order)
        add(label, "search", order, seconds, **more)
        listed = ", ".join(f"{k} {v:.3f}" for k, v in more["same_size"].items())
        print(f"{'':18s} {len(circuit)} nodes, f {ours:.3f}; same size: {listed}", flush=True)
    return rows


def show(rows: Sequence[dict]) -> None:
    """Means over the seeds as tables: curve gap / k95, and the circuits that searches return."""
    names = list(dict.fromkeys(row["task"] for row in rows))
    print("| curve gap / k95 |", " | ".join(names), "|")
    print("|---" * (len(names) + 1) + "|")

    def cell(found: Sequence[dict]) -> str:
        if not found:
            return "–"
        if any(row["curve_gap"] is None for row in found):
            return "overflows"
        sizes = [row["k95"] or max(row["sizes"]) for row in found]
        return f"{mean(row['curve_gap'] for row in found):.3f} / {mean(sizes):.0f}"

    for label in dict.fromkeys(row["label"] for row in rows):
        found = [[r for r in rows if r["label"] == label and r["task"] == name] for name in names]
        print(f"| {label} |", " | ".join(map(cell, found)), "|")
    for row in rows:
        if row["label"] == "cdt (default)":
            print(
                f"{row['task']} {row['seed']}: {row['size']} nodes, "
                f"f {row['faithfulness_of_circuit']:.3f}; same size: "
                + ", ".join(f"{k} {v:.3f}" for k, v in row["same_size"].items())
                + f"; random beaten from {min(row['beaten'].values()):.0%}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--tasks", nargs="+", default=["ioi", "greater-than", "docstring", "induction"]
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--prompts", type=int, default=None)
    parser.add_argument("--held-out", type=int, default=None)
    parser.add_argument("--ablation", default="mean")
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=("one-pass", "default", "searches"),
        default=["one-pass", "searches"],
        help="rule sets in one pass, cdt's default search, every search",
    )
    parser.add_argument("--out", type=Path, default=Path("rules.json"))
    parser.add_argument("--show", nargs="+", type=Path, help="only print tables of these results")
    options = parser.parse_args()
    if options.show:
        show([row for path in options.show for row in json.loads(path.read_text())])
        return
    torch.manual_seed(0)
    model = load(options.model, device=options.device)
    rows: list[dict] = []
    for name in options.tasks:
        for seed in options.seeds:
            rows += study(model, name, seed, options)
            options.out.write_text(json.dumps(rows))
    show(rows)


if __name__ == "__main__":
    main()
