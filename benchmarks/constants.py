"""What the circuits depend on: every constant of the node search halved and doubled, one at a time.

    python benchmarks/constants.py
    python benchmarks/constants.py --tasks ioi greater-than docstring --model smollm2-135m \
        --granularity head --seeds 0 1 2 --device cuda

By default on the wired models, whose circuits are known, with a node for each head and token: so
many that pools, blocks, forecasts, races and polish all act. A row a value, means over tasks and
seeds: |1 − f| on held-out prompts, nodes, Jaccard with the circuits of the values as they are, and
forward passes of the search over theirs.
"""

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from statistics import mean
from typing import Any, NamedTuple

from unweave.cost import metered
from unweave.experiments.specification import Experiment, Specification
from unweave.model.loading import load
from unweave.progress import silent
from unweave.scores.score import scores
from unweave.search.search import searches
from unweave.search.settings import SEARCH

PARTS = ("loss", "descent", "race", "order")
OPTIONS = ("price", "pool", "start", "most_prompts", "precision", "tolerance", "rounds")
WIRED = ("induction", "inhibition", "relay", "suppression", "composition")


class Found(NamedTuple):
    """A search: its circuit, how far it is from the model on held-out prompts, and its cost."""

    circuit: frozenset[str]
    off: float
    tokens: float


def scaled(value: Any, factor: float) -> Any:
    """A constant times a factor; whole numbers stay whole, and at least 1."""
    if isinstance(value, tuple):
        return tuple(scaled(one, factor) for one in value)
    return max(1, int(value * factor)) if isinstance(value, int) else value * factor


@contextmanager
def changed(name: str, factor: float) -> Iterator[dict[str, Any]]:
    """One constant is another, or one option, which is given back."""
    part, _, field = name.partition(".")
    if not field:
        default = searches["eliminate"].options[name].default
        value = scaled(default, factor)
        yield {name: min(value, 1.0) if name == "pool" else value}
        return
    settings = getattr(SEARCH, part)
    old = getattr(settings, field)
    object.__setattr__(settings, field, scaled(old, factor))  # frozen, but for this study
    try:
        yield {}
    finally:
        object.__setattr__(settings, field, old)


def search(experiment: Experiment, options: Mapping[str, Any]) -> Found:
    problem = experiment.discovery
    found = scores["eap"].run(problem)
    with silent(), metered() as meter:
        finding = searches["eliminate"].run(problem, found, dict(options))
    off = abs(1 - float(experiment.held_out.faithfulness([finding.sites])[0]))
    return Found(frozenset(finding.circuit), off, meter.tokens)


def jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    return len(a & b) / len(a | b)


def row(name: str, value: Any, now: list[Found], before: list[Found]) -> str:
    off, nodes = mean(x.off for x in now), mean(len(x.circuit) for x in now)
    same = mean(jaccard(a.circuit, b.circuit) for a, b in zip(now, before, strict=True))
    cost = sum(a.tokens for a in now) / sum(b.tokens for b in before)
    return f"| `{name}` | {value} | {off:.3f} | {nodes:.1f} | {same:.2f} | {cost:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=[f"wired-{name}" for name in WIRED])
    parser.add_argument("--model", help="the tasks' own unless given")
    parser.add_argument("--granularity", default="head@token")
    parser.add_argument("--ablation", default="mean")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    experiments = []
    for task in given.tasks:
        name = given.model or task
        model = load(name, device=given.device)
        for seed in given.seeds:
            how = {"granularity": given.granularity, "ablation": given.ablation, "seed": seed}
            experiments.append(Experiment.set_up(Specification(task, name, **how), model))
    for one in experiments:
        _ = one.discovery.reference  # is kept: the first search would pay for all
    before = [search(one, {}) for one in experiments]
    print("| constant | value | \\|1 − f\\| | nodes | Jaccard | cost |\n|---|---|---|---|---|---|")
    print(row("as they are", "", before, before), flush=True)
    names = [f"{part}.{name}" for part in PARTS for name in asdict(getattr(SEARCH, part))]
    for name in (*names, *OPTIONS):
        for factor in (0.5, 2.0):
            with changed(name, factor) as options:
                found = [search(one, options) for one in experiments]
                part, _, field = name.partition(".")
                value = getattr(getattr(SEARCH, part), field) if field else options[name]
            print(row(name, value, found, before), flush=True)


if __name__ == "__main__":
    main()
