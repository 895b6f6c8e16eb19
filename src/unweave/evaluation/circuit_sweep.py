"""Circuits of one method at several thresholds against a known circuit: the paper's ROC.

The paper runs its algorithm again at each of the percentiles 90–99 and compares the circuits that
it returns with the published one. Thresholding one final ranking instead (`roc.sweep`) cannot
reach 1: at most a tenth of the nodes is ever picked.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from unweave.evaluation.roc import sweep_auc
from unweave.sites import HEAD_KINDS, Site


@dataclass(frozen=True)
class CircuitSweep:
    """Where the circuits of a method lie.

    Args:
        points: (threshold, false positive rate, true positive rate) of each circuit.
        auc: Area below these points, joined with (0, 0) and (1, 1); None where every node or none
            belongs to the known circuit.
        known: How many of the nodes belong to the known circuit.
        nodes: How many nodes were compared.
    """

    points: tuple[tuple[int | float, float, float], ...]
    auc: float | None
    known: int
    nodes: int


def circuit_sweep(
    circuits: Mapping[int | float, Collection[Site]], nodes: Sequence[Site], known: Collection[Site]
) -> CircuitSweep:
    """Compares circuits, by their thresholds, with a known one.

    MLPs count only where the known circuit names any, since a published list of heads says nothing
    about them. A node that is split into positions counts as one.
    """
    kinds = {*HEAD_KINDS, *(site.point.kind for site in known)}
    asked = {site.at(None) for site in nodes if site.point.kind in kinds}
    wanted = {site.at(None) for site in known} & asked
    others = asked - wanted
    if not wanted or not others:
        return CircuitSweep((), None, len(wanted), len(asked))
    points = []
    for threshold, circuit in circuits.items():
        found = {site.at(None) for site in circuit}
        false, true = len(found & others) / len(others), len(found & wanted) / len(wanted)
        points.append((threshold, false, true))
    return CircuitSweep(tuple(points), sweep_auc(points), len(wanted), len(asked))
