"""Gradients at the input of every head's query, key and value, of every MLP and of the logits.

One backward pass gives the gradient g at each head's own q, k and v; it is pulled back through the
head's weights W and the norm's Jacobian in closed form, so that the residual stream is never
copied per head. With x̂ = (x − mean x)/σ and W′ = W·diag(gain), centred over d_model for LayerNorm,

    Jᵀ Wᵀ g = W′ᵀ (g/σ) − x̂ · ⟨g/σ, W′x̂⟩/d,      W′x̂ = q − (W·bias + b),

so several runs (integrated gradients) need one product with W between them: Σ g/σ is enough.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.ablation import Ablation
from unweave.batch import Batch
from unweave.graph import Graph
from unweave.model.model import Model
from unweave.model.program import Stream
from unweave.model.weights import Attention, Block, Linear, Norm
from unweave.patching.circuits import read_positions
from unweave.scores.gradients import (
    ROWS,
    Activations,
    Tap,
    ablation_of,
    gradients_at,
    run_from,
    tracked,
)
from unweave.scores.problem import Problem
from unweave.sites import Point

_BYTES = 512 * 2**20  # for what all nodes add to the residual stream of a part of the prompts

Key = tuple[int, str]  # layer, and q, k, v, mlp, gate or logits


@dataclass(eq=False)
class EdgeTap(Tap):
    """A run that keeps what enters each destination, in its graph, and what each source wrote.

    Keys and values are repeated for every query head of their group: each gets its own gradient.
    """

    blocks: tuple[Block, ...] = ()
    inputs: dict[Key, Tensor] = field(default_factory=dict)
    norms: dict[tuple[int, str], tuple[Tensor, Norm]] = field(default_factory=dict)
    layer: int = 0

    def norm(self, x: Tensor, w: Norm, place: str) -> Tensor:
        self.norms[self.layer, place] = (x.detach(), w)
        return super().norm(x, w, place)

    def linear(self, x: Tensor, w: Linear, place: str) -> Tensor:
        if place in ("mlp.in", "mlp.gate"):
            # A view of its own: the gradient at it is that of this reader alone.
            x = self.inputs[self.layer, place] = tracked(x.view_as(x))
        return super().linear(x, w, place)

    def at(self, x: Tensor, point: Point) -> Tensor:
        x = self.given.get(point, x)
        if point.kind == "resid":
            self.layer = point.layer
            if point.layer == len(self.blocks):
                x = self.inputs[point.layer, "logits"] = tracked(x)
        elif point.kind in ("q", "k", "v"):
            heads = self.blocks[point.layer].attention.heads
            if x.shape[-2] < heads:
                x = x.repeat_interleave(heads // x.shape[-2], -2)
            x = self.inputs[point.layer, point.kind] = tracked(x)
        elif point in self.points:
            self.computed[point] = x.detach()
        return x


@dataclass(eq=False)
class EdgeGradients:
    """Sums, over runs of one batch, of what the gradients at all destinations are made of.

    Args:
        scaled: By layer and branch, Σ g/σ at q, k or v: [head, batch·position, d_head].
        along: By layer, of each run x̂ and ⟨g/σ, W′x̂⟩/d of every q, k and v.
        direct: By layer and branch, Σ of the gradient at an MLP's or the logits' input itself.
    """

    model: Model
    batch: Batch
    graph: Graph
    scaled: dict[Key, Tensor] = field(default_factory=dict)
    along: dict[int, list[tuple[Tensor, Tensor]]] = field(default_factory=lambda: defaultdict(list))
    direct: dict[Key, Tensor] = field(default_factory=dict)

    def add(
        self, given: Activations | None = None, start: int = 0, stream: Stream[Tensor] | None = None
    ) -> EdgeTap:
        """One forward and one backward pass; returns the run."""
        blocks = self.model.network.body.blocks
        ops = EdgeTap(
            {},
            Ablation("none"),
            len(self.batch),
            read_positions(self.model, self.batch)[:, None],
            points=frozenset(self.graph.source_rows),
            given=given or {},
            blocks=blocks,
        )
        with torch.enable_grad():
            found = gradients_at(run_from(self.model, self.batch, ops, start, stream), ops.inputs)
        for layer, block in enumerate(blocks):
            if (layer, "q") in found:
                self._add_attention(layer, block.attention, ops, found)
            for place in ("mlp.in", "mlp.gate"):
                if (layer, place) in found:
                    pulled = _through_norm(found[layer, place], ops.norms.get((layer, "mlp.pre")))
                    _accumulate(self.direct, (layer, "mlp"), pulled)
        _accumulate(self.direct, (len(blocks), "logits"), found[len(blocks), "logits"])
        return ops

    def _add_attention(
        self, layer: int, w: Attention, ops: EdgeTap, found: dict[Key, Tensor]
    ) -> None:
        pre = ops.norms.get((layer, "attention.pre"))
        scale = None if pre is None else _normalised(*pre)[1]
        inner = []
        for branch, linear in (("q", w.q), ("k", w.k), ("v", w.v)):
            g = found[layer, branch]
            if pre is not None and scale is not None:
                g = g * scale[..., None]
                held = ops.inputs[layer, branch].detach() - _offset(linear, pre[1], w)
                inner.append((held * g).sum(-1).flatten(0, 1).T / pre[0].shape[-1])
            _accumulate(self.scaled, (layer, branch), g.flatten(0, 1).transpose(0, 1))
        if pre is not None:
            self.along[layer].append((_normalised(*pre)[0].flatten(0, 1), torch.cat(inner)))

    def attention(self, layer: int) -> Float[Tensor, "destination token d_model"]:
        """The gradient at the residual stream as each q, k and v of a layer reads it."""
        block = self.model.network.body.blocks[layer]
        branch, w = next(b for b in block.branches if b.body is block.attention), block.attention
        first = self.scaled[layer, "q"]
        pulled = first.new_empty(3 * w.heads, first.shape[1], w.q.matrix.shape[1])
        for i, (name, linear) in enumerate((("q", w.q), ("k", w.k), ("v", w.v))):
            weight = _per_head(_folded(linear.matrix, branch.pre), w)
            torch.bmm(self.scaled[layer, name], weight, out=pulled[i * w.heads : (i + 1) * w.heads])
        for x_hat, inner in self.along[layer]:
            pulled.addcmul_(inner[..., None], x_hat, value=-1)
        return pulled


def _accumulate(sums: dict[Key, Tensor], key: Key, x: Tensor) -> None:
    sums[key] = sums[key] + x if key in sums else x


def _normalised(x: Float[Tensor, "*lead d"], w: Norm) -> tuple[Tensor, Float[Tensor, "*lead 1"]]:
    """x̂ and 1/σ of a norm."""
    if w.kind == "layer":
        x = x - x.mean(-1, keepdim=True)
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + w.eps)
    return x * scale, scale


def _through_norm(
    g: Float[Tensor, "*lead d"], norm: tuple[Float[Tensor, "*lead d"], Norm] | None
) -> Float[Tensor, "*lead d"]:
    """Jᵀg = (g′ − x̂·mean(g′x̂))/σ with g′ = g·gain, centred for LayerNorm."""
    if norm is None:
        return g
    (x_hat, scale), w = _normalised(*norm), norm[1]
    g = g if w.gain is None else g * w.gain
    g = g - g.mean(-1, keepdim=True) if w.kind == "layer" else g
    return (g - x_hat * (g * x_hat).mean(-1, keepdim=True)) * scale


def _folded(
    matrix: Float[Tensor, "out d_model"], norm: Norm | None
) -> Float[Tensor, "out d_model"]:
    """W′ = W·diag(gain), centred for LayerNorm."""
    if norm is None:
        return matrix
    matrix = matrix if norm.gain is None else matrix * norm.gain
    return matrix - matrix.mean(-1, keepdim=True) if norm.kind == "layer" else matrix


def _per_head(x: Float[Tensor, "out *d_model"], w: Attention) -> Float[Tensor, "head d *d_model"]:
    """Rows of a projection by query head; a key head's serve its whole group."""
    x = x.unflatten(0, (-1, w.d_head))
    return x if len(x) == w.heads else x.repeat_interleave(w.heads // len(x), 0)


def _offset(linear: Linear, norm: Norm, w: Attention) -> Float[Tensor, "#head #d"]:
    """W·bias + b: what a projection holds for x̂ = 0."""
    matrix = linear.matrix
    offset = matrix.new_zeros(len(matrix)) if linear.offset is None else linear.offset
    return _per_head(offset if norm.bias is None else offset + matrix @ norm.bias, w)


@dataclass(frozen=True, eq=False)
class Contributions:
    """out_u − out_u(μ) of every source.

    Args:
        whole: Of the sources before the last block's heads, at every position.
        read: Of every source, at the position that is read.
    """

    whole: Float[Tensor, "early batch position d_model"]
    read: Float[Tensor, "source batch 1 d_model"]


def contributions(
    model: Model, graph: Graph, batch: Batch, ablation: Ablation, clean: EdgeTap
) -> Contributions:
    """What each node adds to the residual stream of a run, less what its ablation would add.

    A head adds (z − μ)·W_O; a norm on the attention's output (Gemma 2) counts as the linear map
    that it is at this run, its scale held.
    """
    blocks, embed = model.network.body.blocks, clean.computed[Point("embed")]
    reads, examples = read_positions(model, batch)[:, None], torch.arange(len(batch))[:, None]
    last = Point("z", len(blocks) - 1)
    early = graph.source_rows[last].start
    whole = embed.new_empty(early, *embed.shape)
    read = embed.new_empty(len(graph.sources), len(batch), 1, embed.shape[-1])
    for point, rows in graph.source_rows.items():
        x = clean.computed[point]
        delta = x - ablation_of(ablation, point, x, batch)
        if point == last:
            delta = delta[examples.to(x.device), reads]
        out = whole[rows] if rows.stop <= early else read[rows]
        if point.kind == "z":
            w = blocks[point.layer].attention
            weight = w.out.matrix.unflatten(1, (w.heads, w.d_head)).permute(1, 2, 0)
            torch.bmm(delta.flatten(0, 1).transpose(0, 1), weight, out=out.flatten(1, 2))
            if (point.layer, "attention.post") in clean.norms:
                before, norm = clean.norms[point.layer, "attention.post"]
                out.mul_(_normalised(before, norm)[1])
                out.copy_(_folded(out.flatten(0, -2), norm).view_as(out))
        else:
            out.copy_(delta[None])
    read[:early] = whole[:, examples.to(embed.device), reads]
    return Contributions(whole, read)


def matrix_of(
    gradients: EdgeGradients, sources: Contributions, only: slice = slice(None)
) -> Float[Tensor, "destination source"]:
    """⟨out_u − out_u(μ), gradient at v⟩ of every edge, summed over examples.

    Args:
        only: Sources to score; the entries of others stay 0.
    """
    graph, last = gradients.graph, len(gradients.model.network.body.blocks) - 1
    scores = sources.read.new_zeros(len(graph.destinations), len(graph.sources))
    for (layer, branch), rows in graph.destination_rows.items():
        key = (layer, "q") if branch == "attention" else (layer, branch)
        if key not in gradients.scaled and key not in gradients.direct:
            continue  # the run began after it
        if branch == "attention":
            g = gradients.attention(layer)
        else:
            g = gradients.direct[key].flatten(0, 1)[None]
        cut = layer > last or (layer == last and branch == "mlp")
        everything = sources.read if cut else sources.whole
        columns = range(len(graph.sources))[: graph.destinations[rows.start].upstream][only]
        if len(columns):
            chosen = everything[columns.start : columns.stop]
            product = g.flatten(1) @ chosen.flatten(1).T
            scores[rows, columns.start : columns.stop] = product
    return scores


def edge_parts(problem: Problem, graph: Graph) -> list[slice]:
    """Prompts, as many at a time as memory allows."""
    network, count = problem.model.network, len(problem.batch)
    width = network.body.blocks[0].attention.q.matrix.shape[1]
    one = len(graph.sources) * problem.batch.clean.mask.shape[1] * width * network.dtype.itemsize
    rows = max(1, min(ROWS if network.device.type == "cpu" else 8 * ROWS, _BYTES // one))
    return [slice(i, min(i + rows, count)) for i in range(0, count, rows)]
