"""Transformers' own GPT-2 with hooks that patch nodes and output neurons: MIB's runs, slowly."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def node_names(hf: Any) -> list[str]:
    """input, then the heads and the MLP of each layer."""
    names = ["input"]
    for layer in range(hf.config.n_layer):
        names += [*(f"a{layer}.h{head}" for head in range(hf.config.n_head)), f"m{layer}"]
    return names


@contextmanager
def _hooks(handles: list[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def recorded(hf: Any, tokens: Tensor) -> dict[str, Tensor]:
    """What every node adds to the residual stream, [batch, position, d_model]; the attention's bias
    belongs to no head."""
    seen: dict[str, Tensor] = {}
    heads, handles = hf.config.n_head, []

    def keep(name: str) -> Any:
        return lambda module, args, output: seen.__setitem__(name, output.clone())

    def split(layer: int) -> Any:
        def run(module: Any, args: Any, output: Any) -> None:
            for head, part in enumerate(args[0].chunk(heads, -1)):
                weight = module.weight.chunk(heads, 0)[head]
                seen[f"a{layer}.h{head}"] = part @ weight

        return run

    handles.append(hf.transformer.wte.register_forward_hook(keep("input")))
    for layer, block in enumerate(hf.transformer.h):
        handles.append(block.attn.c_proj.register_forward_hook(split(layer)))
        handles.append(block.mlp.register_forward_hook(keep(f"m{layer}")))
    with _hooks(handles), torch.no_grad():
        hf(tokens, use_cache=False)
    return seen


def patched_logits(
    hf: Any, tokens: Tensor, corrupted: Tensor, kept: Mapping[str, Tensor]
) -> Tensor:
    """Logits with every coordinate that is not kept at its value in the corrupted run.

    Args:
        kept: By node, which coordinates of its output stay; a node that is not there keeps none.
    """
    base, heads, handles = recorded(hf, corrupted), hf.config.n_head, []

    def mix(name: str, value: Tensor) -> Tensor:
        keep = kept.get(name, torch.zeros(value.shape[-1], dtype=torch.bool))
        return torch.where(keep, value, base[name])

    def whole(name: str) -> Any:
        return lambda module, args, output: mix(name, output)

    def merge(layer: int) -> Any:
        def run(module: Any, args: Any, output: Tensor) -> Tensor:
            total = module.bias.expand_as(output).clone()
            for head, part in enumerate(args[0].chunk(heads, -1)):
                weight = module.weight.chunk(heads, 0)[head]
                total = total + mix(f"a{layer}.h{head}", part @ weight)
            return total

        return run

    handles.append(hf.transformer.wte.register_forward_hook(whole("input")))
    for layer, block in enumerate(hf.transformer.h):
        handles.append(block.attn.c_proj.register_forward_hook(merge(layer)))
        handles.append(block.mlp.register_forward_hook(whole(f"m{layer}")))
    with _hooks(handles), torch.no_grad():
        return hf(tokens, use_cache=False).logits
