"""Runs without one node or token each, and what they show of all that reads it.

Each source is ablated once. From that run come the inputs of the nodes that it feeds (is what it
gives them used?) and the patterns of the heads whose query it changes (where do they attend now?).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor

from unweave.ablation import Ablation
from unweave.roles.feeds import Fed
from unweave.roles.inputs import Moved, TakenOut
from unweave.roles.interventions import attention_shift
from unweave.roles.measurements import Figure, Shift
from unweave.roles.runs import Runner, Seen, ablated
from unweave.roles.shares import NAMED, feeders_of
from unweave.scores.problem import Problem
from unweave.sites import Point, Site

ByBranch = dict[str, Moved]


@dataclass
class Without:
    """What is seen without each source.

    Args:
        whole: By node and input, what its output loses without the whole of it.
        fed: By node, input and source, what it loses without the source in that input.
        shifts: By head and later head, how it changes that one's attention.
    """

    whole: dict[Site, ByBranch] = field(default_factory=dict)
    fed: dict[Site, dict[str, ByBranch]] = field(default_factory=dict)
    shifts: dict[Site, dict[str, Shift]] = field(default_factory=dict)


def without_each(
    part: Problem,
    runner: Runner,
    nodes: Sequence[Site],
    fed: Fed,
    taken: TakenOut,
    patterns: Mapping[Site, Float[Tensor, "batch query key"]],
    attended: Mapping[Site, Float[Tensor, "batch key"]],
) -> Without:
    """Takes named feeders out of the inputs that they feed, and heads out of later queries.

    Args:
        patterns: Of every head.
        attended: Weight of every head on each key, from where it matters.
    """
    found, uses = Without(), {}
    for node in nodes:
        for branch, shares in fed.inputs_of(node).items():
            for source in feeders_of(shares):
                uses.setdefault(source, []).append((node, branch))
                found.whole.setdefault(node, {}).setdefault(branch, taken.whole(node, branch))
    readers = {
        str(head): [
            reader
            for reader in patterns
            if abs(fed.inputs_of(reader).get("q", {}).get(str(head), 0.0)) >= NAMED
        ]
        for head in patterns
    }
    tokens = {f"embed@{name}": Site(Point("embed"), None, name) for name in part.batch.positions}
    for name, source in ({str(node): node for node in nodes} | tokens).items():
        fed_here, turned = uses.get(name, []), readers.get(name, [])
        later = [node for node, _ in fed_here] + turned
        if not later:
            continue
        seen, _ = runner.run(
            ablated([source], part.ablation, part.batch),
            heads=[reader.at(None) for reader in turned],
            points=taken.points(node for node, _ in fed_here),
            last=max(node.point.layer for node in later),
        )
        for node, branch in fed_here:
            own = found.fed.setdefault(node, {}).setdefault(branch, {})
            own[name] = taken.of(node, branch, seen)
        if turned:
            found.shifts[source] = _shifts(part, source, attended, turned, patterns, taken, seen)
    return found


def _shifts(
    part: Problem,
    head: Site,
    attended: Mapping[Site, Float[Tensor, "batch key"]],
    readers: Sequence[Site],
    patterns: Mapping[Site, Float[Tensor, "batch query key"]],
    taken: TakenOut,
    seen: Seen,
) -> dict[str, Shift]:
    own = attended[head] / attended[head].sum(-1, keepdim=True).clamp(min=1e-30)
    found = {}
    for reader in readers:
        at = taken.at[reader]
        x = attention_shift(part.batch, own, reader.at(None), at, patterns[reader], seen)
        same_sign = (x.sign() == x.mean().sign()).float().mean()
        found[str(reader.at(None))] = Shift(Figure.of(x), float(same_sign))
    return found


def resampled(
    part: Problem,
    runner: Runner,
    node: Site,
    effects: Float[Tensor, " batch"],
    corrupted: Mapping[Point, Float[Tensor, "batch position *unit"]],
) -> float:
    """|m(M) − m(M with its output on the corrupted prompt)| over |effect|, under zero ablation.

    Args:
        effects: m(M) − m(M without it).
        corrupted: Activations of the corrupted prompts.
    """
    if part.ablation.values or not part.batch.aligned or not float(effects.mean()):
        return math.nan
    other = Ablation("corrupted", {node.point: corrupted[node.point]})
    _, metric = runner.run(ablated([node], other, runner.batch))
    assert metric is not None
    return abs(float((runner.metric - metric).mean() / effects.mean()))
