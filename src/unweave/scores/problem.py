"""What every method is given, and the registry of methods."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.ablation import Ablation
from unweave.batch import Batch
from unweave.circuits import EdgeScores, Scores
from unweave.errors import UnweaveError
from unweave.graph import Graph
from unweave.model.model import Model
from unweave.patching.circuits import run_circuits
from unweave.patching.flips import run_flips
from unweave.registry import Registry, nearest
from unweave.sites import Point, Site


@dataclass(frozen=True, eq=False)
class Problem:
    """A behaviour to explain: prompts with a metric, nodes to choose from, and an ablation.

    Args:
        batch: Prompts for discovery.
        nodes: Every node that a circuit may hold.
        ablation: What an ablated node is replaced by.
    """

    model: Model
    batch: Batch
    nodes: tuple[Site, ...]
    ablation: Ablation

    @property
    def points(self) -> tuple[Point, ...]:
        """Where nodes live, in the order of the forward pass."""
        return tuple(sorted({node.point for node in self.nodes}, key=lambda p: p.depth))

    def select(self, examples: slice) -> "Problem":
        """The problem on a part of its prompts."""
        batch, ablation = self.batch.select(examples), self.ablation.select(examples)
        return replace(self, batch=batch, ablation=ablation)

    def metric(self, circuits: list[tuple[Site, ...]]) -> Float[Tensor, "circuit batch"]:
        """The metric of each circuit, all other nodes ablated."""
        return run_circuits(self.model, self.batch, circuits, self.points, self.ablation)

    def flipped(
        self, circuit: Sequence[Site], nodes: Sequence[Site]
    ) -> Float[Tensor, "node batch"]:
        """The metric of a circuit without each of its own nodes, and with each of the others."""
        return run_flips(self.model, self.batch, circuit, nodes, self.points, self.ablation)

    def faithfulness(self, circuits: list[tuple[Site, ...]]) -> Float[Tensor, " circuit"]:
        """`(m(C) − m(∅)) / (m(M) − m(∅))` of mean metrics (docs/method.md §9)."""
        every = self.metric([(), self.nodes, *circuits]).mean(1)
        return normalised(every[2:], every[0], every[1])


def normalised(
    metric: Float[Tensor, "*shape"], empty: Float[Tensor, ""], full: Float[Tensor, ""]
) -> Float[Tensor, "*shape"]:
    """Faithfulness from mean metrics of circuits, of nothing and of the whole model."""
    return (metric - empty) / (full - empty)


Options = Mapping[str, Any]


@dataclass(frozen=True)
class Method:
    """A way to score nodes, and maybe edges.

    Args:
        summary: One line for `unweave methods`.
        score: Scores every node of a problem.
        options: Names and defaults of its options.
        score_edges: Scores every edge of the model, where it can. The problem's ablation has to
            hold values at `unweave.graph.graph_points(model)`; its nodes do not matter.
        positions: Whether it can score nodes at single positions.
        help: What each option means.
    """

    name: str
    summary: str
    score: "Callable[[Problem, Options], Scores]"
    options: Options = field(default_factory=dict)
    score_edges: "Callable[[Problem, Options], EdgeScores] | None" = None
    positions: bool = True
    help: Mapping[str, str] = field(default_factory=dict)

    @property
    def edges(self) -> bool:
        """Whether it can score edges."""
        return self.score_edges is not None

    def run(self, problem: Problem, **options: Any) -> Scores:
        """Scores the nodes of a problem.

        Raises:
            UnweaveError: For an unknown option, or positions that this method cannot tell apart.
        """
        chosen = self.checked(options)
        at = next((node for node in problem.nodes if node.position is not None), None)
        if at is not None and not self.positions:
            raise UnweaveError(
                f"{self.name} cannot score {at}, a node at one position: "
                f"{_those(lambda m: m.positions)} can"
            )
        return self.score(problem, chosen)

    def run_edges(self, problem: Problem, **options: Any) -> EdgeScores:
        """Scores every edge of the problem's model.

        Raises:
            UnweaveError: For an unknown option, or when this method scores nodes only.
        """
        chosen = self.checked(options)
        if self.score_edges is None:
            raise UnweaveError(
                f"{self.name} scores nodes, not edges: {_those(lambda m: m.edges)} can"
            )
        return self.score_edges(problem, chosen)

    def checked(self, options: Options) -> Options:
        """The defaults with some options changed, none that is not known."""
        for name in options:
            if name not in self.options:
                known = nearest(name, self.options) if self.options else "it has none"
                raise UnweaveError(f"{self.name} has no option {name!r}: {known}")
        return {**self.options, **options}


methods: Registry[Method] = Registry("method", "unweave.scores")


def _those(can: Callable[[Method], bool]) -> str:
    return ", ".join(name for name in methods if can(methods[name]))


def node_scores(problem: Problem, examples: Float[Tensor, "node batch"], **about: str) -> Scores:
    """Scores of a problem's nodes from their scores on each example."""
    return Scores(
        tuple(map(str, problem.nodes)),
        examples.mean(1).cpu(),
        examples.cpu(),
        about={"model": problem.model.name, "ablation": problem.ablation.name, **about},
    )


def edge_scores(
    problem: Problem, graph: Graph, matrix: Float[Tensor, "destination source"], **about: str
) -> EdgeScores:
    """Scores of all edges from a matrix of their scores, averaged over examples."""
    return EdgeScores(
        graph.edges,
        graph.values(matrix).cpu(),
        {"model": problem.model.name, "ablation": problem.ablation.name, **about},
    )


def ranked(problem: Problem, scores: Scores) -> list[Site]:
    """The problem's nodes by magnitude of score, the largest first."""
    order = torch.argsort(scores.values.abs(), descending=True, stable=True)
    return [problem.nodes[i] for i in order.tolist()]
