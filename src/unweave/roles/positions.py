"""The positions at which a node matters, and what its output depends on there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unweave.ablation import position_mask
from unweave.batch import Batch
from unweave.decomposition.api import relevance
from unweave.decomposition.paths import ELSEWHERE
from unweave.roles.runs import Cost
from unweave.scores.gradients import differences, metric_gradients, parts
from unweave.scores.problem import Problem
from unweave.sites import HEAD_KINDS, Site

Weights = Float[Tensor, "batch position"]
Index = Int[Tensor, " batch"]

_FAINT = 0.1  # of the largest singular value: directions below do not count
_CLEAR = 0.1  # of a prompt's largest weight: positions below are out of reach


@dataclass(frozen=True, eq=False)
class Matter:
    """Where a node matters, and which directions of its output do.

    Args:
        weights: |⟨∂m/∂z, z − μ⟩| at each position. Where every gradient is 0, as in a saturated
            model: the exact effect of ablating the node at each labelled position.
        reach: ‖∂m/∂z‖ at each position: where it would matter if it wrote anything.
        directions: Orthonormal, of the gradients at these positions; all where there is none.
    """

    weights: Weights
    reach: Weights
    directions: Float[Tensor, "d n"]


def matters(problem: Problem, nodes: Sequence[Site], cost: Cost) -> dict[Site, Matter]:
    """Where each node matters, to first order: one backward pass for all."""
    batch = problem.batch
    cost.add("positions", 3 * batch.clean.mask.numel(), cost.layers)
    sizes: dict[Site, list[Tensor]] = {node: [] for node in nodes}
    pulls: dict[Site, list[Tensor]] = {node: [] for node in nodes}
    points = {node.point for node in nodes}
    for part in parts(len(batch), problem.model.network.device):
        some, ablation = batch.select(part), problem.ablation.select(part)
        gradients, values, _ = metric_gradients(problem.model, some, points)
        deltas = differences(values, ablation, some)
        for node in nodes:
            delta, pull = (unit_of(x[node.point], node) for x in (deltas, gradients))
            size = ((pull * delta).sum(-1).abs(), pull.norm(dim=-1))
            sizes[node].append(torch.stack([_everywhere(x, node, some) for x in size]))
            pulls[node].append(pull.flatten(0, 1))
    found = {node: torch.cat(sizes[node], 1) for node in nodes}
    dead = [node for node in nodes if not float(found[node][0].sum()) > 0]
    if dead:
        found |= {node: x.expand(2, -1, -1) for node, x in _exact(problem, dead, cost).items()}
    return {
        node: Matter(found[node][0], found[node][1], _directions(torch.cat(pulls[node])))
        for node in nodes
    }


def _exact(problem: Problem, nodes: Sequence[Site], cost: Cost) -> dict[Site, Weights]:
    """|m(M) − m(M without the node at a position)| at the labelled positions that it has."""
    batch, names = problem.batch, list(problem.batch.positions)
    sources = [node.at(name) for node in nodes for name in names]
    effects = relevance(
        problem.model, batch, sources, rules="removal", ablation=problem.ablation, pairs=()
    ).examples.abs()
    cost.add_sweep("positions", batch, sources)
    effects = effects.to(problem.model.network.device).unflatten(0, (len(nodes), len(names)))
    rows = torch.arange(len(batch), device=effects.device)
    found = {}
    for node, own in zip(nodes, effects, strict=True):
        weights = own.new_zeros(batch.clean.mask.shape)
        for name, effect in zip(names, own, strict=True):
            weights[rows, batch.positions[name]] = effect
        where = position_mask(node, batch.clean, batch.positions)
        own_positions = batch.clean.mask if where is None else where
        weights = weights * own_positions
        # It matters at none of them: every position of its own alike.
        found[node] = weights if float(weights.sum()) > 0 else own_positions.to(weights.dtype)
    return found


def _directions(pulls: Float[Tensor, "n d"]) -> Float[Tensor, "d k"]:
    """What the gradients span, less what hardly counts: a tenth of the largest singular value."""
    strengths, vectors = torch.linalg.eigh(pulls.T @ pulls)
    kept = strengths > _FAINT**2 * strengths.max()
    return vectors[:, kept] if float(strengths.max()) > 0 else vectors


def along(x: Float[Tensor, "batch position d"], directions: Float[Tensor, "d k"]) -> Tensor:
    """An output in the directions that matter; whole where it has nothing in them."""
    inside = x @ directions
    return inside if float(inside.pow(2).sum()) > 1e-6 * float(x.pow(2).sum()) else x


def unit_of(x: Tensor, node: Site) -> Float[Tensor, "batch left d"]:
    """A node's own part of the activation at its point."""
    return x[:, :, node.unit] if node.point.kind in HEAD_KINDS else x


