"""Zero: nothing at all."""

from unweave.ablation import ZERO
from unweave.ablations.kind import AblationKind, Apply, ablations
from unweave.behaviours.task import Task
from unweave.model.model import Model
from unweave.sites import Point


def prepare(task: Task, model: Model, points: tuple[Point, ...], seed: int) -> Apply:
    """The same for every task and prompt."""
    return lambda batch: ZERO


ablations.register("zero")(AblationKind("zero", "zeros", prepare))
