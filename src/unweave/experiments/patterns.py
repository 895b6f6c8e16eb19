"""Attention patterns of a circuit's heads on one prompt, for people to look at."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.model.algebra import Plain, Scoring, attention_scores, pattern_of
from unweave.model.model import Model
from unweave.model.program import Inputs, run
from unweave.sites import Point, Site


@dataclass(eq=False)
class _Watch(Plain):
    """A plain run that keeps every attention pattern, under the point of its heads' output."""

    patterns: dict[Point, Tensor] = field(default_factory=dict)
    latest: Tensor | None = None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        self.latest = pattern_of(attention_scores(q, k), scoring)
        return super().attend(q, k, v, scoring)

    def at(self, x: Tensor, point: Point) -> Tensor:
        if point.kind in ("z", "cz"):
            assert self.latest is not None
            self.patterns[point] = self.latest
        return x


def head_patterns(
    model: Model, inputs: Inputs, heads: Sequence[Site]
) -> dict[str, Float[Tensor, "query key"]]:
    """The pattern of each head on the first prompt, padding left out."""
    ops, one = _Watch(), inputs.select(slice(0, 1))
    with torch.no_grad():
        run(model.network, one, ops)
    length = int(one.mask.sum())
    found = {}
    for head in heads:
        if head.unit is not None and head.point in ops.patterns:
            name = str(head.at(None))
            found[name] = ops.patterns[head.point][0, head.unit, :length, :length].contiguous()
    return found
