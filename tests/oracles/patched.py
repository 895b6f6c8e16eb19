"""Plain forward runs with activations replaced, and with coefficients held: the exact oracles.

Activation patching is what `removal` has to equal; one backward pass through the held run is
what `linear` has to equal. Both only use the plain algebra of the forward program.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from oracles.tiny import side_of
from torch import Tensor

from unweave.model.algebra import (
    Plain,
    Scoring,
    activate,
    attention_mix,
    attention_scores,
    pattern_of,
)
from unweave.model.program import Inputs, run
from unweave.model.weights import Activation, Network, Norm
from unweave.sites import Point, Site


@dataclass(eq=False)
class _Patched(Plain):
    """Replaces the activation of some sites by an ablation and keeps what passes every point."""

    inputs: Inputs
    source: Sequence[Site]
    ablation: Mapping[Point, Tensor]
    seen: dict[Point, Tensor] = field(default_factory=dict)

    def at(self, x: Tensor, point: Point) -> Tensor:
        x = x.clone()
        mask = side_of(point, self.inputs).mask
        mean = self.ablation.get(point, torch.zeros_like(x))
        for site in self.source:
            if site.point != point:
                continue
            for row in range(len(x)):
                real = mask[row].nonzero().flatten().tolist()
                # Numbered positions count real tokens; without one, padding is replaced too.
                chosen = range(x.shape[1]) if site.position is None else [real[int(site.position)]]
                for p in chosen:
                    unit = ... if site.unit is None else site.unit
                    x[row, p][unit] = mean[row, p][unit]
        self.seen[point] = x
        return x


def patched(
    network: Network, inputs: Inputs, source: Sequence[Site], ablation: Mapping[Point, Tensor]
) -> dict[Point, Tensor]:
    """Activations at every point of a run in which the source's sites are at their ablation.

    Args:
        source: Sites that are replaced together; none for the run as it is.
        ablation: By point, [batch, position, …]; a point that is not there counts as zero.
    """
    ops = _Patched(inputs, source, ablation)
    with torch.no_grad():
        run(network, inputs, ops)
    return ops.seen


@dataclass(eq=False)
class _Held(Plain):
    """A run whose totals are the model's and whose derivatives are those of the rules `linear`:
    attention patterns and norm scales are constants, and a gate's product counts half to each
    side, the gate's side by its ratio f(g)/g."""

    seen: dict[Point, Tensor] = field(default_factory=dict)

    def norm(self, x: Tensor, w: Norm, place: str) -> Tensor:
        if w.kind == "layer":
            variance = x.var(-1, correction=0, keepdim=True)
            x = (x - x.mean(-1, keepdim=True)) / torch.sqrt(variance + w.eps).detach()
        else:
            x = x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + w.eps).detach()
        if w.weight is not None:
            x = x * (w.weight + w.shift)
        return x if w.bias is None else x + w.bias

    def gate(self, gate: Tensor, up: Tensor, f: Activation, place: str) -> Tensor:
        value = activate(gate, f).detach()
        ratio = value / gate.detach()
        return (ratio * gate * up.detach() + value * up) / 2

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        return attention_mix(pattern_of(attention_scores(q, k), scoring).detach(), v)

    def at(self, x: Tensor, point: Point) -> Tensor:
        if not x.requires_grad:
            x = x.detach().requires_grad_()
        x.retain_grad()
        self.seen[point] = x
        return x


def held(network: Network, inputs: Inputs) -> dict[Point, Tensor]:
    """Activations at every point, with the graph of the held run behind the logits."""
    ops = _Held()
    run(network, inputs, ops)
    return ops.seen
