"""Which token of the corrupted prompt corresponds to each token of the clean one."""

from collections.abc import Sequence
from difflib import SequenceMatcher

import torch
from jaxtyping import Int
from torch import Tensor

from unweave.model.program import Inputs


def paired(clean: Sequence[int], corrupted: Sequence[int]) -> list[int | None]:
    """For each token of a prompt, the position of its counterpart in the pair, if there is one.

    Tokens that both share, in the order of a longest match, are each other's counterparts, and so
    are tokens that replace each other, spread evenly where their numbers differ.
    """
    found: list[int | None] = []
    blocks = SequenceMatcher(None, clean, corrupted, autojunk=False).get_opcodes()
    for _, start, end, from_, to in blocks:
        for i in range(end - start):
            found.append(from_ + i * (to - from_) // (end - start) if to > from_ else None)
    return found


def counterparts(clean: Sequence[int], corrupted: Sequence[int]) -> list[int]:
    """As `paired`; a token without a counterpart gets the position of the token before it."""
    found, last = [], 0
    for position in paired(clean, corrupted):
        last = last if position is None else position
        found.append(last)
    return found


def aligned_positions(clean: Inputs, corrupted: Inputs) -> Int[Tensor, "batch clean_position"]:
    """`counterparts` of every pair of a batch; padding points at position 0."""
    assert clean.tokens is not None, "prompts of a task are tokens"
    assert corrupted.tokens is not None, "prompts of a task are tokens"
    where = torch.zeros_like(clean.tokens)
    for row, (ours, theirs) in enumerate(zip(clean.tokens, corrupted.tokens, strict=True)):
        real, other = clean.mask[row], corrupted.mask[row]
        places = other.nonzero()[:, 0]
        index = counterparts(ours[real].tolist(), theirs[other].tolist())
        where[row, real] = places[torch.tensor(index, device=places.device)]
    return where
