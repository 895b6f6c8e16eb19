"""`AblationKind`: a way to replace activations, and the registry of kinds."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from unweave.ablation import Ablation
from unweave.batch import Batch
from unweave.behaviours.task import Task
from unweave.model.model import Model
from unweave.registry import Registry
from unweave.sites import Point

Apply = Callable[[Batch], Ablation]
Prepare = Callable[[Task, Model, tuple[Point, ...], int], Apply]


@dataclass(frozen=True)
class AblationKind:
    """A way to replace activations.

    Args:
        summary: One line about it.
        prepare: From a task, a model, the points to replace at and a seed: what all batches share
            (means over reference prompts) is computed once.
        shared: Whether all values are computed once for all batches, so that it pays to record
            every point that anything will ask for.
    """

    name: str
    summary: str
    prepare: Prepare
    shared: bool = False


ablations: Registry[AblationKind] = Registry("ablation", "unweave.ablations")


def task_ablation(
    task: Task, model: Model, batch: Batch, name: str, points: Iterable[Point], seed: int = 0
) -> Ablation:
    """Builds an ablation for a batch of a task.

    Raises:
        UnweaveError: For an unknown name, or prompts that it cannot be built for.
    """
    return prepared(task, model, name, points, seed)(batch)


def prepared(task: Task, model: Model, name: str, points: Iterable[Point], seed: int = 0) -> Apply:
    """An ablation that can be applied to any batch of a task.

    Raises:
        UnweaveError: For an unknown name.
    """
    ordered = tuple(sorted(set(points), key=lambda point: point.depth))
    return ablations[name].prepare(task, model, ordered, seed)
