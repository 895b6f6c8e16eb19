"""ACDC: drop what the output distribution does not miss (Conmy et al., 2023).

1. H ← the whole model. 2. In reverse topological order, for every node (or edge) c: measure
D(H − c) − D(H), with D(H) = KL(p_M ‖ p_H) at the position that is read, averaged over examples.
3. Where the increase is below τ, H ← H − c.

Decisions depend on those before, but most can be foreseen: a batch holds the runs of the next
candidates as if each were decided as expected (dropped, or as its last measurement says). The
first surprise ends what is valid of the batch, so decisions are those of one run at a time.

A score is the increase at the decision, and 0 where it was negative: kept means at least τ.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.ablation import Ablation
from unweave.batch import Batch, Readout
from unweave.circuits import EdgeScores, Scores
from unweave.graph import Graph, graph_of
from unweave.model.model import Model
from unweave.options import Option, Options
from unweave.patching.circuits import run_circuits
from unweave.patching.edges import run_edges
from unweave.patching.graphs import capturing
from unweave.scores.edge_problem import EdgeProblem
from unweave.scores.problem import Problem, Runs
from unweave.scores.score import edge_scores
from unweave.search.search import (
    Finding,
    Names,
    Round,
    SavedState,
    Search,
    measured_round,
    searches,
)
from unweave.sites import Site, parse

C = TypeVar("C", bound=Hashable)
MeasureCircuits = Callable[[list[tuple[C, ...]]], Float[Tensor, "circuit batch"]]


@dataclass(frozen=True, eq=False)
class Divergence(Readout):
    """KL(p_M ‖ p) of the logits that are read, in place of a task's metric.

    Args:
        full: Log-probabilities of the whole model.
    """

    full: Float[Tensor, "batch out"]

    def measure(self, logits: Float[Tensor, "*lead batch out"]) -> Float[Tensor, "*lead batch"]:
        return (self.full.exp() * (self.full - logits.log_softmax(-1))).sum(-1)

    def select(self, examples: slice | Tensor) -> "Divergence":
        chosen = super().select(examples)
        assert isinstance(chosen, Divergence)
        return replace(chosen, full=self.full[examples])


@dataclass(frozen=True, eq=False)
class _Logits(Readout):
    """Keeps the logits that are read, through the same run as any metric."""

    kept: list[Tensor]

    def measure(self, logits: Float[Tensor, "*lead batch out"]) -> Float[Tensor, "*lead batch"]:
        self.kept.append(logits[0])
        return logits[..., 0]


def divergence(model: Model, batch: Batch, ablation: Ablation) -> Batch:
    """The same prompts, measured by how far a circuit's distribution is from the model's."""
    old = batch.readout
    fields = (old.metric, old.answers, old.distractors, old.read)
    kept = _Logits(*fields, [])
    with capturing(False):  # a replayed run would keep nothing
        run_circuits(model, replace(batch, readout=kept), [()], [], ablation)
    full = torch.cat(kept.kept).log_softmax(-1)
    return replace(batch, readout=Divergence(*fields, full))


@dataclass(eq=False)
class Pruning:
    """The state of a run of ACDC.

    Args:
        measure: D of the model without some candidates, for many such sets.
        tau: The increase of D from which on a candidate is kept.
        window: Candidates in one batch; the decisions do not depend on it.
        level: D on each example at what is left now.
    """

    measure: MeasureCircuits
    tau: float
    window: int
    level: Float[Tensor, " batch"]

    def prune(self, candidates: Sequence[C], removed: list[C]) -> Float[Tensor, "candidate batch"]:
        """Decides on candidates in order; extends `removed`, returns each one's increase."""
        expected, done = [True] * len(candidates), 0  # True: it will be dropped
        increases = self.level.new_zeros(len(candidates), len(self.level))
        while done < len(candidates):
            ahead = range(done, min(done + self.window, len(candidates)))
            trials, gone = [], list(removed)
            for i in ahead:
                trials.append((*gone, candidates[i]))
                if expected[i]:
                    gone.append(candidates[i])
            level, valid = self.level, True
            for i, after in zip(ahead, self.measure(trials), strict=True):
                increase, foreseen = after - level, expected[i]
                drop = bool(increase.mean() < self.tau)
                if valid:
                    increases[i], done = increase, i + 1
                    if drop:
                        removed.append(candidates[i])
                        self.level = after
                    valid = drop == foreseen
                else:
                    expected[i] = drop  # not valid any more, but the best guess there is
                level = after if foreseen else level
        return increases


