"""The baseline of a task by name: mean over its reference prompts, counterfactual or zero."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

import torch

from unweave.baselines import ZERO, Baseline, counterfactual, means, side_of
from unweave.batch import Batch
from unweave.errors import UnweaveError
from unweave.model.model import Model
from unweave.sites import Point
from unweave.tasks.alignment import aligned_positions
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

    Where a clean prompt and its counterfactual differ in length, each token has that of its
    counterpart (`alignment.py`).

    Raises:
        UnweaveError: When a mean is asked for and prompts do not align, naming the remedy.
    """
    if name == "zero":
        return ZERO
    if name == "counterfactual":
        found = counterfactual(model, batch.corrupted, points)
        if batch.aligned:
            return found
        where = aligned_positions(batch.clean, batch.corrupted)
        rows = torch.arange(len(where), device=where.device)[:, None]
        there = {p for p in found.values if side_of(p, batch.clean) is batch.clean}
        values = {p: x[rows, where] if p in there else x for p, x in found.values.items()}
        return replace(found, values=values)
    if not batch.aligned:
        raise UnweaveError(
            f"task {task.name}: clean and corrupted prompts differ in length, so a mean over "
            "prompts has no position to stand at; use --baseline counterfactual, which compares "
            "each prompt with its own pair, or prompts of one length"
        )
    reference = task.batch(model, seed=seed, part="reference")
    length = batch.clean.mask.shape[1]
    return means(model, reference.corrupted, reference.groups, batch.groups, length, points)
