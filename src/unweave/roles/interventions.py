"""Checks by intervention: swap the attended token, ablate a node, take a feeder's share out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unweave.batch import Batch
from unweave.model.model import Model
from unweave.model.program import Inputs
from unweave.roles.feeds import input_sites
from unweave.roles.runs import Edit, Runner, Seen, ablated
from unweave.roles.shares import share_of
from unweave.roles.writes import node_write, outputs_of, unembed
from unweave.scores.problem import Problem
from unweave.sites import HEAD_KINDS, Site

Index = Int[Tensor, " batch"]


@dataclass(frozen=True, eq=False)
class Swap:
    """Prompts in which the tokens that heads attend to are other ones.

    Args:
        swapped: Where a token was replaced.
    """

    inputs: Inputs
    swapped: Bool[Tensor, "batch position"]


def swap_tokens(inputs: Inputs, tos: Iterable[Index], also: Int[Tensor, "batch n"]) -> Swap | None:
    """Replaces tokens that heads attend to, and some others, wherever they stand in a prompt.

    A token is replaced by one that was to be replaced in another prompt, and that this prompt does
    not have: a name by another name. None where there is no such token.

    Args:
        tos: Where heads attend to, one index a prompt.
        also: Further tokens to replace where a prompt has them; −1 is none.
    """
    tokens = inputs.tokens
    assert tokens is not None
    given = [
        sorted({int(row[to[b]]) for to in tos} | (set(also[b].tolist()) & set(row.tolist())))
        for b, row in enumerate(tokens)
    ]
    pool = sorted({token for row in given for token in row})
    if not pool:
        return None
    new = tokens.clone()
    for b, row in enumerate(given):
        here = set(tokens[b].tolist())
        # Begin elsewhere in each prompt, so that the new tokens differ between prompts.
        fresh = [t for t in pool[b % len(pool) :] + pool[: b % len(pool)] if t not in here]
        for old, other in zip(row, fresh, strict=False):
            new[b][tokens[b] == old] = other
    changed = (new != tokens) & inputs.mask
    return Swap(replace(inputs, tokens=new), changed) if bool(changed.any()) else None


@dataclass(frozen=True)
class Followed:
    """What a head does once tokens are swapped, as shares of the prompts in which they were.

    Args:
        token: Its write favours the new token where it attends over the old, more than before.
        answer: Its write favours the new token in the answer's place over the answer, likewise.
        stays: It attends to the same position most.
    """

    token: float
    answer: float
    stays: float


def follow(
    model: Model,
    head: Site,
    clean: Seen,
    swapped: Seen,
    swap: Swap,
    batch: Batch,
    at: Index,
    to: Index,
) -> Followed:
    """Whether a head's write follows the tokens when they are swapped.

    Args:
        at: Where the head matters.
        to: Where it attends from there.
    """
    before, after = batch.clean.tokens, swap.inputs.tokens
    assert before is not None
    assert after is not None
    rows = torch.arange(len(at), device=at.device)
    change = swapped.at[head.point] - clean.at[head.point]
    write = node_write(model, head, change)[rows, at]

    def favours(place: Index, known: Bool[Tensor, " batch"]) -> float:
        old, new = (outputs_of(model, x[rows, place]) for x in (before, after))
        known = known & swap.swapped[rows, place] & (old >= 0) & (new >= 0)
        if not bool(known.any()):
            return float("nan")
        gain = [unembed(model, write[known], x[known]).diagonal() for x in (new, old)]
        return float((gain[0] > gain[1]).float().mean())

    answers = outputs_of(model, before) == batch.readout.answers[:, :1]
    pattern = swapped.patterns[head.at(None)][rows, at].clone()
    pattern[:, 0] = torch.where(to == 0, pattern[:, 0], 0.0)
    anywhere = torch.ones_like(swap.swapped[:, 0])
    there = swap.swapped[rows, to]
    stays = (pattern.argmax(-1) == to)[there].float()
    return Followed(
        favours(to, anywhere),
        favours(answers.long().argmax(-1), answers.any(-1)),
        float(stays.mean()) if len(stays) else float("nan"),
    )


@dataclass(frozen=True)
class Moved:
    """A head (or MLP) without its named feeders' share of one input.

    Args:
        output: How far its output falls towards the ablation: ⟨z − z′, z − μ⟩/‖z − μ‖².
        error: Standard error of it over prompts.
    """

    output: float
    error: float

    @property
    def held(self) -> bool:
        """At least a tenth, and clear of chance."""
        return self.output >= 0.1 and self.output > 2 * self.error


def without_feeders(
    problem: Problem,
    runner: Runner,
    node: Site,
    feeders: Mapping[str, Sequence[Site]],
    at: Index,
    total: Float[Tensor, "batch position *unit"],
) -> tuple[dict[str, Moved], Float[Tensor, " batch"]]:
    """Puts into each input of a node what it is without its named feeders, all else as it was.

    1. A run without the feeders (of every input together) gives the inputs.
    2. The node's own block runs with one input replaced: how far does its output move?
    3. The node's output with all of them replaced runs to the end: what does the metric lose?

    Args:
        feeders: By branch ("q", "k", "v"; "" of an MLP), the nodes named for it.
        total: The activation at the node's point.
    """
    layer, sites = node.point.layer, input_sites(problem.model, node)
    every = {feeder for named in feeders.values() for feeder in named}
    points = {sites[branch].point for branch in feeders}
    edits = ablated(every, problem.ablation, runner.batch)
    seen, _ = runner.run(edits, points=points, last=layer)

    def output(branches: Sequence[str]) -> Tensor:
        if node.point.kind not in HEAD_KINDS:
            return seen.at[node.point]
        own = {sites[b].point: _unit_of(seen.at[sites[b].point], sites[b]) for b in branches}
        return runner.run(own, points=[node.point], last=layer)[0].at[node.point]

    rows = torch.arange(len(at), device=at.device)
    mine = (rows, at, node.unit) if node.point.kind in HEAD_KINDS else (rows, at)
    away = (total - problem.ablation.at(node.point, total))[mine]
    moved = {}
    for branch in feeders:
        change = ((total - output([branch]))[mine] * away).sum(-1)
        fall = share_of(change, away.pow(2).sum(-1))
        moved[branch] = Moved(fall.value, fall.error)
    joint = output(list(feeders))
    new = _unit_of(joint, node) if node.point.kind in HEAD_KINDS else (lambda x: joint)
    _, metric = runner.run({node.point: new})
    assert metric is not None
    return moved, runner.metric - metric


def attention_shift(
    problem: Problem,
    runner: Runner,
    head: Site,
    attended: Float[Tensor, "batch key"],
    readers: Mapping[Site, Index],
    patterns: Mapping[Site, Float[Tensor, "batch query key"]],
) -> dict[Site, Float[Tensor, " batch"]]:
    """How a head changes what later heads attend to: their weight on the tokens that it attends.

    Clean weight less weight without the head; negative: it turns them away from these tokens.

    Args:
        attended: The head's own weight on each key; it counts for every key with that token.
        readers: Where each later head matters.
    """
    tokens = runner.batch.clean.tokens
    assert tokens is not None
    same = (tokens[:, :, None] == tokens[:, None, :]).to(attended.dtype)
    likeness = (same @ attended[:, :, None])[..., 0]
    last = max(reader.point.layer for reader in readers)
    edits = ablated([head], problem.ablation, runner.batch)
    seen, _ = runner.run(edits, heads=readers, last=last)
    rows = torch.arange(len(tokens), device=tokens.device)
    return {
        reader: ((patterns[reader] - seen.patterns[reader])[rows, at] * likeness).sum(-1)
        for reader, at in readers.items()
    }


def _unit_of(values: Tensor, site: Site) -> Edit:
    def edit(x: Tensor) -> Tensor:
        x = x.clone()
        x[:, :, site.unit] = values[:, :, site.unit]
        return x

    return edit
