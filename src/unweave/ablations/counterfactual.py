"""Counterfactual: the activation in the paired corrupted prompt."""

from dataclasses import replace

import torch

from unweave.ablation import Ablation, counterfactual, side_of
from unweave.ablations.kind import AblationKind, Apply, ablations
from unweave.batch import Batch
from unweave.behaviours.alignment import aligned_positions
from unweave.behaviours.task import Task
from unweave.model.model import Model
from unweave.sites import Point


def prepare(task: Task, model: Model, points: tuple[Point, ...], seed: int) -> Apply:
    """Each prompt's own pair."""
    return lambda batch: _paired(model, batch, points)


def _paired(model: Model, batch: Batch, points: tuple[Point, ...]) -> Ablation:
    """Where a prompt and its pair differ in length, each token has the activation of its
    counterpart (`behaviours/alignment.py`)."""
    found = counterfactual(model, batch.corrupted, points)
    if batch.aligned:
        return found
    where = aligned_positions(batch.clean, batch.corrupted)
    rows = torch.arange(len(where), device=where.device)[:, None]
    there = {p for p in found.values if side_of(p, batch.clean) is batch.clean}
    values = {p: x[rows, where] if p in there else x for p, x in found.values.items()}
    return replace(found, values=values)


ablations.register("counterfactual")(
    AblationKind("counterfactual", "the paired corrupted prompt's own activation", prepare)
)
