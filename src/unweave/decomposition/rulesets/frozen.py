"""The model's own attention patterns, norm scales and gates as coefficients (docs/method.md §3)."""

from unweave.decomposition import rules
from unweave.decomposition.ruleset import RuleSet, rulesets

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
