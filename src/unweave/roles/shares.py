"""Shares of a sum over prompts, with the error that they have because prompts were drawn."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Ratio:
    """A ratio of sums over prompts with its standard error; NaN where it is not measured."""

    value: float
    error: float


NOT_MEASURED = Ratio(float("nan"), float("nan"))


def share_of(part: Float[Tensor, " batch"], whole: Float[Tensor, " batch"]) -> Ratio:
    """R = Σ part / Σ whole, and its error to first order: std(part − R·whole) / (mean whole · √n).

    Both sums are over the same prompts, so what they have in common adds nothing to the error.
    """
    total = float(whole.sum())
    if total == 0.0:
        return NOT_MEASURED
    ratio, count = float(part.sum()) / total, len(part)
    if count < 2:
        return Ratio(ratio, float("nan"))
    return Ratio(ratio, float((part - ratio * whole).std()) * count**0.5 / abs(total))
