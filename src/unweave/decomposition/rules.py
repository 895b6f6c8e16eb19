r"""The rules: one pure function per operation and choice, each returning the relevant part only.

Notation of docs/method.md: an activation's total T = β + γ, β relevant. A rule gets β and the
totals of its inputs and output, and returns β′ of the output; γ′ is T′ − β′ by definition.
Tensors of relevant parts carry a leading source axis.

References: CD-T (Hsu et al., ICLR 2025), eqs. 4–15; contextual decomposition (Murdoch et al.,
2018; Singh et al., 2019); RelP (Rezaei Jafari et al., 2025) for the half rule of gates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from unweave.decomposition import fused
from unweave.decomposition.memory import cache_parts
from unweave.model.algebra import (
    Scoring,
    activate,
    attention_mix,
    attention_scores,
    normalise,
    pattern_of,
)
from unweave.model.products import linear
from unweave.model.weights import Activation, Linear, Norm

Rel = Float[Tensor, "source batch position *unit"]
Total = Float[Tensor, "batch position *unit"]
# Of a linear map, whose output has other units than its input.
RelOut = Float[Tensor, "source batch position *out"]
TotalOut = Float[Tensor, "batch position *out"]


def _by_parts(f: Callable[..., None], rels: Sequence[Tensor], totals: Sequence[Tensor]) -> Tensor:
    """Part by part what `f(*rels, *totals, result)` writes; `f` works on each row by itself."""
    result = torch.empty_like(rels[0])
    for part in cache_parts(result):
        f(*(x[part] for x in rels), *(x[part[1:]] for x in totals), result[part])
    return result


def _add_share(to: RelOut, rel: RelOut, total: TotalOut, bias: Tensor) -> RelOut:
    """`to += b·|β|/(|β| + |γ|)` in place, the share 0 where both parts are 0.

    Memory traffic is its cost: hence the parts, and the share as 1/(1 + |T/β − 1|), which takes
    four operations; β = 0 makes it 1/∞.
    """
    limits = torch.finfo(total.dtype)
    # Where everything is relevant γ is only rounding. It must be 0 then: the shares of small
    # entries would turn it into a part of the bias, which grows from layer to layer.
    noise = 16 * limits.eps * (total.abs().amax(-1) + bias.abs().max())
    few = (total[..., :8] - rel[..., :8]).abs_()  # tells nearly always, at no cost
    none = few.amax(-1) <= noise
    if none.any():
        none &= (total - rel).abs_().amax(-1) <= noise
    whole = bool(none.any())
    total = torch.where(total == 0, limits.tiny, total)  # the share of 0/0 is 0, not NaN
    minus_one = total.new_tensor(-1.0)
    for part in cache_parts(rel):
        beta = rel[part]
        share = torch.addcdiv(minus_one, total[part[1:]], beta).abs_().add_(1.0)
        if whole:
            share.masked_fill_(none[part][..., None] & (beta != 0), 1.0)
        to[part].addcdiv_(bias, share)
    return to


# --- linear maps: β′ from β, W, b and the output total -----------------------------------------


def linear_shared_bias(rel: Rel, w: Linear, out: TotalOut) -> RelOut:
    """`a + b·|a|/(|a|+|c|)` with a = βW and c = γW = (T′ − b) − a (eq. 4)."""
    a = linear_without_bias(rel, w, out)
    bias = w.offset
    if bias is None:
        return a
    return _add_share(a, a, out - bias, bias)


def linear_without_bias(rel: Rel, w: Linear, out: TotalOut) -> RelOut:
    """`βW`: the bias belongs to the rest."""
    if (done := fused.linear(rel, w)) is not None:
        return done
    return linear(rel, w.matrix)


# --- norms -------------------------------------------------------------------------------------


def _frozen_norm(rel: Rel, total: Total, w: Norm) -> Rel:
    layer, gain = w.kind == "layer", w.gain
    centred = total - total.mean(-1, keepdim=True) if layer else total
    scale = torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + w.eps)
    scale = scale if gain is None else scale * gain
    if not layer:
        return rel * scale

    def part(b: Tensor, factor: Tensor, to: Tensor) -> None:
        torch.sub(b, b.mean(-1, keepdim=True), out=to).mul_(factor)

    return _by_parts(part, (rel,), (scale.expand_as(total),))


def norm_shared_bias(rel: Rel, total: Total, w: Norm, out: Total) -> Rel:
    """`(β − mean β)/√(var T + ε)·w + b·|β|/(|β|+|γ|)`: the scale is the total's; RMSNorm alike."""
    scaled = _frozen_norm(rel, total, w)
    return scaled if w.bias is None else _add_share(scaled, rel, total, w.bias)


