"""The rules of the CD-T paper, completed for RMSNorm and gates (docs/method.md §2)."""

from unweave.decomposition import rules
from unweave.decomposition.ruleset import PAPER_CLAMP, RuleSet, rulesets

rulesets.register("paper")(
    RuleSet(
        name="paper",
        linear=rules.linear_shared_bias,
        norm=rules.norm_shared_bias,
        activation=rules.activation_secant,
        gate=rules.gate_product,
        attention=rules.attention_relevant,
        clamp=PAPER_CLAMP,
        readout="paper",
        guarantee="β + γ = T; with everything relevant β = T. No causal meaning is promised.",
    )
)
