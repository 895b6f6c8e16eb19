"""What the circuits depend on: every constant and option of every search, one at a time.

    python benchmarks/constants.py --out constants.json
    python benchmarks/constants.py --out constants.json --setup "SmolLM2-135M" --studies eliminate \
        --model smollm2-135m --tasks greater-than --granularity head --prompts 32 --held-out 100

A number is halved and doubled; what is not a number takes each of its other values. By default on
the wired models, whose circuits are known, for `eliminate` with a node for each head and token: so
many that pools, blocks, forecasts, races and polish all act. `eliminate` finds edges among the
nodes that it finds as it is, the other searches among all.

Every result is written to --out as soon as it is there; finished ones are not run again. The tables
show everything in --out, set-ups side by side. A cell gives means over tasks and seeds: |1 − f| on
held-out prompts, size, Jaccard with the circuits of the values as they are, and forward passes of
the search over theirs; of circuits that are all the same, only the passes.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from unweave.cost import metered
from unweave.experiments.edge_experiment import EdgeExperiment
from unweave.experiments.methods import METHODS
from unweave.experiments.specification import Experiment, Specification
from unweave.model.loading import load
from unweave.progress import silent
from unweave.scores.score import scores
from unweave.search.search import Finding, searches
from unweave.search.settings import SEARCH

WIRED = ("induction", "inhibition", "relay", "suppression", "composition")
AS_IS = "as they are"


class Study(NamedTuple):
    """A search at a level, with what it reads.

    Args:
        parts: Of the settings: all their fields.
        more: Single fields of other parts.
        without: Options that are not its own.
    """

    method: str
    level: str
    parts: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    @property
    def search(self) -> str:
        return METHODS[self.method].search

    def names(self) -> list[str]:
        """Options and constants as docs/study.md names them."""
        options = [name for name in searches[self.search].options if name not in self.without]
        fields = [f"{part}.{name}" for part in self.parts for name in asdict(SEARCH)[part]]
        return [*(f"{self.search} -o {name}" for name in options), *fields, *self.more]


STUDIES = {
    "eliminate": Study(
        "eap+eliminate",
        "node",
        ("loss", "descent", "polish", "rounds", "race"),
        without=("edge_price",),
    ),
    "eliminate on edges": Study(
        "cdt",
        "edge",
        ("edges", "loss"),
        ("polish.mean", "descent.proposing", "rounds.checks"),
        ("pool", "price", "rounds", "order", "max_size"),
    ),
    "top": Study("eap", "node", more=("top.sizes", "loss.examples"), without=("tolerance",)),
    "top on edges": Study("eap", "edge", more=("top.growth",), without=("price", "max_size")),
    "algorithm1": Study("cdt-paper", "node"),
    "acdc": Study("acdc", "node"),
    "acdc on edges": Study("acdc", "edge"),
}


def scaled(value: Any, factor: float) -> Any:
    """A constant times a factor; whole numbers stay whole, and at least 1."""
    if isinstance(value, tuple):
        return tuple(scaled(one, factor) for one in value)
    return max(1, int(value * factor)) if isinstance(value, int) else value * factor


def others(name: str) -> list[Any]:
    """What stands in place of a constant or an option; nothing for "no limit"."""
    part, _, field = name.partition(".")
    if field:
        value = getattr(getattr(SEARCH, part), field)
        return [scaled(value, 0.5), scaled(value, 2.0)]
    search, _, field = name.partition(" -o ")
    option = searches[search].options[field]
    if isinstance(option.default, bool):
        return [not option.default]
    if isinstance(option.default, str) and option.choices:
        return [choice for choice in option.choices if choice != option.default]
    if isinstance(option.default, str):  # the share of the nodes that joins is halved and doubled
        kind, _, number = option.default.partition(":")
        return [f"{kind}:{100 - (100 - float(number)) * factor:g}" for factor in (0.5, 2.0)]
    found = [min(scaled(option.default, factor), option.high) for factor in (0.5, 2.0)]
    return found if option.default else []


@contextmanager
def changed(name: str, value: Any) -> Iterator[None]:
    """A constant has another value; frozen, but for this study."""
    part, _, field = name.partition(".")
    settings = getattr(SEARCH, part)
    old = getattr(settings, field)
    object.__setattr__(settings, field, value)
    try:
        yield
    finally:
        object.__setattr__(settings, field, old)


@dataclass(eq=False)
class Bench:
    """A search on some prompts, as often as it is asked for."""

    study: Study
    experiment: Experiment
    measured: dict[frozenset[str], float] = field(default_factory=dict)

    def found(self, name: str, value: Any) -> dict[str, Any]:
        """The circuit with one value changed, how far it is from the model, and its cost."""
        option = name.partition(" -o ")[2]
        with silent(), nullcontext() if option or name == AS_IS else changed(name, value):
            find = self._find
            with metered() as meter:
                finding = find({option: value} if option else {})
        circuit = frozenset(finding.circuit)
        if circuit not in self.measured:
            self.measured[circuit] = self._off(finding)
        off = self.measured[circuit]
        return {"off": off, "cost": meter.tokens, "circuit": sorted(circuit)}

    @cached_property
    def _edges(self) -> EdgeExperiment:
        return EdgeExperiment(self.experiment)

    @cached_property
    def _find(self) -> Callable[[Mapping[str, Any]], Finding]:
        """The search, with everything that comes before it done once."""
        method = self.experiment.specification.resolved
        search, score = searches[method.search], scores[method.score]
        # A search may take more prompts than it is given, also where their number is set.
        nodes = replace(self.experiment.discovery, draw=self.experiment.problem)
        _ = nodes.reference
        if self.study.level == "node":
            rated = score.run(nodes, method.filled_score())
            return lambda options: search.run(nodes, rated, options)
        among = ()
        if search.nodes_first:
            rated = score.run(nodes, method.filled_score())
            found = search.run(nodes, rated, search.before_edges)
            among = self._edges.joined(found.circuit)
        edges = replace(self._edges.discovery, draw=self._edges.problem)
        _ = edges.reference
        rated_edges = score.run_edges(self._edges.scored, method.filled_score())
        return lambda options: search.run_edges(edges, rated_edges, among, options)

    def _off(self, finding: Finding) -> float:
        if self.study.level == "node":
            return abs(1 - float(self.experiment.held_out.faithfulness([finding.sites])[0]))
        return abs(1 - float(self._edges.held_out.faithfulness([finding.circuit])[0]))


def jaccard(a: list[str], b: list[str]) -> float:
    return len({*a} & {*b}) / len({*a} | {*b}) if a or b else 1.0


def cell(now: list[dict[str, Any]], before: list[dict[str, Any]]) -> str:
    """One value in one set-up, beside the values as they are."""
    cost = mean(a["cost"] / b["cost"] for a, b in zip(now, before, strict=True))
    same = mean(jaccard(a["circuit"], b["circuit"]) for a, b in zip(now, before, strict=True))
    if same == 1 and now[0]["name"] != AS_IS:
        return f"same / {cost:.2f}"
    off, size = mean(one["off"] for one in now), mean(len(one["circuit"]) for one in now)
    return f"{off:.3f} / {size:.1f} / {same:.2f} / {cost:.2f}"


def table(study: str, results: list[dict[str, Any]]) -> str:
    """Everything that was found of a search: a row a value, a column a set-up."""
    found: dict[tuple[str, str], dict[str, dict[tuple[str, int], dict[str, Any]]]] = {}
    for one in results:
        if one["study"] == study:
            row = found.setdefault((one["name"], one["value"]), {})
            row.setdefault(one["setup"], {})[one["task"], one["seed"]] = one
    base = found[AS_IS, ""]
    lines = [f"| {study} | value | {' | '.join(base)} |", "|---" * (2 + len(base)) + "|"]
    for (name, value), row in found.items():
        cells = []
        for setup, before in base.items():
            now = row.get(setup, {})
            both = [key for key in before if key in now]
            there = [now[key] for key in both], [before[key] for key in both]
            cells.append(cell(*there) if len(both) == len(before) else "–")
        label = name if name == AS_IS else f"`{name}`"
        lines.append(f"| {label} | {value} | {' | '.join(cells)} |")
    return "\n".join(lines)


def shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(map(shown, value)) if isinstance(value, tuple) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("constants.json"))
    parser.add_argument("--setup", default="wired models", help="what tables call this model")
    parser.add_argument("--studies", nargs="*", choices=STUDIES, default=list(STUDIES))
    parser.add_argument("--names", nargs="+", help="only these constants and options")
    parser.add_argument("--tasks", nargs="+", default=[f"wired-{name}" for name in WIRED])
    parser.add_argument("--model", help="the tasks' own unless given")
    parser.add_argument("--granularity", default="head@token", help="of eliminate's nodes")
    parser.add_argument("--ablation", default="mean")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--prompts", type=int, help="to begin with; a search may take more")
    parser.add_argument("--held-out", type=int)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    results: list[dict[str, Any]] = []
    if given.out.exists():
        results = json.loads(given.out.read_text())
    done = {json.dumps(key(one)) for one in results}
    models = {name: load(name, device=given.device) for name in {given.model} - {None}}
    for title in given.studies:
        study = STUDIES[title]
        own = study.search == "eliminate" and study.level == "node"
        benches = {}
        for task in given.tasks:
            name = given.model or task
            if name not in models:
                models[name] = load(name, device=given.device)
            for seed in given.seeds:
                how = Specification(
                    task,
                    name,
                    study.method,
                    granularity=given.granularity if own else "head",
                    ablation=given.ablation,
                    seed=seed,
                    prompts=given.prompts,
                    held_out=given.held_out,
                    level=study.level,
                )
                benches[task, seed] = Bench(study, Experiment.set_up(how, models[name]))
        values = [(AS_IS, "")]
        for name in given.names or study.names():
            values += [(name, value) for value in others(name)]
        for name, value in values:
            for (task, seed), bench in benches.items():
                one = {
                    "study": title,
                    "setup": given.setup,
                    "task": task,
                    "seed": seed,
                    "name": name,
                    "value": shown(value),
                }
                if json.dumps(key(one)) in done:
                    continue
                one |= bench.found(name, value)
                results.append(one)
                fresh = given.out.with_suffix(".new")  # a run that is killed leaves what it has
                fresh.write_text(json.dumps(results, indent=1))
                fresh.replace(given.out)
    for title in STUDIES:
        if any(one["study"] == title for one in results):
            print(table(title, results), end="\n\n")


def key(one: Mapping[str, Any]) -> list[Any]:
    return [one[name] for name in ("study", "setup", "task", "seed", "name", "value")]


if __name__ == "__main__":
    main()
