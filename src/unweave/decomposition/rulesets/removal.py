"""Removal everywhere, norms recomputed: γ is the ablated run (docs/method.md §3)."""

from unweave.decomposition.ruleset import rule_set, rulesets

RULES = "linear=plain, norm=removal, activation=secant, gate=removal, attention=removal"
GUARANTEE = "Equals exact activation patching of the source, one run per source."

rulesets.register("removal")(
    rule_set("removal", f"{RULES}, clamp=none, readout=difference", GUARANTEE)
)
