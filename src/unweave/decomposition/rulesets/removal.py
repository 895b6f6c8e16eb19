"""Removal everywhere, norms recomputed: γ is the ablated run (docs/method.md §3)."""

from unweave.decomposition import rules
from unweave.decomposition.ruleset import RuleSet, rulesets

rulesets.register("removal")(
    RuleSet(
        name="removal",
        linear=rules.linear_without_bias,
        norm=rules.norm_removal,
        activation=rules.activation_secant,
        gate=rules.gate_removal,
        attention=rules.attention_removal,
        clamp=frozenset(),
        readout="difference",
        guarantee="Equals exact activation patching of the source, one run per source.",
    )
)
