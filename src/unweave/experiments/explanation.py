"""What each node of a circuit does, as `discover` and `explain` keep it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from unweave.circuits import Circuit, NodeSummary
from unweave.errors import UnweaveError
from unweave.experiments.phases import Ledger, Say
from unweave.experiments.specification import Experiment
from unweave.roles.definitions import Roles
from unweave.roles.explain import Explanation, explain_with_cost
from unweave.roles.feeds import needed_points
from unweave.roles.nodes import checked_nodes

PROMPTS = 32
BUDGET = 20.0  # forward passes of these prompts


@dataclass(frozen=True)
class Explained:
    """Every node of a circuit explained, and what that cost.

    Args:
        passes: Forward passes of the prompts that it was explained on.
        by_part: The same by what they were spent on.
    """

    nodes: tuple[Explanation, ...]
    prompts: int
    passes: float
    by_part: dict[str, float]

    @property
    def summaries(self) -> dict[str, NodeSummary]:
        """What `circuit.json` says about each node."""
        return {
            one.node: NodeSummary(
                tuple(role.name for role in one.roles),
                one.sentence,
                one.measurements.at,
                tuple(dict.fromkeys(f.source for f in one.measurements.feeders if f.held)),
            )
            for one in self.nodes
        }

    def summary(self) -> dict[str, Any]:
        """What `run.json` holds: roles (also those near a limit), sentences, feeders, every check,
        and the cost."""
        nodes = [
            {
                "node": one.node,
                "roles": [role.name for role in one.roles],
                "sentence": one.sentence,
                "checks": [
                    {"role": role.name, "says": check.says, "held": check.held}
                    for role in one.roles
                    for check in role.checks
                ],
                "undecided": [asdict(near) for near in one.undecided],
                "writes": one.measurements.writes,
                "feeders": [asdict(feeder) for feeder in one.measurements.feeders],
            }
            for one in self.nodes
        ]
        return {"prompts": self.prompts, "passes": self.passes, "nodes": nodes}

    def to_json(self) -> dict[str, Any]:
        """The record that `explain.json` holds, with every measurement."""
        spent = {"passes": self.passes, "by_part": self.by_part, "prompts": self.prompts}
        nodes = [one.to_json() for one in self.nodes]
        return {"schema_version": 1, "cost": spent, "nodes": nodes}


def explained(
    experiment: Experiment,
    nodes: Sequence[str],
    prompts: int = PROMPTS,
    roles: Roles | None = None,
    budget: float = BUDGET,
) -> Explained:
    """Explains a circuit on held-out prompts of its experiment.

    Raises:
        UnweaveError: For nodes or an architecture that roles are not defined for.
    """
    sites = checked_nodes(experiment.model, nodes)
    problem = experiment.problem("evaluate", prompts, needed_points(experiment.model, sites))
    found, cost = explain_with_cost(problem, sites, roles, budget)
    return Explained(found, len(problem.batch), cost.passes, cost.by_part)


# What is known about a circuit's nodes: an explanation, why there is none, or nothing was asked.
Outcome = Explained | str | None


def explain_found(
    experiment: Experiment,
    circuit: Circuit,
    wanted: bool,
    say: Say,
    ledger: Ledger,
    roles: Roles | None = None,
) -> tuple[Circuit, Outcome]:
    """The circuit with what each node does, where it is wanted and can be said."""
    if not wanted:
        return circuit, None
    say(f"Explaining {circuit.size} nodes")
    try:
        with ledger.phase("explanation"):
            prompts = min(PROMPTS, len(experiment.held_out.batch))
            found = explained(experiment, circuit.nodes, prompts, roles)
    except UnweaveError as error:  # neurons, encoders: the circuit is found all the same
        say(f"Not explained: {error}")
        return circuit, str(error)
    return replace(circuit, summaries=found.summaries), found


def summary_of(outcome: Outcome) -> dict[str, Any] | None:
    """What `run.json` holds."""
    return {"reason": outcome} if isinstance(outcome, str) else outcome and outcome.summary()
