"""What a reader reads, and from whom: the shares of its query, key, value or MLP input.

A reader t sees the residual stream through a norm and a matrix W. Node s adds
δ_s = out_s − out_s(μ) to that stream, so with the norm's scale held at the model's own

    β_t(s) = W·norm(δ_s),    D_t = Σ_s β_t(s),    share(s) = ⟨β_t(s), D_t⟩ / ‖D_t‖²,

summed over positions. D_t is all that t reads beyond the ablation, and the shares of one reader add
up to 1: a negative one belongs to a node that works against the rest.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.ablation import Ablation, position_mask
from unweave.batch import Batch
from unweave.circuits import Scores
from unweave.decomposition.api import decompose
from unweave.decomposition.rules import norm_frozen
from unweave.decomposition.ruleset import RuleSet
from unweave.errors import UnweaveError
from unweave.graph import Graph, graph_of
from unweave.model.algebra import Plain
from unweave.model.model import Model
from unweave.model.program import Inputs, Stream, stages
from unweave.model.weights import Linear, Norm
from unweave.sites import Point, Site, parse

_LABEL = re.compile(r"(a\d+)\.h(\d+)<([qkv])>(@\S+)?")

Written = Float[Tensor, "node batch position d_model"]


@dataclass(frozen=True, eq=False)
class StreamReader:
    """One reader of the residual stream.

    Args:
        site: A head's q, k or v (its own key head where heads share them), or an MLP.
        label: As the graph of edges names it, `a5.h1<q>` or `m5`.
        matrix: W; None for an MLP, whose input is the normed stream itself.
    """

    site: Site
    label: str
    matrix: Float[Tensor, "d_head d_model"] | None


def feeds(
    model: Model,
    batch: Batch,
    ablation: Ablation,
    reader: str | Site,
    sources: Sequence[str] | None = None,
    rules: str | RuleSet = "removal",
) -> Scores:
    """The share of what a reader reads that comes from each upstream node.

    Args:
        ablation: What nodes are compared with; holds values at `unweave.graph.graph_points`.
        reader: `a9.h6<q>` (a query head's own), `a9.h6.q` (a site) or `m5`, with an optional
            position such as `@end`; without one, all real positions count together.
        sources: None for every upstream node by its direct path; they add up to 1. Given sites
            (`embed@S1`, `a3.h0`) count by all their paths, under `rules`; q, k and v only.

    Returns:
        Shares, their mean over examples; `about` names the reader and the path.

    Raises:
        UnweaveError: For a reader that the model does not have.
    """
    found, graph = read_reader(model, reader), graph_of(model)
    ops = _observe(model, batch.clean, graph, found.site.point)
    upstream = _upstream(graph, found)
    delta = written(model, ops, graph, ablation)[:upstream]
    parts = _through(delta, ops, found)
    whole = parts.sum(0)
    names = graph.sources[:upstream]
    if sources is not None:
        if found.matrix is None:
            raise UnweaveError(
                f"{found.label} is an MLP: given sources are followed into q, k or v only; leave "
                "sources out for the shares of its upstream nodes"
            )
        target = str(found.site.at(None))
        split = decompose(
            model,
            batch.clean,
            sources,
            target,
            rules,
            ablation,
            batch.positions,
        )
        parts, names = split.rel[target], split.sources
    shares = _shares(parts, whole, batch, found)
    about = {
        "reader": found.label,
        "path": "direct" if sources is None else "total",
        "ablation": ablation.name,
        "model": model.name,
    }
    return Scores(tuple(names), shares.mean(1).cpu(), shares.cpu(), about=about)


def read_reader(model: Model, reader: str | Site) -> StreamReader:
    """A reader from an edge's destination (`a9.h6<q>`), or from a site (`a9.h6.q`, `m5`).

    Raises:
        UnweaveError: For anything else, or a head that the model does not have.
    """
    match = _LABEL.fullmatch(reader.strip()) if isinstance(reader, str) else None
    text = f"{match[1]}.h{match[2]}{match[4] or ''}" if match else reader
    site = parse(text)
    model.check_site(site)
    part = match[3] if match else site.point.kind
    if part not in ("q", "k", "v", "mlp") or site.point.stack:
        raise UnweaveError(f"{reader} reads nothing: expected e.g. a9.h6<q>, a9.h6.k or m5")
    if part == "mlp":
        return StreamReader(site, str(site), None)
    w = model.network.body.blocks[site.point.layer].attention
    assert site.unit is not None
    unit = site.unit
    if match and part != "q":
        unit = unit // (w.heads // w.kv_heads)
    linear: Linear = getattr(w, part)
    rows = linear.matrix.unflatten(0, (-1, w.d_head))[unit]
    inner = Site(Point(part, site.point.layer), unit, site.position)  # pyright: ignore[reportArgumentType]
    return StreamReader(inner, str(reader).strip() if match else str(inner), rows)


@dataclass(eq=False)
class Observe(Plain):
    """A plain run that keeps what nodes write and what branches read.

    Args:
        written: By point, the activation of its nodes.
        read: By layer and branch ("attention", "mlp"), the stream before its norm, and the norm.
        post: By layer, what the norm on the attention's output gets (Gemma 2), and the norm.
    """

    points: frozenset[Point]
    written: dict[Point, Tensor] = field(default_factory=dict)
    read: dict[tuple[int, str], tuple[Tensor, Norm | None]] = field(default_factory=dict)
    post: dict[int, tuple[Tensor, Norm]] = field(default_factory=dict)
    layer: int = 0

    def norm(self, x: Tensor, w: Norm, place: str) -> Tensor:
        branch, _, which = place.partition(".")
        if which == "pre":
            self.read[self.layer, branch] = (x, w)
        elif place == "attention.post":
            self.post[self.layer] = (x, w)
        return super().norm(x, w, place)

    def linear(self, x: Tensor, w: Linear, place: str) -> Tensor:
        if place in ("attention.q", "mlp.in"):
            self.read.setdefault((self.layer, place.partition(".")[0]), (x, None))
        return super().linear(x, w, place)

    def at(self, x: Tensor, point: Point) -> Tensor:
        if point.kind == "resid":
            self.layer = point.layer
        if point in self.points:
            self.written[point] = x
        return x


def _observe(model: Model, inputs: Inputs, graph: Graph, last: Point) -> Observe:
    """A plain run up to the reader's block."""
    ops = Observe(frozenset(p for p in graph.source_rows if p.depth < last.depth))
    stream: Stream[Tensor] | None = None
    with torch.no_grad():
        for stage in stages(model.network, inputs)[: last.layer + 2]:
            stream = stage.apply(ops, stream)
    return ops


def written(model: Model, run: Observe, graph: Graph, ablation: Ablation) -> Written:
    """δ_s = out_s − out_s(μ): what each node of a run adds to the stream beyond its ablation.

    A head adds (z − μ)·W_O. A norm on the attention's output counts with its scale held.
    """
    parts = []
    for point in graph.source_rows:
        if point not in run.written:
            break
        x = run.written[point]
        delta = x - ablation.at(point, x)
        if point.kind != "z":
            parts.append(delta[None])
            continue
        w = model.network.body.blocks[point.layer].attention
        weight = w.out.matrix.unflatten(1, (w.heads, w.d_head))
        out = torch.einsum("bphe,dhe->hbpd", delta, weight)
        if point.layer in run.post:
            before, norm = run.post[point.layer]
            out = norm_frozen(out, before, norm, before)
        parts.append(out)
    return torch.cat(parts)


def _upstream(graph: Graph, reader: StreamReader) -> int:
    layer = reader.site.point.layer
    branch = "mlp" if reader.matrix is None else "attention"
    return graph.destinations[graph.destination_rows[layer, branch].start].upstream


def _through(
    delta: Written, run: Observe, reader: StreamReader
) -> Float[Tensor, "node batch position d"]:
    """β_t of each source: its part of the stream through the reader's norm and weights."""
    branch = "mlp" if reader.matrix is None else "attention"
    total, norm = run.read[reader.site.point.layer, branch]
    parts = delta if norm is None else norm_frozen(delta, total, norm, total)
    return parts if reader.matrix is None else parts @ reader.matrix.T


def _shares(
    parts: Float[Tensor, "source batch position d"],
    whole: Float[Tensor, "batch position d"],
    batch: Batch,
    reader: StreamReader,
) -> Float[Tensor, "source batch"]:
    where = position_mask(reader.site, batch.clean, batch.positions)
    mask = batch.clean.mask if where is None else where
    along = ((parts * whole).sum(-1) * mask).sum(-1)
    size = (whole.pow(2).sum(-1) * mask).sum(-1)
    # Nothing is read beyond the ablation: nobody has a share of it.
    return torch.where(size == 0, 0.0, along / size.clamp(min=torch.finfo(size.dtype).tiny))
