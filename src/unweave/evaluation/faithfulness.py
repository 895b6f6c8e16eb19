"""Faithfulness of circuits under each ablation (docs/method.md §§6, 9).

A circuit is found under one ablation and believed under three: what survives a change of ablation
does not owe its figure to the ablation that it was found with.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.ablations.of_task import AblationName, task_ablation
from unweave.batch import Batch
from unweave.behaviours.task import Task
from unweave.errors import UnweaveError
from unweave.model.model import Model
from unweave.scores.problem import Problem, normalised
from unweave.sites import Site

ABLATIONS: tuple[AblationName, ...] = ("mean", "counterfactual", "zero")


@dataclass(frozen=True)
class Faithfulness:
    """Mean metrics of a circuit, of nothing and of the whole model, and where it lies between.

    Args:
        value: `(m(C) − m(∅)) / (m(M) − m(∅))`; None where ablating everything changes nothing.
    """

    metric: float
    empty: float
    full: float
    value: float | None


def measure(
    problem: Problem, circuits: Sequence[Collection[Site]]
) -> tuple[Float[Tensor, " circuit"], Float[Tensor, ""], Float[Tensor, ""]]:
    """Mean metrics of circuits, of nothing and of the whole model, in one batched run."""
    every = problem.metric([(), problem.nodes, *map(tuple, circuits)]).double().mean(1)
    return every[2:], every[0], every[1]


def spread(problem: Problem, empty: Float[Tensor, ""], full: Float[Tensor, ""]) -> None:
    """Raises unless ablating every node moves the metric: else faithfulness has no scale."""
    if not torch.isfinite(full - empty) or abs(float(full - empty)) <= 1e-9:
        raise UnweaveError(
            f"ablating all {len(problem.nodes)} nodes ({problem.ablation.name}) leaves the metric "
            f"at {float(empty):.4g} of {float(full):.4g}: nothing to be faithful to; choose "
            "another --ablation, task or model"
        )


def faithfulness_of(
    problem: Problem, circuits: Sequence[Collection[Site]]
) -> Float[Tensor, " circuit"]:
    """Faithfulness of many circuits, in one batched run.

    Raises:
        UnweaveError: When ablating everything leaves the metric where it was.
    """
    metrics, empty, full = measure(problem, circuits)
    spread(problem, empty, full)
    return normalised(metrics, empty, full)


def faithfulness_record(problem: Problem, circuit: Collection[Site]) -> Faithfulness:
    """One circuit with the figures behind its faithfulness; no error where there is no scale."""
    metrics, empty, full = measure(problem, [circuit])
    try:
        spread(problem, empty, full)
    except UnweaveError:
        return Faithfulness(float(metrics[0]), float(empty), float(full), None)
    value = float(normalised(metrics, empty, full)[0])
    return Faithfulness(float(metrics[0]), float(empty), float(full), value)


def under_ablations(
    task: Task,
    model: Model,
    batch: Batch,
    nodes: Iterable[Site],
    ablations: Iterable[AblationName] = ABLATIONS,
    seed: int = 0,
) -> dict[str, Problem]:
    """The same prompts and nodes under several ablations; one that cannot be is left out.

    Mean and counterfactual need clean and corrupted prompts of one length.
    """
    nodes, problems = tuple(nodes), {}
    points = sorted({node.point for node in nodes}, key=lambda point: point.depth)
    for name in ablations:
        try:
            ablation = task_ablation(task, model, batch, name, points, seed)
        except UnweaveError:
            continue
        problems[name] = Problem(model, batch, nodes, ablation)
    return problems


def by_ablation(
    problems: Mapping[str, Problem], circuit: Collection[Site]
) -> dict[str, Faithfulness]:
    """Faithfulness of one circuit under each ablation."""
    return {name: faithfulness_record(problem, circuit) for name, problem in problems.items()}
