"""The rules of the CD-T paper, completed for RMSNorm and gates (docs/method.md §2)."""

from unweave.decomposition.ruleset import rule_set, rulesets

RULES = "linear=shared, norm=shared, activation=secant, gate=product, attention=relevant"
GUARANTEE = "β + γ = T; with everything relevant β = T. No causal meaning is promised."

rulesets.register("paper")(rule_set("paper", f"{RULES}, clamp=paper, readout=paper", GUARANTEE))
