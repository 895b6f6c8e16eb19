"""Every operation frozen or replaced by its slope: linear in β, so one backward pass scores all."""

from unweave.decomposition import rules
from unweave.decomposition.ruleset import RuleSet, rulesets

rulesets.register("linear")(
    RuleSet(
        name="linear",
        linear=rules.linear_without_bias,
        norm=rules.norm_frozen,
        activation=rules.activation_slope,
        gate=rules.gate_half,
        attention=rules.attention_frozen,
        clamp=frozenset(),
        readout="gradient",
        guarantee="Linear in β: scores of sources add up, and equal one vector-Jacobian product.",
    )
)
