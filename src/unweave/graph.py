"""The edges of a decoder: who writes into the residual stream, and who reads it.

Nodes are `input` (the embedding), every head `a5.h1`, every MLP `m5`, and `logits`; an edge leads
from a node to the query, key or value of a later head, to a later MLP or to the logits. The names
are those of EAP-IG and MIB: `input->m0`, `a0.h0->a5.h1<q>`, `m11->logits`.
"""

import functools
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unweave.errors import UnweaveError
from unweave.model.model import Model
from unweave.model.weights import Attention
from unweave.registry import nearest
from unweave.sites import Point, Site

InputName = Literal["", "q", "k", "v"]
EMBED, LOGITS = Point("embed"), Point("logits")
Removed = Bool[Tensor, "circuit destination source"]


@dataclass(frozen=True)
class Destination:
    """One reader of the residual stream.

    Args:
        node: The node it belongs to, "a5.h1".
        branch: q, k or v of a head; "" of an MLP and of the logits.
        upstream: It reads this many sources, the first of the graph.
    """

    node: str
    branch: InputName
    upstream: int

    def __str__(self) -> str:
        return f"{self.node}<{self.branch}>" if self.branch else self.node


@dataclass(frozen=True, eq=False)
class Graph:
    """Sources and destinations, both in the order of the forward pass.

    Args:
        sources: Names of the nodes that write: input, then heads and MLP layer by layer.
        destinations: Of each layer the heads' q, their k, their v, then the MLP; last the logits.
        source_rows: By point, where its sources stand.
        destination_rows: By layer and branch ("attention", "mlp", "logits"), its destinations.
    """

    sources: tuple[str, ...]
    destinations: tuple[Destination, ...]
    source_rows: dict[Point, slice]
    destination_rows: dict[tuple[int, str], slice]

    @property
    def nodes(self) -> tuple[str, ...]:
        return (*self.sources, "logits")

    @functools.cached_property
    def mask(self) -> Bool[Tensor, "destination source"]:
        """Which pairs are edges."""
        upstream = torch.tensor([d.upstream for d in self.destinations])
        return torch.arange(len(self.sources)) < upstream[:, None]

    @functools.cached_property
    def edges(self) -> tuple[str, ...]:
        """Names of all edges, destination by destination: the order of `values`."""
        return tuple(
            f"{source}->{into}"
            for destination in self.destinations
            for into in (str(destination),)
            for source in self.sources[: destination.upstream]
        )

    @functools.cached_property
    def index(self) -> dict[str, tuple[int, int]]:
        """Destination and source number of each edge."""
        where = self.mask.nonzero().tolist()
        return {name: (row, column) for name, (row, column) in zip(self.edges, where, strict=True)}

    def values(self, matrix: Float[Tensor, "destination source"]) -> Float[Tensor, " edge"]:
        """The entries of a matrix that are edges, in the order of `edges`."""
        return matrix[self.mask.to(matrix.device)]

    def removed(self, kept: Iterable[Collection[str]]) -> Removed:
        """Everything that each circuit, a set of edge names, does not hold.

        Raises:
            UnweaveError: For a name that is not an edge of this graph.
        """
        rows = []
        for circuit in kept:
            row = self.mask.clone()
            for name in circuit:
                if name not in self.index:
                    known = nearest(name, self.edges, "expected e.g. a0.h0->a5.h1<q>")
                    raise UnweaveError(f"{name!r} is not an edge of this model: {known}")
            where = [self.index[name] for name in circuit]
            row[tuple(torch.tensor(where, dtype=torch.long).reshape(-1, 2).T)] = False
            rows.append(row)
        return torch.stack(rows)

    def among(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """Edges between these nodes, from the input and to the logits."""
        ends = {"input", "logits", *nodes}
        rows = [d.node in ends for d in self.destinations]
        columns = torch.tensor([source in ends for source in self.sources])
        inside = (self.mask & torch.tensor(rows)[:, None] & columns)[self.mask]
        return tuple(self.edges[i] for i in inside.nonzero().flatten().tolist())


def graph_of(model: Model, post_norms: bool = True) -> Graph:
    """The graph of a decoder whose branches read the stream through at most one norm.

    Args:
        post_norms: Whether norms on a branch's output (Gemma 2) are allowed; a caller that needs
            the nodes' outputs to add up exactly cannot have them.

    Raises:
        UnweaveError: For an architecture without such edges, naming why.
    """
    if model.family != "decoder":
        raise UnweaveError(
            f"edges are defined for decoders, {model.architecture} is an {model.family}: "
            "score nodes instead"
        )
    shape = []
    for block in model.network.body.blocks:
        for branch in block.branches:
            body, reason = branch.body, ""
            if branch.after is not None:
                reason = "norms the residual stream itself (post-norm)"
            elif branch.post is not None and not post_norms:
                reason = "norms the output of its branches (sandwich norms)"
            elif isinstance(body, Attention) and _wide_norm(body):
                reason = "norms all queries of a layer together"
            if reason:
                raise UnweaveError(
                    f"{model.architecture} {reason}: its edges do not add up, score nodes instead"
                )
        shape.append((block.attention.heads, block.mlp is not None, block.parallel))
    return _graph(tuple(shape))


def _wide_norm(w: Attention) -> bool:
    norms = [n for n in (w.q_norm, w.k_norm) if n is not None]
    return any(n.weight is not None and len(n.weight) != w.d_head for n in norms)


@functools.lru_cache(maxsize=16)
def _graph(shape: tuple[tuple[int, bool, bool], ...]) -> Graph:
    sources, destinations = ["input"], []
    source_rows, destination_rows = {EMBED: slice(0, 1)}, {}

    def read(layer: int, branch: str, readers: list[tuple[str, InputName]], upstream: int) -> None:
        start = len(destinations)
        destinations.extend(Destination(node, part, upstream) for node, part in readers)
        destination_rows[layer, branch] = slice(start, len(destinations))

    def write(point: Point, names: list[str]) -> None:
        source_rows[point] = slice(len(sources), len(sources) + len(names))
        sources.extend(names)

    for layer, (heads, has_mlp, parallel) in enumerate(shape):
        entry = len(sources)
        names = [str(Site(Point("z", layer), head)) for head in range(heads)]
        parts: tuple[InputName, ...] = ("q", "k", "v")
        read(layer, "attention", [(name, part) for part in parts for name in names], entry)
        write(Point("z", layer), names)
        if has_mlp:
            read(layer, "mlp", [(f"m{layer}", "")], entry if parallel else len(sources))
            write(Point("mlp", layer), [f"m{layer}"])
    read(len(shape), "logits", [("logits", "")], len(sources))
    return Graph(tuple(sources), tuple(destinations), source_rows, destination_rows)


def edge_name(source: Site, target: Site) -> str:
    """The name of an edge from a node, or `embed`, to a head's input, an MLP or the logits."""
    before = "input" if source.point == EMBED else str(source)
    if target.point.kind not in ("q", "k", "v"):
        return f"{before}->{target}"
    head = Site(Point("z", target.point.layer), target.unit)
    return f"{before}->{head}<{target.point.kind}>"


def edge_ends(edge: str) -> tuple[str, str, str]:
    """Source, target and branch (q, k, v or "") of an edge, "a0.h0->a5.h1<q>"."""
    source, _, target = edge.partition("->")
    node, _, branch = target.partition("<")
    return source, node, branch.rstrip(">")


def graph_points(model: Model) -> tuple[Point, ...]:
    """Where an ablation has to hold values for the edges of a model."""
    return tuple(graph_of(model).source_rows)


def graph_of_shape(shape: tuple[tuple[int, bool, bool], ...]) -> Graph:
    """The graph of a decoder known by its shape only: of each layer heads, MLP, parallel."""
    return _graph(shape)
