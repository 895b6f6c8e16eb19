"""Metrics: one number per example, read from the logits at one position.

`answers` and `distractors` are token (or class) ids, padded with −1 where examples have fewer.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

Measure = Callable[
    [Float[Tensor, "*lead batch out"], Int[Tensor, "batch answer"], Int[Tensor, "batch other"]],
    Float[Tensor, "*lead batch"],
]


@dataclass(frozen=True, eq=False)
class Metric:
    """A named measure.

    Args:
        linear: Linear in the logits.
        local: Reads only the logits of the answers and distractors.
    """

    name: str
    measure: Measure
    linear: bool
    local: bool
    formula: str

    def gradient(
        self,
        logits: Float[Tensor, "batch out"],
        answers: Int[Tensor, "batch answer"],
        distractors: Int[Tensor, "batch other"],
    ) -> Float[Tensor, "batch out"]:
        """∂metric/∂logits of each example: the linear readout of a relevant part."""
        with torch.enable_grad():
            leaf = logits.detach().clone().requires_grad_()
            self.measure(leaf, answers, distractors).sum().backward()
        assert leaf.grad is not None
        return leaf.grad


def _gather(
    values: Float[Tensor, "*lead batch out"], ids: Int[Tensor, "batch n"], fill: float
) -> Float[Tensor, "*lead batch n"]:
    index = ids.clamp(min=0).expand(*values.shape[:-1], -1)
    return values.gather(-1, index).masked_fill(ids < 0, fill)


def _mean_logit(logits: Tensor, ids: Int[Tensor, "batch n"]) -> Tensor:
    return _gather(logits, ids, 0.0).sum(-1) / (ids >= 0).sum(-1)


def _logit_difference(logits: Tensor, answers: Tensor, distractors: Tensor) -> Tensor:
    return _mean_logit(logits, answers) - _mean_logit(logits, distractors)


def _probability_difference(logits: Tensor, answers: Tensor, distractors: Tensor) -> Tensor:
    probabilities = logits.softmax(-1)
    good = _gather(probabilities, answers, 0.0).sum(-1)
    return good - _gather(probabilities, distractors, 0.0).sum(-1)


def _margin(logits: Tensor, answers: Tensor, distractors: Tensor) -> Tensor:
    return _mean_logit(logits, answers) - _gather(logits, distractors, -torch.inf).amax(-1)


LOGIT_DIFFERENCE = Metric(
    "logit difference",
    _logit_difference,
    True,
    True,
    "mean logit[answers] − mean logit[distractors]",
)
PROBABILITY_DIFFERENCE = Metric(
    "probability difference", _probability_difference, False, False, "Σp(answers) − Σp(distractors)"
)
MARGIN = Metric("margin", _margin, False, True, "logit[answer] − max logit[distractors]")
