"""Every method at every threshold: the circuits that the other parts are made from.

Algorithm 1 is run again at each percentile, ACDC at each threshold of its own; scores without a
search (EAP) are cut at each percentile. A run costs its score and its search; the score is the same
at every threshold, so it is computed once and its time is counted in every run.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from unweave.circuits import Scores
from unweave.cost import metered
from unweave.evaluation.circuit_sweep import circuit_sweep
from unweave.evaluation.roc import PERCENTILES, roc
from unweave.experiments.methods import Method, find_method
from unweave.experiments.phases import forward_tokens
from unweave.experiments.specification import Experiment
from unweave.model.model import Model
from unweave.options import Options
from unweave.progress import progress
from unweave.scores.problem import Problem
from unweave.scores.score import scores as registered_scores
from unweave.search.search import Finding, searches
from unweave.sites import Site, parse

TAUS = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)


@dataclass(frozen=True)
class SweptMethod:
    """A method with the thresholds that it is run at.

    Args:
        thresholds: By threshold, the options of its search; None cuts the scores there instead.
        shown: The threshold whose circuit stands for the method in tables and curves.
    """

    method: Method
    thresholds: Mapping[float, Options | None]
    shown: float


def swept_methods(prompts: int) -> tuple[SweptMethod, ...]:
    """The methods of the paper's figure, and ours.

    Args:
        prompts: To score on: all that the search uses, as in the paper.
    """
    algorithm1 = {float(p): {"select": f"percentile:{p}"} for p in PERCENTILES}
    wide = {"prompts": prompts}
    return (
        SweptMethod(find_method("cdt-paper").with_options(wide), algorithm1, 95.0),
        SweptMethod(find_method("decomposition+algorithm1").with_options(wide), algorithm1, 95.0),
        SweptMethod(find_method("eap"), dict.fromkeys(map(float, PERCENTILES)), 95.0),
        SweptMethod(find_method("acdc"), {tau: {"tau": tau} for tau in TAUS}, 0.01),
        SweptMethod(find_method("cdt"), {1.0: {}}, 1.0),  # it decides on the size by itself
    )


def sweep_methods(experiment: Experiment) -> dict[str, Any]:
    """The part "sweep": by method, its runs, ranking, rounds and its ROC."""
    problem = experiment.discovery
    _ = experiment.accuracy, problem.reference  # made before any clock starts
    methods = swept_methods(len(problem.batch))
    found = {}
    with progress("Methods", sum(len(one.thresholds) for one in methods)) as advance:
        for one in methods:
            found[one.method.name] = _sweep(experiment, one, advance)
    return {"methods": found, "nodes": len(problem.nodes), "prompts": len(problem.batch)}


def _sweep(
    experiment: Experiment, swept: SweptMethod, advance: Callable[[int | float], None]
) -> dict[str, Any]:
    problem, method = experiment.discovery, swept.method
    with _timed(experiment.model, problem) as score_cost:
        scores = registered_scores[method.score].run(problem, method.filled_score())
    runs, circuits, joined = [], {}, {}
    shown = Finding((), tuple(scores.ranking()))
    for threshold, options in swept.thresholds.items():
        with _timed(experiment.model, problem) as cost:
            finding = _find(problem, scores, method, threshold, options)
        advance(1)
        circuits[threshold], joined[threshold] = finding.sites, _joined(finding)
        if threshold == swept.shown:
            shown = finding
        runs.append(
            {
                "threshold": threshold,
                "circuit": list(finding.circuit),
                "seconds": score_cost.seconds + cost.seconds,
                "forwards": score_cost.forwards + cost.forwards,
                "faithfulness": float(problem.faithfulness([finding.sites])[0]),
            }
        )
    known, nodes = experiment.known().get("published"), problem.nodes
    return {
        "shown": swept.shown,
        "runs": runs,
        "seconds": sum(run["seconds"] for run in runs) / len(runs),
        "forwards": sum(run["forwards"] for run in runs) / len(runs),
        "ranking": list(shown.ranking),
        "circuit": list(shown.circuit),
        "rounds": [asdict(one) for one in shown.rounds],
        "roc": asdict(circuit_sweep(circuits, nodes, known)) if known else None,
        # Only Algorithm 1 selects before it prunes, and ACDC is not given a score.
        "roc_before_pruning": asdict(circuit_sweep(joined, nodes, known))
        if known and method.search == "algorithm1"
        else None,
        "rank_auc": roc(scores, known).auc if known and method.score != "random" else None,
    }


def _find(
    problem: Problem, scores: Scores, method: Method, threshold: float, options: Options | None
) -> Finding:
    """The circuit at one threshold."""
    if options is not None:
        return searches[method.search].run(problem, scores, {**method.search_options, **options})
    magnitude = scores.values.abs()
    count = int((magnitude >= torch.quantile(magnitude, threshold / 100)).sum())
    ranking = tuple(scores.ranking())
    return Finding(ranking[:count], ranking)


def _joined(finding: Finding) -> tuple[Site, ...]:
    """Every node that a round selected, also those that pruning dropped."""
    names = dict.fromkeys(name for one in finding.rounds for name in one.selected)
    return tuple(map(parse, names)) or finding.sites


@dataclass
class _Cost:
    seconds: float = 0.0
    forwards: float = 0.0


@contextmanager
def _timed(model: Model, problem: Problem) -> Iterator[_Cost]:
    """Measures a block in seconds and in forward passes of the problem's prompts."""
    cost = _Cost()
    _wait(model)
    began = time.perf_counter()
    with metered() as meter:
        yield cost
    _wait(model)
    cost.seconds = time.perf_counter() - began
    cost.forwards = meter.tokens / forward_tokens(model, problem.batch)


def _wait(model: Model) -> None:
    """Until a GPU has done what it was asked for."""
    if model.network.device.type == "cuda":
        torch.cuda.synchronize(model.network.device)
