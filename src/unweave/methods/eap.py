"""EAP: gradient × difference (attribution patching; Syed et al., 2023), at nodes."""

from collections.abc import Mapping
from typing import Any

import torch

from unweave.circuits import Scores
from unweave.methods.gradients import metric_gradients, node_products
from unweave.methods.method import Method, Problem, methods, node_scores

ROWS = 16  # prompts in one forward and backward pass on a CPU


def parts(count: int, device: torch.device) -> list[slice]:
    """Prompts, a few at a time: the backward pass keeps every activation."""
    rows = ROWS if device.type == "cpu" else 8 * ROWS
    return [slice(i, min(i + rows, count)) for i in range(0, count, rows)]


def score(problem: Problem, options: Mapping[str, Any]) -> Scores:
    """⟨∂m/∂z, z − μ⟩ at the clean run: one forward and one backward pass for all nodes."""
    model, columns = problem.model, []
    for part in parts(len(problem.batch), model.network.device):
        batch, baseline = problem.batch.select(part), problem.baseline.select(part)
        gradients, values, _ = metric_gradients(model, batch, problem.points)
        deltas = differences(values, baseline, batch)
        columns.append(node_products(problem, gradients, deltas, batch))
    return node_scores(problem, torch.cat(columns, 1), method="eap")


def differences(values, baseline, batch):
    """z − μ at every point; in the last block an MLP has only the position that is read."""
    reads = batch.readout.read[:, None]
    length = batch.clean.mask.shape[1]
    return {
        point: x - baseline.at(point, x, reads if x.shape[1] < length else None)
        for point, x in values.items()
    }


methods.register("eap")(
    Method("eap", "gradient × difference, one backward pass", score)
)
