"""Cells of a comparison whose circuits are made of edges; the same fields as cells of nodes.

A curve has the sizes of MIB's shares of all edges, in the order of each method's ranking.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from unweave.circuits import EdgeScores
from unweave.cost import metered
from unweave.evaluation.api import curve_json
from unweave.evaluation.curves import Curve, faithfulness_curve
from unweave.evaluation.mib import kept_counts
from unweave.evaluation.random_circuits import random_circuits
from unweave.experiments.edge_experiment import EdgeExperiment
from unweave.experiments.methods import Method
from unweave.experiments.phases import forward_tokens
from unweave.scores.edge_problem import EdgeProblem
from unweave.scores.score import scores as registered_scores
from unweave.search.search import Finding, searches


def edge_reference_cell(edges: EdgeExperiment, draws: int) -> dict[str, Any]:
    """What every method of a task and seed is held against.

    Args:
        draws: Random circuits a size.
    """
    problem = edges.held_out
    drawn = random_circuits(problem, draws=draws, seed=edges.experiment.specification.seed)
    return {
        "nodes": len(problem.nodes),
        "prompts": len(problem.batch),
        "empty": float(problem.reference.empty.mean()),
        "full": float(problem.reference.full.mean()),
        "random": [asdict(one) for one in drawn],
        "known": {
            name: {"faithfulness": float(problem.faithfulness([known])[0]), "size": len(known)}
            for name, known in edges.known().items()
        },
    }


def edge_method_cell(edges: EdgeExperiment, method: Method) -> dict[str, Any]:
    """Runs a method, timed and metered, and measures ranking and circuit on held-out prompts.

    Raises:
        UnweaveError: When the method's score or search knows nodes only.
    """
    method.check_edges()
    # Prompts and ablations are made before the clock starts.
    main, one = edges.held_out, forward_tokens(edges.experiment.model, edges.discovery.batch)
    _ = edges.experiment.accuracy, edges.discovery.reference
    began = time.perf_counter()
    with metered() as meter:
        rated = registered_scores[method.score].run_edges(edges.scored, method.filled_score())
        scored = meter.tokens
        finding = _found(edges, method, rated)
    seconds = time.perf_counter() - began
    found = main.reference.estimate(main.metric([finding.circuit])[0])
    zero = edges.under(main, "zero")
    others = {} if zero is None or zero is main else {"zero": zero}
    size = len(finding.circuit)
    return {
        "score": method.score,
        "search": method.search,
        "options": {**method.filled_score(), **method.filled_search()},
        "seconds": seconds,
        "forwards": {"score": scored / one, "search": (meter.tokens - scored) / one},
        "prompts": len(edges.discovery.batch),
        "circuit": list(finding.circuit),
        "faithfulness": found.value,
        "interval": [found.low, found.high],
        "held_out": found.prompts,
        "curve": curve_json(_curve(main, finding.ranking, size)),
        "curves": {n: curve_json(_curve(p, finding.ranking, size)) for n, p in others.items()},
        "roc": {},
    }


def _found(edges: EdgeExperiment, method: Method, rated: EdgeScores) -> Finding:
    search, options = searches[method.search], method.filled_search()
    nodes: tuple[str, ...] = ()
    if search.nodes_first:
        problem = edges.experiment.discovery
        scores = registered_scores[method.score].run(problem, method.filled_score())
        nodes = edges.joined(search.run(problem, scores, options).circuit)
    return search.run_edges(edges.discovery, rated, nodes, options)


def _curve(problem: EdgeProblem, ranking: Sequence[str], size: int) -> Curve:
    sizes = sorted({0, size, *kept_counts(len(ranking))})
    return faithfulness_curve(problem, ranking, sizes)
