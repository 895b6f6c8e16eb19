"""GIM against transformers' own Llama and GPT-2 with hooks and a softmax of its own backward."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unweave.model.checkpoint import architectures
from unweave.scores.problem import Problem
from unweave.scores.score import scores
from unweave.sites import Site
from unweave.testing.oracle import build
from unweave.testing.problem import tiny_problem

# Transformers has Llama's rotary angles in float32.
BOUNDS = {"gpt2": 1e-9, "llama": 1e-6}


class Softened(torch.autograd.Function):
    """Softmax whose backward pass is that of a softmax at another temperature, less the 1/T."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, temperature: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.temperature = temperature
        return torch.exp(x - x.logsumexp(-1, keepdim=True))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (x,), (g,) = ctx.saved_tensors, grads
        cold = x / ctx.temperature
        s = torch.exp(cold - cold.logsumexp(-1, keepdim=True))
        return s * (g - (g * s).sum(-1, keepdim=True)), None


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, share: float) -> Tensor:
        ctx.share = share
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.share * grads[0], None


def times(share: float) -> Any:
    return lambda module, args, output: Scaled.apply(output, share)


def frozen(module: Any, args: Any, output: Tensor) -> Tensor:
    """A norm whose scale is a constant."""
    (x,) = args
    if isinstance(module, nn.LayerNorm):
        x = x - x.mean(-1, keepdim=True)
        scale = (x.pow(2).mean(-1, keepdim=True) + module.eps).sqrt().detach()
        return x / scale * module.weight + module.bias
    scale = (x.pow(2).mean(-1, keepdim=True) + module.variance_epsilon).sqrt().detach()
    return x / scale * module.weight


def split_qkv(module: Any, args: Any, output: Tensor) -> Tensor:
    """GPT-2's queries, keys and values come from one projection."""
    q, k, v = output.chunk(3, -1)
    parts = (Scaled.apply(x, share) for x, share in ((q, 0.25), (k, 0.25), (v, 0.5)))
    return torch.cat(list(parts), -1)


@contextmanager
def modified(hf: Any, temperature: float, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def softmax(x: Tensor, dim: int = -1, **how: Any) -> Tensor:
        return Softened.apply(x, temperature)

    shares = {"q_proj": 0.25, "k_proj": 0.25, "v_proj": 0.5, "gate_proj": 0.5, "up_proj": 0.5}
    handles = []
    for name, module in hf.named_modules():
        last = name.rpartition(".")[2]
        if last in shares:
            handles.append(module.register_forward_hook(times(shares[last])))
        elif last == "c_attn":
            handles.append(module.register_forward_hook(split_qkv))
        elif isinstance(module, nn.LayerNorm) or type(module).__name__.endswith("RMSNorm"):
            handles.append(module.register_forward_hook(frozen))
    monkeypatch.setattr(nn.functional, "softmax", softmax)
    try:
        yield
    finally:
        monkeypatch.undo()
        for handle in handles:
            handle.remove()


def outputs(hf: Any, tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits, and what enters each output projection and leaves each MLP."""
    seen: dict[str, Tensor] = {}

    def enters(name: str) -> Any:
        return lambda module, args: seen.__setitem__(name, args[0])

    def leaves(name: str) -> Any:
        return lambda module, args, output: seen.__setitem__(name, output)

    body = hf.transformer.h if hasattr(hf, "transformer") else hf.model.layers
    handles = []
    for layer, block in enumerate(body):
        out = block.attn.c_proj if hasattr(block, "attn") else block.self_attn.o_proj
        handles.append(out.register_forward_pre_hook(enters(f"a{layer}")))
        handles.append(block.mlp.register_forward_hook(leaves(f"m{layer}")))
    try:
        return hf(tokens, use_cache=False).logits, seen
    finally:
        for handle in handles:
            handle.remove()


def slow_scores(
    problem: Problem, hf: Any, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> list[float]:
    batch, heads = problem.batch, hf.config.num_attention_heads
    with modified(hf, temperature, monkeypatch):
        logits, seen = outputs(hf, batch.clean.tokens)
        rows = torch.arange(len(logits))
        read = logits[rows, batch.readout.read]
        answers, others = batch.readout.answers[:, 0], batch.readout.distractors[:, 0]
        metric = read[rows, answers] - read[rows, others]
        found = torch.autograd.grad(metric.sum(), list(seen.values()))
        gradients = dict(zip(seen, found, strict=True))
        # Within the hooks too: transformers takes norms and softmax in float32.
        with torch.no_grad():
            _, base = outputs(hf, batch.corrupted.tokens)

    def of(node: Site) -> float:
        name = f"{'a' if node.unit is not None else 'm'}{node.point.layer}"
        product = gradients[name] * (seen[name].detach() - base[name])
        if node.unit is not None:
            product = product.chunk(heads, -1)[node.unit]
        return float(product.sum()) / len(logits)

    return [of(node) for node in problem.nodes]


@pytest.mark.parametrize("temperature", [1.0, 2.0, 3.5])
@pytest.mark.parametrize(("family", "variant"), [("gpt2", None), ("llama", "grouped heads")])
def test_scores_equal_transformers_with_hooks(
    family: str, variant: str | None, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = tiny_problem(family, variant)
    tiny = architectures[family].tiny
    hf = build(tiny[variant or next(iter(tiny))], torch.float64)
    hf.set_attn_implementation("eager")
    found = scores["gim"].run(problem, {"temperature": temperature})
    slow = slow_scores(problem, hf, temperature, monkeypatch)
    assert found.values.abs().max() > 1e-4
    assert found.values.sub(torch.tensor(slow, dtype=torch.float64)).abs().max() < BOUNDS[family]


def test_temperature_changes_heads_that_others_read():
    problem = tiny_problem("gpt2")
    warm, cold = (scores["gim"].run(problem, {"temperature": t}).values for t in (1.0, 3.0))
    assert (warm - cold).abs().max() > 1e-6
