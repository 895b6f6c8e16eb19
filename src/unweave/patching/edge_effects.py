"""What every edge adds to a circuit of edges, to first order: one backward pass for all.

A removed edge counts as 1 and a kept one as 0 in an edge-patched run; the metric's derivative by
these numbers says what each edge would take away or bring back:

    effect(e) = −∂m/∂removed_e ≈ m(C with e) − m(C without e).

At the circuit itself an edge into a saturated softmax has no derivative, however much it is needed;
where all edges are partly removed, it has one.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.ablation import Ablation
from unweave.batch import Batch
from unweave.cost import with_backward
from unweave.graph import Removed
from unweave.model.model import Model
from unweave.patching.edges import patched_metric

# Examples in one backward pass. A memory limit would make effects depend on the device.
_ROWS = 8


def edge_effects(
    model: Model,
    batch: Batch,
    removed: Removed,
    ablation: Ablation,
    active: tuple[int, ...],
    removed_share: float = 0.0,
) -> Float[Tensor, "part destination source"]:
    """Effects of all edges from active sources at one circuit, by parts of the examples.

    Args:
        removed: The edges that the circuit lacks: one row.
        active: Numbers of the sources whose edges are asked for: at least those that the circuit
            keeps an edge of. Effects of other edges are 0.
        removed_share: The part of every kept edge that is removed.

    Returns:
        The mean over the examples of each part.
    """
    device, columns = model.network.device, list(active)
    found = []
    for i in range(0, len(batch), _ROWS):
        part = slice(i, min(i + _ROWS, len(batch)))
        weights = removed[:, :, columns].to(device, model.network.dtype)
        weights = weights.clamp(min=removed_share).requires_grad_()
        with torch.enable_grad(), with_backward():
            examples, base = batch.select(part), ablation.select(part)
            metric = patched_metric(model, examples, weights, base, active)
            (slope,) = torch.autograd.grad(metric.mean(), weights)
        whole = slope.new_zeros(removed.shape[1:])
        whole[:, columns] = -slope[0]
        found.append(whole)
    return torch.stack(found)
