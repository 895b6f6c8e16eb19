"""The areas of MIB's circuit track (Mueller et al., 2025): CPR and CMD, exactly as it takes them.

Faithfulness f is measured with the first ⌊share · n⌋ of n scored items kept, at ten shares from
0.001 to 1, and integrated by trapezoids over the share on a linear axis. Nothing is added at
share 0 and nothing is normalised, so a model that is matched everywhere has CPR 0.999.

    CPR = ∫ f          items by score, the largest first: what helps the behaviour
    CMD = ∫ |1 − f|    items by magnitude of score: what moves it either way

`log_accuracy` is ours: accuracy over the logarithm of the share, so that each tenfold step in size
weighs the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def kept_counts(items: int) -> tuple[int, ...]:
    """How many items each share keeps: rounded down, as MIB does."""
    return tuple(int(share * items) for share in SHARES)


def area(values: Sequence[float], log: bool = False) -> float:
    """Trapezoids over the shares, on a linear or on a logarithmic axis.

    On the logarithmic axis the area is divided by the axis' length, so that it is a mean.
    """
    grid = [math.log(share) if log else share for share in SHARES]
    steps = zip(pairwise(grid), pairwise(values), strict=True)
    whole = sum((b - a) * (y + z) / 2 for (a, b), (y, z) in steps)
    return whole / (grid[-1] - grid[0]) if log else whole


@dataclass(frozen=True)
class MibCurve:
    """Faithfulness and accuracy at MIB's shares, for items in one order.

    Args:
        counts: Items kept at each share.
        faithfulness: (m(C) − m(∅))/(m(M) − m(∅)) at each share.
        accuracy: The share of prompts with the answer ahead, at each share.
    """

    counts: tuple[int, ...]
    faithfulness: tuple[float, ...]
    accuracy: tuple[float, ...]

    @property
    def cpr(self) -> float:
        return area(self.faithfulness)

    @property
    def cmd(self) -> float:
        return area([abs(1 - f) for f in self.faithfulness])

    @property
    def log_accuracy(self) -> float:
        return area(self.accuracy, log=True)

    def to_json(self) -> dict[str, Any]:
        return {
            "counts": list(self.counts),
            "faithfulness": list(self.faithfulness),
            "accuracy": list(self.accuracy),
            "cpr": self.cpr,
            "cmd": self.cmd,
            "log_accuracy": self.log_accuracy,
        }


@dataclass(frozen=True)
class MibResult:
    """Both orders of one ranking.

    Args:
        signed: Items by score, the largest first.
        absolute: Items by magnitude.
    """

    signed: MibCurve
    absolute: MibCurve

    @property
    def cpr(self) -> float:
        return self.signed.cpr

    @property
    def cmd(self) -> float:
        return self.absolute.cmd

    @property
    def log_accuracy(self) -> float:
        return self.signed.log_accuracy

    def to_json(self) -> dict[str, Any]:
        areas = {"cpr": self.cpr, "cmd": self.cmd, "log_accuracy": self.log_accuracy}
        return {**areas, "signed": self.signed.to_json(), "absolute": self.absolute.to_json()}
