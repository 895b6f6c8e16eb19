"""One result of a comparison: a method on a task with a seed, found here and measured there.

A method scores nodes (or edges) and searches on the prompts of discovery and is timed; everything
else is measured on held-out prompts. What all methods of a task share (random circuits, known
circuits) is one more result, the reference. Results of edges have the fields of results of nodes;
their curves have the sizes of MIB's shares of all edges.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

from unweave.circuits import EdgeScores, Scores
from unweave.cost import metered
from unweave.evaluation.api import coarse_sizes, complete, curve_json, known_faithfulness
from unweave.evaluation.curves import curve_sizes, faithfulness_curve
from unweave.evaluation.mib import kept_counts
from unweave.evaluation.random_circuits import random_circuits
from unweave.evaluation.roc import roc_of_each
from unweave.experiments.edge_experiment import EdgeExperiment
from unweave.experiments.methods import Method
from unweave.experiments.phases import forward_tokens, wait_for_device
from unweave.experiments.specification import Experiment
from unweave.scores.problem import N, Runs
from unweave.scores.score import scores as registered_scores
from unweave.search.search import Finding, searches
from unweave.sites import parse

S = TypeVar("S", Scores, EdgeScores)


def reference_result(experiment: Experiment | EdgeExperiment, draws: int) -> dict[str, Any]:
    """What every method of a task and seed is held against.

    Args:
        draws: Random circuits a size.
    """
    if isinstance(experiment, EdgeExperiment):
        edges, seed = experiment.known(), experiment.experiment.specification.seed
        problem = experiment.held_out
        values = {name: float(problem.faithfulness([own])[0]) for name, own in edges.items()}
        return _reference(problem, edges, values, draws, seed)
    known, seed = experiment.known(), experiment.specification.seed
    values = known_faithfulness(experiment.held_out, known)
    return _reference(experiment.held_out, known, values, draws, seed)


def _reference(
    problem: Runs[N],
    known: Mapping[str, Sequence[N]],
    values: Mapping[str, float],
    draws: int,
    seed: int,
) -> dict[str, Any]:
    """The two ends of faithfulness, random circuits, and what known circuits reach."""
    return {
        "nodes": len(problem.nodes),
        "prompts": len(problem.batch),
        "empty": float(problem.reference.empty.mean()),
        "full": float(problem.reference.full.mean()),
        "random": [asdict(one) for one in random_circuits(problem, draws=draws, seed=seed)],
        "known": {
            name: {"faithfulness": value, "size": len(known[name])}
            for name, value in values.items()
        },
    }


def method_result(experiment: Experiment | EdgeExperiment, method: Method) -> dict[str, Any]:
    """Runs a method, timed and metered, and measures ranking and circuit on held-out prompts.

    Raises:
        UnweaveError: For circuits of edges, when the method's score or search knows nodes only.
    """
    if isinstance(experiment, EdgeExperiment):
        return _edge_result(experiment, method)
    # Prompts and ablations are made before the clock starts.
    problem, main = experiment.discovery, experiment.held_out
    _ = experiment.accuracy, problem.reference
    score, search = registered_scores[method.score], searches[method.search]
    scores, finding, cost = _timed(
        problem,
        lambda: score.run(problem, method.filled_score()),
        lambda scores: search.run(problem, scores, method.filled_search()),
    )
    ranking = complete(main, [parse(name) for name in finding.ranking])
    sizes = curve_sizes(len(ranking)), coarse_sizes(len(ranking), len(finding.circuit))
    ranked = replace(scores, order=finding.ranking)
    return {
        **_about(method),
        **cost,
        "ranking": list(map(str, ranking)),
        **_circuit(main, finding, finding.sites),
        **_curves(main, experiment.under(main, "zero"), ranking, *sizes),
        "roc": {n: asdict(roc) for n, roc in roc_of_each(ranked, experiment.known()).items()},
    }


def _edge_result(edges: EdgeExperiment, method: Method) -> dict[str, Any]:
    method.check_edges()
    problem, main = edges.discovery, edges.held_out
    _ = edges.experiment.accuracy, problem.reference
    score = registered_scores[method.score]
    _, finding, cost = _timed(
        problem,
        lambda: score.run_edges(edges.scored, method.filled_score()),
        lambda rated: _found(edges, method, rated),
    )
    ranking = finding.ranking
    sizes = sorted({0, len(finding.circuit), *kept_counts(len(ranking))})
    return {
        **_about(method),
        **cost,
        **_circuit(main, finding, finding.circuit),
        **_curves(main, edges.under(main, "zero"), ranking, sizes, sizes),
        "roc": {},
    }


def _found(edges: EdgeExperiment, method: Method, rated: EdgeScores) -> Finding:
    search, options = searches[method.search], method.filled_search()
    nodes: tuple[str, ...] = ()
    if search.nodes_first:
        problem = edges.experiment.discovery
        scores = registered_scores[method.score].run(problem, method.filled_score())
        before = search.nodes_before_edges(method.search_options)
        found = search.run(problem, scores, before)
        nodes = edges.joined(found.circuit)
    return search.run_edges(edges.discovery, rated, nodes, options)


def _timed(
    problem: Runs, score: Callable[[], S], search: Callable[[S], Finding]
) -> tuple[S, Finding, dict[str, Any]]:
    """Scores and finding, with time and cost: forward passes of the problem's prompts."""
    one = forward_tokens(problem.model, problem.batch)
    wait_for_device(problem.model)
    began = time.perf_counter()
    with metered() as meter:
        scores = score()
        scored = meter.tokens
        finding = search(scores)
    wait_for_device(problem.model)
    cost = {
        "seconds": time.perf_counter() - began,
        "forwards": {"score": scored / one, "search": (meter.tokens - scored) / one},
        "prompts": len(problem.batch),
    }
    return scores, finding, cost


def _about(method: Method) -> dict[str, Any]:
    options = {**method.filled_score(), **method.filled_search()}
    return {"score": method.score, "search": method.search, "options": options}


def _circuit(main: Runs[N], finding: Finding, circuit: Sequence[N]) -> dict[str, Any]:
    """The circuit that the method chose, on held-out prompts."""
    found = main.reference.estimate(main.metric([circuit])[0])
    return {
        "circuit": list(finding.circuit),
        "faithfulness": found.value,
        "interval": [found.low, found.high],
        "held_out": found.prompts,
    }


def _curves(
    main: Runs[N],
    zero: Runs[N] | None,
    ranking: Sequence[N],
    sizes: Sequence[int],
    coarse: Sequence[int],
) -> dict[str, Any]:
    """The ranking's curve, and one under zero ablation where that is another one."""
    others = {} if zero is None or zero is main else {"zero": zero}
    return {
        "curve": curve_json(faithfulness_curve(main, ranking, sizes)),
        "curves": {
            name: curve_json(faithfulness_curve(problem, ranking, coarse))
            for name, problem in others.items()
        },
    }
