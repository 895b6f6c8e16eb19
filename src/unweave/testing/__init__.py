"""Public contract suites: what a new architecture, task, rule set or method has to fulfil."""

from unweave.testing.architecture import check_architecture
from unweave.testing.inputs import random_inputs
from unweave.testing.method import check_method
from unweave.testing.parity import Parity, compare
from unweave.testing.rules import check_rules

__all__ = [
    "Parity",
    "check_architecture",
    "check_method",
    "check_rules",
    "compare",
    "random_inputs",
]
