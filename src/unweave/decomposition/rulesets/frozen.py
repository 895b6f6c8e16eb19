"""The model's own attention patterns, norm scales and gates as coefficients (docs/method.md §3)."""

from unweave.decomposition.ruleset import rule_set, rulesets

RULES = "linear=plain, norm=frozen, activation=secant, gate=frozen, attention=frozen"
GUARANTEE = "Exact effect of removing β through values only, patterns and scales held."

rulesets.register("frozen")(rule_set("frozen", f"{RULES}, clamp=none, readout=gradient", GUARANTEE))
