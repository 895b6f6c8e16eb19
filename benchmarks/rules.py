"""The study behind the defaults: rule sets, readings of their scores, searches (docs/rules.md).

    python benchmarks/rules.py --device cuda --out rules.json           # minutes on a GPU
    python benchmarks/rules.py --tasks ioi --seeds 0 --prompts 8 --held-out 16   # a CPU's share
    python benchmarks/rules.py --show rules*.json                       # tables of means

For every task and seed: one-pass scores by each rule set, scores of the peers (EAP, EAP-IG, exact
patching, random), and Algorithm 1 with each refinement, all as CMD and k95 on held-out prompts.
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

from unweave.behaviours.task import tasks
from unweave.circuits import Scores
from unweave.decomposition.api import relevance
from unweave.decomposition.rules import attention_frozen, attention_removal
from unweave.decomposition.ruleset import RuleSet, find_rules
from unweave.errors import UnweaveError
from unweave.evaluation.curves import faithfulness_curve
from unweave.experiments.specification import Plan, set_up
from unweave.model.loading import load
from unweave.model.model import Model
from unweave.model.weights import Linear
from unweave.scores import cdt
from unweave.scores.problem import Problem, methods
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
SEARCHES: dict[str, dict[str, Any]] = {
    "cdt (default)": {},
    "cdt, swept on all prompts": {"sweep": 1.0},
    "cdt, pool of a sixth": {"select": "fraction:0.17"},
    "cdt, greedy refinement": {"refine": "greedy"},
    "cdt, one round, no refinement": {
        "refine": "none",
        "select": "percentile:95",
        "iterations": 1,
    },
    "cdt, three rounds, no refinement": {"refine": "none", "select": "percentile:95"},
    "cdt, paper rules": {"rules": "paper"},
    "cdt, paper rules, greedy, percentile 95": {
        "rules": "paper",
        "refine": "greedy",
        "select": "percentile:95",
    },
}
PEERS = ("eap", "eap-ig", "relp", "random")
PATCHING = "exact patching"


def rule_set(text: str) -> RuleSet:
    """A set by its name with changes, those of `TRIED` included."""
    base, *changes = text.split(", ")
    found = find_rules(base)
    for change in changes:
        op, _, choice = change.partition("=")
        found = found.but(**{op: TRIED.get(change, choice)})
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


def score(find: Problem, rules: RuleSet, normalise: bool = False) -> Scores:
    return relevance(
        find.model,
        find.batch,
        list(find.nodes),
        rules=rules,
        ablation=find.ablation,
        pairs=(),
        normalise=normalise,
    )


def one_pass(find: Problem) -> Iterator[tuple[str, list[Site] | str, float]]:
    """Label, ranking (or why there is none) and seconds, for every set and reading."""
    for text in sets_for(find.model, find.batch.readout.metric.linear):
        began, rules = time.perf_counter(), rule_set(text)
        try:
            scores = score(find, rules)
        except UnweaveError as error:
            yield text, str(error), time.perf_counter() - began
            continue
        seconds = time.perf_counter() - began
        yield text, [parse(site) for site in scores.ranking()], seconds
        if text in READ_OTHERWISE:
            order = scores.values.argsort(descending=True).tolist()
            yield f"{text}: signed", [find.nodes[i] for i in order], seconds
            ranked = score(find, rules, normalise=True).ranking()
            yield f"{text}: per layer", [parse(site) for site in ranked], seconds


def peers(find: Problem) -> Iterator[tuple[str, list[Site], float]]:
    for label in (*PEERS, PATCHING):
        began = time.perf_counter()
        exact = label == PATCHING
        scores = score(find, find_rules("removal")) if exact else methods[label].run(find)
        yield label, [parse(site) for site in scores.ranking()], time.perf_counter() - began


def beaten(judge: Problem, order: Sequence[Site], draws: int = 10) -> dict[str, float]:
    """Share of random circuits that the first nodes beat in closeness to 1, by size."""
    rng, shares = Random(0), {}
    for percent in (10, 20, 30, 40, 50, 60):
        size = max(1, len(judge.nodes) * percent // 100)
        random = [tuple(rng.sample(judge.nodes, size)) for _ in range(draws)]
        found = (1 - judge.faithfulness([tuple(order[:size]), *random])).abs()
        shares[str(percent)] = float((found[0] < found[1:]).float().mean())
    return shares


def study(model: Model, name: str, seed: int, options: argparse.Namespace) -> list[dict]:
    plan = Plan(
        name,
        model.name,
        seed=seed,
        discover=options.prompts,
        evaluate=options.held_out,
        ablation=options.ablation,
    )
    stage = set_up(plan, model, tasks[name])
    find, judge, rows, orders = stage.find, stage.judge, [], {}

    def add(label: str, kind: str, order: "list[Site] | str", seconds: float, **more: Any) -> None:
        row = {"task": name, "seed": seed, "label": label, "kind": kind, "seconds": seconds, **more}
        if isinstance(order, str):
            row |= {"cmd": None, "k95": None, "error": order}
            seen = order
        else:
            orders[label] = order
            curve = faithfulness_curve(judge, order)
            row |= {"cmd": curve.cmd, "cpr": curve.cpr, "k95": curve.first(0.95)}
            row |= {"sizes": curve.sizes, "faithfulness": curve.faithfulness}
            seen = f"CMD {curve.cmd:.3f}  k95 {row['k95']!s:>4}  {seconds:6.1f} s"
        rows.append(row)
        print(f"{name:13s} {seed:3d} {label:48s} {seen}", flush=True)

    if "one-pass" in options.parts:
        for label, order, seconds in one_pass(find):
            add(label, "one pass", order, seconds)
    for label, order, seconds in peers(find):
        add(label, "peer", order, seconds)
    chosen = SEARCHES if "searches" in options.parts else {}
    chosen = {"cdt (default)": {}} | chosen if "default" in options.parts else chosen
    for label, changes in chosen.items():
        began = time.perf_counter()
        settings = methods["cdt"].checked(changes)
        scores = cdt.sweep(find, settings)
        found = cdt.search(find, scores, settings)
        seconds = time.perf_counter() - began
        order = [parse(site) for site in cdt.ranking(scores, found)]
        circuit = tuple(parse(site) for site in found.rounds[-1].circuit)
        same = {peer: tuple(orders[peer][: len(circuit)]) for peer in (*PEERS, PATCHING)}
        ours, *theirs = judge.faithfulness([circuit, *same.values()]).tolist()
        more: dict[str, Any] = {
            "size": len(circuit),
            "faithfulness_of_circuit": ours,
            "same_size": dict(zip(same, theirs, strict=True)),
            "circuit": list(map(str, circuit)),
        }
        if label == "cdt (default)":
            more["beaten"] = beaten(judge, order)
        add(label, "search", order, seconds, **more)
        listed = ", ".join(f"{k} {v:.3f}" for k, v in more["same_size"].items())
        print(f"{'':18s} {len(circuit)} nodes, f {ours:.3f}; same size: {listed}", flush=True)
    return rows


def show(rows: Sequence[dict]) -> None:
    """Means over the seeds as tables: CMD / k95, and the circuits that searches return."""
    names = list(dict.fromkeys(row["task"] for row in rows))
    print("| CMD / k95 |", " | ".join(names), "|")
    print("|---" * (len(names) + 1) + "|")

    def cell(found: Sequence[dict]) -> str:
        if not found:
            return "–"
        if any(row["cmd"] is None for row in found):
            return "overflows"
        sizes = [row["k95"] or max(row["sizes"]) for row in found]
        return f"{mean(row['cmd'] for row in found):.3f} / {mean(sizes):.0f}"

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
