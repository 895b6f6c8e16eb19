"""Scores of edges as a run folder holds them, and names of edges in its files."""

from pathlib import Path

from unweave.circuits import EdgeScores
from unweave.errors import UnweaveError
from unweave.experiments.files import read_checked
from unweave.graph import edge_ends
from unweave.sites import parse


def read_edge_scores(path: Path) -> EdgeScores | None:
    """Scores of a run's edges; None where there are none.

    Raises:
        UnweaveError: When the file is broken.
    """
    return read_checked(path, EdgeScores.load, _check_edge_scores)


def _check_edge_scores(scores: EdgeScores) -> None:
    if scores.values.ndim != 1 or len({*scores.edges}) != len(scores.edges):
        raise ValueError("an edge is named twice, or has more than one score")
    if scores.order and {*scores.order} != {*scores.edges}:
        raise ValueError("the order does not name every edge once")


def check_edge(name: str) -> None:
    """Raises `UnweaveError` for a name that is not that of an edge."""
    source, target, branch = edge_ends(name)
    for end in (source, target):
        if end not in ("input", "logits"):
            parse(end)
    if branch not in ("", "q", "k", "v"):
        raise UnweaveError(f"{name!r} is not an edge: expected e.g. a0.h0->a5.h1<q>")