def norm_frozen(rel: Rel, total: Total, w: Norm, out: Total) -> Rel:
    """The total's scale, no share of the bias: linear in β."""
    return _frozen_norm(rel, total, w)


def norm_removal(rel: Rel, total: Total, w: Norm, out: Total) -> Rel:
    """`norm(T) − norm(T − β)`: the scale is recomputed on what is left."""
    if (done := fused.norm(rel, total, w, out)) is not None:
        return done

    def part(b: Tensor, t: Tensor, o: Tensor, to: Tensor) -> None:
        torch.sub(o, normalise(t - b, w), out=to)

    return _by_parts(part, (rel,), (total, out))


# --- activations -------------------------------------------------------------------------------


def activation_secant(rel: Rel, total: Total, f: Activation, out: Total) -> Rel:
    """`f(T) − f(T − β)`"""
    if (done := fused.activation(rel, total, f, out)) is not None:
        return done

    def part(b: Tensor, t: Tensor, o: Tensor, to: Tensor) -> None:
        rest = torch.sub(t, b, out=to)
        torch.sub(o, activate(rest, f), out=to)

    return _by_parts(part, (rel,), (total, out))


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

    def part(b_gate: Tensor, b_up: Tensor, t: Tensor, whole: Tensor, to: Tensor) -> None:
        torch.mul(whole - activate(t - b_gate, f), b_up, out=to)

    return _by_parts(part, (rel_gate, rel_up), (gate, activate(gate, f)))


def gate_frozen(
    rel_gate: Rel, rel_up: Rel, gate: Total, up: Total, f: Activation, out: Total
) -> Rel:
    """`f(T_g)·β_u`: the gate counts as a coefficient."""
    return rel_up * activate(gate, f)


def gate_removal(
    rel_gate: Rel, rel_up: Rel, gate: Total, up: Total, f: Activation, out: Total
) -> Rel:
    """`f(T_g)·T_u − f(T_g − β_g)·(T_u − β_u)`"""
    if (done := fused.gate(rel_gate, rel_up, gate, up, f, out)) is not None:
        return done

    def part(b_g: Tensor, b_u: Tensor, t_g: Tensor, t_u: Tensor, o: Tensor, to: Tensor) -> None:
        torch.sub(o, activate(t_g - b_g, f).mul_(t_u - b_u), out=to)

    return _by_parts(part, (rel_gate, rel_up), (gate, up, out))


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
    """`softmax(mask(β_q·β_kᵀ/√d)) β_v` (eqs. 6–15).

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
    parts = (totals.q, totals.k, totals.v, totals.z)
    if (done := fused.attention((q, k, v), parts, totals.scoring, start)) is not None:
        return done
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

    def part(b: Tensor, low: Tensor, high: Tensor, to: Tensor) -> None:
        torch.clamp(b, low, high, out=to)

    return _by_parts(part, (rel,), (total.clamp(max=0), total.clamp(min=0)))


LinearRule = Callable[[Rel, Linear, TotalOut], RelOut]
NormRule = Callable[[Rel, Total, Norm, Total], Rel]
ActivationRule = Callable[[Rel, Total, Activation, Total], Rel]
GateRule = Callable[[Rel, Rel, Total, Total, Activation, Total], Rel]
AttentionRule = Callable[[RelQueries, RelKeys, RelKeys, AttentionTotals], RelQueries]
