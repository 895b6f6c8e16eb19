"""Circuits in transformers by contextual decomposition.

Public names are looked up on first use, so that `import unweave` loads neither torch nor
transformers.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unweave.attribution.attribute import attribute
    from unweave.baselines import Baseline, counterfactual, means
    from unweave.batch import Batch, Readout
    from unweave.circuits import Circuit, Scores
    from unweave.decompose.api import decompose, relevance
    from unweave.decompose.ruleset import RuleSet
    from unweave.evaluate.api import Evaluation, evaluate
    from unweave.model.loading import load
    from unweave.model.model import Model
    from unweave.report.exchange import read_circuit
    from unweave.runs.discover import discover
    from unweave.runs.plan import Plan
    from unweave.tasks.prompt import Prompt
    from unweave.tasks.task import task

__version__ = "0.1.0"

# Public name -> the module that defines it. A new name goes here, above and in `__all__`.
_HOME = {
    "Baseline": "unweave.baselines",
    "Batch": "unweave.batch",
    "Circuit": "unweave.circuits",
    "Evaluation": "unweave.evaluate.api",
    "Model": "unweave.model.model",
    "Plan": "unweave.runs.plan",
    "Prompt": "unweave.tasks.prompt",
    "Readout": "unweave.batch",
    "RuleSet": "unweave.decompose.ruleset",
    "Scores": "unweave.circuits",
    "attribute": "unweave.attribution.attribute",
    "counterfactual": "unweave.baselines",
    "decompose": "unweave.decompose.api",
    "discover": "unweave.runs.discover",
    "evaluate": "unweave.evaluate.api",
    "load": "unweave.model.loading",
    "means": "unweave.baselines",
    "read_circuit": "unweave.report.exchange",
    "relevance": "unweave.decompose.api",
    "task": "unweave.tasks.task",
}

__all__ = [
    "Baseline",
    "Batch",
    "Circuit",
    "Evaluation",
    "Model",
    "Plan",
    "Prompt",
    "Readout",
    "RuleSet",
    "Scores",
    "__version__",
    "attribute",
    "counterfactual",
    "decompose",
    "discover",
    "evaluate",
    "load",
    "means",
    "read_circuit",
    "relevance",
    "task",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """Keeps a public name when a folder is called the same.

    Importing `unweave.decompose.split` makes Python set the attribute `decompose` of this package
    to the folder, which would hide a function `unweave.decompose`; that one assignment is dropped.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
