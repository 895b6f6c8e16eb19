"""Completeness and minimality of a circuit, after Wang et al., IOI in the Wild (2023).

Complete: with any part K taken out, circuit and model suffer alike, `m(C∖K) ≈ m(M∖K)`; a circuit
that misses a backup falls further than the model does. Minimal: every node is missed when it goes.
"""

from collections.abc import Collection
from dataclasses import dataclass
from random import Random

from unweave.errors import UnweaveError
from unweave.scores.problem import N, Runs


@dataclass(frozen=True)
class Knockout:
    """A part taken out of circuit and model: what is left of their faithfulness."""

    removed: tuple[str, ...]
    circuit: float
    model: float

    @property
    def gap(self) -> float:
        return abs(self.circuit - self.model)


@dataclass(frozen=True)
class Completeness:
    """Drawn parts of a circuit; the gap is on the scale of faithfulness, 0 is complete."""

    knockouts: tuple[Knockout, ...]

    @property
    def mean(self) -> float:
        return sum(knockout.gap for knockout in self.knockouts) / len(self.knockouts)

    @property
    def worst(self) -> float:
        return max(knockout.gap for knockout in self.knockouts)


@dataclass(frozen=True)
class Minimality:
    """What each node contributes: the circuit's faithfulness with it less that without it."""

    effects: dict[str, float]

    def idle(self, below: float = 0.01) -> tuple[str, ...]:
        """Nodes that the circuit would hardly miss."""
        return tuple(name for name, effect in self.effects.items() if abs(effect) < below)


def completeness(
    problem: Runs[N], circuit: Collection[N], draws: int = 10, seed: int = 0
) -> Completeness:
    """Takes random parts out of the circuit and out of the model, in one batched run.

    Every size of part is as likely: small ones show backups, large ones what else the model has.
    """
    nodes = _checked(problem, circuit)
    rng = Random(f"completeness {seed}")
    parts = [tuple(rng.sample(nodes, rng.randint(1, len(nodes)))) for _ in range(draws)]
    gone = [set(part) for part in parts]
    left = [tuple(n for n in nodes if n not in part) for part in gone]
    model = [tuple(n for n in problem.nodes if n not in part) for part in gone]
    values = problem.faithfulness([*left, *model]).reshape(2, draws).T.tolist()
    return Completeness(
        tuple(
            Knockout(tuple(map(str, part)), mine, whole)
            for part, (mine, whole) in zip(parts, values, strict=True)
        )
    )


def minimality(problem: Runs[N], circuit: Collection[N]) -> Minimality:
    """Takes out one node at a time, all of them in one batched run."""
    nodes = _checked(problem, circuit)
    whole = problem.faithfulness([nodes])
    without = problem.reference.faithfulness(problem.flipped(nodes, nodes))
    effects = (whole - without).tolist()
    return Minimality(dict(zip(map(str, nodes), effects, strict=True)))


def _checked(problem: Runs[N], circuit: Collection[N]) -> tuple[N, ...]:
    if not circuit:
        raise UnweaveError("the circuit is empty: there is nothing to take out")
    known = set(problem.nodes)
    if strange := [str(node) for node in circuit if node not in known]:
        raise UnweaveError(
            f"{strange[0]} is not a node of this problem ({len(known)} nodes such as "
            f"{problem.nodes[0]}): use the granularity of the circuit"
        )
    return tuple(circuit)
