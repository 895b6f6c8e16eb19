"""Slow twin of TransformerLens's forward pass: one example, head by head, from the definitions.

It reads the state dict by TransformerLens's own names and shares nothing with `unweave.model`.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def forward(config: Mapping[str, Any], state: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """Logits [position, vocab] of one example without padding."""
    x = state["embed.W_E"][tokens] + state["pos_embed.W_pos"][: len(tokens)]
    for layer in range(config["n_layers"]):
        name = f"blocks.{layer}"
        x = x + _attention(config, state, f"{name}.attn", _norm(config, state, f"{name}.ln1", x))
        if not config["attn_only"]:
            x = x + _mlp(config, state, f"{name}.mlp", _norm(config, state, f"{name}.ln2", x))
    x = _norm(config, state, "ln_final", x, rms=config.get("final_rms", False))
    return x @ state["unembed.W_U"] + state.get("unembed.b_U", 0.0)


def _attention(config: Mapping, state: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    result = state.get(f"{name}.b_O", torch.zeros_like(x[0])).expand_as(x).clone()
    for head in range(config["n_heads"]):
        q, k, v = (
            x @ state[f"{name}.W_{part}"][head] + state[f"{name}.b_{part}"][head] for part in "QKV"
        )
        scores = torch.einsum("qd,kd->qk", q, k) / math.sqrt(config["d_head"])
        for query in range(len(x)):
            pattern = scores[query, : query + 1].exp()
            z = torch.einsum("k,kd->d", pattern / pattern.sum(), v[: query + 1])
            result[query] += z @ state[f"{name}.W_O"][head]
    return result


def _mlp(config: Mapping, state: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    pre = x @ state[f"{name}.W_in"] + state[f"{name}.b_in"]
    match config["act_fn"]:
        case "gelu":
            post = pre * (1 + torch.erf(pre / math.sqrt(2))) / 2
        case "gelu_new":
            post = pre * (1 + torch.tanh(math.sqrt(2 / math.pi) * (pre + 0.044715 * pre**3))) / 2
        case "relu":
            post = pre * (pre > 0)
        case "solu_ln":
            solu = pre * pre.exp() / pre.exp().sum(-1, keepdim=True)
            learned = _kind(config) == "LN"
            post = _layer_norm(config, state if learned else {}, f"{name}.ln", solu)
        case other:
            raise ValueError(f"no oracle for the activation {other!r}")
    return post @ state[f"{name}.W_out"] + state[f"{name}.b_out"]


def _norm(
    config: Mapping, state: Mapping[str, Tensor], name: str, x: Tensor, rms: bool = False
) -> Tensor:
    kind = _kind(config)
    if kind is None:
        return x
    state = {} if kind.endswith("Pre") else state
    if rms or kind.startswith("RMS"):
        size = (x**2).mean(-1, keepdim=True) + _eps(config)
        return x / size.sqrt() * state.get(f"{name}.w", 1.0)
    return _layer_norm(config, state, name, x)


def _layer_norm(config: Mapping, state: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scale = ((centred**2).mean(-1, keepdim=True) + _eps(config)).sqrt()
    return centred / scale * state.get(f"{name}.w", 1.0) + state.get(f"{name}.b", 0.0)


def _kind(config: Mapping) -> str | None:
    return config["normalization"] if "normalization" in config else config["normalization_type"]


def _eps(config: Mapping) -> float:
    return config.get("eps", config.get("ln_eps", 1e-5))
