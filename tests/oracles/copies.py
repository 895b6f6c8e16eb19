"""A decoder written out with a residual stream of its own for every reader: slow, and direct.

Nothing of the forward program is used, only the weight records: each head's query, key and value,
each MLP and the logits read a copy of the stream, to which a test may add what it likes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from unweave.model.weights import Activation, Attention, Linear, Network, Norm

Written = dict[str, Tensor]
Shift = Callable[[str, Written], "Tensor | float"]
Change = Callable[[str, Tensor], Tensor]


@dataclass
class Run:
    """Logits; what each node computed (z, MLP output, embedding), and wrote into the stream."""

    logits: Tensor
    computed: Written
    written: Written


def no_shift(destination: str, written: Written) -> float:
    return 0.0


def no_change(node: str, x: Tensor) -> Tensor:
    return x


def copies(
    network: Network,
    tokens: Tensor | None,
    shift: Shift = no_shift,
    change: Change = no_change,
    post_scales: dict[int, Tensor] | None = None,
) -> Run:
    """The forward pass of unpadded prompts.

    Args:
        shift: What is added to a destination's copy of the stream, given what was written so far.
        change: What a node passes on instead of what it computed.
        post_scales: Receives the scale of each attention's post-norm, where there are any.
    """
    assert tokens is not None
    computed: Written = {}
    written: Written = {}

    def node(name: str, x: Tensor) -> Tensor:
        computed[name] = x
        return change(name, x)

    embedding = network.body.embedding
    assert embedding.tokens is not None
    x = embedding.tokens[tokens] * embedding.scale
    if embedding.positions is not None:
        x = x + embedding.positions[embedding.position_offset :][: tokens.shape[1]]
    x = written["input"] = node("input", x)
    for layer, block in enumerate(network.body.blocks):
        entry, early = x, dict(written)
        for branch in block.branches:
            source, seen = (entry, early) if block.parallel else (x, dict(written))
            w = branch.body
            if isinstance(w, Attention):
                outs = []
                for head in range(w.heads):
                    name = f"a{layer}.h{head}"
                    parts = []
                    for part, linear, norm in (
                        ("q", w.q, w.q_norm),
                        ("k", w.k, w.k_norm),
                        ("v", w.v, None),
                    ):
                        copy = source + shift(f"{name}<{part}>", seen)
                        row = head if part == "q" else head * w.kv_heads // w.heads
                        t = _rows(_norm(copy, branch.pre), linear, row, w.d_head)
                        t = _norm(t, norm)
                        parts.append(_rotate(t, w) if part != "v" else t)
                    z = node(name, _attend(*parts, w))
                    block_of = w.out.matrix[:, head * w.d_head : (head + 1) * w.d_head]
                    outs.append(z @ block_of.T)
                y = torch.stack(outs).sum(0)
                y = y if w.out.offset is None else y + w.out.offset
                scale = torch.ones_like(y)
                if branch.post is not None:
                    y, before = _norm(y, branch.post), y
                    rms = torch.sqrt((before**2).mean(-1, keepdim=True) + branch.post.eps)
                    assert branch.post.gain is not None
                    scale = (branch.post.gain / rms).detach()
                for head, out in enumerate(outs):
                    written[f"a{layer}.h{head}"] = out * scale
                if post_scales is not None:
                    post_scales[layer] = scale
            else:
                copy = _norm(source + shift(f"m{layer}", seen), branch.pre)
                up = _linear(copy, w.inp)
                if w.gate is None:
                    hidden = _activate(up, w.activation.name)
                else:
                    hidden = _activate(_linear(copy, w.gate), w.activation.name) * up
                y = _norm(_linear(hidden, w.out), branch.post)
                y = written[f"m{layer}"] = node(f"m{layer}", y)
            x = x + y
    x = _norm(x + shift("logits", dict(written)), network.body.norm)
    for step in network.head.steps:
        if isinstance(step, Linear):
            x = _linear(x, step)
        elif isinstance(step, float):
            x = x * step
        else:
            assert isinstance(step, Activation)
            assert step.parameter is not None
            x = step.parameter * torch.tanh(x / step.parameter)
    return Run(x, computed, written)


def _linear(x: Tensor, w: Linear) -> Tensor:
    y = x @ w.matrix.T
    return y if w.offset is None else y + w.offset


def _rows(x: Tensor, w: Linear, head: int, d_head: int) -> Tensor:
    rows = slice(head * d_head, (head + 1) * d_head)
    y = x @ w.matrix[rows].T
    return y if w.offset is None else y + w.offset[rows]


def _norm(x: Tensor, w: Norm | None) -> Tensor:
    if w is None:
        return x
    if w.kind == "layer":
        x = x - x.sum(-1, keepdim=True) / x.shape[-1]
    x = x / torch.sqrt((x * x).sum(-1, keepdim=True) / x.shape[-1] + w.eps)
    x = x if w.weight is None else x * (w.weight + w.shift)
    return x if w.bias is None else x + w.bias


def _rotate(x: Tensor, w: Attention) -> Tensor:
    if w.rotary is None:
        return x
    assert not w.rotary.interleaved
    half = len(w.rotary.inverse_frequencies)
    position = torch.arange(x.shape[1], dtype=x.dtype)[:, None]
    angle = position * w.rotary.inverse_frequencies.to(x.dtype)
    cos, sin = angle.cos() * w.rotary.factor, angle.sin() * w.rotary.factor
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((a * cos - b * sin, a * sin + b * cos, rest), -1)


def _attend(q: Tensor, k: Tensor, v: Tensor, w: Attention) -> Tensor:
    scores = torch.einsum("bqd,bkd->bqk", q, k) * w.scale
    if w.softcap is not None:
        scores = w.softcap * torch.tanh(scores / w.softcap)
    index = torch.arange(q.shape[1])
    distance = index[:, None] - index
    hidden = (distance < 0) | (distance >= (w.window or q.shape[1]))
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v


def _activate(x: Tensor, name: str) -> Tensor:
    approximate = "tanh" if name == "gelu_tanh" else "none"
    return functional.silu(x) if name == "silu" else functional.gelu(x, approximate=approximate)
