"""Circuits in transformers by contextual decomposition.

Public names are looked up on first use, so that `import unweave` loads neither torch nor
transformers.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unweave.ablation import Ablation, counterfactual, means
    from unweave.attribution.attribute import Attribution, attribute
    from unweave.attribution.target import MetricTarget
    from unweave.attribution.texts import Word
    from unweave.batch import Batch, Readout
    from unweave.behaviours.prompt import Prompt
    from unweave.behaviours.published import ModelShape
    from unweave.behaviours.task import KnownCircuit, Task, task, tasks
    from unweave.circuits import Circuit, CircuitEdge, EdgeScores, Evidence, NodeSummary, Scores
    from unweave.decomposition.api import Decomposition, decompose, relevance
    from unweave.decomposition.edges import edge_relevance
    from unweave.decomposition.feeds import feeds
    from unweave.decomposition.ruleset import RuleSet
    from unweave.errors import UnweaveError
    from unweave.estimates import Estimate
    from unweave.evaluation.api import Evaluation, evaluate
    from unweave.evaluation.checks import Completeness, Knockout, Minimality
    from unweave.evaluation.curves import Curve
    from unweave.evaluation.faithfulness import Faithfulness
    from unweave.evaluation.random_circuits import Draws, RandomTest, Share
    from unweave.evaluation.roc import Roc
    from unweave.evaluation.stability import Stability
    from unweave.experiments.discover import discover
    from unweave.experiments.methods import Method
    from unweave.experiments.specification import Specification
    from unweave.metrics import LOGIT_DIFFERENCE, MARGIN, PROBABILITY_DIFFERENCE, Metric
    from unweave.model.loading import load
    from unweave.model.model import Model
    from unweave.model.program import Inputs
    from unweave.report.circuit_files import read_circuit
    from unweave.scores.problem import Problem, Reference
    from unweave.search.search import Finding, Round, Step
    from unweave.sites import Point, Site

    __version__: str

# Public name -> the module that defines it. A new name goes here, above and in `__all__`.
_HOME = {
    "Ablation": "unweave.ablation",
    "Attribution": "unweave.attribution.attribute",
    "Batch": "unweave.batch",
    "Circuit": "unweave.circuits",
    "CircuitEdge": "unweave.circuits",
    "Completeness": "unweave.evaluation.checks",
    "Curve": "unweave.evaluation.curves",
    "Decomposition": "unweave.decomposition.api",
    "Draws": "unweave.evaluation.random_circuits",
    "EdgeScores": "unweave.circuits",
    "Estimate": "unweave.estimates",
    "Evaluation": "unweave.evaluation.api",
    "Evidence": "unweave.circuits",
    "Faithfulness": "unweave.evaluation.faithfulness",
    "Finding": "unweave.search.search",
    "Inputs": "unweave.model.program",
    "Knockout": "unweave.evaluation.checks",
    "KnownCircuit": "unweave.behaviours.task",
    "LOGIT_DIFFERENCE": "unweave.metrics",
    "MARGIN": "unweave.metrics",
    "Method": "unweave.experiments.methods",
    "Metric": "unweave.metrics",
    "MetricTarget": "unweave.attribution.target",
    "Minimality": "unweave.evaluation.checks",
    "Model": "unweave.model.model",
    "ModelShape": "unweave.behaviours.published",
    "NodeSummary": "unweave.circuits",
    "PROBABILITY_DIFFERENCE": "unweave.metrics",
    "Point": "unweave.sites",
    "Problem": "unweave.scores.problem",
    "Prompt": "unweave.behaviours.prompt",
    "RandomTest": "unweave.evaluation.random_circuits",
    "Readout": "unweave.batch",
    "Reference": "unweave.scores.problem",
    "Roc": "unweave.evaluation.roc",
    "Round": "unweave.search.search",
    "RuleSet": "unweave.decomposition.ruleset",
    "Scores": "unweave.circuits",
    "Share": "unweave.evaluation.random_circuits",
    "Site": "unweave.sites",
    "Specification": "unweave.experiments.specification",
    "Stability": "unweave.evaluation.stability",
    "Step": "unweave.search.search",
    "Task": "unweave.behaviours.task",
    "UnweaveError": "unweave.errors",
    "Word": "unweave.attribution.texts",
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
    "Attribution",
    "Batch",
    "Circuit",
    "CircuitEdge",
    "Completeness",
    "Curve",
    "Decomposition",
    "Draws",
    "EdgeScores",
    "Estimate",
    "Evaluation",
    "Evidence",
    "Faithfulness",
    "Finding",
    "Inputs",
    "Knockout",
    "KnownCircuit",
    "Method",
    "Metric",
    "MetricTarget",
    "Minimality",
    "Model",
    "ModelShape",
    "NodeSummary",
    "Point",
    "Problem",
    "Prompt",
    "RandomTest",
    "Readout",
    "Reference",
    "Roc",
    "Round",
    "RuleSet",
    "Scores",
    "Share",
    "Site",
    "Specification",
    "Stability",
    "Step",
    "Task",
    "UnweaveError",
    "Word",
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
