"""What the loss will be without some nodes or edges, or with others, from effects to first order.

Effects on single examples add up, so the loss of a whole block can be foreseen, and blocks can be
chosen in which positive and negative nodes leave together. A forecast only proposes: what is chosen
is run.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unweave.search.settings import SEARCH


@dataclass(frozen=True, eq=False)
class Forecast:
    """Changes of a circuit, each a node or an edge that leaves or comes back.

    With o_b = (m_b(C) − m_b(M)) / |m(M) − m(∅)| the loss is v·|mean o| + w·mean|o|, and a change
    moves o_b by what its node does to first order.

    Args:
        off: o_b of the circuit.
        moves: What each change adds to it.
        size: What is charged for each change: what to first order looks like a gain is often an
            error, and the larger a change is, the larger its error.
        mean: v, the weight of the mean.
    """

    off: Float[Tensor, " batch"]
    moves: Float[Tensor, "batch change"]
    size: Float[Tensor, " change"]
    mean: float = 1.0

    def losses(self) -> Float[Tensor, " change"]:
        """The loss after each change alone, with what is charged for it."""
        return self._loss(self.off[:, None] + self.moves) + self.size

    def together(self, count: int) -> list[int]:
        """Changes to make together, the next one each time that with the ones before has the
        smallest loss."""
        order, off = list[int](), self.off
        left = torch.ones_like(self.size, dtype=torch.bool)
        for _ in range(count):
            order.append(_smallest(self._loss(off[:, None] + self.moves) + self.size, left))
            off = off + self.moves[:, order[-1]]
            left[order[-1]] = False
        return order

    def paying(self, prices: Float[Tensor, " change"], most: int) -> list[int]:
        """Changes to make together, the best next one each time, as long as one pays.

        Args:
            prices: What each change costs: positive for one that comes back, negative for one that
                leaves.
            most: How many, at most.
        """
        order, off, present = list[int](), self.off, float(self._loss(self.off[:, None]))
        left = torch.ones_like(self.size, dtype=torch.bool)
        while len(order) < most and bool(left.any()):
            found = self._loss(off[:, None] + self.moves) + prices
            best = _smallest(found, left)
            if float(found[best]) >= present - SEARCH.edges.rounding:
                break
            order.append(best)
            off = off + self.moves[:, best]
            left[best] = False
            present = float(self._loss(off[:, None]))
        return order

    def _loss(self, off: Float[Tensor, "batch change"]) -> Float[Tensor, " change"]:
        return self.mean * off.mean(0).abs() + SEARCH.loss.examples * off.abs().mean(0)


def _smallest(values: Float[Tensor, " change"], left: Bool[Tensor, " change"]) -> int:
    return int(values.masked_fill(~left, torch.inf).argmin())
