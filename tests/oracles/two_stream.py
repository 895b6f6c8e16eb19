"""Slow twin of the rules `paper`: both streams, β and γ, one example, loops and definitions.

It follows the weight records by itself and shares nothing with `unweave.decomposition`, nor with
the forward program. Streams are pairs (β, γ) of tensors [position, …]; T is always their sum.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from unweave.model.weights import (
    Activation,
    Attention,
    Block,
    Embedding,
    Head,
    Linear,
    Mlp,
    Network,
    Norm,
    Rotary,
)
from unweave.sites import Point, Site

Pair = tuple[Tensor, Tensor]


def two_case(beta: Tensor, gamma: Tensor) -> Pair:
    """The paper's sign rule, entry by entry: where the parts differ in sign, the larger takes all.

    Case 1, |β| > |γ|: β ← β + γ, γ ← 0. Case 2, else: γ ← β + γ, β ← 0.
    """
    new_beta, new_gamma = beta.clone(), gamma.clone()
    flat = zip(beta.flatten().tolist(), gamma.flatten().tolist(), strict=True)
    for i, (b, c) in enumerate(flat):
        if b * c < 0:
            larger = abs(b) > abs(c)
            new_beta.view(-1)[i] = b + c if larger else 0.0
            new_gamma.view(-1)[i] = 0.0 if larger else b + c
    return new_beta, new_gamma


def two_stream(
    network: Network,
    tokens: Tensor,
    source: Sequence[Site],
    ablation: Mapping[Point, Tensor],
    types: Tensor | None = None,
) -> dict[Point, Pair]:
    """(β, γ) at every point of a run without padding.

    Args:
        tokens: Of one example.
        source: Sites that are relevant together; positions are numbers.
        ablation: By point, [position, …]; a point that is not there counts as zero.
    """
    assert network.encoder is None
    run = _Run(network, source, ablation)
    return run.forward(tokens, types)


class _Run:
    def __init__(
        self, network: Network, source: Sequence[Site], ablation: Mapping[Point, Tensor]
    ) -> None:
        self.network = network
        self.source = source
        self.ablation = ablation
        self.seen: dict[Point, Pair] = {}

    def point(self, x: Pair, kind: str, layer: int = 0) -> Pair:
        """Seeds the source's sites here: β = T − μ, γ = μ."""
        here = Point(kind, layer)
        beta, gamma = x[0].clone(), x[1].clone()
        total = beta + gamma
        mean = self.ablation.get(here, torch.zeros_like(total))
        for site in self.source:
            if site.point != here:
                continue
            for p in range(len(total)):
                if site.position is not None and site.position != p:
                    continue
                if site.unit is None:
                    beta[p], gamma[p] = total[p] - mean[p], mean[p]
                else:
                    beta[p, site.unit] = total[p, site.unit] - mean[p, site.unit]
                    gamma[p, site.unit] = mean[p, site.unit]
        self.seen[here] = beta, gamma
        return beta, gamma

    def forward(self, tokens: Tensor, types: Tensor | None) -> dict[Point, Pair]:
        body = self.network.body
        embedded = embed(body.embedding, tokens, types)
        x = self.point((torch.zeros_like(embedded), embedded), "embed")
        for layer, block in enumerate(body.blocks):
            x = self.point(x, "resid", layer)
            x = self.block(x, block, layer)
        x = self.point(x, "resid", len(body.blocks))
        if body.norm is not None:
            x = norm(x, body.norm)
        self.point(self.head(x, self.network.head), "logits")
        return self.seen

    def block(self, x: Pair, w: Block, layer: int) -> Pair:
        entry = x
        for branch in w.branches:
            y = entry if w.parallel else x
            if branch.pre is not None:
                y = norm(y, branch.pre)
            if isinstance(branch.body, Mlp):
                y = self.mlp(y, branch.body, layer)
            else:
                y = self.attention(y, branch.body, layer)
            if branch.post is not None:
                y = norm(y, branch.post)
            feed_forward = isinstance(branch.body, Mlp)
            if feed_forward:
                y = self.point(y, "mlp", layer)
            x = x[0] + y[0], x[1] + y[1]
            if feed_forward:
                x = two_case(*x)
            if branch.after is not None:
                x = norm(x, branch.after)
                if feed_forward:
                    x = two_case(*x)
        return x

    def attention(self, x: Pair, w: Attention, layer: int) -> Pair:
        q = self.project(x, w.q, w.heads, w.q_norm, "q", layer)
        k = self.project(x, w.k, w.kv_heads, w.k_norm, "k", layer)
        v = self.project(x, w.v, w.kv_heads, None, "v", layer)
        if w.rotary is not None:
            q = rotate(q[0], w.rotary), rotate(q[1], w.rotary)
            k = rotate(k[0], w.rotary), rotate(k[1], w.rotary)
        beta_z = mix(q[0], k[0], v[0], w)
        z = mix(q[0] + q[1], k[0] + k[1], v[0] + v[1], w)
        z_pair = self.point((beta_z, z - beta_z), "z", layer)
        merged = z_pair[0].flatten(1), z_pair[1].flatten(1)
        return linear(merged, w.out)

    def project(
        self, x: Pair, w: Linear, heads: int, qk_norm: Norm | None, kind: str, layer: int
    ) -> Pair:
        y = linear(x, w)
        d_head = y[0].shape[-1] // heads
        over_heads = qk_norm is not None and len(qk_norm.weight) == d_head
        if qk_norm is not None and not over_heads:
            y = norm(y, qk_norm)
        y = y[0].reshape(len(y[0]), heads, d_head), y[1].reshape(len(y[1]), heads, d_head)
        y = self.point(y, kind, layer)
        return norm(y, qk_norm) if qk_norm is not None and over_heads else y

    def mlp(self, x: Pair, w: Mlp, layer: int) -> Pair:
        up = two_case(*linear(x, w.inp))
        if w.gate is None:
            hidden = activation(up, w.activation)
        else:
            gate = two_case(*linear(x, w.gate))
            total_gate, total_up = gate[0] + gate[1], up[0] + up[1]
            beta = (f(total_gate, w.activation) - f(gate[1], w.activation)) * up[0]
            hidden = beta, f(total_gate, w.activation) * total_up - beta
        if w.norm is not None:
            hidden = norm(hidden, w.norm)
        hidden = self.point(hidden, "neuron", layer)
        return two_case(*linear(hidden, w.out))

    def head(self, x: Pair, w: Head) -> Pair:
        if w.first:
            x = x[0][:1], x[1][:1]
        for step in w.steps:
            if isinstance(step, Linear):
                x = linear(x, step)
            elif isinstance(step, Norm):
                x = norm(x, step)
            elif isinstance(step, Activation):
                x = activation(x, step)
            else:
                x = x[0] * step, x[1] * step
        return x


