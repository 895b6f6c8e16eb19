"""Problems whose figures can be worked out another way."""

import torch
from oracles.tiny import tiny_inputs, tiny_model, tiny_readout

from unweave.ablation import counterfactual
from unweave.ablations.kind import task_ablation
from unweave.batch import Batch
from unweave.behaviours.file import find_task
from unweave.model.loading import load
from unweave.roles.feeds import needed_points
from unweave.scores.problem import Problem


def synthetic(name: str, ablation: str = "mean", prompts: int = 24, seed: int = 0) -> Problem:
    """A synthetic model on its task, every head and MLP a node."""
    model, task = load(name), find_task(name)
    batch = task.batch(model, prompts, seed=seed)
    nodes = tuple(sorted(model.heads() + model.mlps(), key=lambda site: site.point.depth))
    points = needed_points(model, nodes)
    return Problem(model, batch, nodes, task_ablation(task, model, batch, ablation, points))


def tiny_problem(family: str, variant: str | None = None, rows: int = 3) -> Problem:
    """A random float64 model with counterfactual prompts; read at the end, labelled."""
    model = tiny_model(family, variant)
    clean, corrupted = (tiny_inputs(family, variant, 7, rows, seed) for seed in (0, 1))
    readout = tiny_readout(model, clean)
    end = torch.full((rows,), 6)
    readout = type(readout)(readout.metric, readout.answers, readout.distractors, end)
    positions = {"end": end, "third": torch.full((rows,), 2)}
    texts = ("",) * rows
    groups = torch.zeros(rows, dtype=torch.long)
    batch = Batch(clean, corrupted, readout, end, positions, groups, True, texts, texts)
    nodes = tuple(sorted(model.heads() + model.mlps(), key=lambda site: site.point.depth))
    ablation = counterfactual(model, corrupted, needed_points(model, nodes))
    return Problem(model, batch, nodes, ablation)
