"""The parts of a reproduction, each from an experiment and the part "sweep" to plain data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from random import Random
from typing import Any

from unweave.behaviours.synthetic.known_roles import ROLES, known_roles
from unweave.evaluation.api import complete, curve_json, random_test_json
from unweave.evaluation.curves import curve_sizes, faithfulness_curve
from unweave.evaluation.random_circuits import compare_with_random, random_circuits
from unweave.experiments.methods import find_method
from unweave.experiments.reproduction.sweep import sweep_methods
from unweave.experiments.specification import Experiment
from unweave.roles.explain import explain_with_cost
from unweave.roles.feeds import needed_points
from unweave.roles.published import EXPECTED
from unweave.scores.problem import Problem
from unweave.scores.score import scores as registered_scores
from unweave.search.search import searches
from unweave.sites import Site, parse

Record = Mapping[str, Any]
ReproducedPart = Callable[[Experiment, Record, int], dict[str, Any]]
_LOGITS = "logits"
# The paper's heatmaps on IOI (appendix A): sources at a position, targets by their role.
STAGES = (
    (_LOGITS, "end"),
    ("name mover", "end"),
    ("S-inhibition", "S2"),
    ("induction", "S2"),
    ("induction", "S1+1"),
)


def table(experiment: Experiment, sweep: Record, draws: int) -> dict[str, Any]:
    """Metric and correct guess rate of the model, of known circuits and of those that were found.

    A guess is correct where the metric is positive: the answer is above every distractor.
    """
    problem = experiment.held_out
    rows = {"whole model": problem.reference.full, "every head ablated": problem.reference.empty}
    circuits = {name: _fitting(problem, sites) for name, sites in experiment.known().items()}
    circuits |= {name: tuple(map(parse, one["circuit"])) for name, one in sweep["methods"].items()}
    values = problem.metric(list(circuits.values()))
    rows |= dict(zip(circuits, values, strict=True))
    sizes = {"whole model": len(problem.nodes), "every head ablated": 0}
    sizes |= {name: len(circuit) for name, circuit in circuits.items()}
    found = {}
    for name, metric in rows.items():
        estimate = problem.reference.estimate(metric)
        found[name] = {
            "nodes": sizes[name],
            "metric": float(metric.mean()),
            "correct": float((metric > 0).double().mean()),
            "faithfulness": estimate.value,
            "interval": [estimate.low, estimate.high],
        }
    return {"metric": experiment.task.metric.name, "prompts": len(problem.batch), "rows": found}


def curves(experiment: Experiment, sweep: Record, draws: int) -> dict[str, Any]:
    """Faithfulness over size: rankings before pruning, random orders, and known circuits as dots.

    The ranking under zero ablation comes from a decomposition against zero; like all others it is
    measured under the main ablation.
    """
    problem = experiment.held_out
    sizes = curve_sizes(len(problem.nodes))
    rankings = {name: one["ranking"] for name, one in sweep["methods"].items() if name != "acdc"}
    rankings["cdt-paper, from zero ablation"] = _zero_ranking(experiment)
    lines = {
        name: curve_json(
            faithfulness_curve(problem, complete(problem, list(map(parse, order))), sizes)
        )
        for name, order in rankings.items()
    }
    drawn = [_random_curve(problem, sizes, f"order {i}") for i in range(draws)]
    mean = [sum(values) / draws for values in zip(*drawn, strict=True)]
    known = {name: _fitting(problem, sites) for name, sites in experiment.known().items()}
    values = problem.faithfulness(list(known.values())).tolist() if known else []
    dots = zip(known, values, strict=True)
    return {
        "lines": lines,
        "random": {"sizes": sizes, "faithfulness": mean, "draws": drawn},
        "known": {name: {"size": len(known[name]), "faithfulness": f} for name, f in dots},
        "nodes": len(problem.nodes),
    }


def _zero_ranking(experiment: Experiment) -> list[str]:
    zero = experiment.under(experiment.discovery, "zero")
    if zero is None:
        return []
    method = find_method("cdt-paper").with_options({"prompts": len(zero.batch)})
    scores = registered_scores[method.score].run(zero, method.filled_score())
    return list(searches[method.search].run(zero, scores, method.filled_search()).ranking)


def _random_curve(problem: Problem, sizes: Sequence[int], seed: str) -> list[float]:
    order = Random(seed).sample(problem.nodes, len(problem.nodes))
    return list(faithfulness_curve(problem, order, sizes).faithfulness)


def random_test(experiment: Experiment, sweep: Record, draws: int) -> dict[str, Any]:
    """The best circuit of each method beside random ones of 10…100% of the model.

    "Best" is decided on the prompts of the search: faithfulness closest to 1.
    """
    problem = experiment.held_out
    drawn = random_circuits(problem, draws=draws, seed=experiment.specification.seed)
    found = {}
    for name, one in sweep["methods"].items():
        runs = [run for run in one["runs"] if run["circuit"]]
        if not runs:
            continue
        best = min(runs, key=lambda run: abs(1 - run["faithfulness"]))
        value = float(problem.faithfulness([tuple(map(parse, best["circuit"]))])[0])
        tested = compare_with_random(value, len(best["circuit"]), drawn)
        found[name] = {**random_test_json(tested), "threshold": best["threshold"]}
    return {"methods": found, "random": [asdict(one) for one in drawn]}


def heatmaps(experiment: Experiment, sweep: Record, draws: int) -> dict[str, Any]:
    """Relevance of every head: in each round of Algorithm 1, and at the published stages."""
    rounds = [
        {"targets": one["targets"], "values": one["relevance"], "selected": one["selected"]}
        for one in sweep["methods"]["cdt-paper"]["rounds"]
    ]
    return {"rounds": rounds, "stages": _stages(experiment)}


def _stages(experiment: Experiment) -> list[dict[str, Any]]:
    """The paper's own figures: relevance to heads of a published role, at one position."""
    circuit = experiment.task.known_circuit(experiment.model)
    if circuit is None or not any(target in circuit.roles for target, _ in STAGES):
        return []
    apart = Experiment.set_up(
        replace(experiment.specification, granularity="head@position"),
        experiment.model,
        experiment.task,
    )
    problem = apart.discovery
    method = find_method("cdt-paper").with_options({"prompts": len(problem.batch)})
    scores = registered_scores[method.score].run(problem, method.filled_score())
    found = []
    for target, position in STAGES:
        wanted = [str(site) for site in circuit.roles.get(target, ())]
        columns = [scores.targets.index(name) for name in wanted if name in scores.targets]
        if target != _LOGITS and not columns:
            continue
        values = scores.values if target == _LOGITS else scores.pairs["ratio"][:, columns].sum(1)
        here = [i for i, name in enumerate(scores.sources) if parse(name).position == position]
        relevance = {str(parse(scores.sources[i]).at(None)): float(values[i]) for i in here}
        if relevance:
            found.append({"target": target, "position": position, "values": relevance})
    return found


