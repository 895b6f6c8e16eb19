"""Faithfulness of a circuit by three plain runs: whole, ablated, and without what is outside it."""

from collections.abc import Collection

import torch
from oracles.patched import patched
from torch import Tensor

from unweave.scores.problem import Problem
from unweave.sites import Point, Site


def plain_metric(problem: Problem, removed: Collection[Site]) -> Tensor:
    """The difference of mean logits, or of summed probabilities, with some nodes ablated."""
    batch, ablation = problem.batch, problem.ablation
    rows = range(len(batch)) if ablation.rows is None else ablation.rows.tolist()
    values = {point: value[list(rows)] for point, value in ablation.values.items()}
    seen = patched(problem.model.network, batch.clean, list(removed), values)
    logits = seen[Point("logits", 0)]
    probabilities = batch.readout.metric.name == "probability difference"
    assert probabilities or batch.readout.metric.name == "logit difference"
    if probabilities:
        logits = logits.exp() / logits.exp().sum(-1, keepdim=True)
    found = []
    for row, at in enumerate(batch.readout.read.tolist()):
        answers, others = (
            [float(logits[row, at, i]) for i in ids[row].tolist() if i >= 0]
            for ids in (batch.readout.answers, batch.readout.distractors)
        )
        found.append(sum(answers) - sum(others))
        if not probabilities:
            found[-1] = sum(answers) / len(answers) - sum(others) / len(others)
    return torch.tensor(found, dtype=torch.float64)


def plain_faithfulness(problem: Problem, circuit: Collection[str]) -> float:
    """(m(C) − m(∅)) / (m(M) − m(∅)) of mean metrics."""
    kept = {*circuit}
    outside = [node for node in problem.nodes if str(node) not in kept]
    full, empty, own = (
        float(plain_metric(problem, removed).mean()) for removed in ([], problem.nodes, outside)
    )
    return (own - empty) / (full - empty)
