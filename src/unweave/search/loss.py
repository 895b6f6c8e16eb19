"""How far a circuit is from the model: what searches minimise."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from unweave.scores.problem import Problem, Reference

# Weight of single examples' deviations beside that of their mean: without it a circuit may be right
# on average and wrong on every example.
_EXAMPLES = 0.5


@dataclass(frozen=True, eq=False)
class Loss:
    """`|1 − f| + w·mean_b |m_b(C) − m_b(M)| / |m(M) − m(∅)|`"""

    reference: Reference
    scale: float

    @staticmethod
    def of(problem: Problem) -> "Loss":
        return Loss(problem.reference, float(problem.reference.scale))

    def __call__(self, metric: Float[Tensor, "circuit batch"]) -> Float[Tensor, " circuit"]:
        off = (metric - self.reference.full) / abs(self.scale)
        return (1 - self.faithfulness(metric)).abs() + _EXAMPLES * off.abs().mean(1)

    def faithfulness(self, metric: Float[Tensor, "circuit batch"]) -> Float[Tensor, " circuit"]:
        return (metric.mean(1) - self.reference.empty.mean()) / self.scale

    def select(self, examples: slice) -> "Loss":
        """The same on a part of the examples, with the scale of all."""
        return Loss(self.reference.select(examples), self.scale)
