"""Paths from tokens through nodes to the logits, with what each carries of the metric.

Every reader t (a head, an MLP, the logits) is a function of what its inputs read. With D = Σ δ_s,
all that its stream holds beyond the ablation, its mean Jacobian on the way from x − D to x,

    J_b = ∫₀¹ ∂f_t/∂x_b (x − (1 − a)·D) da      for its inputs b (q, k, v; one for an MLP),

is a linear map that gives the whole change: Σ_b J_b D = f_t(x) − f_t(x − D). A path
s → t₁.b₁ → … → logits carries

    value = ⟨δ_s, J_{b₁}ᵀ(t₁) ⋯ J_{bₙ}ᵀ(tₙ) Jᵀ(logits)⟩,

so what reaches t along the rest of a path is the sum of what its inputs carry and of its own part,
f_t(x − D) − out_t(μ): what it writes beyond its ablation although all that it reads is ablated
(0 for counterfactual prompts). Summed over all paths this is

    m(M) − m(every node and every token at its ablation).
"""

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from unweave.ablation import Ablation
from unweave.batch import Batch
from unweave.cost import spend
from unweave.decomposition.feeds import Observe, Written, written
from unweave.decomposition.pushed_edges import node_site
from unweave.graph import Graph, graph_of
from unweave.model.model import Model
from unweave.model.parts import NodeFunction, head_part, logits_part, mlp_part
from unweave.model.program import run
from unweave.sites import Point

ELSEWHERE = "elsewhere"
_NUMBERS = 2**22  # of the streams that one reader is run on at once
Values = Float[Tensor, " batch"]
Covector = Float[Tensor, "batch position d_model"]


@dataclass(frozen=True, eq=False)
class PathScore:
    """What one path carries.

    Args:
        steps: `input@S2`, `a0.h0<k>`, `a9.h6<q>`, `logits`; a path that begins at a node carries
            the part of it that none of its inputs brings.
        values: Of the metric, on each prompt.
    """

    steps: tuple[str, ...]
    values: Values

    @property
    def value(self) -> float:
        return float(self.values.mean())


@dataclass(frozen=True, eq=False)
class Paths:
    """The strongest paths, and what is left.

    Args:
        found: Complete paths, the largest value first.
        total: m(M) − m(every node and token at its ablation), on each prompt.
        error: By how much the integrals miss what they add up to, summed over expanded nodes.
        expanded: How many partial paths were followed to what feeds them.
    """

    found: tuple[PathScore, ...]
    total: Values
    error: float
    expanded: int

    def share(self, path: PathScore) -> float:
        """The part of the metric that a path carries."""
        return path.value / float(self.total.mean())

    def left(self, count: int | None = None) -> float:
        """The part that none of the first `count` paths carries."""
        return 1.0 - sum(self.share(path) for path in self.found[:count])


def find_paths(
    model: Model,
    batch: Batch,
    ablation: Ablation,
    expansions: int = 64,
    least: float = 1e-3,
    steps: int = 16,
) -> Paths:
    """The strongest paths, from the logits backwards, the largest partial path first.

    Args:
        ablation: What nodes are compared with; holds values at `unweave.graph.graph_points`.
        expansions: How many partial paths may be followed to what feeds them.
        least: Partial paths below this share of the metric are not followed.
        steps: Of the quadrature of each J.

    Raises:
        UnweaveError: For an architecture whose nodes' outputs do not add up.
    """
    observed = observe_paths(model, batch, ablation)
    total, at_logits = observed.at_logits(steps)
    floor = least * float(total.mean().abs())
    order, done, error = itertools.count(), [], 0.0
    heap: list[tuple[float, int, _Partial]] = []

    def branch(partial: "_Partial | None", gradients: dict[str, Covector]) -> None:
        nonlocal done
        for one in observed.feeding(partial, gradients):
            if isinstance(one, PathScore):
                done.append(one)
            elif (size := float(one.values.abs().mean())) > floor:
                heapq.heappush(heap, (-size, next(order), one))

    branch(None, {"": at_logits})
    expanded = 0
    while heap and expanded < expansions:
        partial = heapq.heappop(heap)[2]
        gradients, own, missed = observed.expand(partial, steps)
        if bool((own != 0).any()):
            done.append(PathScore(partial.steps, own))
        branch(partial, gradients)
        error, expanded = error + missed, expanded + 1
    done.sort(key=lambda path: -abs(path.value))
    return Paths(tuple(done), total, error, expanded)


