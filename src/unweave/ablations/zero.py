"""Zero: nothing at all."""

from unweave.ablation import ZERO, Ablation
from unweave.ablations.kind import AblationKind, ablations
from unweave.batch import Batch
from unweave.behaviours.task import Task
from unweave.model.model import Model
from unweave.sites import Point


def build(task: Task, model: Model, batch: Batch, points: tuple[Point, ...], seed: int) -> Ablation:
    """The same for every task and prompt."""
    return ZERO


ablations.register("zero")(AblationKind("zero", "zeros", build))