def embed(w: Embedding, tokens: Tensor, types: Tensor | None) -> Tensor:
    rows = []
    assert w.tokens is not None
    for p, token in enumerate(tokens.tolist()):
        x = w.tokens[token] * w.scale
        if w.types is not None:
            x = x + w.types[0 if types is None else int(types[p])]
        if w.positions is not None:
            x = x + w.positions[p + w.position_offset]
        rows.append(x)
    total = torch.stack(rows)
    if w.norm is not None:
        rel, rest = norm((total, torch.zeros_like(total)), w.norm)
        total = rel + rest
    return total


def share(part: Tensor, other: Tensor) -> Tensor:
    """|part| / (|part| + |other|), 0 where both are 0."""
    whole = part.abs() + other.abs()
    return torch.where(whole > 0, part.abs() / whole, torch.zeros_like(whole))


def linear(x: Pair, w: Linear) -> Pair:
    """Each part through W; the bias in proportion to |βW| and |γW|."""
    matrix = w.weight.reshape(-1, w.weight.shape[-1])
    a = torch.einsum("...i,oi->...o", x[0], matrix)
    c = torch.einsum("...i,oi->...o", x[1], matrix)
    if w.bias is None:
        return a, c
    bias = w.bias.reshape(-1)
    mine = share(a, c)
    return a + bias * mine, c + bias * (1 - mine)


