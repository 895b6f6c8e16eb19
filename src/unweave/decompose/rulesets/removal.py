"""Removal everywhere, norms recomputed: γ is the run with the source ablated (METHOD.md §3)."""

from unweave.decompose import rules
from unweave.decompose.ruleset import RuleSet, rulesets

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