def roles(experiment: Experiment, sweep: Record, draws: int) -> dict[str, Any]:
    """Whether the roles that are measured are those that the authors give, or that were wired.

    Where nothing is known of the model, the roles of the circuit that our method found.
    """
    expected = expected_roles(experiment)
    nodes = [parse(name) for name in expected or sweep["methods"]["cdt"]["circuit"]]
    if not nodes:
        return {"nodes": []}
    problem = experiment.problem(
        "evaluate",
        experiment.specification.held_out,
        needed_points(experiment.model, experiment.nodes),
    )
    explained, _ = explain_with_cost(problem, nodes, seed=experiment.specification.seed)
    rows = []
    for one in explained:
        known = expected.get(one.node, {"published": "", "roles": []})
        given = [role.name for role in one.roles]
        rows.append(
            {
                "node": one.node,
                "published": known["published"],
                "expected": known["roles"],
                "found": given,
                "agrees": set(known["roles"]) <= set(given) if known["roles"] else None,
                "sentence": one.sentence,
            }
        )
    tested = [row["agrees"] for row in rows if row["agrees"] is not None]
    return {"nodes": rows, "agree": sum(tested), "tested": len(tested)}


def expected_roles(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """By node: what the authors call it, and the roles of ours that this means."""
    name, ablation = experiment.model.name, experiment.specification.ablation
    if name in ROLES and experiment.task.name == name:
        wired = known_roles(name, ablation)
        return {
            node: {"published": ", ".join(given), "roles": list(given)}
            for node, given in wired.items()
        }
    circuit = experiment.task.known_circuit(experiment.model)
    if circuit is None:
        return {}
    return {
        str(site.at(None)): {"published": role, "roles": list(EXPECTED.get(role, ()))}
        for role, sites in circuit.roles.items()
        for site in sites
    }


def _fitting(problem: Problem, sites: Sequence[Site]) -> tuple[Site, ...]:
    """Those nodes of a known circuit that are nodes of the problem."""
    return tuple(site for site in sites if site in set(problem.nodes))


def sweep(experiment: Experiment, record: Record, draws: int) -> dict[str, Any]:
    """Every method at every threshold; the other parts are made from it."""
    return sweep_methods(experiment)


REPRODUCED: Mapping[str, ReproducedPart] = {
    "sweep": sweep,
    "table": table,
    "curves": curves,
    "random_circuits": random_test,
    "heatmaps": heatmaps,
    "roles": roles,
}
