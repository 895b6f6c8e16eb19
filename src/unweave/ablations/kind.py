"""`AblationKind`: a way to replace activations, and the registry of kinds."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from unweave.ablation import Ablation
from unweave.batch import Batch
from unweave.behaviours.task import Task
from unweave.model.model import Model
from unweave.registry import Registry
from unweave.sites import Point

Build = Callable[[Task, Model, Batch, tuple[Point, ...], int], Ablation]


@dataclass(frozen=True)
class AblationKind:
    """A way to replace activations.

    Args:
        summary: One line about it.
        build: From a task, a model, a batch, the points to replace at and a seed.
    """

    name: str
    summary: str
    build: Build


ablations: Registry[AblationKind] = Registry("ablation", "unweave.ablations")


def task_ablation(
    task: Task, model: Model, batch: Batch, name: str, points: Iterable[Point], seed: int = 0
) -> Ablation:
    """Builds an ablation for a batch of a task.

    Raises:
        UnweaveError: For an unknown name, or prompts that it cannot be built for.
    """
    ordered = tuple(sorted(set(points), key=lambda point: point.depth))
    return ablations[name].build(task, model, batch, ordered, seed)
