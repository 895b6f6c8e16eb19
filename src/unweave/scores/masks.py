"""Learned masks: node pruning and edge pruning by hard-concrete gates.

A gate g in [0, 1] at every node or edge mixes its activation with its ablation
(`patching/gates.py`). It is drawn from the hard-concrete distribution (Louizos, Welling & Kingma,
2018): with u uniform,

    s = σ((ln u − ln(1 − u) + a)/β),   g = clamp(s·(ζ − γ) + γ, 0, 1),   β = 2/3, γ = −0.1, ζ = 1.1

The logits a are trained to keep the model's metric m(M) with few open gates:

    mean of ((m(g) − m(M))/(m(M) − m(∅)))²  +  λ · mean of P(g > 0),   P(g > 0) = σ(a − β ln(−γ/ζ))

with λ rising from 0 over the steps, so that what matters least closes first. The score is P(g > 0)
at the logits' average over the steps: it tells apart what closed early and late.
Edges as in edge pruning (Bhaskar et al., 2024), which trains the same gates with a target sparsity
and a divergence of the logits; here the loss is the task's metric and λ is an option.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.circuits import EdgeScores, Scores
from unweave.graph import graph_of
from unweave.options import Option, Options
from unweave.patching.circuits import run_circuits
from unweave.patching.edges import run_edges
from unweave.patching.gates import run_gated_edges, run_gated_nodes
from unweave.progress import progress
from unweave.scores.edges import edge_parts
from unweave.scores.gradients import parts
from unweave.scores.problem import Problem, Reference
from unweave.scores.score import Score, edge_scores, node_scores, scores

_BETA, _GAMMA, _ZETA = 2 / 3, -0.1, 1.1
_START = 2.0  # the logit of every gate at first: most are open

Gates = Float[Tensor, "*shape"]


def score(problem: Problem, options: Options) -> Scores:
    """`steps` forward and backward passes of a few prompts each."""
    pieces = [problem.select(part) for part in _node_parts(problem)]

    def measure(piece: int, gates: Gates) -> Float[Tensor, " batch"]:
        part = pieces[piece]
        return run_gated_nodes(part.model, part.batch, part.nodes, gates, part.ablation)

    references = [part.reference for part in pieces]
    logits = _learn(problem, options, (len(problem.nodes),), references, measure)
    return node_scores(problem, open_probability(logits)[:, None], score="masks")


def score_edges(problem: Problem, options: Options) -> EdgeScores:
    """The same with a gate at every edge."""
    model, graph = problem.model, graph_of(problem.model, post_norms=False)
    pieces = [problem.select(part) for part in edge_parts(problem, graph)]
    references = []
    for part in pieces:
        full = run_circuits(model, part.batch, [()], (), part.ablation)[0]
        empty = run_edges(model, part.batch, graph.removed([()]), part.ablation)[0]
        references.append(Reference(full, empty))

    def measure(piece: int, gates: Gates) -> Float[Tensor, " batch"]:
        part = pieces[piece]
        return run_gated_edges(model, part.batch, gates, part.ablation)

    shape = (len(graph.destinations), len(graph.sources))
    logits = _learn(problem, options, shape, references, measure, graph.mask)
    return edge_scores(problem, graph, open_probability(logits), score="masks")


def _node_parts(problem: Problem) -> list[slice]:
    return parts(len(problem.batch), problem.model.network.device)


def _learn(
    problem: Problem,
    options: Options,
    shape: tuple[int, ...],
    references: list[Reference],
    measure: Callable[[int, Gates], Float[Tensor, " batch"]],
    real: Tensor | None = None,
) -> Gates:
    """The logits of all gates, averaged over training; each step sees the next part of the prompts.

    The average, not the last: a gate that closed early ends where one that closed late does, and
    one that is needed by far ends where one that is just needed does.

    Args:
        real: Which entries are gates; None for all.

    Raises:
        UnweaveError: When ablating everything does not move the metric.
    """
    network = problem.model.network
    ends = (torch.cat([getattr(r, end) for r in references]) for end in ("full", "empty"))
    scale = Reference(*ends).scale
    logits = torch.full(shape, _START, dtype=network.dtype, device=network.device)
    logits.requires_grad_()
    adam = torch.optim.Adam([logits], lr=options["rate"])
    draw, steps = torch.Generator().manual_seed(options["seed"]), options["steps"]
    real = torch.ones(shape, dtype=torch.bool) if real is None else real
    total = torch.zeros_like(logits)
    with torch.enable_grad(), progress("Learning masks", steps) as advance:
        for step in range(steps):
            piece = step % len(references)
            gates = drawn_gates(logits, torch.rand(shape, generator=draw))
            gap = (measure(piece, gates) - references[piece].full) / scale
            kept = open_probability(logits)[real.to(logits.device)].mean()
            loss = gap.square().mean() + options["sparsity"] * (step + 1) / steps * kept
            adam.zero_grad()
            loss.backward()
            adam.step()
            total += logits.detach()
            advance(1)
    return total / steps


def drawn_gates(logits: Gates, uniform: Float[Tensor, "*shape"]) -> Gates:
    """Hard-concrete gates of uniform draws, differentiable in the logits."""
    u = uniform.to(logits).clamp(1e-6, 1 - 1e-6)
    soft = torch.sigmoid((torch.logit(u) + logits) / _BETA)
    return (soft * (_ZETA - _GAMMA) + _GAMMA).clamp(0, 1)


def open_probability(logits: Gates) -> Gates:
    """P(g > 0): the probability that a gate is not closed."""
    return torch.sigmoid(logits - _BETA * math.log(-_GAMMA / _ZETA))


scores.register("masks")(
    Score(
        "masks",
        "learned hard-concrete gates: the probability that each stays open",
        score,
        {
            "steps": Option(120, "steps of training, a forward and a backward pass each", low=1),
            "sparsity": Option(1.0, "weight of the share of open gates, at the last step", low=0),
            "rate": Option(0.2, "learning rate", low=1e-4),
            "seed": Option(0, "seed of the gates' draws"),
        },
        edges=score_edges,
    )
)
