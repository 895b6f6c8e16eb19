"""Checks by intervention: swap the attended token, ablate a node, exchange what is written."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unweave.batch import Batch
from unweave.model.model import Model
from unweave.model.program import Inputs
from unweave.roles.runs import Seen
from unweave.roles.writes import node_write, outputs_of, unembed
from unweave.sites import Site

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
    """What a node does once tokens are swapped, as shares of the prompts in which they were.

    Args:
        token: Its write favours the new token where it attends over the old, more than before.
        answer: Its write favours the new token in the answer's place over the answer, likewise.
        stays: It attends to the same position most. This and `token` are of heads only.
    """

    token: float
    answer: float
    stays: float


def changed(
    before: Float[Tensor, "batch position d"],
    own: Float[Tensor, "batch position d"],
    matters: Float[Tensor, "batch position"],
    after: Sequence[Float[Tensor, "batch position d"]],
    where: Sequence[Bool[Tensor, "batch position"]],
) -> float:
    """Σ‖o′ − o‖² / Σ‖o − ō‖² over some positions, by how much they matter: 0, it stays as it was.

    NaN where the node does not matter at these positions, or writes nothing there.

    Args:
        own: o − ō, what the change is compared with: ō is the ablation or a mean.
        after: o′ on other prompts.
        where: Positions to compare, for each of them.
    """
    change = whole = 0.0
    for other, there in zip(after, where, strict=True):
        weights = matters * there
        whole += float((own.pow(2).sum(-1) * weights).sum())
        change += float(((other - before).pow(2).sum(-1) * weights).sum())
    return change / whole if whole > 0 else float("nan")


def follow(
    model: Model,
    node: Site,
    clean: Seen,
    swapped: Seen,
    swap: Swap,
    batch: Batch,
    at: Index,
    to: Index | None,
) -> Followed:
    """Whether a node's write follows the tokens when they are swapped.

    Args:
        at: Where the node matters.
        to: Where a head attends from there; None for an MLP.
    """
    before, after = batch.clean.tokens, swap.inputs.tokens
    assert before is not None
    assert after is not None
    rows = torch.arange(len(at), device=at.device)
    change = swapped.at[node.point] - clean.at[node.point]
    write = node_write(model, node, change)[rows, at]

    def favours(place: Index, known: Bool[Tensor, " batch"]) -> float:
        old, new = (outputs_of(model, x[rows, place]) for x in (before, after))
        known = known & swap.swapped[rows, place] & (old >= 0) & (new >= 0)
        if not bool(known.any()):
            return float("nan")
        gain = [unembed(model, write[known], x[known]).diagonal() for x in (new, old)]
        return float((gain[0] > gain[1]).float().mean())

    answers = outputs_of(model, before) == batch.readout.answers[:, :1]
    answer = favours(answers.long().argmax(-1), answers.any(-1))
    if to is None:
        return Followed(float("nan"), answer, float("nan"))
    pattern = swapped.patterns[node.at(None)][rows, at].clone()
    pattern[:, 0] = torch.where(to == 0, pattern[:, 0], 0.0)
    there = swap.swapped[rows, to]
    stays = (pattern.argmax(-1) == to)[there].float()
    return Followed(
        favours(to, torch.ones_like(there)),
        answer,
        float(stays.mean()) if len(stays) else float("nan"),
    )


def attention_shift(
    batch: Batch,
    attended: Float[Tensor, "batch key"],
    reader: Site,
    at: Index,
    before: Float[Tensor, "batch query key"],
    without: Seen,
) -> Float[Tensor, " batch"]:
    """How a head changes what a later head attends to: its weight on the tokens that it attends.

    Clean weight less weight without the head; negative: it turns the reader away from these tokens.

    Args:
        attended: The head's own weight on each key; it counts for every key with that token.
        at: Where the reader matters.
        before: The reader's pattern.
        without: A run without the head.
    """
    tokens = batch.clean.tokens
    assert tokens is not None
    same = (tokens[:, :, None] == tokens[:, None, :]).to(attended.dtype)
    likeness = (same @ attended[:, :, None])[..., 0]
    rows = torch.arange(len(tokens), device=tokens.device)
    return ((before - without.patterns[reader])[rows, at] * likeness).sum(-1)
