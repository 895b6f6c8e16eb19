"""Every operation frozen or replaced by its slope: linear in β, so one backward pass scores all."""

from unweave.decomposition.ruleset import rule_set, rulesets

RULES = "linear=plain, norm=frozen, activation=slope, gate=half, attention=frozen"
GUARANTEE = "Linear in β: scores of sources add up, and equal one vector-Jacobian product."

rulesets.register("linear")(rule_set("linear", f"{RULES}, clamp=none, readout=gradient", GUARANTEE))
