"""One cell of a comparison: a method on a task with a seed, found here and measured there.

A method scores nodes and searches on the prompts of discovery and is timed; everything else is
measured on held-out prompts. What all methods of a task share (random circuits, known circuits) is
one more cell, the reference.
"""

import time
from dataclasses import asdict, replace
from typing import Any

import torch

from unweave.cost import metered
from unweave.evaluation.api import coarse_sizes, complete, curve_json, known_faithfulness
from unweave.evaluation.curves import curve_sizes, faithfulness_curve
from unweave.evaluation.random_circuits import random_circuits
from unweave.evaluation.roc import roc_of_each
from unweave.experiments.methods import Method
from unweave.experiments.phases import forward_tokens
from unweave.experiments.specification import Experiment
from unweave.model.model import Model
from unweave.scores.score import scores as registered_scores
from unweave.search.search import searches
from unweave.sites import parse


def reference_cell(experiment: Experiment, draws: int) -> dict[str, Any]:
    """What every method of a task and seed is held against.

    Args:
        draws: Random circuits a size.
    """
    problem, known = experiment.held_out, experiment.known()
    drawn = random_circuits(problem, draws=draws, seed=experiment.specification.seed)
    return {
        "nodes": len(problem.nodes),
        "prompts": len(problem.batch),
        "empty": float(problem.reference.empty.mean()),
        "full": float(problem.reference.full.mean()),
        "random": [asdict(one) for one in drawn],
        "known": {
            name: {"faithfulness": value, "size": len(known[name])}
            for name, value in known_faithfulness(problem, known).items()
        },
    }


def method_cell(experiment: Experiment, method: Method) -> dict[str, Any]:
    """Runs a method, timed and metered, and measures ranking and circuit on held-out prompts."""
    # Prompts and ablations are made before the clock starts.
    problem, main = experiment.discovery, experiment.held_out
    _ = experiment.accuracy, problem.reference
    _wait(experiment.model)
    began = time.perf_counter()
    with metered() as meter:
        scores = registered_scores[method.score].run(problem, method.filled_score())
        scored = meter.tokens
        finding = searches[method.search].run(problem, scores, method.filled_search())
    _wait(experiment.model)
    seconds, one = time.perf_counter() - began, forward_tokens(problem.model, problem.batch)
    ranking = complete(main, [parse(name) for name in finding.ranking])
    found = main.reference.estimate(main.metric([finding.sites])[0])
    curve = faithfulness_curve(main, ranking, curve_sizes(len(ranking)))
    coarse = coarse_sizes(len(ranking), len(finding.circuit))
    zero = experiment.under(main, "zero")
    others = {} if zero is None or zero is main else {"zero": zero}
    ranked = replace(scores, order=finding.ranking)
    return {
        "score": method.score,
        "search": method.search,
        "options": {**method.filled_score(), **method.filled_search()},
        "seconds": seconds,
        "forwards": {"score": scored / one, "search": (meter.tokens - scored) / one},
        "prompts": len(problem.batch),
        "ranking": list(map(str, ranking)),
        "circuit": list(finding.circuit),
        "faithfulness": found.value,
        "interval": [found.low, found.high],
        "held_out": found.prompts,
        "curve": curve_json(curve),
        "curves": {
            n: curve_json(faithfulness_curve(p, ranking, coarse)) for n, p in others.items()
        },
        "roc": {n: asdict(roc) for n, roc in roc_of_each(ranked, experiment.known()).items()},
    }


def _wait(model: Model) -> None:
    """Until a GPU has done what it was asked for."""
    if model.network.device.type == "cuda":
        torch.cuda.synchronize(model.network.device)
