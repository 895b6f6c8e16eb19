"""What every run checks of itself: its totals, and how each rule splits them.

1. Totals. One example of every part goes through a plain run of the model; what the sweep split
   has to be the same.
2. The split. In that run every rule is asked what is relevant when all of its input is: β = T.
   It has to return β′ = T′, T′ less the operation's value at 0 (a rule that gives the bias to the
   rest), or the derivative along T (a rule that linearises). So all sources together make up T at
   every operation, and a rule that returns 3β is an error, unless its set declares
   `conserves=False`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unweave.decomposition.algebra import gather_positions
from unweave.decomposition.rules import AttentionTotals
from unweave.decomposition.ruleset import RuleSet
from unweave.errors import UnweaveError
from unweave.model.algebra import Plain, Scoring, attention_mix, attention_scores, pattern_of
from unweave.model.program import Inputs, Stage, Stream
from unweave.model.weights import Activation, Linear, Norm

# Relative differences that rounding explains: of totals, and of one rule's result.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}


@dataclass(eq=False)
class CheckedRun(Plain):
    """A plain run in which every rule splits an input that is all relevant.

    Args:
        rules: The set to check; None for a plain run.
        reads: Positions read after the last attention; None for all.
        worst: The largest difference found, relative to its operation's output.
        later: Where differences are kept instead, so that a GPU is not waited for: a larger one
            than rounding has to be looked at again. None judges each at once.
    """

    rules: RuleSet | None
    reads: Int[Tensor, "batch n"] | None = None
    worst: float = 0.0
    later: list[Tensor] | None = None

    def linear(self, x: Tensor, w: Linear, place: str) -> Tensor:
        out = super().linear(x, w, place)
        if self.rules is not None:
            rel = self.rules.linear(x[None], w, out)
            self._check(f"linear at {place}", rel, out, lambda y: Plain().linear(y, w, place), x)
        return out

    def norm(self, x: Tensor, w: Norm, place: str) -> Tensor:
        out = super().norm(x, w, place)
        # Without ε, 0 has no norm.
        if self.rules is not None and w.eps > 0:
            rel = self.rules.norm(x[None], x, w, out)
            self._check(f"norm at {place}", rel, out, lambda y: Plain().norm(y, w, place), x)
        return out

    def activation(self, x: Tensor, f: Activation, place: str) -> Tensor:
        out = super().activation(x, f, place)
        if self.rules is not None:
            rel = self.rules.activation(x[None], x, f, out)
            self._check("activation", rel, out, lambda y: Plain().activation(y, f, place), x)
        return out

    def gate(self, gate: Tensor, up: Tensor, f: Activation, place: str) -> Tensor:
        out = super().gate(gate, up, f, place)
        if self.rules is not None:
            rel = self.rules.gate(gate[None], up[None], gate, up, f, out)
            self._check("gate", rel, out, lambda g, u: Plain().gate(g, u, f, place), gate, up)
        return out

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        if self.rules is not None:
            # Not the fused attention: it differs for queries that see no key (left padding).
            pattern = pattern_of(attention_scores(q, k), scoring)
            z = attention_mix(pattern, v)
            totals = AttentionTotals(q, k, v, z, pattern, scoring, 0)
            rel = self.rules.attention(q[None], k[None], v[None], totals)

            def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                return attention_mix(pattern_of(attention_scores(q, k), scoring), v)

            self._check("attention", rel, z, attend, q, k, v)
        return super().attend(q, k, v, scoring)

    def cut(self, x: Tensor) -> Tensor:
        return x if self.reads is None else gather_positions(x, self.reads, 0)

    def _check(
        self, name: str, rel: Tensor, out: Tensor, f: Callable[..., Tensor], *inputs: Tensor
    ) -> None:
        if self.later is not None:
            size = torch.linalg.vector_norm(out, math.inf).clamp(min=1e-30)
            self.later.append(torch.linalg.vector_norm(rel[0] - out, math.inf) / size)
            return
        found = _gap(rel, out, f, inputs)
        if not math.isfinite(found) or found > _TOLERANCE[out.dtype]:
            assert self.rules is not None
            raise UnweaveError(
                f"rules {self.rules.name!r} break the split: with all of its input relevant, the "
                f"rule of {name} returns a relevant part that is off by {found:.1e} of the output "
                "(expected all of it, all but its bias, or its slope); correct the rule, or "
                "declare conserves=False on the set"
            )
        self.worst = max(self.worst, found)


def _gap(rel: Tensor, out: Tensor, f: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> float:
    """How far β′ is, entry by entry, from the nearest of what a rule may return where β = T.

    Entry by entry, since the bias of an output without weights (a padding token's) has no input
    to share it by.
    """
    scale, bound = out.abs().max().clamp(min=1e-30), _TOLERANCE[out.dtype]
    gap = (rel[0] - out).abs()
    if gap.max() > bound * scale:
        zeros = (torch.zeros_like(x) for x in inputs)
        gap = torch.minimum(gap, (rel[0] - (out - f(*zeros))).abs())
    if gap.max() > bound * scale:
        with torch.enable_grad():
            slope = torch.autograd.functional.jvp(f, inputs, inputs)[1]
        assert isinstance(slope, Tensor)
        gap = torch.minimum(gap, (rel[0] - slope).abs())
    return float(gap.max() / scale)


def check_part(
    stages: list[Stage],
    inputs: Inputs,
    reads: Int[Tensor, "batch n"] | None,
    output: Float[Tensor, "batch *rest"],
    rules: RuleSet | None,
    later: bool,
) -> Callable[[], float]:
    """Compares a sweep with a plain run of one example that shares nothing with it.

    Args:
        stages: The forward pass of that example, as far as the sweep went.
        inputs: That example.
        output: The sweep's totals after the last stage, that example first.
        rules: Checked on the way; None when they have been.
        later: Whether the run begins at once and is looked at when its result is asked for, so
            that a GPU is not waited for.

    Returns:
        What gives the largest relative difference, of the totals and of what a rule makes of
        β = T, and raises `UnweaveError` when it is more than rounding.
    """
    ops = CheckedRun(rules, None if reads is None else reads[:1])

    def strict() -> float:
        worst = float(_totals_apart(stages, inputs, ops, output))
        _check_totals(worst, output.dtype)
        return max(worst, ops.worst)

    if not later:
        return strict
    quick = CheckedRun(rules, ops.reads, later=[])
    apart = _totals_apart(stages, inputs, quick, output)

    def quickly() -> float:
        assert quick.later is not None
        worst, *of_rules = torch.stack([apart, *quick.later]).tolist()
        _check_totals(worst, output.dtype)
        # A rule may leave out a bias or linearise: that takes a closer look.
        close = all(found <= _TOLERANCE[output.dtype] for found in of_rules)
        return max([worst, *of_rules]) if close else strict()

    return quickly


def _totals_apart(
    stages: list[Stage], inputs: Inputs, ops: CheckedRun, output: Float[Tensor, "batch *rest"]
) -> Float[Tensor, ""]:
    stream: Stream[Tensor] | None = None
    for stage in stages:
        stream = stage.apply(ops, stream)
    assert stream is not None
    plain, ours = stream.x, output[:1]
    side = inputs if inputs.decoder is None or stages[-1].stack == "enc" else inputs.decoder
    gap, size = (ours - plain).abs(), plain.abs()
    if plain.shape[1] == side.mask.shape[1]:
        real = side.mask[:1].reshape(1, -1, *(1,) * (plain.ndim - 2))
        gap, size = gap.masked_fill(~real, 0.0), size.masked_fill(~real, 0.0)
    return gap.max() / size.max().clamp(min=1e-30)


def _check_totals(worst: float, dtype: torch.dtype) -> None:
    if not math.isfinite(worst) or worst > _TOLERANCE[dtype]:
        raise UnweaveError(
            f"completeness failed: totals differ from a plain run by {worst:.1e} of their size; "
            "run `unweave check` on this model"
        )
