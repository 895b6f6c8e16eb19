"""What depends on position alone: masks, rotary tables, score biases. Computed once per batch."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Float32, Int
from torch import Tensor

from unweave.errors import UnweaveError
from unweave.model.algebra import RotaryTable, Scoring
from unweave.model.weights import Alibi, Attention, RelativeBias, Rotary, Stack

# Kinds of rotary scaling that are known here, each with the parameters that it needs.
ROPE_KINDS = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
    "yarn": ("factor",),
}


@dataclass(frozen=True, eq=False)
class Context:
    """Scorings and rotary tables of one stack for one batch, by the record they come from."""

    scorings: dict[Attention, Scoring]
    rotary: dict[Rotary, RotaryTable]


def token_positions(mask: Bool[Tensor, "batch position"]) -> Int[Tensor, "batch position"]:
    """Positions count real tokens only, so padding on either side changes nothing."""
    return (mask.long().cumsum(-1) - 1).clamp(min=0)


def prepare(
    stack: Stack,
    mask: Bool[Tensor, "batch position"],
    dtype: torch.dtype,
    memory_mask: Bool[Tensor, "batch memory"] | None = None,
) -> Context:
    """Builds every mask, bias and table that the blocks of a stack use."""
    positions = token_positions(mask)
    attentions = [
        branch.body
        for block in stack.blocks
        for branch in block.branches
        if isinstance(branch.body, Attention)
    ]
    # Layers share their record: one table serves all of them.
    records = dict.fromkeys(a.rotary for a in attentions if a.rotary is not None)
    rotary = {record: _table(record, positions, dtype) for record in records}
    masks: dict[tuple[bool, int | None, bool], Tensor] = {}
    biases: dict[Alibi | RelativeBias, Tensor] = {}
    scorings = {}
    for a in attentions:
        key = (a.causal, a.window, a.cross)
        if key not in masks:
            keys = memory_mask if a.cross else mask
            assert keys is not None, "cross-attention needs an encoder"
            masks[key] = _mask(a, mask, keys)
        if a.bias is not None and a.bias not in biases:
            biases[a.bias] = _bias(a.bias, positions, dtype)
        bias = biases[a.bias] if a.bias is not None else None
        scorings[a] = Scoring(a.scale, masks[key], bias, a.softcap)
    return Context(scorings, rotary)


def _mask(
    a: Attention, queries: Bool[Tensor, "batch query"], keys: Bool[Tensor, "batch key"]
) -> Bool[Tensor, "batch 1 query key"]:
    visible = keys[:, None, None, :].expand(-1, 1, queries.shape[1], -1)
    index = torch.arange(queries.shape[1], device=keys.device)
    distance = index[:, None] - index[None, :]
    if a.causal:
        visible = visible & (distance >= 0)
    if a.window is not None:
        visible = visible & (distance.abs() < a.window)
    return visible


def _table(rotary: Rotary, positions: Int[Tensor, "batch position"], dtype: Any) -> RotaryTable:
    # Angles in float32, or in float64 for float64 models; cast only at the end, as transformers.
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    frequencies = rotary.inverse_frequencies.to(positions.device, wide)
    angles = positions[..., None].to(wide) * frequencies
    cos, sin = angles.cos() * rotary.factor, angles.sin() * rotary.factor
    return RotaryTable(cos.to(dtype), sin.to(dtype), rotary.interleaved)


def _bias(
    bias: Alibi | RelativeBias, positions: Int[Tensor, "batch position"], dtype: torch.dtype
) -> Float[Tensor, "batch head query key"]:
    if isinstance(bias, Alibi):
        # Only differences within a row matter to the softmax; the key's own position is enough.
        scores = (bias.slopes[:, None, None] * positions[:, None, None, :]).to(dtype)
        return scores.expand(-1, -1, positions.shape[1], -1)
    distance = positions[:, None, :] - positions[:, :, None]
    buckets = relative_buckets(distance, bias.table.shape[0], bias.max_distance, bias.bidirectional)
    return bias.table[buckets].permute(0, 3, 1, 2)


def relative_buckets(
    distance: Int[Tensor, "*shape"], buckets: int, max_distance: int, bidirectional: bool
) -> Int[Tensor, "*shape"]:
    """T5's buckets of key − query: half of them exact, the rest logarithmic to max_distance."""
    offset = torch.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        offset = (distance > 0).long() * buckets
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    exact = buckets // 2
    # Float32 as in the models' training code: the bucket edges depend on its rounding.
    logarithm = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = (exact + (logarithm * (buckets - exact)).long()).clamp(max=buckets - 1)
    return offset + torch.where(distance < exact, distance, far)


def rotary_of(parameters: dict[str, Any], d_rotary: int, max_position: int | None) -> Rotary:
    """Rotary frequencies from transformers' `rope_parameters`.

    Kinds: default, linear (positions divided by a factor), llama3 (low frequencies stretched,
    Llama 3.1), yarn (Peng et al., 2023: interpolation ramped over frequencies, with an
    attention factor).

    Raises:
        UnweaveError: For a kind of scaling that is not known here, naming it.
    """
    base = float(parameters["rope_theta"])
    kind = parameters.get("rope_type") or "default"
    exponents = torch.arange(0, d_rotary, 2, dtype=torch.int64).float() / d_rotary
    frequencies = 1.0 / (base**exponents)
    if kind == "default":
        return Rotary(frequencies)
    if kind == "linear":
        return Rotary(frequencies / parameters["factor"])
    if kind == "llama3":
        return Rotary(_llama3(frequencies, parameters))
    if kind == "yarn":
        return _yarn(frequencies, parameters, base, d_rotary, max_position)
    raise UnweaveError(
        f"rope scaling {kind!r} is not supported: expected {' or '.join(ROPE_KINDS)} "
        "(add it in model/positions.py)"
    )


def _llama3(
    frequencies: Float32[Tensor, " half"], parameters: dict[str, Any]
) -> Float32[Tensor, " half"]:
    factor, length = parameters["factor"], parameters["original_max_position_embeddings"]
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    wavelength = 2 * math.pi / frequencies
    smooth = (length / wavelength - low) / (high - low)
    blended = (1 - smooth) * frequencies / factor + smooth * frequencies
    stretched = torch.where(wavelength > length / low, frequencies / factor, blended)
    return torch.where(wavelength < length / high, frequencies, stretched)


def _yarn(
    frequencies: Float32[Tensor, " half"],
    parameters: dict[str, Any],
    base: float,
    d_rotary: int,
    max_position: int | None,
) -> Rotary:
    length = parameters.get("original_max_position_embeddings") or max_position
    if length is None:
        raise UnweaveError(
            "yarn scaling needs original_max_position_embeddings: add it to rope_scaling in "
            "config.json"
        )
    factor = parameters["factor"]

    def correction(turns: float) -> float:
        return d_rotary * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = correction(float(parameters.get("beta_fast") or 32))
    high = correction(float(parameters.get("beta_slow") or 1))
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d_rotary - 1)
    high += 0.001 if low == high else 0
    ramp = ((torch.arange(d_rotary // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    blended = frequencies / factor * ramp + frequencies * (1 - ramp)

    def magnitude(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    attention = parameters.get("attention_factor")
    if attention is None:
        one = float(parameters.get("mscale") or 0)
        all_dims = float(parameters.get("mscale_all_dim") or 0)
        attention = magnitude(one) / magnitude(all_dims) if one and all_dims else magnitude(1.0)
    return Rotary(blended, float(attention))
