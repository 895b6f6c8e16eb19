"""What every method is given, and the registry of methods."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.baselines import Baseline
from unweave.batch import Batch
from unweave.circuits import Scores
from unweave.model.model import Model
from unweave.patching.ablation import run_circuits
from unweave.registry import Registry
from unweave.sites import Point, Site


@dataclass(frozen=True, eq=False)
class Problem:
    """A behaviour to explain: prompts with a metric, nodes to choose from, and an ablation.

    Args:
        batch: Prompts for discovery.
        nodes: Every node that a circuit may hold.
        baseline: What an ablated node is replaced by.
    """

    model: Model
    batch: Batch
    nodes: tuple[Site, ...]
    baseline: Baseline

    @property
    def points(self) -> tuple[Point, ...]:
        """Where nodes live, in the order of the forward pass."""
        return tuple(sorted({node.point for node in self.nodes}, key=lambda p: p.depth))

    def metric(self, circuits: list[tuple[Site, ...]]) -> Float[Tensor, "circuit batch"]:
        """The metric of each circuit, all other nodes ablated."""
        return run_circuits(self.model, self.batch, circuits, self.points, self.baseline)

    def faithfulness(self, circuits: list[tuple[Site, ...]]) -> Float[Tensor, " circuit"]:
        """`(m(C) − m(∅)) / (m(M) − m(∅))` of mean metrics (METHOD.md §9)."""
        every = self.metric([(), self.nodes, *circuits]).mean(1)
        return normalised(every[2:], every[0], every[1])


def normalised(
    metric: Float[Tensor, "*shape"], empty: Float[Tensor, ""], full: Float[Tensor, ""]
) -> Float[Tensor, "*shape"]:
    """Faithfulness from mean metrics of circuits, of nothing and of the whole model."""
    return (metric - empty) / (full - empty)


@dataclass(frozen=True)
class Method:
    """A way to score nodes.

    Args:
        summary: One line for `unweave methods`.
        score: Scores every node of a problem.
        options: Names and defaults of its options.
        edges: Whether it can also score edges.
        positions: Whether it can score nodes at single positions.
    """

    name: str
    summary: str
    score: "Callable[[Problem, Mapping[str, Any]], Scores]"
    options: Mapping[str, Any] = field(default_factory=dict)
    edges: bool = False
    positions: bool = True


methods: Registry[Method] = Registry("method", "unweave.methods")


def node_scores(
    problem: Problem, examples: Float[Tensor, "node batch"], **about: str
) -> Scores:
    """Scores of a problem's nodes from their scores on each example."""
    return Scores(
        tuple(map(str, problem.nodes)),
        examples.mean(1).cpu(),
        examples.cpu(),
        about={"model": problem.model.name, "baseline": problem.baseline.name, **about},
    )


def ranked(problem: Problem, scores: Scores) -> list[Site]:
    """The problem's nodes by magnitude of score, the largest first."""
    order = torch.argsort(scores.values.abs(), descending=True, stable=True)
    return [problem.nodes[i] for i in order.tolist()]
