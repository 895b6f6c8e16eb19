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
    from unweave.behaviours.task import KnownCircuit, Task, task, tasks
    from unweave.circuits import Circuit, EdgeScores, Scores
    from unweave.decomposition.api import decompose, relevance
    from unweave.decomposition.edges import edge_relevance
    from unweave.decomposition.feeds import feeds
    from unweave.decomposition.ruleset import RuleSet
    from unweave.errors import UnweaveError
    from unweave.estimates import Estimate
    from unweave.evaluation.api import Evaluation, evaluate
    from unweave.experiments.discover import discover
    from unweave.experiments.specification import Specification
    from unweave.metrics import LOGIT_DIFFERENCE, MARGIN, PROBABILITY_DIFFERENCE, Metric
    from unweave.model.loading import load
    from unweave.model.model import Model
    from unweave.report.circuit_files import read_circuit
    from unweave.scores.problem import Problem
    from unweave.search.search import Finding
    from unweave.sites import Site

    __version__: str

# Public name -> the module that defines it. A new name goes here, above and in `__all__`.
_HOME = {
    "Ablation": "unweave.ablation",
    "Batch": "unweave.batch",
    "Circuit": "unweave.circuits",
    "EdgeScores": "unweave.circuits",
    "Estimate": "unweave.estimates",
    "Evaluation": "unweave.evaluation.api",
    "Finding": "unweave.search.search",
    "KnownCircuit": "unweave.behaviours.task",
    "LOGIT_DIFFERENCE": "unweave.metrics",
    "MARGIN": "unweave.metrics",
    "Metric": "unweave.metrics",
    "Model": "unweave.model.model",
    "PROBABILITY_DIFFERENCE": "unweave.metrics",
    "Problem": "unweave.scores.problem",
    "Prompt": "unweave.behaviours.prompt",
    "Readout": "unweave.batch",
    "RuleSet": "unweave.decomposition.ruleset",
    "Scores": "unweave.circuits",
    "Site": "unweave.sites",
    "Specification": "unweave.experiments.specification",
    "Task": "unweave.behaviours.task",
    "UnweaveError": "unweave.errors",
    "attribute": "unweave.attribution.attribute",
    "counterfactual": "unweave.ablation",
    "decompose": "unweave.decomposition.api",
    "discover": "unweave.experiments.discover",
    "edge_relevance": "unweave.decomposition.edges",
    "evaluate": "unweave.evaluation.api",
    "feeds": "unweave.decomposition.feeds",
    "load": "unweave.model.loading",
    "means": "unweave.ablation",
    "read_circuit": "unweave.report.circuit_files",
    "relevance": "unweave.decomposition.api",
    "task": "unweave.behaviours.task",
    "tasks": "unweave.behaviours.task",
}

__all__ = [
    "LOGIT_DIFFERENCE",
    "MARGIN",
    "PROBABILITY_DIFFERENCE",
    "Ablation",
    "Batch",
    "Circuit",
    "EdgeScores",
    "Estimate",
    "Evaluation",
    "Finding",
    "KnownCircuit",
    "Metric",
    "Model",
    "Problem",
    "Prompt",
    "Readout",
    "RuleSet",
    "Scores",
    "Site",
    "Specification",
    "Task",
    "UnweaveError",
    "__version__",
    "attribute",
    "counterfactual",
    "decompose",
    "discover",
    "edge_relevance",
    "evaluate",
    "feeds",
    "load",
    "means",
    "read_circuit",
    "relevance",
    "task",
    "tasks",
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
