"""Circuits of edges as runs: what a removed edge carries is replaced, many circuits in one batch.

A destination v reads the residual stream with, for each edge u → v outside the circuit, what u
adds in this run taken out and what it adds at the ablation put in:

    input of v = x + Σ_{u → v removed} (out_u(μ) − out_u)

Each head's q, k and v then has an input of its own, normed and projected by its own weights. A node
with no edge left is at its ablation for every reader: it is replaced where it writes, and neither
its own input nor its difference is computed. A circuit of few nodes costs little more than a plain
run.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unweave.ablation import Ablation
from unweave.batch import Batch
from unweave.graph import Graph, Removed, graph_of
from unweave.model.algebra import Plain, normalise
from unweave.model.model import Model
from unweave.model.program import run
from unweave.model.weights import Block, Linear, Norm
from unweave.patching.circuits import read_positions, repeat_inputs
from unweave.patching.gaps import Gaps
from unweave.progress import progress
from unweave.sites import Point

# For what all nodes add to the residual stream, of all circuits at once.
_CPU_BYTES, _GPU_BYTES = 512 * 2**20, 8 * 2**30

Weights = Float[Tensor, "circuit *batch destination active"]


@dataclass(eq=False)
class EdgePatch(Plain):
    """A plain run with edges removed; row = circuit · batch + example.

    Args:
        removed: Which edges from active sources each circuit lacks; a number counts for a part, so
            that there is a derivative. With an axis for the examples, each has its own.
        reads: The position that is read after the last attention.
        active: Numbers of the sources that have edges, in order; the others are at their ablation.
            None given: all of them.
        asked: Edges from active sources whose derivative is wanted though no circuit keeps them.
        gaps: out_u(μ) − out_u of each active source so far.
        pre: Norms between the residual stream and a branch of this block: applied at the branch,
            once its input is known.
    """

    graph: Graph
    blocks: tuple[Block, ...]
    removed: Removed | Weights
    ablation: Ablation
    batch: int
    reads: Int[Tensor, "row 1"]
    active: Sequence[int] = ()
    asked: Bool[Tensor, "destination active"] | None = None
    left: Int[Tensor, "row 1"] | None = None
    layer: int = 0
    gaps: Gaps = field(init=False)
    used: Bool[Tensor, "destination active"] = field(init=False)
    pre: dict[str, Norm] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.active and self.removed.shape[-1]:
            self.active = range(len(self.graph.sources))
        self.gaps = Gaps(len(self.active))
        kept = (self.removed != 1).flatten(0, -3).any(0)
        self.used = kept & self.graph.mask[:, list(self.active)].to(kept.device)
        if self.asked is not None:
            self.used |= self.asked

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
        if branch == "mlp" and not self._units(Point("mlp", self.layer)):
            # What an MLP without edges would compute is replaced anyway.
            return x.new_zeros(()).expand(*x.shape[:-1], w.shape[0])
        if place in ("mlp.in", "mlp.gate"):
            row = self.graph.destination_rows[self.layer, "mlp"].start
            x = self._norm(self._corrected(x, [row])[:, 0].flatten(0, 1), "mlp")
        elif place == "attention.out":
            x = self._write_heads(x, w)
        return super().linear(x, w, place)

    def split_heads(self, x: Tensor, heads: int) -> Tensor:
        return x if x.ndim == 4 else super().split_heads(x, heads)

    def cut(self, x: Tensor) -> Tensor:
        rows = torch.arange(len(x), device=x.device)[:, None]
        if self.left is None:
            self.left = self.reads
            self.gaps = self.gaps.cut(rows[: self.batch], self.reads[: self.batch])
        return x[rows, self.reads]

    def at(self, x: Tensor, point: Point) -> Tensor:
        if point.kind == "resid":
            self.layer, self.pre = point.layer, {}
            if point.layer == len(self.blocks):
                row = self.graph.destination_rows[point.layer, "logits"].start
                return self._corrected(x, [row])[:, 0].flatten(0, 1)
        elif point.kind in ("embed", "mlp"):
            gap = self._gap(x, point)
            if not self._units(point):
                return x + gap.flatten(0, 1)
            self.gaps.write(gap[:, None])
        return x

    def _units(self, point: Point) -> list[int]:
        """Which units of a point have edges."""
        rows = self.graph.source_rows[point]
        return [u - rows.start for u in self.active if rows.start <= u < rows.stop]

    def _gap(self, x: Tensor, point: Point) -> Float[Tensor, "circuit batch position *unit"]:
        rows = x.unflatten(0, (-1, self.batch))
        # Head outputs come merged, from the output projection.
        like = rows[0]
        if point.kind == "z":
            like = like.unflatten(-1, (self.blocks[point.layer].attention.heads, -1))
            rows = rows.unflatten(-1, like.shape[-2:])
        left = None if self.left is None else self.left[: self.batch]
        return self.ablation.at(point, like, left) - rows

    def _write_heads(self, z: Tensor, w: Linear) -> Tensor:
        """Keeps what active heads differ by; returns z with the others at their ablation."""
        point = Point("z", self.layer)
        units, gap = self._units(point), self._gap(z, point)
        weight = w.matrix.unflatten(1, gap.shape[-2:])[:, units]
        if units:
            self.gaps.write(torch.einsum("cbphe,dhe->chbpd", gap[..., units, :], weight))
        if len(units) == gap.shape[-2]:
            return z
        idle = torch.ones(gap.shape[-2], 1, dtype=gap.dtype, device=gap.device)
        idle[units] = 0
        return z + (gap * idle).flatten(-2).flatten(0, 1)

    def _corrected(
        self, x: Float[Tensor, "row position d_model"], rows: list[int]
    ) -> Float[Tensor, "circuit destination batch position d_model"]:
        """The residual stream as each of some destinations of one branch reads it."""
        x = x.unflatten(0, (-1, self.batch))[:, None]
        upstream = bisect_left(self.active, self.graph.destinations[rows[0]].upstream)
        if not upstream:
            return x.expand(-1, len(rows), -1, -1, -1)
        gone, total = self.removed[..., rows, :upstream].to(x.dtype), self.gaps.total
        kept = self.used[rows, :upstream].any(0).nonzero().flatten()
        # Few edges: all gaps come in together, and those of kept edges are taken out again. In a
        # parallel block the total holds heads that its MLP does not read.
        if total is None or self.gaps.count > upstream or 2 * len(kept) > upstream:
            return self.gaps.read(gone, slice(0, upstream)) + x
        ablated = x + total[:, None]
        if not len(kept):
            return ablated.expand(-1, len(rows), -1, -1, -1)
        return ablated - self.gaps.read(1 - gone[..., kept], kept)

    def _norm(self, x: Tensor, branch: str) -> Tensor:
        return normalise(x, self.pre[branch]) if branch in self.pre else x

    def _project(
        self, x: Float[Tensor, "row position d_model"], w: Linear, part: int
    ) -> Float[Tensor, "row position head d_head"]:
        """The queries, keys or values of every query head, each from its own input."""
        attention = self.blocks[self.layer].attention
        units = self._units(Point("z", self.layer))
        # What heads without edges would compute is replaced anyway.
        whole = x.new_zeros(*x.shape[:2], attention.heads, attention.d_head)
        if not units:
            return whole
        first = self.graph.destination_rows[self.layer, "attention"].start + part * attention.heads
        own = self._norm(self._corrected(x, [first + u for u in units]), "attention")
        group = attention.heads // attention.kv_heads if part else 1
        serves = [u // group for u in units]
        weight = w.matrix.unflatten(0, (-1, attention.d_head))[serves]
        y = torch.einsum("chbpd,hed->cbphe", own, weight)
        if w.offset is not None:
            y = y + w.offset.unflatten(0, (-1, attention.d_head))[serves]
        y = y.flatten(0, 1)
        return y if len(units) == attention.heads else whole.index_copy(2, _index(units, y), y)


def _index(units: list[int], like: Tensor) -> Int[Tensor, " unit"]:
    return torch.tensor(units, device=like.device)


def run_edges(
    model: Model, batch: Batch, removed: Removed, ablation: Ablation
) -> Float[Tensor, "circuit batch"]:
    """The metric of each circuit on each example, what its missing edges carry replaced.

    Raises:
        UnweaveError: For an architecture whose nodes' outputs do not add up.
    """
    graph, network = graph_of(model, post_norms=False), model.network
    removed = removed.to(network.device)
    active = active_sources(graph, removed)
    limit = _rows_at_once(model, batch, len(active))
    some = min(len(batch), limit)
    many = max(1, limit // some)
    values = torch.zeros(len(removed), len(batch), dtype=network.dtype, device=network.device)
    total = len(removed) * len(batch)
    removed = removed[:, :, list(active)]
    with torch.no_grad(), progress("Running circuits of edges", total) as advance:
        for i in range(0, len(batch), some):
            part = slice(i, min(i + some, len(batch)))
            examples, base = batch.select(part), ablation.select(part)
            for j in range(0, len(removed), many):
                chosen = removed[j : j + many]
                values[j : j + many, part] = patched_metric(model, examples, chosen, base, active)
                advance(len(chosen) * len(examples))
    return values


def active_sources(graph: Graph, removed: Removed) -> tuple[int, ...]:
    """Numbers of the sources that keep an edge in some circuit."""
    kept = (graph.mask.to(removed.device) & ~removed).any(0).any(0)
    return tuple(kept.nonzero().flatten().tolist())


def patched_metric(
    model: Model,
    batch: Batch,
    removed: Removed | Weights,
    ablation: Ablation,
    active: tuple[int, ...],
    asked: Bool[Tensor, "destination active"] | None = None,
) -> Float[Tensor, "circuit batch"]:
    """One forward pass of all circuits: the metric of each on each example.

    Args:
        removed: Of the edges from active sources, those that each circuit lacks.
        asked: Edges whose derivative is wanted though no circuit keeps them; it may be 0 for other
            edges that no circuit keeps.
    """
    graph, network, count = graph_of(model, post_norms=False), model.network, len(removed)
    reads = read_positions(model, batch).repeat(count)[:, None]
    ops = EdgePatch(graph, network.body.blocks, removed, ablation, len(batch), reads, active, asked)
    logits = run(network, repeat_inputs(batch.clean, count), ops)[:, 0]
    return batch.readout.measure(logits.unflatten(0, (count, -1)))


def _rows_at_once(model: Model, batch: Batch, active: int) -> int:
    """Circuits × examples of one forward pass."""
    network = model.network
    attention = network.body.blocks[0].attention
    each = batch.clean.mask.shape[1] * attention.q.shape[1] * network.dtype.itemsize
    limit = _GPU_BYTES if network.device.type == "cuda" else _CPU_BYTES
    # Gaps are there twice while one is added; the readers of a layer have a stream each.
    return max(1, limit // (each * (2 * active + 3 * attention.heads + 1)))


def run_edge_circuits(
    model: Model, batch: Batch, circuits: Sequence[Collection[str]], ablation: Ablation
) -> Float[Tensor, "circuit batch"]:
    """The metric of circuits given as the names of the edges that they keep."""
    removed = graph_of(model, post_norms=False).removed(circuits)
    return run_edges(model, batch, removed, ablation)
