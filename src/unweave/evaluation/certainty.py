"""Which nodes of a circuit are certain: effects with their errors, and what could replace them.

All on check prompts: no circuit was polished on them, but the search may have measured there how
far its circuit was off.

1. Every node leaves the circuit, and every candidate outside joins it, one at a time. 2. The
effect of a node is what faithfulness loses without it, with its 95% interval. 3. Prompts are
resampled: the frequency of a node is the share of resamples in which it is worth its price. 4. A
candidate j can take the place of node i if the circuit with j instead of i is not worse, and of
what changes without i at least half is back; pairs that effects, added up, call possible are run.
Not to be worse is not enough: a circuit above 1 comes nearer without any of its nodes.

Both comparisons of 4 leave room for rounding: 1e-4 of what ablating everything changes. Without it,
whether a node that changes nothing can be replaced would depend on the order in which a CPU adds.

A node is *interchangeable* if another can take its place, *core* if none can and faithfulness
changes by more than a tenth without it, at both ends of the interval, and *supporting* otherwise.
Being worth its price is not enough: nodes that are worth just that are in one circuit and not in
the next, as prompts change. Nor is an effect in this circuit: it depends on which other nodes the
circuit has. So the whole model has to miss a core node as much, where every node is there that
could do its work.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unweave.circuits import Evidence
from unweave.estimates import Estimate, estimate
from unweave.scores.problem import Problem
from unweave.search.loss import Loss
from unweave.sites import Site

_RESAMPLES = 200
# Rounding of a circuit's metric, with room, as a share of what ablating everything changes: a node
# that changes nothing is replaced by others that change nothing, on any machine.
_ROUNDING = 1e-4
CORE = 0.1  # what faithfulness changes by without a node of the core, at least


def certainty(
    problem: Problem, circuit: Sequence[Site], outside: Sequence[Site], price: float
) -> dict[str, Evidence]:
    """Evidence for every node of a circuit.

    Args:
        problem: Prompts that the circuit was not found on.
        outside: Candidates that may take a node's place.
        price: What a node has to be worth.
    """
    loss, reference, own = Loss.of(problem), problem.reference, len(circuit)
    base, flipped = problem.metric([circuit]), problem.flipped(circuit, [*circuit, *outside])
    effects = reference.samples(base) - reference.samples(flipped[:own])
    gains = loss.parts(flipped) - loss.parts(base)
    needed = _frequency(gains[:own], price)
    swaps = _swaps(problem, loss, circuit, outside, base, flipped)
    found = [estimate(one) for one in effects]
    likely = [i for i in range(own) if _large(found[i]) and not swaps[i]]
    left = problem.flipped(problem.nodes, [circuit[i] for i in likely]) if likely else base[:0]
    missed = map(estimate, reference.samples(reference.full) - reference.samples(left))
    whole = dict(zip(likely, missed, strict=True))
    evidence = {}
    for i, node in enumerate(circuit):
        group = "core" if i in whole and _large(whole[i]) else "supporting"
        if swaps[i]:
            group = "interchangeable"
        interval, often = (found[i].low, found[i].high), float(needed[i])
        value = whole[i].value if i in whole else None
        evidence[str(node)] = Evidence(found[i].value, interval, often, group, swaps[i], value)
    return evidence


def _large(effect: Estimate) -> bool:
    """Whether an effect is one that a core node has, at both ends of its interval."""
    return max(effect.low, -effect.high) > CORE


def _frequency(gains: Float[Tensor, "node batch"], price: float) -> Float[Tensor, " node"]:
    """In which share of resampled prompts the circuit is worse without each node, at its price."""
    draw = torch.Generator().manual_seed(0)
    count = gains.shape[1]
    rows = torch.randint(count, (_RESAMPLES, count), generator=draw).to(gains.device)
    return (gains[:, rows].mean(2) > price).double().mean(1)


def _swaps(
    problem: Problem,
    loss: Loss,
    circuit: Sequence[Site],
    outside: Sequence[Site],
    base: Float[Tensor, "1 batch"],
    flipped: Float[Tensor, "change batch"],
) -> list[tuple[str, ...]]:
    """By node of the circuit, the candidates that can take its place."""
    without, added = flipped[: len(circuit)], flipped[len(circuit) :]
    nothing = _ROUNDING * float(problem.reference.scale.abs())

    def holds(i: int, metric: Float[Tensor, "circuit batch"]) -> Bool[Tensor, " circuit"]:
        lost = (without[i] - base).abs().mean()
        no_worse = loss(metric) <= loss(base) + _ROUNDING
        return no_worse & ((metric - base).abs().mean(1) <= lost / 2 + nothing)

    pairs = []
    for i in range(len(circuit)):
        # To first order changes add up; the best guess of each node is then run.
        guesses = without[i] + added - base
        if len(able := holds(i, guesses).nonzero().flatten()):
            pairs.append((i, int(able[loss(guesses[able]).argmin()])))
    swapped = [(*(node for k, node in enumerate(circuit) if k != i), outside[j]) for i, j in pairs]
    found: list[tuple[str, ...]] = [()] * len(circuit)
    if pairs:
        for (i, j), metric in zip(pairs, problem.metric(swapped), strict=True):
            if holds(i, metric[None]):
                found[i] = (str(outside[j]),)
    return found
