"""`evaluate` of a run folder: the circuit that `discover` found, on prompts that it did not use."""

from collections.abc import Callable, Collection

from unweave.errors import UnweaveError
from unweave.evaluation.api import PARTS, Evaluation, evaluate
from unweave.evaluation.random_circuits import DRAWS
from unweave.experiments.run_folder import Run
from unweave.experiments.specification import ABLATIONS, Experiment, Specification
from unweave.model.model import Model
from unweave.registry import nearest
from unweave.sites import parse


def evaluate_run(
    run: Run,
    load: Callable[[Specification], Model],
    *,
    n: int | None = None,
    parts: Collection[str] = PARTS,
    draws: int = DRAWS,
) -> Evaluation:
    """Evaluates a finished run.

    Args:
        load: Loads the specification's model.
        n: How many held-out prompts; None for the task's own number.
        draws: Random circuits of each size.

    Raises:
        UnweaveError: Also when the model or the task is not what it was.
    """
    for part in parts:
        if part not in PARTS:
            raise UnweaveError(f"unknown part {part!r} of an evaluation: {nearest(part, PARTS)}")
    how = run.specification
    experiment = Experiment.set_up(how, load(how))
    _check_same(run, experiment)
    main = experiment.problem("evaluate", n or how.held_out)
    problems = {name: experiment.under(main, name) for name in (how.ablation, *ABLATIONS)}
    return evaluate(
        main,
        run.scores if run.scores is not None else list(run.circuit.nodes),
        [parse(name) for name in run.circuit.nodes],
        ablations={name: one.ablation for name, one in problems.items() if one is not None},
        known=experiment.known(),
        parts=parts,
        draws=draws,
        seed=how.seed,
        about={"task": how.task, "model": how.model, "method": run.circuit.method},
    )


def _check_same(run: Run, experiment: Experiment) -> None:
    """Raises when weights or task file changed since the run: its figures would be of another."""
    identity = run.record.get("identity")
    before = identity.get("fingerprint", {}) if isinstance(identity, dict) else {}
    for what, now in experiment.fingerprint.items():
        if before.get(what) not in (None, now):
            raise UnweaveError(
                f"the {what} of {run.folder} changed since the run was made: discover again"
            )
