"""What feeds a node: shares of its query, key and value by decomposition, and exact effects.

One sweep with the rule set `removal` gives both: β at an input is what the source changes there,
through every path, and β at the logits is the exact effect of ablating it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unweave.ablation import Ablation
from unweave.decomposition.api import relevance
from unweave.model.model import Model
from unweave.roles.runs import Cost
from unweave.roles.shares import NAMED
from unweave.scores.problem import Problem
from unweave.sites import HEAD_KINDS, Point, Site

Index = Int[Tensor, " batch"]
Totals = Mapping[Point, Float[Tensor, "batch position *unit"]]
# Below this share of its size, an input does not change with the prompt: it has no feeders.
_STILL = 1e-6


@dataclass(frozen=True)
class Fed:
    """Effects and shares from one sweep.

    Args:
        effects: By source, m(M) − m(M without it) of each prompt.
        shares: By input ("a9.h9.q"), of each source upstream: ⟨β, T − μ⟩/‖T − μ‖², where the
            node matters (its query) or where it attends (its key and value). An input that does
            not change with the prompt has none.
    """

    effects: Mapping[str, Float[Tensor, " batch"]]
    shares: Mapping[str, Mapping[str, float]]

    def inputs_of(self, node: Site) -> dict[str, dict[str, float]]:
        """By input of a node ("" of an MLP), its sources, the largest share first."""
        branches = ("q", "k", "v") if node.point.kind in HEAD_KINDS else ("",)
        found = {
            branch: self.shares[f"{node}.{branch}" if branch else str(node)] for branch in branches
        }
        return {
            branch: dict(sorted(shares.items(), key=lambda x: -abs(x[1])))
            for branch, shares in found.items()
        }

    def read_by(self, node: Site) -> dict[str, float]:
        """The inputs of later nodes of which this node is a share worth naming."""
        name = str(node)
        found = {x: shares[name] for x, shares in self.shares.items() if name in shares}
        found = {x: share for x, share in found.items() if abs(share) >= NAMED}
        return dict(sorted(found.items(), key=lambda x: -abs(x[1])))


def input_sites(model: Model, node: Site) -> dict[str, Site]:
    """The inputs of a head by branch; of an MLP, its own output, which is what can be read."""
    if node.point.kind not in HEAD_KINDS:
        return {"": node.at(None)}
    attention = model.network.body.blocks[node.point.layer].attention
    assert node.unit is not None
    shared = node.unit // (attention.heads // attention.kv_heads)
    layer = node.point.layer
    return {
        "q": Site(Point("q", layer), node.unit),
        "k": Site(Point("k", layer), shared),
        "v": Site(Point("v", layer), shared),
    }


def needed_points(model: Model, nodes: Iterable[Site]) -> set[Point]:
    """Where an ablation has to hold values for `fed_by`."""
    inputs = {site.point for node in nodes for site in input_sites(model, node).values()}
    return inputs | {node.point for node in nodes} | {Point("embed")}


def completed(problem: Problem, points: Iterable[Point], corrupted: Totals) -> Problem:
    """The problem with an ablation that holds these points too.

    Points that it does not hold get the mean over the corrupted prompts of the same template.

    Args:
        corrupted: Activations of the corrupted prompts at these points.
    """
    ablation, batch = problem.ablation, problem.batch
    missing = [point for point in points if ablation.values and point not in ablation.values]
    if not missing:
        return problem
    known, rows = batch.groups.unique(return_inverse=True)
    sizes = torch.bincount(rows)
    length = batch.clean.mask.shape[1]
    values = {
        point: x if ablation.rows is None else x[ablation.rows]
        for point, x in ablation.values.items()
    }
    for point in missing:
        x = corrupted[point][:, :length]
        sums = x.new_zeros(len(known), length, *x.shape[2:])
        sums[:, : x.shape[1]].index_add_(0, rows, x)
        values[point] = (sums / sizes.reshape(-1, *(1,) * (x.ndim - 1)))[rows]
    return replace(problem, ablation=Ablation(ablation.name, values))


def fed_by(
    problem: Problem,
    nodes: Sequence[Site],
    froms: Mapping[Site, Index],
    tos: Mapping[Site, Index],
    totals: Totals,
    cost: Cost,
) -> Fed:
    """Effects of nodes on the metric, and what feeds each of them.

    Sources are the nodes and the token at every labelled position. Shares count every path, also
    those through other nodes, so they may add up to more than 1.

    Args:
        froms: Where each node matters.
        tos: Where each head attends from there.
        totals: Activations of the same prompts at the nodes' inputs.
    """
    model, batch = problem.model, problem.batch
    tokens = [Site(Point("embed"), None, name) for name in batch.positions]
    named, targets, labels, owners = dict(batch.positions), [], [], []
    for node in nodes:
        for branch, site in input_sites(model, node).items():
            where = "to" if branch in ("k", "v") else "from"
            name = f"{where} {node}"
            named[name] = (tos if where == "to" else froms)[node]
            targets.append(site.at(name))
            labels.append(f"{node}.{branch}" if branch else str(node))
            owners.append(node)
    sources = [*nodes, *tokens]
    found = relevance(
        model,
        batch,
        sources,
        rules="removal",
        ablation=problem.ablation,
        pairs=targets,
        positions=named,
    )
    cost.add_sweep("feeds", batch, sources)
    sizes = _sizes(problem, targets, named, totals)
    signed = found.pairs["signed"]
    shares = {}
    for column, (label, size) in enumerate(zip(labels, sizes, strict=True)):
        if size is None:
            shares[label] = {}
            continue
        shares[label] = {
            str(source): float(signed[row, column]) / size
            for row, source in enumerate(sources)
            if source != owners[column] and source.point.depth < targets[column].point.depth
        }
    effects = {str(source): found.examples[row] for row, source in enumerate(sources)}
    return Fed(effects, shares)


def _sizes(
    problem: Problem,
    targets: Sequence[Site],
    named: Mapping[str, Index],
    totals: Totals,
) -> list[float | None]:
    """Mean ‖T − μ‖² at each target; None where that is nothing beside ‖T‖²."""
    rows = torch.arange(len(problem.batch), device=problem.batch.groups.device)
    sizes: list[float | None] = []
    for target in targets:
        total = totals[target.point]
        index = (rows, named[str(target.position)])
        index = (*index, target.unit) if target.point.kind in HEAD_KINDS else index
        own = total[index]
        away = own - problem.ablation.at(target.point, total)[index]
        size, whole = (float(x.pow(2).sum(-1).mean()) for x in (away, own))
        sizes.append(size if size > _STILL * whole else None)
    return sizes
