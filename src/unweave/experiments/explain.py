"""`explain` of a circuit that `discover` found: what each node does, kept in the run's folder."""

from collections.abc import Callable

from unweave.asked import preferred
from unweave.experiments.evaluate import set_up_again
from unweave.experiments.explanation import BUDGET, PROMPTS, Explained, explained
from unweave.experiments.locking import locked
from unweave.experiments.run_folder import Run, read_run, save_explanation
from unweave.experiments.specification import Specification
from unweave.model.model import Model
from unweave.roles.definitions import Roles


def explain_run(
    run: Run,
    load: Callable[[Specification], Model],
    prompts: int = PROMPTS,
    roles: Roles | None = None,
    budget: float = BUDGET,
) -> Explained:
    """Explains the circuit of a finished run, and keeps roles and sentences in its folder.

    Args:
        load: Loads the specification's model.

    Raises:
        UnweaveError: Also when the model or the task is not what it was.
    """
    with locked(run.folder), preferred(run.specification.precision):
        found = explained(set_up_again(run, load), run.circuit.nodes, prompts, roles, budget)
        # The files as they are now: an evaluation may have ended in between.
        save_explanation(read_run(run.folder), found.to_json(), found.summary(), found.summaries)
    return found
