"""What heads do: roles against synthetic models, and how stable they are on a real one.

    python benchmarks/roles.py                                # confusion table, seconds
    python benchmarks/roles.py --tasks ioi --seeds 0 1 2      # stability, minutes on a CPU
    python benchmarks/roles.py --tasks ioi induction docstring --seeds 0 1 2 3 4 \
        --prompts 64 --device cuda --out roles.json

The first explains *every* node of each synthetic model, so that bystanders count: a role that a
node does not have is an invention, as one that it has and does not get is a miss. Where the wiring
says what feeds a node, the feeders that are named are compared with it too.

The second explains the same heads on prompts of several seeds (`--nodes`, by default those with
the largest effects) and prints the share of core heads, and of all of them, that gets the same
roles each time. The file holds every intervention check. Neither typer nor plotly is needed.
"""

import argparse
import json
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from unweave.ablations.kind import task_ablation
from unweave.behaviours.file import find_task
from unweave.behaviours.sampling import Part
from unweave.behaviours.synthetic.known_roles import Known, known_roles
from unweave.behaviours.task import Task, synthetic_tasks
from unweave.decomposition.api import relevance
from unweave.experiments.files import plain
from unweave.model.loading import load
from unweave.model.model import Model
from unweave.model.synthetic import tracr_programs
from unweave.progress import silent
from unweave.roles import Explanation, explain_with_cost
from unweave.roles.definitions import bundled_roles
from unweave.roles.explain import UNCLEAR
from unweave.roles.feeds import needed_points
from unweave.roles.shares import NAMED, is_token
from unweave.scores.problem import Problem
from unweave.sites import HEAD_KINDS, Site, parse

Edges = tuple[tuple[Site, Site], ...]

ABLATIONS = ("mean", "counterfactual", "zero")
WORDS = {True: "held", False: "did not hold", None: "not tested"}
CORE = 0.05  # effect, as a share of |m(M) − m(∅)|, that a core head has at every seed


def problem_of(
    task: Task, model: Model, prompts: int, ablation: str, seed: int, mlps: bool, part: Part
) -> Problem:
    """Held-out prompts, with an ablation for every node and for their inputs."""
    batch = task.batch(model, prompts, seed=seed, part=part)
    nodes = model.heads() + (model.mlps() if mlps else [])
    nodes.sort(key=lambda site: site.point.depth)
    points = needed_points(model, nodes)
    return Problem(
        model, batch, tuple(nodes), task_ablation(task, model, batch, ablation, points, seed)
    )


def upstream(edges: Edges, target: str) -> set[str]:
    """Every node from which a wire leads to an input, also through other nodes."""
    found, left = set(), [target]
    while left:
        into = left.pop()
        for up, down in edges:
            if str(down) == into and str(up) != "embed" and str(up) not in found:
                found.add(str(up))
                left += {str(d) for _, d in edges if str(d).startswith(f"{up}.")} | {str(up)}
    return found


def feeders(found: tuple[Explanation, ...], known: Known, edges: Edges) -> Counter[str]:
    """Feeders of the wired nodes that were named: right, missed and invented."""
    tally: Counter[str] = Counter()
    for one in found:
        for branch, shares in one.measurements.feeds.items() if one.node in known else ():
            target = f"{one.node}.{branch}" if branch else one.node
            named = {source for source, x in shares.items() if abs(x) >= NAMED} & set(known)
            wired = upstream(edges, target) & set(known)
            tally["fed right"] += len(named & wired)
            tally["fed missed"] += len(wired - named)
            tally["fed invented"] += len(named - wired)
    return tally


def compared(one: Explanation, known: Known, counts: Counter[tuple[str, str]]) -> Counter[str]:
    """Roles of a node that are right, missed and invented; adds them to the confusion table."""
    wired, given = set(known.get(one.node, ())), {role.name for role in one.roles}
    counts.update((role, role) for role in wired & given)
    counts.update((role, UNCLEAR) for role in wired - given)
    counts.update((UNCLEAR, role) for role in given - wired)
    counts[UNCLEAR, UNCLEAR] += not wired and not given
    return Counter(right=len(wired & given), missed=len(wired - given), invented=len(given - wired))


