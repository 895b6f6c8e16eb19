"""The study behind the defaults: rule sets, selection and refinement (docs/rules.md).

    python benchmarks/rules.py --device cuda --out rules.json          # minutes on a GPU
    python benchmarks/rules.py --tasks ioi --seeds 0 --prompts 8 --held-out 16   # a CPU's share

For every task and seed: one-pass scores by each rule set, and by the peers (EAP, EAP-IG, exact
patching, random), as CMD and k95 on held-out prompts; then Algorithm 1 with each refinement. Seeds
from 100 on are for choosing; those that are reported (30–32) draw other prompts.
"""

import argparse
import json
import time
from pathlib import Path
from random import Random
from typing import Any

import torch

from unweave.decompose.api import relevance
from unweave.evaluate.curves import faithfulness_curve
from unweave.methods import cdt
from unweave.methods.method import Problem, methods
from unweave.model.loading import load
from unweave.model.model import Model
from unweave.runs.plan import Plan, set_up
from unweave.sites import Site, parse
from unweave.tasks.task import tasks

ONE_PASS = {
    "paper": "paper",
    "paper, no clamp": "paper, clamp=none",
    "paper, removal attention": "paper, attention=removal",
    "paper, removal attention, no clamp": "paper, attention=removal, clamp=none",
    "paper, frozen attention, no clamp": "paper, attention=frozen, clamp=none",
    "frozen": "frozen",
    "linear (half gates)": "linear",
    "removal attention, half gate, frozen norm": "removal, gate=half, norm=frozen",
    "removal attention, frozen gate and norm": "removal, gate=frozen, norm=frozen",
    "removal attention, product gate, frozen norm": "removal, gate=product, norm=frozen",
    "removal attention, frozen gate, clamp": "removal, gate=frozen, norm=frozen, clamp=paper",
    "frozen attention, removal gate and norm": "removal, attention=frozen",
    "removal": "removal",
}
SEARCHES: dict[str, dict[str, Any]] = {
    "cdt (default)": {},
    "cdt, swept on all prompts": {"sweep": 1.0},
    "cdt, pool of a sixth": {"select": "fraction:0.17"},
    "cdt, greedy refinement": {"refine": "greedy"},
    "cdt, no refinement, percentile 95": {"refine": "none", "select": "percentile:95"},
    "cdt, paper rules": {"rules": "paper"},
    "cdt, paper rules, greedy, percentile 95": {
        "rules": "paper",
        "refine": "greedy",
        "select": "percentile:95",
    },
}
PEERS = ("eap", "eap-ig", "relp", "random")


def curve_row(judge: Problem, order: list[Site]) -> dict[str, Any]:
    curve = faithfulness_curve(judge, order)
    return {
        "cmd": curve.cmd,
        "cpr": curve.cpr,
        "k80": curve.first(0.8),
        "k95": curve.first(0.95),
        "sizes": curve.sizes,
        "faithfulness": curve.faithfulness,
    }


def beaten(judge: Problem, order: list[Site], draws: int = 10) -> dict[str, float]:
    """Share of random circuits that the first nodes beat in closeness to 1, by size."""
    rng, shares = Random(0), {}
    for percent in (10, 20, 30, 40, 50, 60):
        size = max(1, len(judge.nodes) * percent // 100)
        random = [tuple(rng.sample(judge.nodes, size)) for _ in range(draws)]
        found = (1 - judge.faithfulness([tuple(order[:size]), *random])).abs()
        shares[str(percent)] = float((found[0] < found[1:]).float().mean())
    return shares


def study(model: Model, name: str, seed: int, options: argparse.Namespace) -> list[dict]:
    task = tasks[name]
    plan = Plan(
        name,
        model.name,
        seed=seed,
        discover=options.prompts,
        evaluate=options.held_out,
        baseline=options.baseline,
    )
    stage = set_up(plan, model, task)
    find, judge, rows, orders = stage.find, stage.judge, [], {}

    def add(label: str, kind: str, order: list[Site], seconds: float, **more: Any) -> None:
        orders[label] = order
        row = {
            "task": name,
            "seed": seed,
            "label": label,
            "kind": kind,
            "seconds": seconds,
            **curve_row(judge, order),
            **more,
        }
        rows.append(row)
        print(
            f"{name:13s} {seed:3d} {label:48s} CMD {row['cmd']:.3f}  k95 {row['k95']!s:>4}  "
            f"{seconds:6.1f} s  {more.get('size', '')}",
            flush=True,
        )

    if not options.searches_only:
        for label, rules in ONE_PASS.items():
            began = time.perf_counter()
            scores = relevance(
                model, find.batch, list(find.nodes), rules=rules, baseline=find.baseline, pairs=()
            )
            order = [parse(site) for site in scores.ranking()]
            add(label, "one pass", order, time.perf_counter() - began)
    for label in PEERS:
        began = time.perf_counter()
        scores = methods[label].run(find)
        add(label, "peer", [parse(s) for s in scores.ranking()], time.perf_counter() - began)
    began = time.perf_counter()
    exact = relevance(
        model, find.batch, list(find.nodes), rules="removal", baseline=find.baseline, pairs=()
    )
    add("exact patching", "peer", [parse(s) for s in exact.ranking()], time.perf_counter() - began)
    chosen = {"cdt (default)": {}} if options.default_only else SEARCHES
    if options.one_pass_only:
        chosen = {}
    for label, changes in chosen.items():
        began = time.perf_counter()
        settings = methods["cdt"].checked(changes)
        scores = cdt.sweep(find, settings)
        found = cdt.search(find, scores, settings)
        seconds = time.perf_counter() - began
        order = [parse(site) for site in cdt.ranking(scores, found)]
        circuit = tuple(parse(site) for site in found.rounds[-1].circuit)
        same = {peer: tuple(orders[peer][: len(circuit)]) for peer in (*PEERS, "exact patching")}
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
        print(
            f"{'':18s} {len(circuit)} nodes, f {ours:.3f}; same size: "
            + ", ".join(f"{k} {v:.3f}" for k, v in more["same_size"].items()),
            flush=True,
        )
    return rows


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
    parser.add_argument("--baseline", default="mean")
    parser.add_argument("--searches-only", action="store_true", help="leave out one-pass rules")
    parser.add_argument("--one-pass-only", action="store_true", help="leave out searches")
    parser.add_argument("--default-only", action="store_true", help="only cdt's default search")
    parser.add_argument("--out", type=Path, default=Path("rules.json"))
    options = parser.parse_args()
    torch.manual_seed(0)
    model = load(options.model, device=options.device)
    rows: list[dict] = []
    for name in options.tasks:
        for seed in options.seeds:
            rows += study(model, name, seed, options)
            options.out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
