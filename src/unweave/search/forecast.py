"""What the loss will be without some nodes or edges, or with others, from effects to first order.

Effects on single examples add up, so the loss of a whole block can be foreseen, and blocks can be
chosen in which positive and negative nodes leave together. A forecast only proposes: what is chosen
is run.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unweave.search.settings import SEARCH


@dataclass(frozen=True, eq=False)
class Forecast:
    """Changes of a circuit, each a node or an edge that leaves or comes back.

    With o_b = (m_b(C) − m_b(M)) / |m(M) − m(∅)| and the shift s the loss is v·|mean o + s| +
    w·mean|o|, and a change moves o_b by what its node does to first order.

    Args:
        off: o_b of the circuit.
        moves: What each change adds to it.
        size: What is charged for each change: what to first order looks like a gain is often an
            error, and the larger a change is, the larger its error.
        mean: v, the weight of the mean.
        shift: s, how much larger the mean is on other prompts.
    """

    off: Float[Tensor, " batch"]
    moves: Float[Tensor, "batch change"]
    size: Float[Tensor, " change"]
    mean: float = 1.0
    shift: float = 0.0

    def moved(self, miss: float) -> "Forecast":
        """The same with a mean that a run found to be off by more than was foreseen."""
        return replace(self, off=self.off + miss)

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

    def balanced(self, count: int) -> list[int]:
        """Changes to make together where there are too many for `together`: the smallest ones,
        each time of those that bring the mean back to 0."""
        means = self.moves.mean(0)
        order = self.size.argsort(stable=True)
        sides = [order[(means[order] < 0) == below].tolist()[::-1] for below in (False, True)]
        off, values, found = float(self.off.mean()) + self.shift, means.tolist(), list[int]()
        while len(found) < min(count, len(values)):
            wanted = off > 0  # with a mean that is too large, one that lowers it
            found.append((sides[wanted] or sides[not wanted]).pop())
            off += values[found[-1]]
        return found

    def best_sets(
        self,
        worth: Float[Tensor, " change"],
        growth: Int[Tensor, " change"],
        room: tuple[int, int],
        most: int,
        count: int = 1,
    ) -> list[list[int]]:
        """Of all sets of at least one and at most `most` changes, those with the smallest loss
        less what they are worth; of equals the smaller set comes first.

        Args:
            worth: What each change saves (a node's price), or costs (negative).
            growth: 1 for a node that joins, −1 for one that leaves.
            room: By how many nodes the circuit may shrink, and grow.
            count: How many sets, where as many are allowed.
        """
        places = torch.arange(len(self.size), device=self.off.device)
        sets = (torch.arange(1, 2 ** len(places), device=places.device)[:, None] >> places) & 1
        grown = (sets * growth).sum(1)
        sets = sets[(sets.sum(1) <= most) & (grown >= -room[0]) & (grown <= room[1])]
        sets = sets[sets.sum(1).argsort(stable=True)].to(self.moves)
        losses = self._loss(self.off[:, None] + self.moves @ sets.T) + sets @ (self.size - worth)
        order = (losses / SEARCH.loss.rounding).round().argsort(stable=True)[:count]
        return [one.nonzero().flatten().tolist() for one in sets[order]]

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
            if float(found[best]) >= present - SEARCH.loss.rounding:
                break
            order.append(best)
            off = off + self.moves[:, best]
            left[best] = False
            present = float(self._loss(off[:, None]))
        return order

    def _loss(self, off: Float[Tensor, "batch change"]) -> Float[Tensor, " change"]:
        mean = (off.mean(0) + self.shift).abs()
        return self.mean * mean + SEARCH.loss.examples * off.abs().mean(0)


def _smallest(values: Float[Tensor, " change"], left: Bool[Tensor, " change"]) -> int:
    return int(values.masked_fill(~left, torch.inf).argmin())
