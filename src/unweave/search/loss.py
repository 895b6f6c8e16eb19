"""How far a circuit is from the model: what searches minimise."""

from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

from unweave.scores.problem import Reference, Runs
from unweave.search.settings import SEARCH


@dataclass(frozen=True, eq=False)
class Loss:
    """`v·|1 − f| + w·mean_b |m_b(C) − m_b(M)| / |m(M) − m(∅)|`

    Args:
        scale: |m(M) − m(∅)|, of all examples also where only some are looked at.
        mean: v, the weight of faithfulness beside that of single examples.
        shift: What other prompts add to the mean of (m_b(C) − m_b(M)) / |m(M) − m(∅)|: f is theirs.
    """

    reference: Reference
    scale: float
    mean: float = 1.0
    shift: float = 0.0

    @staticmethod
    def of(problem: Runs, mean: float = 1.0, shift: float = 0.0) -> "Loss":
        """On a problem's prompts, while others say that faithfulness is larger by `shift`."""
        scale = float(problem.reference.scale)
        return Loss(problem.reference, abs(scale), mean, shift if scale > 0 else -shift)

    def __call__(self, metric: Float[Tensor, "circuit batch"]) -> Float[Tensor, " circuit"]:
        return self.parts(metric).mean(1)

    def parts(self, metric: Float[Tensor, "circuit batch"]) -> Float[Tensor, "circuit batch"]:
        """Each example's part of the loss: their mean is the loss, and differences between two
        circuits are compared example by example."""
        off = (metric - self.reference.full) / self.scale
        shifted = off + self.shift
        mean = self.mean * shifted.mean(1, keepdim=True).sign()
        return mean * shifted + SEARCH.loss.examples * off.abs()

    def faithfulness(self, metric: Float[Tensor, "circuit batch"]) -> Float[Tensor, " circuit"]:
        """`(m(C) − m(∅)) / (m(M) − m(∅))`"""
        return self.reference.faithfulness(metric)

    def select(self, examples: slice) -> "Loss":
        """The same on a part of the examples, with the scale of all."""
        return replace(self, reference=self.reference.select(examples))
