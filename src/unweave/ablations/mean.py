"""Mean: the mean activation over reference prompts, per template and position."""

from unweave.ablation import Ablation, GroupMeans
from unweave.ablations.kind import AblationKind, Apply, ablations
from unweave.batch import Batch
from unweave.behaviours.task import Task
from unweave.errors import UnweaveError
from unweave.model.model import Model
from unweave.sites import Point


def prepare(task: Task, model: Model, points: tuple[Point, ...], seed: int) -> Apply:
    """Means over the task's corrupted reference prompts, run when the first batch asks for them."""
    found: list[GroupMeans] = []

    def apply(batch: Batch) -> Ablation:
        if not batch.aligned:
            raise UnweaveError(
                f"task {task.name}: clean and corrupted prompts differ in length, so a mean over "
                "prompts has no position to stand at; use --ablation counterfactual, which "
                "compares each prompt with its own pair, or prompts of one length"
            )
        if not found:
            reference = task.batch(model, seed=seed, part="reference")
            found.append(GroupMeans.over(model, reference.corrupted, reference.groups, points))
        return found[0].ablation(batch.groups, batch.clean.mask.shape[1])

    return apply


ablations.register("mean")(
    AblationKind("mean", "mean over reference prompts of the same template", prepare, shared=True)
)
