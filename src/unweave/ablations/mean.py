"""Mean: the mean activation over reference prompts, per template and position."""

from unweave.ablation import Ablation, means
from unweave.ablations.kind import AblationKind, ablations
from unweave.batch import Batch
from unweave.behaviours.task import Task
from unweave.errors import UnweaveError
from unweave.model.model import Model
from unweave.sites import Point


def build(task: Task, model: Model, batch: Batch, points: tuple[Point, ...], seed: int) -> Ablation:
    """Means over the task's corrupted reference prompts.

    Raises:
        UnweaveError: When clean and corrupted prompts do not align.
    """
    if not batch.aligned:
        raise UnweaveError(
            f"task {task.name}: clean and corrupted prompts differ in length, so a mean over "
            "prompts has no position to stand at; use --ablation counterfactual, which compares "
            "each prompt with its own pair, or prompts of one length"
        )
    reference = task.batch(model, seed=seed, part="reference")
    length = batch.clean.mask.shape[1]
    return means(model, reference.corrupted, reference.groups, batch.groups, length, points)


ablations.register("mean")(
    AblationKind("mean", "mean over reference prompts of the same template", build)
)
