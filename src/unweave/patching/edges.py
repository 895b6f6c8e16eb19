"""Circuits of edges as runs: what a removed edge carries is replaced, many circuits in one batch.

A destination v reads the residual stream with, for each edge u → v outside the circuit, what u
adds in this run taken out and what it adds at the ablation put in:

    input of v = x + Σ_{u → v removed} (out_u(μ) − out_u)

Each head's q, k and v then has an input of its own, normed and projected by its own weights.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unweave.ablation import Ablation
from unweave.batch import Batch
from unweave.graph import Graph, Removed, graph_of
from unweave.model.algebra import Plain, normalise
from unweave.model.model import Model
from unweave.model.program import run
from unweave.model.weights import Block, Linear, Norm
from unweave.patching.circuits import read_positions, repeat_inputs
from unweave.progress import progress
from unweave.sites import Point

_BYTES = 512 * 2**20  # for what all nodes add to the residual stream, of all circuits at once


@dataclass(eq=False)
class EdgePatch(Plain):
    """A plain run with edges removed; row = circuit · batch + example.

    Args:
        removed: Which edges each circuit lacks.
        reads: The position that is read after the last attention.
        gaps: out_u(μ) − out_u of each source so far: [circuit, source, batch, position, d_model].
        pre: Norms between the residual stream and a branch of this block: applied at the branch,
            once its input is known.
    """

    graph: Graph
    blocks: tuple[Block, ...]
    removed: Removed | Float[Tensor, "circuit destination source"]
    ablation: Ablation
    batch: int
    reads: Int[Tensor, "row 1"]
    left: Int[Tensor, "row 1"] | None = None
    layer: int = 0
    gaps: Tensor | None = None
    pre: dict[str, Norm] = field(default_factory=dict)

    def norm(self, x: Tensor, w: Norm, place: str) -> Tensor:
        branch, _, which = place.partition(".")
        if which != "pre":
            return super().norm(x, w, place)
        self.pre[branch] = w
        return x

    def linear(self, x: Tensor, w: Linear, place: str) -> Tensor:
        branch, _, part = place.partition(".")
        if branch == "attention" and part in ("q", "k", "v"):
            return self._project(x, w, "qkv".index(part))
        if place in ("mlp.in", "mlp.gate"):
            rows = self.graph.destination_rows[self.layer, "mlp"]
            x = self._norm(self._corrected(x, rows)[:, 0].flatten(0, 1), "mlp")
        elif place == "attention.out":
            self._write_heads(x, w)
        return super().linear(x, w, place)

    def split_heads(self, x: Tensor, heads: int) -> Tensor:
        return x if x.ndim == 4 else super().split_heads(x, heads)

    def cut(self, x: Tensor) -> Tensor:
        rows = torch.arange(len(x), device=x.device)[:, None]
        if self.left is None:
            self.left = self.reads
            assert self.gaps is not None
            examples, reads = rows[: self.batch], self.reads[: self.batch]
            self.gaps = self.gaps[:, :, examples, reads]
        return x[rows, self.reads]

    def at(self, x: Tensor, point: Point) -> Tensor:
        if point.kind == "resid":
            self.layer, self.pre = point.layer, {}
            if point.layer == len(self.blocks):
                rows = self.graph.destination_rows[point.layer, "logits"]
                return self._corrected(x, rows)[:, 0].flatten(0, 1)
        elif point.kind in ("embed", "mlp"):
            self._write(self._gap(x, point)[:, None])
        return x

    def _gap(self, x: Tensor, point: Point) -> Float[Tensor, "circuit batch position *unit"]:
        rows = x.unflatten(0, (-1, self.batch))
        # Head outputs come merged, from the output projection.
        like = rows[0]
        if point.kind == "z":
            like = like.unflatten(-1, (self.blocks[point.layer].attention.heads, -1))
            rows = rows.unflatten(-1, like.shape[-2:])
        left = None if self.left is None else self.left[: self.batch]
        return self.ablation.at(point, like, left) - rows

    def _write(self, gap: Float[Tensor, "circuit new batch position d_model"]) -> None:
        self.gaps = gap if self.gaps is None else torch.cat((self.gaps, gap), 1)

    def _write_heads(self, z: Tensor, w: Linear) -> None:
        gap = self._gap(z, Point("z", self.layer))
        weight = w.matrix.unflatten(1, gap.shape[-2:])
        self._write(torch.einsum("cbphe,dhe->chbpd", gap, weight))

    def _corrected(
        self, x: Float[Tensor, "row position d_model"], rows: slice
    ) -> Float[Tensor, "circuit destination batch position d_model"]:
        """The residual stream as each destination reads it."""
        assert self.gaps is not None
        upstream = self.graph.destinations[rows.start].upstream
        gone = self.removed[:, rows, :upstream].to(x.dtype)
        gaps = self.gaps[:, :upstream]
        shift = torch.bmm(gone, gaps.flatten(2)).unflatten(2, gaps.shape[2:])
        return shift.add_(x.unflatten(0, (-1, self.batch))[:, None])

    def _norm(self, x: Tensor, branch: str) -> Tensor:
        return normalise(x, self.pre[branch]) if branch in self.pre else x

    def _project(
        self, x: Float[Tensor, "row position d_model"], w: Linear, part: int
    ) -> Float[Tensor, "row position head d_head"]:
        """The queries, keys or values of every query head, each from its own input."""
        attention = self.blocks[self.layer].attention
        first = self.graph.destination_rows[self.layer, "attention"].start + part * attention.heads
        own = self._norm(self._corrected(x, slice(first, first + attention.heads)), "attention")
        weight, bias = w.matrix.unflatten(0, (-1, attention.d_head)), w.offset
        group = attention.heads // len(weight)
        y = torch.einsum("chbpd,hed->cbphe", own, weight.repeat_interleave(group, 0))
        if bias is not None:
            y = y + bias.unflatten(0, (-1, attention.d_head)).repeat_interleave(group, 0)
        return y.flatten(0, 1)


def run_edges(
    model: Model, batch: Batch, removed: Removed, ablation: Ablation
) -> Float[Tensor, "circuit batch"]:
    """The metric of each circuit on each example, what its missing edges carry replaced.

    Raises:
        UnweaveError: For an architecture whose nodes' outputs do not add up.
    """
    graph, network = graph_of(model, post_norms=False), model.network
    removed = removed.to(network.device)
    width = network.body.blocks[0].attention.q.matrix.shape[1]
    one = len(graph.sources) * batch.clean.mask.shape[1] * width * network.dtype.itemsize
    limit = max(1, _BYTES // (2 * one))
    some = min(len(batch), limit)
    many = max(1, limit // some)
    values = torch.zeros(len(removed), len(batch), dtype=network.dtype, device=network.device)
    total = len(removed) * len(batch)
    with torch.no_grad(), progress("Running circuits of edges", total) as advance:
        for i in range(0, len(batch), some):
            part = slice(i, min(i + some, len(batch)))
            examples, base = batch.select(part), ablation.select(part)
            for j in range(0, len(removed), many):
                chosen = removed[j : j + many]
                reads = read_positions(model, examples).repeat(len(chosen))[:, None]
                ops = EdgePatch(graph, network.body.blocks, chosen, base, len(examples), reads)
                logits = run(network, repeat_inputs(examples.clean, len(chosen)), ops)[:, 0]
                values[j : j + many, part] = examples.readout.measure(
                    logits.unflatten(0, (len(chosen), -1))
                )
                advance(len(chosen) * len(examples))
    return values


def run_edge_circuits(
    model: Model, batch: Batch, circuits: Sequence[Collection[str]], ablation: Ablation
) -> Float[Tensor, "circuit batch"]:
    """The metric of circuits given as the names of the edges that they keep."""
    removed = graph_of(model, post_norms=False).removed(circuits)
    return run_edges(model, batch, removed, ablation)
