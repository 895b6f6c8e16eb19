"""How well scores find a known circuit: ROC AUC by rank, and the paper's percentile sweep.

docs/method.md §9. The rank AUC asks all thresholds; the paper asks ten, percentiles 90–99, and
joins their points to (0, 0) and (1, 1) by straight lines.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unweave.circuits import Scores
from unweave.sites import HEAD_KINDS, Site, parse

PERCENTILES = tuple(range(90, 100))


@dataclass(frozen=True)
class Roc:
    """Scores against one known circuit.

    Args:
        auc: Rank AUC over all nodes; None when the circuit holds all of them or none.
        points: (percentile, false positive rate, true positive rate) of the paper's sweep.
        sweep_auc: Area below those points.
        known: How many of the nodes belong to the known circuit.
        nodes: How many were ranked.
    """

    auc: float | None
    sweep_auc: float | None
    points: tuple[tuple[int, float, float], ...]
    known: int
    nodes: int


def rank_auc(
    keys: Float[Tensor, " node"] | Sequence[float], positive: Bool[Tensor, " node"] | Sequence[bool]
) -> float | None:
    """Probability that a known node outranks another, ties counting half (Mann–Whitney U)."""
    keys = torch.as_tensor(keys, dtype=torch.double)
    positive = torch.as_tensor(positive, dtype=torch.bool)
    found, other = keys[positive], keys[~positive]
    if not len(found) or not len(other):
        return None
    above = (found[:, None] > other).double() + 0.5 * (found[:, None] == other).double()
    return float(above.mean())


def sweep(
    keys: Float[Tensor, " node"] | Sequence[float],
    positive: Bool[Tensor, " node"] | Sequence[bool],
    percentiles: Sequence[int] = PERCENTILES,
) -> tuple[tuple[int, float, float], ...]:
    """(percentile, false positive rate, true positive rate) of the nodes above each percentile."""
    keys = torch.as_tensor(keys, dtype=torch.double)
    positive = torch.as_tensor(positive, dtype=torch.bool)
    if not positive.any() or positive.all():
        return ()
    points = []
    for percentile in percentiles:
        chosen = keys >= torch.quantile(keys, percentile / 100)
        true, false = chosen[positive].double().mean(), chosen[~positive].double().mean()
        points.append((percentile, float(false), float(true)))
    return tuple(points)


def sweep_auc(points: Sequence[tuple[int | float, float, float]]) -> float | None:
    """Area below the sweep's points, joined with (0, 0) and (1, 1)."""
    if not points:
        return None
    line = sorted({(0.0, 0.0), (1.0, 1.0), *((false, true) for _, false, true in points)})
    x, y = torch.tensor(line, dtype=torch.double).T
    return float(torch.trapezoid(y, x))


def roc(scores: Scores, known: Collection[Site]) -> Roc:
    """Compares scores with one known circuit.

    Heads are ranked against heads; MLPs too where the known circuit names any, since a published
    list of heads says nothing about MLPs. A node that is split into positions counts with its
    best.
    """
    keys = node_keys(scores)
    kinds = {*HEAD_KINDS, *(site.point.kind for site in known)}
    keys = {site: key for site, key in keys.items() if site.point.kind in kinds}
    wanted = {site.at(None) for site in known}
    values, positive = list(keys.values()), [site in wanted for site in keys]
    points = sweep(values, positive) if values else ()
    auc = rank_auc(values, positive) if values else None
    return Roc(auc, sweep_auc(points), points, sum(positive), len(values))


def node_keys(scores: Scores) -> dict[Site, float]:
    """What nodes are ranked by, the largest first: magnitude, or the place in a given order."""
    if getattr(scores, "order", None):
        order = scores.ranking()
        ranked = {name: float(len(order) - i) for i, name in enumerate(order)}
    else:
        magnitudes = scores.values.abs().tolist()
        ranked = dict(zip(scores.sources, magnitudes, strict=True))
    keys: dict[Site, float] = {}
    for name, key in ranked.items():
        site = parse(name).at(None)
        keys[site] = max(key, keys.get(site, key))
    return keys


def roc_of_each(scores: Scores, known: Mapping[str, Collection[Site]]) -> dict[str, Roc]:
    """One comparison for each named circuit ("published", "augmented")."""
    return {name: roc(scores, nodes) for name, nodes in known.items()}
