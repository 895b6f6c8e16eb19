"""What every edge adds to a circuit of edges, to first order: one backward pass for all.

A removed edge counts as 1 and a kept one as 0 in an edge-patched run; the derivative of an
example's metric by these numbers says what each edge would take away or bring back there:

    effect_b(e) = −∂m_b/∂removed_e ≈ m_b(C with e) − m_b(C without e).

At the circuit itself an edge into a saturated softmax has no derivative, however much it is needed;
where all edges are partly removed, it has one.
"""

import torch
from jaxtyping import Bool, Float
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
    asked: Bool[Tensor, "destination active"],
    removed_share: float = 0.0,
) -> Float[Tensor, "batch destination active"]:
    """Effects of edges from active sources at one circuit, on each example.

    Args:
        removed: The edges that the circuit lacks: one row.
        active: Numbers of the sources whose edges are asked for: at least those that the circuit
            keeps an edge of.
        asked: The edges that are asked for; others that the circuit lacks may be 0 here.
        removed_share: The part of every kept edge that is removed.
    """
    network = model.network
    one = removed[:, :, list(active)].to(network.device, network.dtype).clamp(min=removed_share)
    found = []
    for i in range(0, len(batch), _ROWS):
        part = slice(i, min(i + _ROWS, len(batch)))
        examples, base = batch.select(part), ablation.select(part)
        # Examples do not see one another, so one backward pass of their sum serves them all.
        weights = one[:, None].repeat(1, len(examples), 1, 1).requires_grad_()
        with torch.enable_grad(), with_backward():
            metric = patched_metric(model, examples, weights, base, active, asked)
            # No edge does anything where the metric reads ablated values alone.
            reached = metric.requires_grad
            slope = torch.autograd.grad(metric.sum(), weights)[0] if reached else weights * 0
        found.append(-slope[0].detach())
    return torch.cat(found)
