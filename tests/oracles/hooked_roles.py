"""What roles are made from, measured on transformers' own GPT-2 with hooks, prompt by prompt.

Nothing here is shared with `unweave.roles`: patterns are worked out from the hooked q and k, writes
from the checkpoint's matrices, norms by torch's own layer.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
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
LABELS = {"end": END, "third": THIRD}
EVERY = torch.arange(ROWS)
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
    tokens = tokens_of(clean)
    answers, others = tokens[:, 1:2], tokens[:, 3:4]
    others = torch.where(answers == others, (others + 1) % 12, others)
    readout = type(drawn)(drawn.metric, answers, others, end)
    texts, groups = ("",) * ROWS, torch.zeros(ROWS, dtype=torch.long)
    positions = {"end": end, "third": torch.full((ROWS,), THIRD)}
    batch = Batch(clean, corrupted, readout, end, positions, groups, True, texts, texts)
    nodes = tuple(sorted(model.heads() + model.mlps(), key=lambda site: site.point.depth))
    return Problem(
        model, batch, nodes, counterfactual(model, corrupted, needed_points(model, nodes))
    )


def tokens_of(inputs: Inputs) -> Tensor:
    assert inputs.tokens is not None
    return inputs.tokens


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
        handles.append(self.hf.transformer.drop.register_forward_hook(whole("embed")))
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
    """ "z2", 2, 1 of a2.h1; "m2", 2, None of m2; "q2", 2, 1 of a2.h1.q."""
    if node[0] == "m":
        return node, int(node[1:]), None
    layer, _, rest = node[1:].partition(".h")
    head, _, branch = rest.partition(".")
    return f"{branch or 'z'}{layer}", int(layer), int(head)


def part(run: Run, node: str) -> Tensor:
    """A node's own output or one of its inputs, [batch, position, d]."""
    name, _, head = named(node)
    return run.at[name] if head is None else run.at[name][:, :, head]


def gone(sources: Sequence[str], values: Run) -> dict[str, Callable[[Tensor], Tensor]]:
    """Replaces nodes by what they are in another run; of "embed@2", the position 2 only."""
    by_name: dict[str, list[str]] = {}
    for source in sources:
        name = "embed" if source.startswith("embed") else named(source)[0]
        by_name.setdefault(name, []).append(source)

    def change(name: str, here: list[str]) -> Callable[[Tensor], Tensor]:
        def edit(x: Tensor) -> Tensor:
            for source in here:
                if name == "embed":
                    place = int(source.partition("@")[2])
                    x[:, place] = values.at[name][:, place]
                elif name[0] == "m":
                    x = values.at[name]
                else:
                    head = named(source)[2]
                    x[:, :, head] = values.at[name][:, :, head]
            return x

        return edit

    return {name: change(name, here) for name, here in by_name.items()}


@dataclass
class Oracle:
    """Runs and weights that several tests need."""

    hooked: Hooked
    problem: Problem
    tokens: Tensor
    clean: Run
    corrupted: Run
    weights: dict[str, Tensor]  # |gradient · (z − μ)| by node, [batch, position]
    pulls: dict[str, Tensor]

    @property
    def heads(self) -> list[str]:
        return [name for name in self.weights if name[0] == "a"]

    def away(self, name: str) -> Tensor:
        return part(self.clean, name) - part(self.corrupted, name)

    def pattern(self, run: Run, head: str) -> Tensor:
        layer, unit = head[1:].split(".h")
        return self.hooked.pattern(run, int(layer), int(unit))

    def without(self, *sources: str) -> Run:
        return self.hooked.run(self.tokens, gone(sources, self.corrupted))

    def metric(self, run: Run) -> Tensor:
        return difference(self.problem.batch, run.logits)

    def write(self, node: str, z: Tensor) -> Tensor:
        if node[0] == "m":
            return z
        layer, unit = node[1:].split(".h")
        return self.hooked.write(int(layer), int(unit), z)

    def main(self, weights: Tensor) -> Tensor:
        """The label with half of the weight, or each prompt's own largest."""
        share = {name: float(weights[:, at].sum() / weights.sum()) for name, at in LABELS.items()}
        best = max(share, key=lambda name: share[name])
        if share[best] >= 0.5:
            return torch.full((ROWS,), LABELS[best])
        return weights.argmax(-1)

    def at(self, node: str) -> Tensor:
        return self.main(self.weights[node])

    def to(self, head: str) -> Tensor:
        weights = self.pattern(self.clean, head)[EVERY, self.at(head)].clone()
        weights[:, 0] = 0
        return self.main(weights)

    def attended(self, head: str) -> Tensor:
        """Weight on each key, from where the head matters; none on the first."""
        matters = self.weights[head] / self.weights[head].sum()
        found = torch.einsum("bqk,bq->bk", self.pattern(self.clean, head), matters)
        found[:, 0] = 0
        return found


def oracle() -> Oracle:
    """The clean and the corrupted run, and one backward pass."""
    explained, hooked = problem(), Hooked()
    tokens = tokens_of(explained.batch.clean)
    corrupted = hooked.run(tokens_of(explained.batch.corrupted))
    run = hooked.run(tokens, grad=True)
    difference(explained.batch, run.logits).sum().backward()
    weights, pulls = {}, {}
    for node in map(str, explained.nodes):
        name = f"z{node[1:].split('.')[0]}" if node[0] == "a" else node
        pull = run.at[name].grad
        assert pull is not None
        pulls[node] = pull if node[0] == "m" else pull[:, :, int(node.split(".h")[1])]
        away = (part(run, node) - part(corrupted, node)).detach()
        weights[node] = (pulls[node] * away).sum(-1).abs()
    return Oracle(hooked, explained, tokens, hooked.run(tokens), corrupted, weights, pulls)
