"""Faithfulness over circuit size, and the areas that sum it up (docs/method.md §9)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.scores.problem import N, Runs


@dataclass(frozen=True)
class Curve:
    """Faithfulness of the first k nodes of a ranking, for growing k from 0 to all.

    Args:
        nodes: How many nodes the model has.
        low, high: The 95% interval at each size.
        prompts: How many prompts it was measured on.
    """

    sizes: tuple[int, ...]
    faithfulness: tuple[float, ...]
    nodes: int
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    prompts: int = 0

    @property
    def area(self) -> float:
        """The curve area: under faithfulness, over the fraction of nodes."""
        return _area(self.sizes, torch.tensor(self.faithfulness), self.nodes)

    @property
    def gap(self) -> float:
        """The curve gap: the area of |1 − faithfulness|, 0 is perfect. Not MIB's CMD (`mib.py`)."""
        return _area(self.sizes, (1 - torch.tensor(self.faithfulness)).abs(), self.nodes)

    def first(self, level: float) -> int | None:
        """The smallest size on the curve with at least this faithfulness (k80, k95)."""
        reached = zip(self.sizes, self.faithfulness, strict=True)
        return next((size for size, f in reached if f >= level), None)


def _area(sizes: Sequence[int], values: Float[Tensor, " size"], nodes: int) -> float:
    return float(torch.trapezoid(values.double(), torch.tensor(sizes, dtype=torch.double) / nodes))


def curve_sizes(nodes: int) -> list[int]:
    """Every size to 30 (small circuits matter most), then steps of a thirtieth, to all."""
    step = max(1, nodes // 30)
    return sorted({*range(min(nodes, 30) + 1), *range(0, nodes, step), nodes})


def faithfulness_curve(
    problem: Runs[N], ranking: Sequence[N], sizes: Sequence[int] | None = None
) -> Curve:
    """Adds nodes in the order of a ranking and measures faithfulness at each size."""
    sizes = list(sizes) if sizes is not None else curve_sizes(len(problem.nodes))
    metric = problem.metric([tuple(ranking[:size]) for size in sizes])
    points = [problem.reference.estimate(one) for one in metric]
    return Curve(
        tuple(sizes),
        tuple(point.value for point in points),
        len(problem.nodes),
        tuple(point.low for point in points),
        tuple(point.high for point in points),
        len(problem.batch),
    )
