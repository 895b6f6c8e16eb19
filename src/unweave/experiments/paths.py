"""`paths` of a circuit that `discover` found: what reaches the logits, and on which way."""

import re
from collections.abc import Callable
from typing import Any

import torch

from unweave.asked import preferred
from unweave.decomposition.paths import Observed, Paths, PathScore, find_paths, observe_paths
from unweave.decomposition.pushed_edges import node_site
from unweave.estimates import estimate
from unweave.experiments.evaluate import set_up_again
from unweave.experiments.locking import locked
from unweave.experiments.run_folder import Run, save_paths
from unweave.experiments.specification import Specification
from unweave.graph import graph_points
from unweave.model.model import Model
from unweave.patching.paths import CutPath, run_cut_paths
from unweave.scores.problem import Problem

PATH_PROMPTS, COUNT, EXPANSIONS = 16, 20, 64
LEAST = 1e-3  # share of the metric from which on a path is listed
_STEP = re.compile(r"([^<@]+)(?:@([^<]+))?(?:<([qkv])>)?")


def paths_of_run(
    run: Run,
    load: Callable[[Specification], Model],
    prompts: int = PATH_PROMPTS,
    count: int = COUNT,
    expansions: int = EXPANSIONS,
) -> dict[str, Any]:
    """The strongest paths of a finished run's model on its task; writes and returns paths.json.

    Raises:
        UnweaveError: Also when the model or the task is not what it was, or its nodes' outputs do
            not add up.
    """
    with locked(run.folder), preferred(run.specification.precision):
        experiment = set_up_again(run, load)
        points = frozenset(graph_points(experiment.model))
        problem = experiment.problem("evaluate", prompts, points)
        record = paths_record(problem, count, expansions)
        save_paths(run, record)
    return record


def paths_record(
    problem: Problem, count: int = COUNT, expansions: int = EXPANSIONS
) -> dict[str, Any]:
    """The strongest paths with their shares, each beside a run in which it is cut."""
    model, batch, ablation = problem.model, problem.batch, problem.ablation
    found = find_paths(model, batch, ablation, expansions, LEAST)
    shown = [path for path in found.found[:count] if abs(found.share(path)) >= LEAST]
    observed = observe_paths(model, batch, ablation)
    lost = run_cut_paths(model, batch, observed.read, [_cut(observed, path) for path in shown])
    total = found.total.mean()
    return {
        "schema_version": 1,
        "prompts": len(batch),
        "ablation": ablation.name,
        "metric": batch.readout.metric.name,
        "total": float(total),
        "expanded": found.expanded,
        "error": found.error / abs(float(total)),
        "paths": [
            _path_json(found, path, cut / total) for path, cut in zip(shown, lost, strict=True)
        ],
        "left": found.left(len(shown)),
        "left_after_all": found.left(),
        "known": len(found.found),
    }


def _path_json(found: Paths, path: PathScore, cut: torch.Tensor) -> dict[str, Any]:
    total = found.total.mean()
    share, measured = estimate(path.values / total), estimate(cut)
    return {
        "path": list(path.steps),
        "share": share.value,
        "interval": [share.low, share.high],
        "measured": measured.value,
        "measured_interval": [measured.low, measured.high],
    }


def _cut(observed: Observed, path: PathScore) -> CutPath:
    """What a path starts with, and the readers on its way."""
    steps = [read_step(step) for step in path.steps]
    name, label, _ = steps[0]
    node = observed.graph.sources.index(name)
    change = observed.delta[node]
    if label is not None:
        change = change * observed.position_masks[label][..., None]
    elif node:
        change = observed.own(node)
    hops = [(node_site(reader), branch) for reader, _, branch in steps[1:-1]]
    return CutPath(change, hops)


def read_step(step: str) -> tuple[str, str | None, str]:
    """Node, position and input of one step, such as `input@S2` or `a9.h6<q>`."""
    match = _STEP.fullmatch(step)
    assert match is not None
    return match[1], match[2], match[3] or ""
