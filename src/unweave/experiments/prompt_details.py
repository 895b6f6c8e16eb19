"""Some held-out prompts in detail: what each word and each node does on that prompt alone."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.experiments.words import MOST_TOKENS, word_scores
from unweave.scores.problem import Problem
from unweave.sites import Site

SHOWN = 8  # prompts in detail
TOKENS = 256  # of these prompts together: scoring words costs a pass of the prompt for each
ENTRIES = 1_000_000  # of all attention patterns that a run keeps


def in_detail(problem: Problem, circuit: Float[Tensor, " batch"]) -> list[int]:
    """Which prompts: the first, and those on which the circuit is farthest from the model.

    Args:
        circuit: The circuit's metric on each prompt.
    """
    gaps = (circuit - problem.reference.full).abs()
    worst = gaps.argsort(descending=True, stable=True).tolist()
    lengths = problem.batch.clean.mask.sum(-1).tolist()
    chosen, left = [], TOKENS
    for index in dict.fromkeys([0, *worst]):
        left -= lengths[index]
        if len(chosen) == SHOWN or (left < 0 and chosen):
            break
        chosen.append(index)
    return chosen


def prompt_details(
    problem: Problem, sites: Sequence[Site], circuit: Float[Tensor, " batch"]
) -> dict[int, dict[str, Any]]:
    """By prompt: `words`, as `Attribution.to_json` tells; `effects` of the circuit's nodes.

    The effect of a node on a prompt is m(C) − m(C without it), in units of the metric.
    """
    chosen = in_detail(problem, circuit)
    index = torch.tensor(chosen, device=problem.batch.groups.device)
    some = problem.select(index)
    lost = circuit[index] - some.flipped(sites, sites)
    details: dict[int, dict[str, Any]] = {}
    for place, number in enumerate(chosen):
        effects = {str(site): float(x) for site, x in zip(sites, lost[:, place], strict=True)}
        words = word_scores(problem.model, some.batch.select(slice(place, place + 1)))
        details[number] = {"effects": effects, "words": words}
    return details


def patterns_kept(problem: Problem, heads: int) -> int:
    """On how many prompts attention is kept."""
    count, length = problem.batch.clean.mask.shape
    return max(1, min(count, ENTRIES // max(1, heads * min(length, MOST_TOKENS) ** 2)))
