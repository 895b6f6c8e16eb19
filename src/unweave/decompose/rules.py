r"""The rules: one pure function per operation and choice, each returning the relevant part only.

Notation of METHOD.md: an activation's total T = β + γ, β relevant. A rule gets β and the totals
of its inputs and output, and returns β′ of the output; γ′ is T′ − β′ by definition, so no rule
can break completeness. Tensors of relevant parts carry a leading source axis.

References: CD-T (Hsu et al., ICLR 2025), eqs. 5–14; contextual decomposition (Murdoch et al.,
2018; Singh et al., 2019); RelP (Rezaei Jafari et al., 2025) for the half rule of gates.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from unweave.model.algebra import (
    Scoring,
    activate,
    attention_mix,
    attention_scores,
    normalise,
    pattern_of,
)
from unweave.model.weights import Activation, Linear, Norm

Rel = Float[Tensor, "source batch position *unit"]
Total = Float[Tensor, "batch position *unit"]
# Of a linear map, whose output has other units than its input.
RelOut = Float[Tensor, "source batch position *out"]
TotalOut = Float[Tensor, "batch position *out"]


def _share(rel: Tensor, rest: Tensor, total: Tensor) -> Tensor:
    """|β| / (|β| + |γ|), 0 where both are 0. Overwrites `rest`; `total` is its scale."""
    size, rest = rel.abs(), rest.abs_()
    # Where everything is relevant γ is only rounding. It must be 0 then: the shares of small
    # entries would turn it into a part of the bias, which grows from layer to layer.
    noise = 16 * torch.finfo(rest.dtype).eps * total.abs().amax(-1)
    none = rest[..., :8].amax(-1) <= noise  # a few entries tell nearly always, at no cost
    if none.any():
        none &= rest.amax(-1) <= noise
        rest.masked_fill_(none[..., None], 0.0)
    # In place: these tensors are the widest of a sweep, and memory traffic is its cost. The
    # floor only turns 0/0 into 0.
    return size.div_(rest.add_(size).clamp_(min=torch.finfo(size.dtype).tiny))


# --- linear maps: β′ from β, W, b and the output total -----------------------------------------


def linear_shared_bias(rel: Rel, w: Linear, out: TotalOut) -> RelOut:
    """`a + b·|a|/(|a|+|c|)` with a = βW and c = γW = (T′ − b) − a (eq. 5)."""
    a = functional.linear(rel, w.matrix)
    bias = w.offset
    if bias is None:
        return a
    return a.addcmul_(_share(a, (out - bias) - a, out), bias)


def linear_without_bias(rel: Rel, w: Linear, out: TotalOut) -> RelOut:
    """`βW`: the bias belongs to the rest."""
    return functional.linear(rel, w.matrix)


# --- norms -------------------------------------------------------------------------------------


def _frozen_norm(rel: Rel, total: Total, w: Norm) -> Rel:
    if w.kind == "layer":
        scale = torch.rsqrt(total.var(-1, correction=0, keepdim=True) + w.eps)
        scaled = (rel - rel.mean(-1, keepdim=True)) * scale
    else:
        scaled = rel * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + w.eps)
    gain = w.gain
    return scaled if gain is None else scaled.mul_(gain)


def norm_shared_bias(rel: Rel, total: Total, w: Norm, out: Total) -> Rel:
    """`(β − mean β)/√(var T + ε)·w + b·|β|/(|β|+|γ|)`: the scale is the total's; RMSNorm alike."""
    scaled = _frozen_norm(rel, total, w)
    return scaled if w.bias is None else scaled.addcmul_(_share(rel, total - rel, total), w.bias)


def norm_frozen(rel: Rel, total: Total, w: Norm, out: Total) -> Rel:
    """The total's scale, no share of the bias: linear in β."""
    return _frozen_norm(rel, total, w)


def norm_removal(rel: Rel, total: Total, w: Norm, out: Total) -> Rel:
    """`norm(T) − norm(T − β)`: the scale is recomputed on what is left."""
    return out - normalise(total - rel, w)


# --- activations -------------------------------------------------------------------------------


def activation_secant(rel: Rel, total: Total, f: Activation, out: Total) -> Rel:
    """`f(T) − f(T − β)`"""
    return out - activate(total - rel, f)


def activation_slope(rel: Rel, total: Total, f: Activation, out: Total) -> Rel:
    """`f′(T)·β`: linear in β."""
    if f.name == "solu":  # x·s, s = softmax(x), is the one that mixes neurons
        s = total.softmax(-1)
        return rel * s + (total * s) * (rel - (rel * s).sum(-1, keepdim=True))
    return rel * _slope(total, f)


def _slope(total: Total, f: Activation) -> Total:
    with torch.enable_grad():
        leaf = total.detach().requires_grad_()
        return torch.autograd.grad(activate(leaf, f).sum(), leaf)[0]


def activation_ratio(rel: Rel, total: Total, f: Activation, out: Total) -> Rel:
    """`f(T)/T·β`: linear in β, and conserving (all of T gives all of f(T)) as LRP asks."""
    return rel * _ratio(total, f)


