"""`Score`: a way to rate every node of a problem, and the registry of scores."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from jaxtyping import Float
from torch import Tensor

from unweave.circuits import EdgeScores, Scores
from unweave.decomposition.needs import SweepNeeds
from unweave.distributed import from_first
from unweave.errors import NotFiniteError, UnweaveError
from unweave.graph import Graph
from unweave.options import Option, Options, filled
from unweave.registry import Registry
from unweave.scores.problem import Problem, Runs


@dataclass(frozen=True)
class Score:
    """A way to rate nodes, and maybe edges.

    Args:
        summary: One line for `unweave methods`.
        nodes: Rates every node of a problem.
        options: What can be changed, by name.
        edges: Rates every edge of the model, where it can. The problem's ablation has to hold
            values at `unweave.graph.graph_points(model)`; its nodes do not matter.
        pairs: Whether the option `pairs` makes it tell the relevance of nodes to one another.
        memory: What its sweep will take, where it is one.
    """

    name: str
    summary: str
    nodes: "Callable[[Problem, Options], Scores]"
    options: Mapping[str, Option] = field(default_factory=dict)
    edges: "Callable[[Problem, Options], EdgeScores] | None" = None
    pairs: bool = False
    memory: "Callable[[Problem, Options], SweepNeeds] | None" = None

    def run(self, problem: Problem, options: Options | None = None) -> Scores:
        """Rates the nodes of a problem.

        Raises:
            UnweaveError: For an unknown option, a value outside its meaning, or an ablation or
                score that is not finite.
        """
        problem.ablation.check_finite()
        found = self.nodes(problem, self.filled(options or {}))
        if not found.values.isfinite().all():
            name = found.sources[int((~found.values.isfinite()).nonzero()[0])]
            raise NotFiniteError(
                f"score {self.name} of {name} is not finite: look for NaN or infinite values in "
                "the model's weights"
            )
        # A score that every process computes whole may be rounded differently in each.
        return replace(found, values=from_first(found.values), examples=from_first(found.examples))

    def run_edges(self, problem: Problem, options: Options | None = None) -> EdgeScores:
        """Rates every edge of the problem's model.

        Raises:
            UnweaveError: For an unknown option, or when this score rates nodes only.
        """
        if self.edges is None:
            able = ", ".join(name for name in scores if scores[name].edges is not None)
            raise UnweaveError(f"score {self.name} rates nodes, not edges: {able} can")
        return self.edges(problem, self.filled(options or {}))

    def filled(self, options: Options) -> Options:
        """All options, the given ones in place of their defaults, each checked."""
        return filled(f"score {self.name}", self.options, options)


scores: Registry[Score] = Registry("score", "unweave.scores")


def node_scores(problem: Problem, examples: Float[Tensor, "node batch"], **about: str) -> Scores:
    """Scores of a problem's nodes from their scores on each example."""
    return Scores(
        tuple(map(str, problem.nodes)),
        examples.mean(1).cpu(),
        examples.cpu(),
        about={"model": problem.model.name, "ablation": problem.ablation.name, **about},
    )


def edge_scores(
    problem: Runs, graph: Graph, matrix: Float[Tensor, "destination source"], **about: str
) -> EdgeScores:
    """Scores of all edges from a matrix of their scores, averaged over examples."""
    return EdgeScores(
        graph.edges,
        graph.values(matrix).cpu(),
        {"model": problem.model.name, "ablation": problem.ablation.name, **about},
    )
