"""Shares of a sum over prompts, with the error that they have because prompts were drawn; and
which shares of an input are named."""

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

NAMED = 0.1  # share of an input, in favour or against, from which a node is named
NAMED_TOKEN = 0.5  # and a token: a few of them stand behind nearly everything
MOST_NAMED, MOST_TOKENS = 3, 2


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


def feeders_of(shares: Mapping[str, float]) -> tuple[str, ...]:
    """The sources that an input is said to come from: nodes, then tokens, the largest first."""
    order = sorted(shares, key=lambda name: -abs(shares[name]))
    nodes = [x for x in order if not is_token(x) and abs(shares[x]) >= NAMED]
    tokens = [x for x in order if is_token(x) and shares[x] >= NAMED_TOKEN]
    return (*nodes[:MOST_NAMED], *tokens[:MOST_TOKENS])


def is_token(source: str) -> bool:
    """Whether a source is the token at a position, not a node."""
    return source.startswith("embed")
