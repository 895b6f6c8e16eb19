"""Public contract suites: what a new architecture, task, rules, score or search has to fulfil."""

from unweave.testing.architecture import check_architecture
from unweave.testing.inputs import random_inputs
from unweave.testing.parity import Parity, find_parity
from unweave.testing.rules import check_rules
from unweave.testing.score import check_score
from unweave.testing.search import check_search

__all__ = [
    "Parity",
    "check_architecture",
    "check_rules",
    "check_score",
    "check_search",
    "find_parity",
    "random_inputs",
]