def _ratio(total: Total, f: Activation) -> Total:
    # f(x)/x has a finite limit at 0 for every f in use; a step beside 0 stays off 0/0.
    safe = torch.where(total.abs() < 1e-9, torch.full_like(total, 1e-9), total)
    return activate(safe, f) / safe


# --- gates: f(g)·u -----------------------------------------------------------------------------


def gate_product(
    rel_gate: Rel, rel_up: Rel, gate: Total, up: Total, f: Activation, out: Total
) -> Rel:
    """`(f(T_g) − f(T_g − β_g))·β_u`: the product of the two relevant parts."""
    return (activate(gate, f) - activate(gate - rel_gate, f)).mul_(rel_up)


def gate_frozen(
    rel_gate: Rel, rel_up: Rel, gate: Total, up: Total, f: Activation, out: Total
) -> Rel:
    """`f(T_g)·β_u`: the gate counts as a coefficient."""
    return rel_up * activate(gate, f)


def gate_removal(
    rel_gate: Rel, rel_up: Rel, gate: Total, up: Total, f: Activation, out: Total
) -> Rel:
    """`f(T_g)·T_u − f(T_g − β_g)·(T_u − β_u)`"""
    return out - activate(gate - rel_gate, f).mul_(up - rel_up)


def gate_half(rel_gate: Rel, rel_up: Rel, gate: Total, up: Total, f: Activation, out: Total) -> Rel:
    """`½·(f(T_g)/T_g·β_g·T_u + f(T_g)·β_u)`: half of each one-sided product; linear in β."""
    return (rel_gate * (_ratio(gate, f) * up)).addcmul_(rel_up, activate(gate, f)).mul_(0.5)


# --- attention ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AttentionTotals:
    """Totals around one attention. Queries begin at the relevant parts' first position; keys and
    values are complete, the relevant ones begin at `key_start`."""

    q: Float[Tensor, "batch query head d_head"]
    k: Float[Tensor, "batch key kv_head d_head"]
    v: Float[Tensor, "batch key kv_head d_head"]
    z: Float[Tensor, "batch query head d_head"]
    pattern: Float[Tensor, "batch head query key"]
    scoring: Scoring
    key_start: int


RelQueries = Float[Tensor, "source batch query head d_head"]
RelKeys = Float[Tensor, "source batch rel_key kv_head d_head"]


def attention_relevant(
    q: RelQueries, k: RelKeys, v: RelKeys, totals: AttentionTotals
) -> RelQueries:
    """`softmax(mask(β_q·β_kᵀ/√d)) β_v` (eqs. 9–13).

    Keys before the first relevant one have β_k = 0: their score is 0, and they still take their
    part of the softmax.
    """
    scores = functional.pad(attention_scores(q, k), (totals.key_start, 0))
    pattern = pattern_of(scores, totals.scoring)
    return attention_mix(pattern[..., totals.key_start :], v)


def attention_frozen(q: RelQueries, k: RelKeys, v: RelKeys, totals: AttentionTotals) -> RelQueries:
    """`A β_v` with A the model's own pattern: linear in β."""
    pattern = totals.pattern[..., totals.key_start :]
    return attention_mix(pattern.expand(len(v), *pattern.shape), v)


def attention_removal(q: RelQueries, k: RelKeys, v: RelKeys, totals: AttentionTotals) -> RelQueries:
    """`z − softmax((T_q − β_q)(T_k − β_k)ᵀ/√d) (T_v − β_v)`: what the head loses without β."""
    start = totals.key_start
    rest_q, rest_v = totals.q - q, totals.v[:, start:] - v
    scores = attention_scores(rest_q, totals.k[:, start:] - k)
    if start:
        before = attention_scores(rest_q, totals.k[:, :start].expand(len(q), -1, -1, -1, -1))
        scores = torch.cat((before, scores), -1)
    pattern = pattern_of(scores, totals.scoring)
    left = attention_mix(pattern[..., start:], rest_v)
    if start:
        early = totals.v[:, :start].expand(len(q), -1, -1, -1, -1)
        left = left + attention_mix(pattern[..., :start], early)
    return totals.z - left


# --- clamp -------------------------------------------------------------------------------------


def clamp(rel: Rel, total: Total) -> Rel:
    """`clamp(β, min(0, T), max(0, T))`: where β and γ differ in sign, the larger takes all."""
    return torch.minimum(torch.maximum(rel, total.clamp(max=0)), total.clamp(min=0))


LinearRule = Callable[[Rel, Linear, TotalOut], RelOut]
NormRule = Callable[[Rel, Total, Norm, Total], Rel]
ActivationRule = Callable[[Rel, Total, Activation, Total], Rel]
GateRule = Callable[[Rel, Rel, Total, Total, Activation, Total], Rel]
AttentionRule = Callable[[RelQueries, RelKeys, RelKeys, AttentionTotals], RelQueries]