def find(problem: Problem, scores: Scores, options: Options, checkpoint: SavedState) -> Finding:
    """Nodes, from the last layer to the first; scores do not matter to this search."""
    order = sorted(problem.nodes, key=lambda node: node.point.depth, reverse=True)
    batch = divergence(problem.model, problem.batch, problem.ablation)
    diverging = replace(problem, batch=batch)

    def measure(sets: list[tuple[Site, ...]]) -> Float[Tensor, "circuit batch"]:
        return diverging.metric([_without(problem.nodes, set(gone)) for gone in sets])

    gone: list[Site] = []
    run = Pruning(measure, options["tau"], options["window"], measure([()])[0])
    increases = run.prune(order, gone).mean(1).clamp(min=0).tolist()
    increase = dict(zip(map(str, order), increases, strict=True))
    # Python's sort keeps the order among equals: the model's own.
    ranking = sorted(map(str, problem.nodes), key=lambda name: -increase[name])
    dropped = set(map(str, gone))
    circuit = tuple(name for name in ranking if name not in dropped)
    record = Round(
        targets=("logits",),
        relevance=increase,
        selected=tuple(map(str, problem.nodes)),
        steps=(),
        circuit=circuit,
        dropped=tuple(map(str, gone)),
        loss=float(run.level.mean()),
        faithfulness=float(problem.faithfulness([tuple(map(parse, circuit))])[0]),
    )
    return Finding(circuit, tuple(ranking), (record,))


def _without(nodes: Sequence[Site], gone: set[Site]) -> tuple[Site, ...]:
    return tuple(node for node in nodes if node not in gone)


def find_edges(
    problem: EdgeProblem, scores: EdgeScores, nodes: Names, options: Options, checkpoint: SavedState
) -> Finding:
    """All edges, from the logits back; neither scores nor nodes matter to this search."""
    rated = prune_edges(problem, options)
    values = dict(zip(rated.edges, rated.values.tolist(), strict=True))
    ranking = tuple(rated.ranking())
    circuit = tuple(edge for edge in ranking if values[edge] >= options["tau"])
    record = measured_round(problem, circuit, values, ranking, selected=problem.nodes)
    return Finding(circuit, ranking, (record,))


def prune_edges(problem: Runs, options: Options) -> EdgeScores:
    """Edges, node by node from the logits back, each node's from its latest source to the first.

    A node none of whose edges is left reaches nothing: the edges into it go unmeasured.
    """
    graph = graph_of(problem.model, post_norms=False)
    batch = divergence(problem.model, problem.batch, problem.ablation)

    def measure(sets: list[tuple[tuple[int, int], ...]]) -> Float[Tensor, "circuit batch"]:
        removed = torch.zeros(len(sets), *graph.mask.shape, dtype=torch.bool)
        for row, gone in zip(removed, sets, strict=True):
            row[tuple(torch.tensor(gone, dtype=torch.long).reshape(-1, 2).T)] = True
        return run_edges(problem.model, batch, removed, problem.ablation)

    removed, left = [], graph.mask.clone()
    run = Pruning(measure, options["tau"], options["window"], measure([()])[0])
    matrix = torch.zeros(graph.mask.shape, dtype=run.level.dtype)
    for node in reversed(graph.nodes):
        candidates = _edges_into(graph, node)
        before, reaches = len(removed), node not in graph.sources
        if reaches or bool(left[:, graph.sources.index(node)].any()):
            increases = run.prune(candidates, removed).mean(1).clamp(min=0)
            for place, value in zip(candidates, increases.tolist(), strict=True):
                matrix[place] = value
        else:
            removed += candidates
        for place in removed[before:]:
            left[place] = False
    return edge_scores(problem, graph, matrix, search="acdc", tau=str(options["tau"]))


def _edges_into(graph: Graph, node: str) -> list[tuple[int, int]]:
    rows = [i for i, destination in enumerate(graph.destinations) if destination.node == node]
    places = [(row, u) for row in rows for u in range(graph.destinations[row].upstream)]
    return sorted(places, key=lambda place: (place[1], place[0]), reverse=True)


searches.register("acdc")(
    Search(
        "acdc",
        "drops what the output distribution does not miss, last layer first",
        find,
        {
            "tau": Option(
                0.01, "what is dropped raises the divergence from the model by less", low=1e-12
            ),
            "window": Option(
                16, "candidates run in one batch; the decisions do not depend on it", low=1
            ),
        },
        edges=find_edges,
        nodes_first=False,
    )
)
