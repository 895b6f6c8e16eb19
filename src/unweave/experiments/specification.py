"""What a run is asked to do, and the problems it solves: one to find on, one to judge on."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from unweave.ablations.of_task import AblationName, task_ablation
from unweave.behaviours.accuracy import Accuracy, check_able
from unweave.behaviours.task import Task
from unweave.errors import UnweaveError
from unweave.model.model import Model
from unweave.scores.problem import Problem
from unweave.sites import Site

GRANULARITIES = ("head", "head@position")


@dataclass(frozen=True)
class Plan:
    """A discovery, as the user asked for it.

    Args:
        granularity: Nodes are heads, or heads at the task's named positions.
        mlps: Whether MLPs are nodes too (else they are never ablated).
        discover, evaluate: How many prompts; None takes the task's own numbers.
        first_token: Whether the first token of a longer answer stands for it (file tasks).
        options: The method's options that differ from their defaults.
    """

    task: str
    model: str
    method: str = "cdt"
    granularity: str = "head"
    mlps: bool = False
    ablation: AblationName = "mean"
    seed: int = 0
    discover: int | None = None
    evaluate: int | None = None
    first_token: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Stage:
    """A model on a task: prompts to find a circuit on, and others to judge it on."""

    find: Problem
    judge: Problem
    accuracy: Accuracy


def set_up(plan: Plan, model: Model, task: Task) -> Stage:
    """Draws prompts, checks that the model can do the task at all, and records ablations.

    Raises:
        UnweaveError: When the model fails the task, or the plan does not fit it.
    """
    found = task.batch(model, plan.discover, plan.seed, "discover")
    judged = task.batch(model, plan.evaluate, plan.seed, "evaluate")
    accuracy = check_able(model, found, task.name)
    nodes = plan_nodes(plan, model, tuple(found.positions))
    problems = []
    for batch in (found, judged):
        points = {node.point for node in nodes}
        ablation = task_ablation(task, model, batch, plan.ablation, points, plan.seed)
        problems.append(Problem(model, batch, nodes, ablation))
    return Stage(problems[0], problems[1], accuracy)


def plan_nodes(plan: Plan, model: Model, positions: tuple[str, ...]) -> tuple[Site, ...]:
    """Every node that a circuit may hold."""
    if plan.granularity not in GRANULARITIES:
        raise UnweaveError(
            f"granularity {plan.granularity!r}: expected {' or '.join(GRANULARITIES)}"
        )
    if plan.granularity == "head@position" and model.family == "encoder-decoder":
        raise UnweaveError(
            f"granularity head@position: {model.name} reads one text and writes another, whose "
            "positions have no names in common; use head"
        )
    sites = model.heads() + (model.mlps() if plan.mlps else [])
    sites.sort(key=lambda site: site.point.depth)
    if plan.granularity == "head":
        return tuple(sites)
    return tuple(site.at(position) for site in sites for position in positions)