def _everywhere(x: Float[Tensor, "batch left"], node: Site, batch: Batch) -> Weights:
    """At every position: the last MLP has only what is read, a node at a position only that."""
    mask, rows = batch.clean.mask, torch.arange(len(x), device=x.device)
    whole = x.new_zeros(mask.shape)
    if x.shape[1] < mask.shape[1]:
        whole[rows, batch.readout.read] = x[:, 0]
    else:
        whole = x * mask
    where = position_mask(node, batch.clean, batch.positions)
    return whole if where is None else whole * where


def by_label(weights: Weights, positions: Mapping[str, Index]) -> dict[str, float]:
    """The share of a weight on each labelled position; a position with two labels counts once."""
    rows = torch.arange(len(weights), device=weights.device)
    left, whole = weights.clone(), float(weights.sum())
    found = {}
    # The position that is read has its own label, and keeps it.
    for name in sorted(positions, key=lambda name: name != "end"):
        found[name] = float(left[rows, positions[name]].sum()) / whole if whole else 0.0
        left[rows, positions[name]] = 0.0
    found[ELSEWHERE] = float(left.sum()) / whole if whole else 0.0
    return found


def by_own_token(
    weights: Weights, tokens: Int[Tensor, "batch position"], most: int = 3
) -> dict[int, float]:
    """The share of a weight on the positions of each token, the largest few."""
    known, number = tokens.unique(return_inverse=True)
    sums = weights.new_zeros(len(known)).index_add_(0, number.flatten(), weights.flatten())
    whole = float(sums.sum())
    if not whole:
        return {}
    best = sums.argsort(descending=True)[:most].tolist()
    return {int(known[i]): float(sums[i]) / whole for i in best if float(sums[i]) > 0}


def main_position(
    weights: Weights, positions: Mapping[str, Index], least: float = 0.5
) -> tuple[str, Index]:
    """The label that holds most of a weight, or each prompt's own largest position ("")."""
    shares = by_label(weights, positions)
    named = {name: share for name, share in shares.items() if name != ELSEWHERE}
    best = max(named, key=lambda name: named[name], default="")
    if best and named[best] >= least:
        return best, positions[best]
    return "", weights.argmax(-1)


def varies(
    output: Float[Tensor, "batch position d"],
    corrupted: Float[Tensor, "batch position d"],
    weights: Weights,
    groups: Int[Tensor, " batch"],
) -> float:
    """E‖o − ō‖² / E‖o‖² at the positions that matter, ō the mean at that position of a template.

    In the directions that matter, clean and corrupted prompts together: 0 says that the output is
    the same whatever the tokens.
    """
    within = whole = 0.0
    for group in groups.unique():
        here = groups == group
        own, weight = torch.cat((output[here], corrupted[here])), weights[here].sum(0)
        spread = (own - own.mean(0)).pow(2).sum(-1).sum(0) / (len(own) - 1)
        within += float((spread * weight).sum())
        whole += float((own.pow(2).sum(-1).mean(0) * weight).sum())
    return within / whole if whole else float("nan")


def by_token(
    output: Float[Tensor, "batch position d"],
    reach: Weights,
    tokens: Int[Tensor, "batch position"],
) -> float:
    """The share of an output's variance that the token at its own position explains.

    `1 − (variance among outputs at one token) / (variance of all)`, in the directions that matter,
    at the positions within reach of the metric, over tokens that are there twice or more; both
    variances unbiased.
    """
    clear = reach > _CLEAR * reach.amax(-1, keepdim=True)
    rows, ids = output[clear], tokens[clear]
    known, number, counts = ids.unique(return_inverse=True, return_counts=True)
    often = counts[number] > 1
    if len(known) < 2 or int((counts > 1).sum()) < 2:
        return float("nan")
    rows, number = rows[often], number[often]
    sums = rows.new_zeros(len(known), rows.shape[1]).index_add_(0, number, rows)
    means = sums / counts.clamp(min=1)[:, None]
    free = len(rows) - int((counts > 1).sum())
    within = float((rows - means[number]).pow(2).sum()) / free
    whole = float((rows - rows.mean(0)).pow(2).sum()) / (len(rows) - 1)
    return 1 - within / whole if whole > 0 else float("nan")
