"""Rule sets: one rule per operation, named, mixable.

A set is found by name (`"paper"`), by name with changes (`"paper, attention=removal, clamp=none"`)
or given as a `RuleSet` with rules of one's own. A new named set is one file in `rulesets/`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from unweave.decomposition import rules
from unweave.errors import UnweaveError
from unweave.registry import Registry, nearest

MetricReadout = Literal["gradient", "paper", "difference"]

# Places of a block after which the paper clamps: its feed-forward part (docs/method.md §2).
PAPER_CLAMP = frozenset({"mlp.in", "mlp.gate", "mlp.out", "mlp.add", "mlp.after"})
EVERYWHERE = frozenset({"everywhere"})

CHOICES: Mapping[str, Mapping[str, Any]] = {
    "linear": {"shared": rules.linear_shared_bias, "plain": rules.linear_without_bias},
    "norm": {
        "shared": rules.norm_shared_bias,
        "frozen": rules.norm_frozen,
        "removal": rules.norm_removal,
    },
    "activation": {
        "secant": rules.activation_secant,
        "slope": rules.activation_slope,
        "ratio": rules.activation_ratio,
    },
    "gate": {
        "product": rules.gate_product,
        "frozen": rules.gate_frozen,
        "removal": rules.gate_removal,
        "half": rules.gate_half,
    },
    "attention": {
        "relevant": rules.attention_relevant,
        "frozen": rules.attention_frozen,
        "removal": rules.attention_removal,
    },
    "clamp": {"none": frozenset(), "paper": PAPER_CLAMP, "everywhere": EVERYWHERE},
    "readout": {"gradient": "gradient", "paper": "paper", "difference": "difference"},
}


@dataclass(frozen=True)
class RuleSet:
    """One rule per operation.

    Args:
        clamp: Places after which β is clamped into [0, T].
        readout: How a metric that is not linear in the logits is read: by its gradient at T, as
            m(β) (the paper), or as m(T) − m(T − β). For a linear metric the three agree.
        guarantee: What a score under this set means, in a sentence.
        conserves: Whether every rule passes on all of its output where all of its input is
            relevant (`completeness.py`); every run checks it, unless `replace` sets it False.
    """

    name: str
    linear: rules.LinearRule
    norm: rules.NormRule
    activation: rules.ActivationRule
    gate: rules.GateRule
    attention: rules.AttentionRule
    clamp: frozenset[str]
    readout: MetricReadout
    guarantee: str
    conserves: bool = True

    def with_rules(self, **changes: Any) -> "RuleSet":
        """The set with some operations changed, each by a choice's name or by a rule."""
        resolved = {op: _choice(op, value) for op, value in changes.items()}
        listed = ", ".join(f"{op}={_label(value)}" for op, value in changes.items())
        return replace(
            self, **resolved, name=f"{self.name}, {listed}", guarantee="a mixture: none is known"
        )

    def clamps(self, place: str) -> bool:
        return place in self.clamp or self.clamp == EVERYWHERE


rulesets: Registry[RuleSet] = Registry("rule set", "unweave.decomposition.rulesets")


def find_rules(x: str | RuleSet) -> RuleSet:
    """A rule set from its name, from a name with changes, or as it is."""
    if isinstance(x, RuleSet):
        return x
    name, *changes = (part.strip() for part in x.split(","))
    found = rulesets[name]
    if not changes:
        return found
    return found.with_rules(**_pairs(x, changes))


def rule_set(name: str, choices: str, guarantee: str) -> RuleSet:
    """A set from a choice for every operation: "linear=plain, norm=frozen, …"."""
    pairs = _pairs(choices, [part.strip() for part in choices.split(",")])
    resolved = {op: _choice(op, value) for op, value in pairs.items()}
    return RuleSet(name=name, **resolved, guarantee=guarantee)


def _pairs(text: str, changes: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for change in changes:
        op, equals, choice = change.partition("=")
        if not equals:
            raise UnweaveError(f"rules {text!r}: expected operation=choice, found {change!r}")
        pairs[op.strip()] = choice.strip()
    return pairs


def _choice(op: str, value: Any) -> Any:
    if op not in CHOICES:
        raise UnweaveError(f"rules have no operation {op!r}: {nearest(op, CHOICES)}")
    if not isinstance(value, str):
        return value
    if value not in CHOICES[op]:
        raise UnweaveError(f"{op} has no rule {value!r}: {nearest(value, CHOICES[op])}")
    return CHOICES[op][value]


def _label(value: Any) -> str:
    return value if isinstance(value, str) else getattr(value, "__name__", str(value))


OPERATIONS = tuple(f.name for f in fields(RuleSet) if f.name in CHOICES)
