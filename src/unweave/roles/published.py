"""The names that papers give to heads, in the names of roles.toml.

A published role that has no counterpart is not listed, and its heads are not counted: that a head
is "supporting", or attends to a year, is not a role of ours.
"""

from collections.abc import Mapping

EXPECTED: Mapping[str, tuple[str, ...]] = {
    "previous token": ("previous token",),
    "duplicate token": ("duplicate token",),
    "induction": ("induction",),
    "S-inhibition": ("inhibition",),
    "name mover": ("mover",),
    "negative name mover": ("copy suppression",),
    "backup name mover": ("mover",),
    "argument mover": ("mover",),
}
