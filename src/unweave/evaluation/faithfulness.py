"""Faithfulness of a circuit under each ablation (docs/method.md §§6, 9).

A circuit is found under one ablation and believed under three: what survives a change of ablation
does not owe its figure to the ablation that it was found with.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unweave.errors import UnweaveError
from unweave.scores.problem import N, Runs


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
    metric, reference = problem.metric([tuple(circuit)])[0], problem.reference
    means = (float(metric.mean()), float(reference.empty.mean()), float(reference.full.mean()))
    try:
        found = reference.estimate(metric)
    except UnweaveError:
        return Faithfulness(*means, None, (math.nan, math.nan), len(problem.batch))
    return Faithfulness(*means, found.value, (found.low, found.high), found.prompts)


def by_ablation(problems: Mapping[str, Runs[N]], circuit: Sequence[N]) -> dict[str, Faithfulness]:
    """Faithfulness of one circuit under each ablation."""
    return {name: measured(problem, circuit) for name, problem in problems.items()}
