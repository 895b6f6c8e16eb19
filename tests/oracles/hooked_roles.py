"""What roles are made from, measured on transformers' own GPT-2 with hooks, prompt by prompt.

Nothing here is shared with `unweave.roles`: patterns are worked out from the hooked q and k, writes
from the checkpoint's matrices, norms by torch's own layer.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from oracles.tiny import _oracle, tiny_model, tiny_readout
from torch import Tensor

from unweave.ablation import counterfactual
from unweave.batch import Batch
from unweave.model.program import Inputs
from unweave.roles.feeds import needed_points
from unweave.scores.problem import Problem

ROWS, LENGTH, END, THIRD = 10, 9, 8, 2
Replace = Mapping[str, Callable[[Tensor], Tensor]]


def problem() -> Problem:
    """A random GPT-2 in float64; prompts of few tokens, so that tokens repeat in them."""
    model, draw = tiny_model("gpt2", "four layers"), torch.Generator().manual_seed(3)
    mask = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    clean, corrupted = (
        Inputs(mask, torch.randint(0, 12, mask.shape, generator=draw)) for _ in "cc"
    )
    end = torch.full((ROWS,), END)
    drawn = tiny_readout(model, clean)
    # Answers and distractors that stand in the prompts.
    answers, others = clean.tokens[:, 1:2], clean.tokens[:, 3:4]
    others = torch.where(answers == others, (others + 1) % 12, others)
    readout = type(drawn)(drawn.metric, answers, others, end)
    texts, groups = ("",) * ROWS, torch.zeros(ROWS, dtype=torch.long)
    positions = {"end": end, "third": torch.full((ROWS,), THIRD)}
    batch = Batch(clean, corrupted, readout, end, positions, groups, True, texts, texts)
    nodes = tuple(sorted(model.heads() + model.mlps(), key=lambda site: site.point.depth))
    return Problem(
        model, batch, nodes, counterfactual(model, corrupted, needed_points(model, nodes))
    )


@dataclass
class Run:
    """What a hooked run saw: "z2" is [batch, position, head, d_head], "q2" too, "m2" d_model."""

    logits: Tensor
    final: Tensor
    at: dict[str, Tensor] = field(default_factory=dict)


class Hooked:
    """Transformers' GPT-2 of `problem`, whose activations can be read and replaced."""

    def __init__(self) -> None:
        self.hf = copy.deepcopy(_oracle("gpt2", "four layers"))
        self.heads, self.layers = self.hf.config.n_head, self.hf.config.n_layer
        self.width = self.hf.config.n_embd // self.heads

    def run(self, tokens: Tensor, replace: Replace | None = None, grad: bool = False) -> Run:
        """Logits, the stream before the final norm, and every q, k, v, z and MLP output."""
        replace, seen, handles = replace or {}, {}, []

        def keep(name: str, x: Tensor) -> Tensor:
            x = replace[name](x.clone()) if name in replace else x
            if grad:
                x.retain_grad()
            seen[name] = x
            return x

        def projections(layer: int) -> Any:
            def hook(module: Any, args: Any, output: Tensor) -> Tensor:
                parts = [x.unflatten(-1, (self.heads, -1)) for x in output.chunk(3, -1)]
                kept = [keep(f"{n}{layer}", x) for n, x in zip("qkv", parts, strict=True)]
                return torch.cat([x.flatten(-2) for x in kept], -1)

            return hook

        def mixed(layer: int) -> Any:
            return lambda module, args: (
                keep(f"z{layer}", args[0].unflatten(-1, (self.heads, -1))).flatten(-2),
            )

        def whole(name: str) -> Any:
            return lambda module, args, output: keep(name, output)

        for i, block in enumerate(self.hf.transformer.h):
            handles.append(block.attn.c_attn.register_forward_hook(projections(i)))
            handles.append(block.attn.c_proj.register_forward_pre_hook(mixed(i)))
            handles.append(block.mlp.register_forward_hook(whole(f"m{i}")))
        norm = self.hf.transformer.ln_f
        handles.append(norm.register_forward_pre_hook(lambda m, args: seen.update(final=args[0])))
        try:
            with torch.set_grad_enabled(grad):
                logits = self.hf(tokens, use_cache=False).logits
        finally:
            for handle in handles:
                handle.remove()
        return Run(logits, seen.pop("final"), seen)

    def pattern(self, run: Run, layer: int, head: int) -> Tensor:
        """softmax(q kᵀ/√d) under the causal mask, [batch, query, key]."""
        q, k = (run.at[f"{name}{layer}"][:, :, head] for name in "qk")
        scores = q @ k.transpose(1, 2) / self.width**0.5
        length = scores.shape[-1]
        return scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf).softmax(-1)

    def write(self, layer: int, head: int, z: Tensor) -> Tensor:
        """What a head's output (or a value) adds to the residual stream."""
        weight = self.hf.transformer.h[layer].attn.c_proj.weight.detach()
        return z @ weight[head * self.width : (head + 1) * self.width]

    def unembed(self, x: Tensor) -> Tensor:
        """Logits of a write by itself: centred, the final norm's gain, the unembedding."""
        gain = self.hf.transformer.ln_f.weight.detach()
        return ((x - x.mean(-1, keepdim=True)) * gain) @ self.hf.lm_head.weight.detach().T

    def logits(self, final: Tensor) -> Tensor:
        with torch.no_grad():
            return self.hf.lm_head(self.hf.transformer.ln_f(final))


def difference(batch: Batch, logits: Tensor) -> Tensor:
    """logit[answer] − logit[distractor] at the end."""
    rows = torch.arange(len(logits))
    answer, other = batch.readout.answers[:, 0], batch.readout.distractors[:, 0]
    last = logits[rows, batch.readout.read] if logits.ndim == 3 else logits
    return last[rows, answer] - last[rows, other]


def named(node: str) -> tuple[str, int, int | None]:
    """ "z2", 2, 1 of a2.h1; "m2", 2, None of m2."""
    if node[0] == "m":
        return node, int(node[1:]), None
    layer, _, head = node[1:].partition(".h")
    return f"z{layer}", int(layer), int(head)


def gone(node: str, values: Mapping[str, Tensor]) -> dict[str, Callable[[Tensor], Tensor]]:
    """Replaces a node's output by that of another run, everywhere."""
    name, _, head = named(node)

    def change(x: Tensor) -> Tensor:
        if head is None:
            return values[name]
        x[:, :, head] = values[name][:, :, head]
        return x

    return {name: change}


def part(run: Run, node: str) -> Tensor:
    """A node's own output, [batch, position, d]."""
    name, _, head = named(node)
    return run.at[name] if head is None else run.at[name][:, :, head]
