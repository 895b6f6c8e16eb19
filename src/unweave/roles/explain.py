"""What each node of a circuit does: its measurements, its roles, and a sentence made from them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unweave.roles.definitions import Check, Role, Roles, Undecided, read_roles
from unweave.roles.measure import measure
from unweave.roles.measurements import Measurements
from unweave.roles.runs import Cost
from unweave.roles.sentences import attended, sentence
from unweave.scores.problem import Problem
from unweave.sites import Site

UNCLEAR = "unclear"
Nodes = Sequence[Site | str]
RolesGiven = str | Path | Roles | None  # roles, or a file of some to add to those of unweave


@dataclass(frozen=True)
class RoleFound:
    """A role that a node meets, with the figures that it was given for and its checks."""

    name: str
    says: str
    evidence: dict[str, float]
    checks: tuple[Check, ...]

    @staticmethod
    def of(role: Role, node: Measurements) -> "RoleFound":
        values = node.values()
        return RoleFound(
            role.name,
            role.says.format(token=attended(node)),
            {bar.measure: values[bar.measure] for bar in role.evidence},
            tuple(Check.of(bar, values) for bar in role.checks),
        )


@dataclass(frozen=True)
class Explanation:
    """What one node does.

    Args:
        roles: Every role whose evidence it meets; none is "unclear".
        sentence: Made from the measurements and nothing else.
        undecided: Roles that other prompts could give or take, with the figure that is near.
    """

    node: str
    roles: tuple[RoleFound, ...]
    measurements: Measurements
    sentence: str
    undecided: tuple[Undecided, ...] = ()

    @property
    def role(self) -> str:
        """The names of its roles, or "unclear"."""
        return ", ".join(role.name for role in self.roles) or UNCLEAR

    def to_json(self) -> dict[str, Any]:
        """The record that `explain.json` holds for a node."""
        return {
            "node": self.node,
            "role": self.role,
            "roles": [asdict(role) for role in self.roles],
            "undecided": [asdict(one) for one in self.undecided],
            "sentence": self.sentence,
            "measurements": self.measurements.to_json(),
        }


def explain(
    problem: Problem, circuit: Nodes, roles: RolesGiven = None, budget: float = 20.0, seed: int = 0
) -> tuple[Explanation, ...]:
    """Explains every node of a circuit.

    Args:
        circuit: Its heads and MLPs.
        roles: A file of roles to add to those of unweave.
        budget: Forward passes of the problem's prompts that may be spent (`measure`).
        seed: Of the random tokens.
    """
    return explain_with_cost(problem, circuit, roles, budget, seed)[0]


def explain_with_cost(
    problem: Problem, circuit: Nodes, roles: RolesGiven = None, budget: float = 20.0, seed: int = 0
) -> tuple[tuple[Explanation, ...], Cost]:
    """`explain`, and what it cost."""
    known = roles if isinstance(roles, Roles) else read_roles(roles)
    found, cost = measure(problem, circuit, budget, seed)
    explained = []
    for node, measured in found.items():
        own = tuple(RoleFound.of(role, measured) for role in known.of(measured))
        undecided = tuple(known.undecided(measured))
        words = sentence(measured, [(role.says, role.checks) for role in own], undecided)
        explained.append(Explanation(node, own, measured, words, undecided))
    return tuple(explained), cost
