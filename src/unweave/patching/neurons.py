"""Circuits of output neurons as runs: coordinates of what a node adds to the residual stream.

MIB's neurons: node u adds out_u, d_model numbers at each position; a circuit keeps some of them and
the others are those of the ablation. A head's are those of its own part of the output projection,

    attention output_d = Σ_h Σ_e W_{d,he}·(z_he where (h, d) is kept, else μ_he).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from unweave.ablation import Ablation
from unweave.batch import Batch
from unweave.graph import Graph, graph_of
from unweave.model.algebra import Plain
from unweave.model.model import Model
from unweave.model.program import run
from unweave.model.weights import Linear
from unweave.patching.circuits import read_positions, rows_at_once
from unweave.progress import progress
from unweave.sites import Point


@dataclass(eq=False)
class NeuronPatch(Plain):
    """A plain run of one circuit of output neurons.

    Args:
        kept: By source of the graph, which of its neurons stay.
        reads: The position that is read after the last attention.
    """

    graph: Graph
    kept: Bool[Tensor, "source d_model"]
    ablation: Ablation
    reads: Int[Tensor, "batch 1"]
    left: Int[Tensor, "batch 1"] | None = None
    layer: int = 0

    def cut(self, x: Tensor) -> Tensor:
        self.left = self.reads
        return x[torch.arange(len(x), device=x.device)[:, None], self.reads]

    def at(self, x: Tensor, point: Point) -> Tensor:
        if point.kind == "resid":
            self.layer = point.layer
        if point.kind not in ("embed", "mlp"):
            return x
        base = self.ablation.at(point, x, self.left)
        return torch.where(self.kept[self.graph.source_rows[point]][0], x, base)

    def linear(self, x: Tensor, w: Linear, place: str) -> Tensor:
        if place != "attention.out":
            return super().linear(x, w, place)
        point = Point("z", self.layer)
        kept = self.kept[self.graph.source_rows[point]]
        heads = x.unflatten(-1, (len(kept), -1))
        base = self.ablation.at(point, heads, self.left).flatten(-2)
        # [d_model, head·d_head]: each head's columns, where this neuron of it is kept.
        mask = kept.T.repeat_interleave(heads.shape[-1], 1)
        own = functional.linear(x, w.matrix * mask, w.offset)
        return own + functional.linear(base, w.matrix * ~mask)


def run_neurons(
    model: Model, batch: Batch, kept: Bool[Tensor, "circuit source d_model"], ablation: Ablation
) -> Float[Tensor, "circuit batch"]:
    """The metric of each circuit on each example, all other neurons at their ablation.

    Raises:
        UnweaveError: For an architecture whose nodes' outputs do not add up.
    """
    graph, network = graph_of(model, post_norms=False), model.network
    step = rows_at_once(model, batch)
    values = torch.zeros(len(kept), len(batch), dtype=network.dtype, device=network.device)
    with (
        torch.no_grad(),
        progress("Running circuits of neurons", len(kept) * len(batch)) as advance,
    ):
        for i in range(0, len(batch), step):
            part = slice(i, min(i + step, len(batch)))
            some, base = batch.select(part), ablation.select(part)
            reads = read_positions(model, some)[:, None]
            for row, circuit in enumerate(kept):
                ops = NeuronPatch(graph, circuit.to(network.device), base, reads)
                logits = run(network, some.clean, ops)[:, 0]
                values[row, part] = some.readout.measure(logits)
                advance(len(some))
    return values
