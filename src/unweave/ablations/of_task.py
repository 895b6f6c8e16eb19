"""The ablation of a task by name: mean over its reference prompts, counterfactual or zero."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

import torch

from unweave.ablation import ZERO, Ablation, counterfactual, means, side_of
from unweave.batch import Batch
from unweave.behaviours.alignment import aligned_positions
from unweave.behaviours.task import Task
from unweave.errors import UnweaveError
from unweave.model.model import Model
from unweave.sites import Point

AblationName = Literal["mean", "counterfactual", "zero"]


def task_ablation(
    task: Task,
    model: Model,
    batch: Batch,
    name: AblationName,
    points: Iterable[Point],
    seed: int = 0,
) -> Ablation:
    """Builds an ablation for a batch of a task.

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
            "prompts has no position to stand at; use --ablation counterfactual, which compares "
            "each prompt with its own pair, or prompts of one length"
        )
    reference = task.batch(model, seed=seed, part="reference")
    length = batch.clean.mask.shape[1]
    return means(model, reference.corrupted, reference.groups, batch.groups, length, points)
