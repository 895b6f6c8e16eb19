"""What the parts of synthetic models do, by the names of roles.toml: we wired them to do it.

A head or MLP that is not listed has no role. `ZERO` lists what zero ablation adds: nodes whose
output depends on positions alone, which other ablations do not miss.
"""

from collections.abc import Mapping

Known = Mapping[str, tuple[str, ...]]

_INDUCTION = {"a1.h2": ("previous token",), "a2.h0": ("induction", "mover")}
ROLES: Mapping[str, Known] = {
    "wired-induction": _INDUCTION,
    "wired-inhibition": {
        "a0.h0": ("duplicate token",),
        "a1.h1": ("inhibition",),
        "a2.h2": ("mover",),
    },
    "wired-suppression": {
        **_INDUCTION,
        "a2.h3": ("induction", "copy suppression"),
        "a3.h1": ("amplifier",),
        "a3.h3": ("dampener",),
    },
    # The first two attend to a fixed position, which on these prompts holds the same word as the
    # position that reads them; that it is not so on random tokens is what the role's check says.
    "wired-relay": {
        "a0.h1": ("duplicate token",),
        "a1.h2": ("duplicate token",),
        "a2.h0": ("mover",),
    },
    # What the first one does is not a role of ours: it brings a word to another position.
    "wired-composition": {"a1.h0": ("composed mover",)},
    "tracr:reverse": {"a3.h0": ("mover",)},
    "tracr:proportion": {"m0": ("token lookup",), "a1.h0": ("averaging",)},
    "tracr:hist": {"a0.h0": ("duplicate token",), "m0": ("answer promotion",)},
    "tracr:balance": {
        "m0": ("token lookup",),
        "a1.h0": ("averaging",),
        "a1.h1": ("averaging",),
        "m1": ("answer promotion",),
    },
}
ZERO: Mapping[str, Known] = {
    "wired-induction": {"a0.h1": ("positional",)},
    "wired-inhibition": {"a0.h3": ("positional",)},
    "wired-suppression": {"a0.h1": ("positional",)},
    # The length, counted by even attention; then the opposite index from it.
    "tracr:reverse": {
        "a0.h0": ("averaging", "positional"),
        "m0": ("positional",),
        "m1": ("positional",),
        "m2": ("positional",),
    },
}


def known_roles(name: str, ablation: str) -> Known:
    """The roles of a synthetic model's nodes under an ablation."""
    return {**ROLES[name], **(ZERO.get(name, {}) if ablation == "zero" else {})}
