"""RelP: layer-wise relevance coefficients in place of gradients (Jafari et al., 2025).

    s(u) = ⟨R_u, z_u − μ_u⟩

R is one backward pass of the metric's gradient through a run whose coefficients are held at their
clean values: attention patterns and norm scales are constants, an activation is f(T)/T times its
input, and a gate's product counts half to each side, ½(f(g)/g·g·u + f(g)·u). The run's values are
the model's own. It equals `relevance(…, rules="linear, activation=ratio")`, for all nodes at once.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.circuits import Scores
from unweave.model.algebra import Scoring, activate, attention_mix, attention_scores, pattern_of
from unweave.model.weights import Activation
from unweave.options import Options
from unweave.scores.gradients import HeldScales, gradient_products
from unweave.scores.problem import Problem
from unweave.scores.score import Score, node_scores, scores


@dataclass(eq=False)
class Relevant(HeldScales):
    """The model's values; its derivatives are the coefficients of layer-wise relevance."""

    def activation(self, x: Tensor, f: Activation, place: str) -> Tensor:
        return x * _ratio(x.detach(), f)

    def gate(self, gate: Tensor, up: Tensor, f: Activation, place: str) -> Tensor:
        held = gate.detach()
        return (gate * (_ratio(held, f) * up.detach()) + up * activate(held, f)) / 2

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        pattern = pattern_of(attention_scores(q.detach(), k.detach()), scoring)
        return attention_mix(pattern, v)


def _ratio(x: Float[Tensor, "*shape"], f: Activation) -> Float[Tensor, "*shape"]:
    """f(x)/x, by its finite limit at 0."""
    safe = torch.where(x.abs() < 1e-9, torch.full_like(x, 1e-9), x)
    return activate(safe, f) / safe


def score(problem: Problem, options: Options) -> Scores:
    """One forward and one backward pass for all nodes."""
    return node_scores(problem, gradient_products(problem, Relevant), score="relp")


scores.register("relp")(Score("relp", "relevance coefficients × difference", score))