@dataclass(frozen=True, eq=False)
class _Partial:
    """A path from a node on, with what the rest of the model makes of the node's write."""

    node: int
    steps: tuple[str, ...]
    covector: Covector
    values: Values


@dataclass(frozen=True, eq=False)
class Observed:
    """One plain run: what every node writes beyond its ablation, and what every reader reads.

    Args:
        delta: δ_s of every node.
        read: By layer and branch ("attention", "mlp"), the stream; by (layers, "logits"), the last.
    """

    model: Model
    batch: Batch
    graph: Graph
    delta: Written
    read: dict[tuple[int, str], Covector]

    @cached_property
    def position_masks(self) -> dict[str, Float[Tensor, "batch position"]]:
        """Labelled positions of the prompts, and the rest of them, each as a mask."""
        mask = self.batch.clean.mask.to(self.delta.dtype)
        index = torch.arange(mask.shape[1], device=mask.device)
        left, found = mask.clone(), {}
        for name, where in self.batch.positions.items():
            # A position with two labels counts for the first.
            found[name] = (index == where[:, None]) * left
            left = left - found[name]
        return found | {ELSEWHERE: left}

    def upstream(self, key: tuple[int, str]) -> int:
        rows = self.graph.destination_rows[key]
        return self.graph.destinations[rows.start].upstream

    def at_logits(self, steps: int) -> tuple[Values, Covector]:
        """m(x) − m(x − D), and the mean gradient of the metric on the way."""
        key = (len(self.model.network.body.blocks), "logits")
        x, ablated = self.ends(key)
        rows = torch.arange(len(x), device=x.device)
        read, to_logits = self.batch.readout.read, logits_part(self.model)

        def metric(stream: Float[Tensor, "*lead batch position d"]) -> Float[Tensor, "*lead batch"]:
            return self.batch.readout.measure(to_logits(stream[..., rows, read, :]))

        gradient = torch.zeros_like(x)
        for points, weights in self.on_the_way(x, ablated, steps):
            points.requires_grad_()
            with torch.enable_grad():
                total = (metric(points) * weights[:, None]).sum()
                gradient += torch.autograd.grad(total, points)[0].sum(0)
        with torch.no_grad():
            return metric(x) - metric(ablated), gradient

    def on_the_way(
        self, x: Covector, ablated: Covector, steps: int
    ) -> Iterator[tuple[Float[Tensor, "point batch position d_model"], Float[Tensor, " point"]]]:
        """Streams between the ablated one and the model's, with their weights, some at a time."""
        listed = torch.tensor(quadrature(steps), dtype=x.dtype, device=x.device)
        for part in listed.split(max(1, _NUMBERS // x.numel())):
            points, weights = part.T
            yield ablated + points[:, None, None, None] * (x - ablated), weights

    def ends(self, key: tuple[int, str]) -> tuple[Covector, Covector]:
        """What a reader reads, and what it would read were everything upstream ablated."""
        x = self.read[key]
        return x, x - self.delta[: self.upstream(key)].sum(0)

    def expand(self, partial: _Partial, steps: int) -> tuple[dict[str, Covector], Values, float]:
        """Jᵀ of a partial path for each input of its node, its own part, and the error of both."""
        name = self.graph.sources[partial.node]
        part, key, branches = self.part(name)
        x, ablated = self.ends(key)
        gradients = {branch: torch.zeros_like(x) for branch in branches}
        for points, weights in self.on_the_way(x, ablated, steps):
            streams = {branch: points.clone().requires_grad_() for branch in branches}
            with torch.enable_grad():
                pulled = (part(streams) * partial.covector).sum((1, 2, 3)) @ weights
                found = torch.autograd.grad(pulled, list(streams.values()))
            for branch, gradient in zip(branches, found, strict=True):
                gradients[branch] += gradient.sum(0)
        # A backward pass counts twice its forward pass; one head is that part of its block.
        share = self.model.network.body.blocks[key[0]].attention.heads if len(branches) > 1 else 1
        spend(3 * steps * x.shape[:2].numel() // share)
        own = self.own(partial.node)
        change = ((self.delta[partial.node] - own) * partial.covector).sum((1, 2))
        passed = sum(((x - ablated) * gradient).sum((1, 2)) for gradient in gradients.values())
        missed = float((change - passed).abs().mean())
        return gradients, (own * partial.covector).sum((1, 2)), missed

    def own(self, node: int) -> Covector:
        """f(x − D) − out(μ): what a node writes beyond its ablation from ablated inputs."""
        part, key, branches = self.part(self.graph.sources[node])
        x, ablated = self.ends(key)
        with torch.no_grad():
            change = part(dict.fromkeys(branches, x)) - part(dict.fromkeys(branches, ablated))
        own = self.delta[node] - change * self.batch.clean.mask[..., None]
        # Of a node whose ablation is its own run on ablated inputs only rounding is left.
        noise = 256 * torch.finfo(own.dtype).eps * float(change.abs().max())
        return own if float(own.abs().max()) > noise else torch.zeros_like(own)

    def part(self, name: str) -> tuple[NodeFunction, tuple[int, str], Sequence[str]]:
        """A node as a function of what its inputs read, and what it reads."""
        site = node_site(name)
        layer = site.point.layer
        if site.point.kind == "mlp":
            return mlp_part(self.model, layer), (layer, "mlp"), ("",)
        part = head_part(self.model, self.batch.clean, site)
        return part, (layer, "attention"), ("q", "k", "v")

    def feeding(
        self, partial: _Partial | None, gradients: dict[str, Covector]
    ) -> Iterator["_Partial | PathScore"]:
        """Every node and token that feeds the start of a partial path (None: the logits)."""
        if partial is None:
            key = (len(self.model.network.body.blocks), "logits")
            rest: tuple[str, ...] = ()
            name = "logits"
        else:
            name = self.graph.sources[partial.node]
            key, rest = self.part(name)[1], partial.steps[1:]
        for branch, gradient in gradients.items():
            steps = (f"{name}<{branch}>" if branch else name, *rest)
            delta = self.delta[: self.upstream(key)]
            # The embedding is the first node: its tokens are kept apart.
            by_token = (delta[0] * gradient).sum(-1)
            for label, mask in self.position_masks.items():
                values = (by_token * mask).sum(-1)
                if bool((mask != 0).any()):
                    yield PathScore((f"input@{label}", *steps), values)
            values = torch.einsum("sbpd,bpd->sb", delta[1:], gradient)
            for node, own in enumerate(values, 1):
                source = self.graph.sources[node]
                yield _Partial(node, (source, *steps), gradient, own)


def observe_paths(model: Model, batch: Batch, ablation: Ablation) -> Observed:
    """One plain run of the prompts."""
    graph, last = graph_of(model, post_norms=False), len(model.network.body.blocks)
    final = Point("resid", last)
    ops = Observe(frozenset({*graph.source_rows, final}))
    with torch.no_grad():
        run(model.network, batch.clean, ops)
        delta = written(model, ops, graph, ablation) * batch.clean.mask[..., None]
    read = {key: x for key, (x, _) in ops.read.items()}
    return Observed(model, batch, graph, delta, {**read, (last, "logits"): ops.written[final]})


def quadrature(steps: int) -> list[tuple[float, float]]:
    """Points and weights of Gauss–Legendre quadrature on [0, 1], closer together towards 0.

    ∫ f(a) da with a = u²: near 0 the stream is small under zero ablation, and norms change fast.
    """
    points, weights = np.polynomial.legendre.leggauss(steps)
    half = [((1 + x) / 2, w / 2) for x, w in zip(points.tolist(), weights.tolist(), strict=True)]
    return [(u * u, 2 * u * w) for u, w in half]