def norm(x: Pair, w: Norm) -> Pair:
    """Both parts by the total's scale; the bias in proportion to |β| and |γ|."""
    beta, gamma = x
    total = beta + gamma
    if w.kind == "layer":
        mean = total.mean(-1, keepdim=True)
        scale = 1 / torch.sqrt(((total - mean) ** 2).mean(-1, keepdim=True) + w.eps)
        parts = [(part - part.mean(-1, keepdim=True)) * scale for part in x]
    else:
        scale = 1 / torch.sqrt((total**2).mean(-1, keepdim=True) + w.eps)
        parts = [part * scale for part in x]
    if w.weight is not None:
        parts = [part * (w.weight + w.shift) for part in parts]
    if w.bias is not None:
        mine = share(beta, gamma)
        parts = [parts[0] + w.bias * mine, parts[1] + w.bias * (1 - mine)]
    return parts[0], parts[1]


def activation(x: Pair, w: Activation) -> Pair:
    """β′ = f(β + γ) − f(γ), γ′ = f(γ)"""
    return f(x[0] + x[1], w) - f(x[1], w), f(x[1], w)


def f(x: Tensor, w: Activation) -> Tensor:
    match w.name:
        case "gelu":
            return x * (1 + torch.erf(x / math.sqrt(2))) / 2
        case "gelu_tanh":
            return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
        case "relu":
            return torch.where(x > 0, x, torch.zeros_like(x))
        case "silu":
            return x / (1 + torch.exp(-x))
        case "tanh":
            return torch.tanh(x)
        case "solu":
            return x * torch.exp(x) / torch.exp(x).sum(-1, keepdim=True)
        case "softcap":
            assert w.parameter is not None
            return w.parameter * torch.tanh(x / w.parameter)
    raise NotImplementedError(w.name)


def rotate(x: Tensor, w: Rotary) -> Tensor:
    """Each pair of dimensions as a complex number, turned by position × frequency."""
    frequencies = w.inverse_frequencies.double()
    half = len(frequencies)
    result = x.clone()
    for p in range(len(x)):
        for i in range(half):
            first, second = (2 * i, 2 * i + 1) if w.interleaved else (i, i + half)
            angle = p * frequencies[i]
            cos, sin = torch.cos(angle) * w.factor, torch.sin(angle) * w.factor
            a, b = x[p, :, first], x[p, :, second]
            result[p, :, first] = a * cos - b * sin
            result[p, :, second] = b * cos + a * sin
    return result


def mix(q: Tensor, k: Tensor, v: Tensor, w: Attention) -> Tensor:
    """softmax(cap(q·k·scale)) v, query by query and head by head, over the keys that it sees."""
    assert w.bias is None
    z = torch.zeros(len(q), w.heads, v.shape[-1], dtype=q.dtype)
    for head in range(w.heads):
        other = head // (w.heads // w.kv_heads)
        for query in range(len(q)):
            keys = [
                key
                for key in range(len(k))
                if (key <= query or not w.causal)
                and (w.window is None or abs(query - key) < w.window)
            ]
            scores = torch.stack([torch.dot(q[query, head], k[key, other]) for key in keys])
            scores = scores * w.scale
            if w.softcap is not None:
                scores = w.softcap * torch.tanh(scores / w.softcap)
            pattern = torch.exp(scores - scores.max())
            pattern = pattern / pattern.sum()
            z[query, head] = sum(pattern[i] * v[key, other] for i, key in enumerate(keys))
    return z
