"""Faithfulness of a circuit under each ablation (docs/method.md §§6, 9).

A circuit is found under one ablation and believed under three: what survives a change of ablation
does not owe its figure to the ablation that it was found with.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.errors import NotFiniteError, UnweaveError
from unweave.scores.problem import N, Reference, Runs


@dataclass(frozen=True)
class Faithfulness:
    """Mean metrics of a circuit, of nothing and of the whole model, and where it lies between.

    Args:
        value: `(m(C) − m(∅)) / (m(M) − m(∅))`; None where ablating everything changes nothing.
        interval: Its 95% interval over prompts.
        prompts: How many prompts it was measured on.
    """

    metric: float
    empty: float
    full: float
    value: float | None
    interval: tuple[float, float]
    prompts: int


def measured(problem: Runs[N], circuit: Sequence[N]) -> Faithfulness:
    """One circuit with the figures behind its faithfulness; no error where there is no scale."""
    return from_metric(problem.reference, problem.metric([tuple(circuit)])[0])


def from_metric(reference: Reference, metric: Float[Tensor, " batch"]) -> Faithfulness:
    """The same from a metric that was measured already."""
    means = (float(metric.mean()), float(reference.empty.mean()), float(reference.full.mean()))
    try:
        found = reference.estimate(metric)
    except NotFiniteError:
        raise
    except UnweaveError:
        return Faithfulness(*means, None, (math.nan, math.nan), len(metric))
    return Faithfulness(*means, found.value, (found.low, found.high), found.prompts)


def by_templates(
    problem: Runs, metric: Float[Tensor, " batch"], new: Collection[str]
) -> dict[str, Faithfulness]:
    """Faithfulness on prompts of "seen" and of "new" templates; empty where all are of one kind.

    Args:
        metric: Of one circuit, on each prompt of the problem.
        new: The templates that the search never saw.
    """
    is_new = torch.tensor([name in new for name in problem.batch.templates], dtype=torch.bool)
    rows = {"seen": (~is_new).nonzero()[:, 0], "new": is_new.nonzero()[:, 0]}
    if not all(len(some) for some in rows.values()):
        return {}
    reference = problem.reference
    return {
        name: from_metric(reference.select(some.to(metric.device)), metric[some.to(metric.device)])
        for name, some in rows.items()
    }


def by_ablation(
    problems: Mapping[str, Runs[N]],
    circuit: Sequence[N],
    metric: Float[Tensor, " batch"] | None = None,
) -> dict[str, Faithfulness]:
    """Faithfulness of one circuit under each ablation.

    Args:
        metric: Of the circuit under the first ablation, where it was measured already.
    """
    found = {}
    for name, problem in problems.items():
        if metric is None or found:
            found[name] = measured(problem, circuit)
        else:
            found[name] = from_metric(problem.reference, metric)
    return found
