"""The model's own attention patterns, norm scales and gates as coefficients (METHOD.md §3)."""

from unweave.decompose import rules
from unweave.decompose.ruleset import RuleSet, rulesets

rulesets.register("frozen")(
    RuleSet(
        name="frozen",
        linear=rules.linear_without_bias,
        norm=rules.norm_frozen,
        activation=rules.activation_secant,
        gate=rules.gate_frozen,
        attention=rules.attention_frozen,
        clamp=frozenset(),
        readout="gradient",
        guarantee="Exact effect of removing β through values only, patterns and scales held.",
    )
)
