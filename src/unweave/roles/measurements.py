"""`Measurements`: what was measured of one node, and the names that roles use for its numbers."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from jaxtyping import Float
from torch import Tensor

from unweave.roles.attention import AttentionFigures
from unweave.roles.inputs import Moved, held
from unweave.roles.interventions import Followed
from unweave.roles.shares import feeders_of

# What a role may require.
VALUES = {
    "effect": "m(M) − m(M without it)",
    "effect_share": "mean over prompts of |effect|, of |m(M) − m(∅)|",
    "direct": "the effect of its write on the output alone",
    "direct_size": "mean over prompts of |direct|, of |m(M) − m(∅)|",
    "direct_share": "of the effect on each prompt, what is direct: Σ direct · effect / Σ effect²",
    "at_read": "share of what matters at the position where the answer is read",
    "varies": "share of its output that changes with the tokens",
    "resampled": "what its output on the corrupted prompt does, of |effect| (zero ablation only)",
    "by_token": "share of its output's variance that its own token explains",
    "copying": "rank of the attended token in its write, 1 the highest, −1 the lowest",
    "copying_random": "the same over random tokens",
    "carried": "largest share of its value, where it attends, from the token at another position",
    "swap_token": "share of prompts in which its write follows the attended token when swapped",
    "swap_answer": "share of prompts in which its write follows the answer when swapped",
    "swap_stays": "share of prompts in which it attends where it did after the swap",
    "reads_q": "largest share of a later head's query that comes from it",
    "reads_k": "largest share of a later head's key",
    "reads_v": "largest share of a later head's value",
    "moved_q": "what its output loses without its query (at the ablation); where that has feeders",
    "moved_k": "the same for its key",
    "moved_v": "the same for its value",
    "swap_changes": "change of its output when tokens are swapped, of what it adds (‖o′ − o‖²)",
    "same_token": "change of its output where its own token is the same and one before is not",
    "direct_other": "of its direct effect, what is lost with its write on another answer's prompt",
    "to_itself": "share of its attention on its own position",
    "to_previous": "on the token before",
    "to_duplicate": "on an earlier occurrence of the token",
    "to_induction": "on the token after an earlier occurrence",
    "to_answer": "on the answer's token",
    "to_distractor": "on the distractor's token",
    "sink": "on the first position",
    "spread": "entropy of its pattern over that of even attention",
    "random_previous": "attention to the token before, on random tokens that repeat",
    "random_duplicate": "to the same token's first occurrence, on random tokens",
    "random_induction": "to the token after that, on random tokens",
    "random_spread": "entropy of its pattern over that of even attention, on random tokens",
    "shift": "largest change of a later head's attention to the tokens that it attends to",
    "shift_clear": "that change over its standard error",
    "shift_prompts": "share of prompts in which that change has the same sign",
}


@dataclass(frozen=True)
class Figure:
    """A mean over prompts with its standard error, and the mean of the magnitude."""

    mean: float
    error: float
    size: float

    @staticmethod
    def of(values: Float[Tensor, " n"]) -> "Figure":
        error = float(values.std()) / len(values) ** 0.5 if len(values) > 1 else math.nan
        return Figure(float(values.mean()), error, float(values.abs().mean()))

    @property
    def clear(self) -> bool:
        """More than two standard errors from 0."""
        return abs(self.mean) > 2 * self.error


@dataclass(frozen=True)
class Shift:
    """How a head changes a later head's attention to the tokens that it attends to itself.

    Args:
        prompts: The share of prompts in which the sign is that of the mean.
    """

    change: Figure
    prompts: float


@dataclass(frozen=True)
class Feeder:
    """An upstream node, or the token at a position, that one input of a node comes from.

    Args:
        input: "q", "k" or "v"; "" of an MLP.
        share: Of the input, by decomposition.
        falls: How far the node's output falls when that share is taken out of this input.
        error: Standard error of that over prompts.
        held: Whether it falls as far as the share says (`inputs.held`); None where the output does
            not depend on the input as a whole.
    """

    source: str
    input: str
    share: float
    falls: float
    error: float
    held: bool | None


@dataclass(frozen=True)
class Measurements:
    """What was measured of one node; every field has its definition where it is computed.

    Args:
        effect: m(M) − m(M without it); `effect_share` is its mean magnitude over |m(M) − m(∅)|.
        direct: The part of the effect that no later node takes part in; `direct_size` is its mean
            magnitude over |m(M) − m(∅)|, and `direct_share` what it is of the effect, prompt by
            prompt: Σ direct · effect / Σ effect².
        matters: Share of |gradient · (z − μ)| by labelled position.
        at, to: Label of the position where it matters, and where it attends from there; "" where
            no label holds half.
        random: Previous-token, duplicate-token and induction scores on random tokens.
        copying: Of the attended token, in these prompts; `copying_random`, on random tokens.
        carried: The largest share of its value, where it attends, from the token at another label.
        feeds: By input ("q", "k", "v"; "" of an MLP), upstream nodes and tokens with shares.
        reads: Inputs of later nodes with the share of them that comes from this node.
        moved: By input that has named feeders, what its output loses without the whole input.
        fed: By input and named feeder, what it loses without that feeder in this input only.
        tokens: Share of |gradient · (z − μ)| by the token at the position, the largest few.
        swap_changes: Change of its output when tokens are swapped, at the positions that follow.
        same_token: The same on swapped and corrupted prompts, where its own token is as it was.
        direct_other: Share of its direct effect that is lost when what it writes to the output is
            what it writes on a prompt with another answer.
        followed: Whether its write follows the tokens when they are swapped.
        resampled: |m(M) − m(M with its output on the corrupted prompt)| over |effect|. Measured
            under zero ablation: under the others it says nothing that the effect does not.
        prompts: On how many prompts nodes were ablated one by one.
        errors: Standard errors of shares, by their names in `VALUES` (`error_of` has all).
    """

    node: str
    kind: str
    effect: Figure
    effect_share: float
    direct: Figure
    direct_size: float
    direct_share: float
    matters: Mapping[str, float]
    at: str
    varies: float
    by_token: float
    favours: tuple[str, ...]
    feeds: Mapping[str, Mapping[str, float]]
    reads: Mapping[str, float]
    moved: Mapping[str, Moved]
    fed: Mapping[str, Mapping[str, Moved]]
    prompts: int
    tokens: Mapping[str, float] = field(default_factory=dict)
    swap_changes: float = math.nan
    same_token: float = math.nan
    direct_other: float = math.nan
    errors: Mapping[str, float] = field(default_factory=dict)
    attention: AttentionFigures | None = None
    to: str = ""
    random: Mapping[str, float] = field(default_factory=dict)
    copying: float = math.nan
    copying_random: float = math.nan
    carried: float = math.nan
    followed: Followed | None = None
    resampled: float = math.nan
    shifts: Mapping[str, Shift] = field(default_factory=dict)

    @property
    def writes(self) -> float | None:
        """The direct effect over |m(M) − m(∅)|; None where that is not clear of chance."""
        if not self.direct.clear or not self.effect.size:
            return None
        return self.direct.mean * self.effect_share / self.effect.size

    @property
    def feeders(self) -> tuple[Feeder, ...]:
        """What its inputs come from: nodes, then tokens, the largest share first."""
        found = []
        for branch, shares in self.feeds.items():
            whole, fed = self.moved.get(branch), self.fed.get(branch, {})
            for source in feeders_of(shares):
                if (without := fed.get(source)) is not None:
                    share, is_held = shares[source], held(shares[source], without, whole)
                    fall, error = without.output, without.error
                    found.append(Feeder(source, branch, share, fall, error, is_held))
        return tuple(found)

    @property
    def shift(self) -> tuple[str, Shift] | None:
        """The largest change of a later head's attention."""
        return max(self.shifts.items(), key=lambda x: abs(x[1].change.mean), default=None)

    def values(self) -> dict[str, float]:
        """Every number that a role may require, by its name in `VALUES`; NaN if not measured."""
        found = dict.fromkeys(VALUES, math.nan)
        found |= {
            "effect": self.effect.mean,
            "effect_share": self.effect_share,
            "direct": self.direct.mean,
            "direct_size": self.direct_size,
            "direct_share": self.direct_share,
            "at_read": self.matters.get("end", 0.0),
            "varies": self.varies,
            "resampled": self.resampled,
            "by_token": self.by_token,
            "copying": self.copying,
            "copying_random": self.copying_random,
            "carried": self.carried,
            "swap_changes": self.swap_changes,
            "same_token": self.same_token,
            "direct_other": self.direct_other,
        }
        if self.followed is not None:
            found |= {
                "swap_token": self.followed.token,
                "swap_answer": self.followed.answer,
                "swap_stays": self.followed.stays,
            }
        for branch in ("q", "k", "v"):
            own = [share for name, share in self.reads.items() if name.endswith(f".{branch}")]
            found[f"reads_{branch}"] = max(map(abs, own), default=0.0)
            if branch in self.moved:
                found[f"moved_{branch}"] = self.moved[branch].output
        if self.attention is not None:
            found |= {f"to_{name}": x for name, x in self.attention.relations.items()}
            found |= {"sink": self.attention.sink, "spread": self.attention.spread}
        found |= {f"random_{name}": x for name, x in self.random.items()}
        if (largest := self.shift) is not None:
            change = largest[1].change
            found |= {"shift": change.mean, "shift_prompts": largest[1].prompts}
            found["shift_clear"] = change.mean / change.error if change.error else math.nan
        return found

    def error_of(self, name: str) -> float:
        """The standard error of one of `values` over prompts; NaN where it is not known."""
        known = {"effect": self.effect.error, "direct": self.direct.error, **self.errors}
        if self.attention is not None:
            relations = self.attention.relations
            known |= {
                f"to_{key}" if key in relations else key: x
                for key, x in self.attention.errors.items()
            }
        if (largest := self.shift) is not None:
            known["shift"] = largest[1].change.error
        return known.get(name, math.nan)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
