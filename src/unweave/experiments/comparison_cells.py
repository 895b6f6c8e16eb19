"""One cell of a comparison: a method on a task with a seed, found here and measured there.

A method scores nodes on the prompts of discovery and is timed; everything else is measured on
held-out prompts. What all methods of a task share (random circuits, known circuits, the time of a
forward pass) is one more cell, the reference.
"""

import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch

from unweave.ablations.of_task import AblationName, task_ablation
from unweave.batch import Batch
from unweave.behaviours.accuracy import check_able, clean_metric
from unweave.behaviours.task import Task
from unweave.circuits import Scores
from unweave.evaluation.api import coarse_sizes, complete, curve_json, known_faithfulness
from unweave.evaluation.curves import curve_sizes, faithfulness_curve
from unweave.evaluation.faithfulness import faithfulness_of, measure, under_ablations
from unweave.evaluation.random_circuits import random_circuits
from unweave.evaluation.roc import against_each
from unweave.model.model import Model
from unweave.scores.problem import Method, Problem
from unweave.sites import Site, parse


@dataclass(frozen=True)
class Budget:
    """How much is measured; the same for every cell of a comparison.

    Args:
        n_discover, n_evaluate: Prompts; None for the task's own numbers.
        nodes: "heads", or "heads+mlps".
        draws: Random circuits a size.
    """

    ablation: AblationName = "mean"
    n_discover: int | None = None
    n_evaluate: int | None = None
    nodes: str = "heads"
    draws: int = 10


@dataclass(frozen=True, eq=False)
class Setting:
    """A task with a seed on a model. Prompts and ablations are made when first asked for."""

    task: Task
    model: Model
    seed: int
    budget: Budget

    @cached_property
    def nodes(self) -> tuple[Site, ...]:
        mlps = self.model.mlps() if self.budget.nodes == "heads+mlps" else []
        return tuple(sorted([*self.model.heads(), *mlps], key=lambda site: site.point.depth))

    @cached_property
    def discover(self) -> Problem:
        """What a method is given."""
        batch = self.task.batch(self.model, self.budget.n_discover, self.seed, "discover")
        check_able(self.model, batch, self.task.name)
        return self._problem(batch)

    @cached_property
    def held_out(self) -> dict[str, Problem]:
        """Held-out prompts under the main ablation, and under zero."""
        batch = self.task.batch(self.model, self.budget.n_evaluate, self.seed, "evaluate")
        main = self._problem(batch)
        if self.budget.ablation == "zero":
            return {"zero": main}
        zero = under_ablations(self.task, self.model, batch, self.nodes, ("zero",), self.seed)
        return {self.budget.ablation: main, **zero}

    @property
    def known(self) -> dict[str, tuple[Site, ...]]:
        return known_circuits(self.task, self.model, self.budget.ablation)

    def _problem(self, batch: Batch) -> Problem:
        points = sorted({node.point for node in self.nodes}, key=lambda point: point.depth)
        name, seed = self.budget.ablation, self.seed
        ablation = task_ablation(self.task, self.model, batch, name, points, seed)
        return Problem(self.model, batch, self.nodes, ablation)


def known_circuits(task: Task, model: Model, ablation: str) -> dict[str, tuple[Site, ...]]:
    """The published circuit of this model, and the augmented one where the authors give one."""
    circuit = task.known_circuit(model.name)
    if circuit is None:
        return {}
    found = {"published": circuit.under(ablation)}
    return found | {"augmented": circuit.augmented} if circuit.added else found


def reference_cell(setting: Setting) -> dict[str, Any]:
    """What every method of a setting is held against."""
    problem = setting.held_out[setting.budget.ablation]
    _, empty, full = measure(problem, [])
    return {
        "nodes": len(setting.nodes),
        "prompts": len(problem.batch),
        "empty": float(empty),
        "full": float(full),
        "forward_seconds": forward_seconds(setting.model, setting.discover.batch),
        "random": [
            asdict(d)
            for d in random_circuits(problem, draws=setting.budget.draws, seed=setting.seed)
        ],
        "known": {
            name: {"faithfulness": value, "size": len(setting.known[name])}
            for name, value in known_faithfulness(problem, setting.known).items()
        },
    }


def method_cell(
    setting: Setting, method: Method, options: Mapping[str, Any], size: int | None
) -> dict[str, Any]:
    """Scores the nodes, timed, and measures ranking and circuit on held-out prompts.

    Args:
        size: Nodes of the method's circuit; None where the method itself decides, or for a tenth
            of the nodes.
    """
    problem = setting.discover  # prompts and ablation are made before the clock starts
    scores, seconds = timed_scores(problem, method, options)
    main = setting.held_out[setting.budget.ablation]
    ranking = complete(main, [parse(name) for name in scores.ranking()])
    circuit = own_circuit(scores)
    if circuit is None:
        circuit = ranking[: size or max(1, len(ranking) // 10)]
    sizes = sorted({*curve_sizes(len(ranking)), len(circuit)})
    curve = faithfulness_curve(main, ranking, sizes)
    coarse = coarse_sizes(len(ranking), len(circuit))
    others = {n: p for n, p in setting.held_out.items() if n != setting.budget.ablation}
    curves = {n: curve_json(faithfulness_curve(p, ranking, coarse)) for n, p in others.items()}
    known = {name: asdict(roc) for name, roc in against_each(scores, setting.known).items()}
    return {
        "seconds": seconds,
        "prompts": len(problem.batch),
        "ranking": list(map(str, ranking)),
        "circuit": list(map(str, circuit)),
        "faithfulness": float(faithfulness_of(main, [circuit])[0]),
        "curve": curve_json(curve),
        "curves": curves,
        "roc": known,
        "options": {name: str(value) for name, value in options.items()},
    }


def own_circuit(scores: Scores) -> list[Site] | None:
    """The circuit that a method chose itself, where it does more than rank."""
    size = int(scores.about.get("circuit", "0"))
    return [parse(name) for name in scores.ranking()[:size]] or None


def timed_scores(
    problem: Problem, method: Method, options: Mapping[str, Any]
) -> tuple[Scores, float]:
    """Runs a method and says how long it took."""
    wait(problem.model)
    began = time.perf_counter()
    scores = method.run(problem, **options)
    wait(problem.model)
    return scores, time.perf_counter() - began


def forward_seconds(model: Model, batch: Batch, repeats: int = 3) -> float:
    """The time of a plain forward pass of the same prompts, as a unit of cost."""
    times = []
    for _ in range(repeats + 1):
        wait(model)
        began = time.perf_counter()
        clean_metric(model, batch)
        wait(model)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])  # the first one warms up


def wait(model: Model) -> None:
    """Until a GPU has done what it was asked for."""
    if model.network.device.type == "cuda":
        torch.cuda.synchronize(model.network.device)
