"""What the loss will be without some edges, or with others, from effects to first order.

Effects on single examples add up for edges far better than for nodes: an edge carries a small part
of what its reader reads. So the loss of a whole block can be foreseen, and blocks can be chosen in
which positive and negative edges leave together.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unweave.search.settings import SEARCH


@dataclass(frozen=True, eq=False)
class Forecast:
    """Changes of a circuit, each an edge that leaves or comes back.

    With o_b = (m_b(C) − m_b(M)) / |m(M) − m(∅)| the loss is |mean o| + w·mean|o|, and a change
    moves o_b by what its edge does to first order.

    Args:
        off: o_b of the circuit.
        moves: What each change adds to it.
        size: How much the edge of each change does at all, at the circuit and where its edges are
            partly removed: an edge into a saturated softmax has no derivative at the circuit.
    """

    off: Float[Tensor, " batch"]
    moves: Float[Tensor, "batch change"]
    size: Float[Tensor, " change"]

    def losses(self) -> Float[Tensor, " change"]:
        """The loss after each change alone, and how much its edge does: small for both means that
        nothing is lost."""
        return _loss(self.off[:, None] + self.moves) + self.size

    def leaving(self, count: int) -> list[int]:
        """Edges to leave together, the next one each time that with the ones before has the
        smallest loss."""
        order, off = list[int](), self.off
        left = torch.ones_like(self.size, dtype=torch.bool)
        for _ in range(count):
            order.append(_smallest(_loss(off[:, None] + self.moves) + self.size, left))
            off = off + self.moves[:, order[-1]]
            left[order[-1]] = False
        return order

    def paying(self, prices: Float[Tensor, " change"], most: int) -> list[int]:
        """Changes to make together, the best next one each time, as long as one pays.

        Args:
            prices: What each change costs: positive for an edge that comes back, negative for one
                that leaves.
            most: How many, at most.
        """
        order, off, present = list[int](), self.off, float(_loss(self.off[:, None]))
        left = torch.ones_like(self.size, dtype=torch.bool)
        while len(order) < most and bool(left.any()):
            found = _loss(off[:, None] + self.moves) + prices
            best = _smallest(found, left)
            if float(found[best]) >= present - SEARCH.edges.rounding:
                break
            order.append(best)
            off = off + self.moves[:, best]
            left[best] = False
            present = float(_loss(off[:, None]))
        return order


def _loss(off: Float[Tensor, "batch change"]) -> Float[Tensor, " change"]:
    return off.mean(0).abs() + SEARCH.loss.examples * off.abs().mean(0)


def _smallest(values: Float[Tensor, " change"], left: Bool[Tensor, " change"]) -> int:
    return int(values.masked_fill(~left, torch.inf).argmin())
