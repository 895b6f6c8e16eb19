"""Every path of a tiny attention-only GPT-2, as products of explicit Jacobian matrices.

Attention is written out here once more, in plain torch from the raw weights; paths are enumerated
one by one. One prompt.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from unweave.model.algebra import Plain
from unweave.model.model import Model
from unweave.model.program import Inputs, run
from unweave.model.weights import Linear, Norm
from unweave.scores.problem import Problem
from unweave.sites import Point, Site


@dataclass(eq=False)
class _Keep(Plain):
    found: dict[Point, Tensor] = field(default_factory=dict)

    def at(self, x: Tensor, point: Point) -> Tensor:
        self.found[point] = x
        return x


def kept(model: Model, inputs: Inputs) -> dict[Point, Tensor]:
    """What every point holds in a plain run."""
    ops = _Keep()
    with torch.no_grad():
        run(model.network, inputs, ops)
    return ops.found


def _points(steps: int) -> list[tuple[float, float]]:
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    return [((1 + float(x)) / 2, float(w) / 2) for x, w in zip(nodes, weights, strict=True)]


@dataclass(eq=False)
class Brute:
    """A problem of one prompt under counterfactual ablation."""

    problem: Problem
    steps: int = 24

    def __post_init__(self) -> None:
        model, batch = self.problem.model, self.problem.batch
        self.blocks, self.clean = model.network.body.blocks, kept(model, batch.clean)
        self.ablated = kept(model, batch.corrupted)
        self.heads = self.blocks[0].attention.heads

    def write(self, layer: int, unit: int, z: Tensor) -> Tensor:
        out = self.blocks[layer].attention.out.matrix.unflatten(1, (self.heads, -1))
        return z[0, :, unit] @ out[:, unit].T

    def delta(self, node: tuple[int, int] | None) -> Tensor:
        """position × d_model; None is the embedding."""
        if node is None:
            point = Point("embed")
            return (self.clean[point] - self.ablated[point])[0]
        point = Point("z", node[0])
        return self.write(*node, self.clean[point] - self.ablated[point])

    def head(self, layer: int, unit: int, streams: Tensor) -> Tensor:
        """What a head writes; `streams` holds what q, k and v read."""
        branch = self.blocks[layer].branches[0]
        norm = branch.pre
        assert isinstance(norm, Norm)
        w = self.blocks[layer].attention
        q, k, v = (
            functional.linear(
                functional.layer_norm(x, x.shape[-1:], norm.gain, norm.bias, norm.eps),
                linear.matrix,
                linear.offset,
            ).unflatten(-1, (self.heads, -1))[:, unit]
            for x, linear in zip(streams, (w.q, w.k, w.v), strict=True)
        )
        scores = q @ k.T * q.shape[-1] ** -0.5
        scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -torch.inf)
        out = w.out.matrix.unflatten(1, (self.heads, -1))[:, unit]
        return scores.softmax(-1) @ v @ out.T

    def metric(self, stream: Tensor) -> Tensor:
        model, readout = self.problem.model, self.problem.batch.readout
        norm = model.network.body.norm
        assert isinstance(norm, Norm)
        x = functional.layer_norm(stream, stream.shape[-1:], norm.gain, norm.bias, norm.eps)
        (step,) = model.network.head.steps
        assert isinstance(step, Linear)
        logits = functional.linear(x[int(readout.read[0])], step.matrix, step.offset)
        return readout.measure(logits[None])[0]

    def ends(self, layer: int) -> tuple[Tensor, Tensor]:
        """The stream in front of a layer, and the same with all that was written ablated."""
        x = self.clean[Point("resid", layer)][0]
        nodes = [None, *((a, h) for a in range(layer) for h in range(self.heads))]
        return x, x - sum(self.delta(node) for node in nodes)

    def values(self) -> dict[tuple[str, ...], float]:
        """Every path from the embedding or from a node's own part, and what it carries."""
        last = len(self.blocks)
        x, low = self.ends(last)
        slope = torch.zeros_like(x)
        for a, weight in _points(self.steps):
            at = (low + a * (x - low)).requires_grad_()
            slope += weight * torch.autograd.grad(self.metric(at), at)[0]
        jacobians = {
            (layer, unit): self._jacobian(layer, unit)
            for layer in range(last)
            for unit in range(self.heads)
        }
        found: dict[tuple[str, ...], float] = {}

        def follow(layer: int, covector: Tensor, steps: tuple[str, ...]) -> None:
            found["input", *steps] = float((self.delta(None) * covector).sum())
            for node in ((a, h) for a in range(layer) for h in range(self.heads)):
                name = str(Site(Point("z", node[0]), node[1]))
                matrix, own = jacobians[node]
                found[name, *steps] = float((own * covector).sum())
                for i, branch in enumerate("qkv"):
                    pulled = torch.einsum("pd,pdqe->qe", covector, matrix[:, :, i])
                    follow(node[0], pulled, (f"{name}<{branch}>", *steps))

        follow(last, slope, ("logits",))
        return found

    def _jacobian(self, layer: int, unit: int) -> tuple[Tensor, Tensor]:
        """The mean Jacobian (position, d, branch, position, d), and the head's own part."""
        x, low = self.ends(layer)
        points, weights = torch.tensor(_points(self.steps), dtype=x.dtype).T
        streams = (low + points[:, None, None] * (x - low))[:, None].expand(-1, 3, -1, -1)
        jacobian = torch.func.jacrev(lambda s: self.head(layer, unit, s))
        total = torch.einsum("n,n...->...", weights, torch.func.vmap(jacobian)(streams))
        change = self.head(layer, unit, x.expand(3, *x.shape))
        change = change - self.head(layer, unit, low.expand(3, *x.shape))
        return total, self.delta((layer, unit)) - change
