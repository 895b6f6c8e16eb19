"""Attention patterns of a circuit's heads on some prompts, for people to look at."""

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
    model: Model, inputs: Inputs, heads: Sequence[Site], prompts: int = 1
) -> dict[str, Float[Tensor, "prompt query key"]]:
    """The pattern of each head on the first prompts, 0 at padding."""
    ops, some = _Watch(), inputs.select(slice(0, prompts))
    with torch.no_grad():
        run(model.network, some, ops)
    found = {}
    for head in heads:
        if head.unit is not None and head.point in ops.patterns:
            pattern = ops.patterns[head.point][:, head.unit]
            queries = _real(some, head.point.stack, pattern.shape[1])
            keys = _real(some, head.point.stack, pattern.shape[2])
            found[str(head.at(None))] = pattern * queries[:, :, None] * keys[:, None]
    return found


def _real(inputs: Inputs, stack: str, length: int) -> Float[Tensor, "prompt position"]:
    """1 at real tokens of the side with this many positions; keys may be the encoder's."""
    sides = [inputs] if inputs.decoder is None or stack == "enc" else [inputs.decoder, inputs]
    mask = next(side.mask for side in sides if side.mask.shape[1] == length)
    return mask.float()