def outcomes(one: Explanation) -> list[str]:
    """What became of the checks of a node's roles."""
    return [WORDS[check.held] for role in one.roles for check in role.checks]


def fed(one: Explanation) -> list[str]:
    """What became of the checks of the nodes that feed its inputs."""
    feeders = one.measurements.feeders
    return [WORDS[feeder.held] for feeder in feeders if not is_token(feeder.source)]


def confusion(prompts: int, seeds: list[int], device: str) -> None:
    """Roles given against roles wired, over every node of every synthetic model."""
    counts: Counter[tuple[str, str]] = Counter()
    checks: Counter[str] = Counter()
    feeds: Counter[str] = Counter()
    table = Table(title="Roles of synthetic models", box=box.SIMPLE_HEAD, title_justify="left")
    for heading in ("model", "ablation", "nodes", "right", "missed", "invented", "feeders", "cost"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for name in synthetic_tasks:
        if name.startswith("tracr:") and not tracr_programs.available():
            print(f'{name}: skipped, tracr is not installed (pip install "unweave[tracr]")')
            continue
        model, task = load(name, device=device), find_task(name)
        for ablation in ABLATIONS:
            known, circuit = known_roles(name, ablation), task.known_circuit(name)
            assert circuit is not None
            tally: Counter[str] = Counter()
            most = 0.0
            for seed in seeds:
                problem = problem_of(task, model, prompts, ablation, seed, True, "evaluate")
                found, cost = explain_with_cost(problem, problem.nodes, seed=seed)
                most = max(most, cost.passes)
                for one in found:
                    tally += compared(one, known, counts)
                    checks.update(outcomes(one))
                    feeds.update(fed(one) if one.node in known else ())
                named = feeders(found, known, circuit.edges[ablation])
                tally += Counter(named)
                tally["nodes"] += len(found)
            words = ("nodes", "right", "missed", "invented")
            told = ", ".join(f"{tally[f'fed {word}']} {word}" for word in words[1:])
            table.add_row(name, ablation, *(str(tally[x]) for x in words), told, f"{most:.1f}")
    console = Console(width=190)
    console.print(table)
    names = [*sorted(role.name for role in bundled_roles().roles), UNCLEAR]
    grid = Table(title="Wired (row) as explained (column)", box=box.SIMPLE_HEAD)
    grid.add_column("wired")
    for role in names:
        grid.add_column(role.replace(" ", "\n"), justify="right")
    for wired in names:
        grid.add_row(wired, *(str(counts[wired, given] or "·") for given in names))
    console.print(grid)
    print(f"Checks of roles: {dict(checks)}; of the feeders of wired nodes: {dict(feeds)}")


def largest(problem: Problem, count: int) -> list[Site]:
    """The heads whose ablation changes the metric most, on a few prompts: one run a head."""
    problem = problem.select(slice(0, 8))
    heads = [node for node in problem.nodes if node.point.kind in HEAD_KINDS]
    scores = relevance(
        problem.model, problem.batch, heads, ablation=problem.ablation, pairs=(), rules="removal"
    )
    return [parse(name) for name in scores.ranking()[:count]]


def checks_of(one: Explanation, seed: int) -> list[dict[str, Any]]:
    """Every intervention on a node: those of its roles, and each feeder taken out of an input."""
    where = {"seed": seed, "node": one.node}
    found: list[dict[str, Any]] = [
        where | {"of": role.name, "says": check.says, "value": check.value, "held": check.held}
        for role in one.roles
        for check in role.checks
    ]
    for feeder in one.measurements.feeders:
        says = f"{feeder.share:.0%} of its {feeder.input or 'output'} is {feeder.source}"
        about = {"of": "feeders", "says": says, "value": feeder.falls, "held": feeder.held}
        found.append(where | about)
    return found


def stability(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """Roles of the same heads on prompts of several seeds."""
    model, task = load(options.model, device=options.device), find_task(name)
    roles: dict[str, list[str]] = defaultdict(list)
    effects: dict[str, list[float]] = defaultdict(list)
    checks: list[dict[str, Any]] = []
    nodes = [parse(node) for node in options.nodes or ()]
    passes, said = [], {}
    for seed in options.seeds:
        began = time.perf_counter()
        problem = problem_of(task, model, options.prompts, "mean", seed, False, "discover")
        nodes = nodes or largest(problem, options.count)
        found, cost = explain_with_cost(problem, nodes, seed=seed)
        passes.append(cost.passes)
        for one in found:
            roles[one.node].append(one.role)
            effects[one.node].append(one.measurements.effect_share)
            said[one.node] = one.sentence
            checks += checks_of(one, seed)
        print(f"{name} seed {seed}: {time.perf_counter() - began:.0f} s", flush=True)
    same = {node for node, given in roles.items() if len(set(given)) == 1}
    core = {node for node, shares in effects.items() if min(shares) >= CORE}
    table = Table(title=f"{name} on {options.model}", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("head", no_wrap=True)
    table.add_column("core")
    table.add_column("effect, of the metric's range", no_wrap=True)
    table.add_column(f"roles by seed ({', '.join(map(str, options.seeds))})")
    for node, given in roles.items():
        sizes = f"{min(effects[node]):.0%} to {max(effects[node]):.0%}"
        told = given[0] if node in same else " | ".join(given)
        table.add_row(node, "yes" if node in core else "", sizes, told)
    Console(width=120).print(table)
    agreed = sum(Counter(given).most_common(1)[0][1] for given in roles.values())
    agreement = agreed / len(roles) / len(options.seeds)
    print(f"same roles at every seed: {shown(same & core, core)} core heads, ", end="")
    print(f"{shown(same, set(roles))} heads; agreement with a head's usual roles {agreement:.0%}")
    tally = {
        kind: Counter(WORDS[x["held"]] for x in checks if (x["of"] == "feeders") == of_feeders)
        for kind, of_feeders in (("roles", False), ("feeders", True))
    }
    print(f"checks of roles {dict(tally['roles'])}; of feeders {dict(tally['feeders'])} ", end="")
    print("(not tested: the output does not depend on that input); ", end="")
    print(f"passes {max(passes):.1f} at most\n", flush=True)
    return {
        "task": name,
        "model": options.model,
        "prompts": options.prompts,
        "seeds": options.seeds,
        "share": len(same) / len(roles),
        "core": sorted(core),
        "core_share": len(same & core) / len(core) if core else None,
        "agreement": agreement,
        "passes": passes,
        "roles": roles,
        "effect_shares": effects,
        "tally": tally,
        "checks": checks,
        "sentences": said,
    }


def shown(part: set[str], whole: set[str]) -> str:
    """How many of how many."""
    return f"{len(part)} of {len(whole)}" + (f" ({len(part) / len(whole):.0%})" if whole else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="*", default=[], help="real tasks; none: synthetic ones")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--nodes", nargs="*", help="heads; by default those of largest effect")
    parser.add_argument("--count", type=int, default=8, help="how many heads of largest effect")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="write the stability study as JSON")
    options = parser.parse_args()
    with silent():
        if not options.tasks:
            confusion(options.prompts, options.seeds, options.device)
            return
        found = []
        for name in options.tasks:
            found.append(stability(options, name))
            if options.out is not None:  # after each task: a run that is cut short keeps the first
                told = json.dumps(plain(found), indent=1, ensure_ascii=False)
                options.out.write_text(told, "utf-8")


if __name__ == "__main__":
    main()
