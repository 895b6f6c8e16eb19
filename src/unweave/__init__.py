"""Circuits in transformers by contextual decomposition.

Public names are looked up on first use, so that `import unweave` loads neither torch nor
transformers.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unweave.ablation import Ablation, counterfactual, means
    from unweave.attribution.attribute import attribute
    from unweave.batch import Batch, Readout
    from unweave.behaviours.prompt import Prompt
    from unweave.behaviours.task import task
    from unweave.circuits import Circuit, Scores
    from unweave.decomposition.api import decompose, relevance
    from unweave.decomposition.ruleset import RuleSet
    from unweave.evaluation.api import Evaluation, evaluate
    from unweave.experiments.discover import discover
    from unweave.experiments.specification import Plan
    from unweave.model.loading import load
    from unweave.model.model import Model
    from unweave.report.circuit_files import read_circuit

    __version__: str

# Public name -> the module that defines it. A new name goes here, above and in `__all__`.
_HOME = {
    "Ablation": "unweave.ablation",
    "Batch": "unweave.batch",
    "Circuit": "unweave.circuits",
    "Evaluation": "unweave.evaluation.api",
    "Model": "unweave.model.model",
    "Plan": "unweave.experiments.specification",
    "Prompt": "unweave.behaviours.prompt",
    "Readout": "unweave.batch",
    "RuleSet": "unweave.decomposition.ruleset",
    "Scores": "unweave.circuits",
    "attribute": "unweave.attribution.attribute",
    "counterfactual": "unweave.ablation",
    "decompose": "unweave.decomposition.api",
    "discover": "unweave.experiments.discover",
    "evaluate": "unweave.evaluation.api",
    "load": "unweave.model.loading",
    "means": "unweave.ablation",
    "read_circuit": "unweave.report.circuit_files",
    "relevance": "unweave.decomposition.api",
    "task": "unweave.behaviours.task",
}

__all__ = [
    "Ablation",
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
    if name == "__version__":
        from importlib.metadata import version

        return version("unweave")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
