"""GIM: gradient × difference with modified gradients (Edin et al., 2025).

    s(u) = ⟨∂̃m/∂z_u, z_u − μ_u⟩

The run's values are the model's own; its backward pass differs in three ways, each against a way in
which one part hides the effect of another:

- softmax: the attention pattern's Jacobian is that of a softmax at temperature T > 1,
  diag(s) − s·sᵀ with s = softmax(scores/T), so that a key is not silent because others take over;
- norms: the scale 1/σ is held constant;
- products: the gradient is divided among the factors of a product, ½ to each: pattern and values,
  then again queries and keys (¼ each), and both sides of a gate.
"""

from dataclasses import dataclass
from functools import partial

from jaxtyping import Float
from torch import Tensor

from unweave.circuits import Scores
from unweave.model.algebra import (
    Scoring,
    activate,
    attention_mix,
    attention_scores,
    masked_scores,
)
from unweave.model.weights import Activation
from unweave.options import Option, Options
from unweave.scores.gradients import HeldScales, gradient_products
from unweave.scores.problem import Problem
from unweave.scores.score import Score, node_scores, scores


@dataclass(eq=False)
class Modified(HeldScales):
    """The model's values with GIM's derivatives."""

    temperature: float = 2.0

    def gate(self, gate: Tensor, up: Tensor, f: Activation, place: str) -> Tensor:
        return activate(_weighted(gate, 0.5), f) * _weighted(up, 0.5)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        raw = attention_scores(_weighted(q, 0.25), _weighted(k, 0.25))
        scores = masked_scores(raw, scoring)
        soft = (scores / self.temperature).softmax(-1)
        # T·softmax(x/T) has the Jacobian diag(s) − s·sᵀ; its value cancels.
        pattern = scores.detach().softmax(-1) + self.temperature * (soft - soft.detach())
        return attention_mix(pattern, _weighted(v, 0.5))


def _weighted(x: Float[Tensor, "*shape"], share: float) -> Float[Tensor, "*shape"]:
    """x itself, its gradient times a share."""
    return x.detach() + share * (x - x.detach())


def score(problem: Problem, options: Options) -> Scores:
    """One forward and one backward pass for all nodes."""
    algebra = partial(Modified, temperature=options["temperature"])
    about = {"score": "gim", "temperature": str(options["temperature"])}
    return node_scores(problem, gradient_products(problem, algebra), **about)


scores.register("gim")(
    Score(
        "gim",
        "gradient × difference, gradients modified against self-repair",
        score,
        {"temperature": Option(2.0, "temperature of the softmax in the backward pass", low=1.0)},
    )
)
