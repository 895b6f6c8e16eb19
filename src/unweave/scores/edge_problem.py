"""`EdgeProblem`: a behaviour whose circuits are made of edges.

The two ends of faithfulness are the whole model and the model without any edge: every reader reads
what all nodes, and the embedding, write at their ablation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.ablation import Ablation
from unweave.batch import Batch
from unweave.graph import Graph, graph_of
from unweave.model.model import Model
from unweave.patching.edge_effects import edge_effects
from unweave.patching.edges import run_edge_circuits
from unweave.scores.problem import Runs


@dataclass(frozen=True, eq=False)
class EdgeProblem(Runs[str]):
    """Prompts with a metric, edges to choose from, and an ablation.

    Args:
        nodes: Every edge that a circuit may hold, `a0.h0->a5.h1<q>`.
        ablation: What a node writes for a reader that lacks its edge; holds values at
            `unweave.graph.graph_points(model)`.
        draw: As a `Problem`'s.
    """

    draw: "Callable[[str, int], EdgeProblem] | None" = None

    @staticmethod
    def of(model: Model, batch: Batch, ablation: Ablation) -> "EdgeProblem":
        """All edges of a model.

        Raises:
            UnweaveError: For an architecture whose edges do not add up, naming why.
        """
        return EdgeProblem(model, batch, graph_of(model, post_norms=False).edges, ablation)

    @cached_property
    def graph(self) -> Graph:
        return graph_of(self.model, post_norms=False)

    def metric(self, circuits: Sequence[Sequence[str]]) -> Float[Tensor, "circuit batch"]:
        """The metric of each circuit, by one edge-patched run each."""
        return run_edge_circuits(self.model, self.batch, circuits, self.ablation)

    def flipped(self, circuit: Sequence[str], nodes: Sequence[str]) -> Float[Tensor, "node batch"]:
        """The metric of a circuit without each of its own edges, and with each of the others."""
        own = set(circuit)
        return self.metric(
            [
                [edge for edge in circuit if edge != one] if one in own else [*circuit, one]
                for one in nodes
            ]
        )

    def effects(
        self, circuit: Sequence[str], edges: Sequence[str], removed_share: float = 0.0
    ) -> Float[Tensor, "batch edge"]:
        """To first order what each edge adds to the circuit's metric, on each example.

        Args:
            removed_share: The part of every kept edge that is removed.
        """
        index = self.graph.index
        active = tuple(sorted({index[name][1] for name in (*circuit, *edges)}))
        removed = self.graph.removed([circuit])
        place = {source: i for i, source in enumerate(active)}
        rows = [index[name][0] for name in edges]
        columns = [place[index[name][1]] for name in edges]
        asked = torch.zeros(len(self.graph.destinations), len(active), dtype=torch.bool)
        asked[rows, columns] = True
        where = self.model, self.batch, removed, self.ablation, active
        return edge_effects(*where, asked.to(self.model.network.device), removed_share)[
            :, rows, columns
        ]
