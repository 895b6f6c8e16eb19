"""The baseline of a task by name: mean over its reference prompts, counterfactual or zero."""

from collections.abc import Iterable
from typing import Literal

from unweave.baselines import ZERO, Baseline, counterfactual, means
from unweave.batch import Batch
from unweave.errors import UnweaveError
from unweave.model.model import Model
from unweave.sites import Point
from unweave.tasks.task import Task

BaselineName = Literal["mean", "counterfactual", "zero"]


def task_baseline(
    task: Task,
    model: Model,
    batch: Batch,
    name: BaselineName,
    points: Iterable[Point],
    seed: int = 0,
) -> Baseline:
    """Builds a baseline for a batch of a task.

    Raises:
        UnweaveError: When clean and corrupted prompts do not align, naming the remedy.
    """
    if name == "zero":
        return ZERO
    if not batch.aligned:
        raise UnweaveError(
            f"task {task.name}: clean and corrupted prompts differ in length, so a {name} "
            "baseline has no position to stand at; use --baseline zero, or prompts of one length"
        )
    if name == "counterfactual":
        return counterfactual(model, batch.corrupted, points)
    reference = task.batch(model, seed=seed, part="reference")
    length = batch.clean.mask.shape[1]
    return means(model, reference.corrupted, reference.groups, batch.groups, length, points)
