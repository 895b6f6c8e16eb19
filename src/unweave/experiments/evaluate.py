"""A run folder evaluated: the same task and model, other prompts."""

from collections.abc import Callable, Collection
from typing import get_args

from unweave.ablations.of_task import AblationName
from unweave.behaviours.file import find_task
from unweave.errors import UnweaveError
from unweave.evaluation.api import PARTS, Evaluation, evaluate
from unweave.evaluation.faithfulness import ABLATIONS, under_ablations
from unweave.evaluation.random_circuits import DRAWS
from unweave.experiments.comparison_cells import known_circuits
from unweave.experiments.old_run import Run
from unweave.model.model import Model
from unweave.registry import nearest
from unweave.sites import parse


def evaluate_run(
    run: Run,
    load: Callable[[str], Model],
    *,
    n: int | None = None,
    parts: Collection[str] = PARTS,
    draws: int = DRAWS,
) -> Evaluation:
    """Evaluates what `unweave discover` found, on prompts that it did not use.

    Args:
        load: Loads the model by its name.
        n: How many held-out prompts; None for the task's own number.

    Raises:
        UnweaveError: Also when the run's ablation cannot be made for this task.
    """
    for part in parts:
        if part not in PARTS:
            raise UnweaveError(f"unknown part {part!r} of an evaluation: {nearest(part, PARTS)}")
    if run.ablation not in get_args(AblationName):
        raise UnweaveError(
            f"{run.folder / 'run.json'} names the ablation {run.ablation!r}: "
            f"{nearest(run.ablation, ABLATIONS)}"
        )
    first_token = bool(run.options.get("first_token"))
    task, model = find_task(run.task, first_token), load(run.model)
    batch = task.batch(model, n, run.seed, "evaluate")
    names = run.scores.sources if run.scores is not None else None
    nodes = [parse(name) for name in names] if names else _nodes(run, model)
    problems = under_ablations(task, model, batch, nodes, ABLATIONS, run.seed)
    if run.ablation not in problems:
        raise UnweaveError(
            f"task {task.name} has no {run.ablation} ablation for these prompts: clean and "
            "corrupted differ in length; discover with --ablation zero"
        )
    return evaluate(
        problems[run.ablation],
        run.scores if run.scores is not None else list(run.circuit),
        run.circuit,
        ablations={name: problem.ablation for name, problem in problems.items()},
        known=known_circuits(task, model, run.ablation),
        parts=parts,
        draws=draws,
        seed=run.seed,
        about={"task": run.task, "model": run.model, "method": run.method},
    )


def _nodes(run: Run, model: Model) -> list:
    """Without scores, the nodes are those of the model at the circuit's granularity."""
    heads_only = all(site.point.kind != "mlp" for site in run.circuit)
    found = model.heads() if heads_only else [*model.heads(), *model.mlps()]
    positions = dict.fromkeys(site.position for site in run.circuit) or {None: None}
    return [site.at(position) for site in found for position in positions]
