"""The test against random circuits: how many random circuits of each size a circuit beats.

docs/method.md §9, after Shi et al., Hypothesis Testing the Circuit Hypothesis in LLMs (2024).
"Beats" has two senses: more faithful, as in the paper, and closer to faithfulness 1, since a random
circuit that overshoots is not a better explanation than one that falls short.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random

from unweave.errors import UnweaveError
from unweave.scores.problem import N, Runs

FRACTIONS = tuple(tenth / 10 for tenth in range(1, 11))
MARK = 0.8  # q*: the share of random circuits that the paper asks a circuit to beat
DRAWS = 10


@dataclass(frozen=True)
class Draws:
    """Faithfulness of random circuits of one size."""

    size: int
    fraction: float
    faithfulness: tuple[float, ...]


@dataclass(frozen=True)
class Share:
    """How many random circuits of one size a circuit beats, in both senses."""

    size: int
    fraction: float
    draws: int
    beaten: float
    farther: float


@dataclass(frozen=True)
class RandomTest:
    """A circuit against random circuits of every size.

    Args:
        faithfulness: Of the circuit.
        shares: For each size of random circuits.
        mark: The share that counts as better than random circuits (q*).
    """

    size: int
    faithfulness: float
    shares: tuple[Share, ...]
    mark: float = MARK

    @property
    def own(self) -> Share | None:
        """Against the smallest random circuits that are no smaller than the circuit itself."""
        return next((share for share in self.shares if share.size >= self.size), None)

    def up_to(self, farther: bool = False) -> float:
        """The fraction of the model up to which it beats the marked share, without a gap."""
        reached = 0.0
        for share in self.shares:
            if (share.farther if farther else share.beaten) < self.mark:
                break
            reached = share.fraction
        return reached


def random_circuits(
    problem: Runs[N],
    fractions: Sequence[float] = FRACTIONS,
    draws: int = DRAWS,
    seed: int = 0,
) -> tuple[Draws, ...]:
    """Faithfulness of circuits drawn at random from all nodes, in one batched run.

    Raises:
        UnweaveError: For fewer than one draw, or a fraction outside (0, 1].
    """
    if draws < 1 or not all(0 < fraction <= 1 for fraction in fractions):
        raise UnweaveError(
            f"{draws} draws of fractions {', '.join(map(str, fractions))}: expected at least one "
            "draw, and fractions above 0 and up to 1"
        )
    rng, nodes = Random(f"chance {seed}"), problem.nodes
    sizes = [max(1, round(fraction * len(nodes))) for fraction in fractions]
    circuits = [tuple(rng.sample(nodes, size)) for size in sizes for _ in range(draws)]
    values = problem.faithfulness(circuits).reshape(len(sizes), draws).tolist()
    return tuple(
        Draws(size, fraction, tuple(row))
        for size, fraction, row in zip(sizes, fractions, values, strict=True)
    )


def compare_with_random(
    faithfulness: float, size: int, drawn: Sequence[Draws], mark: float = MARK
) -> RandomTest:
    """Compares a circuit's faithfulness with that of random circuits; ties are not wins."""
    shares = []
    for draws in drawn:
        values = draws.faithfulness
        beaten = sum(faithfulness > value for value in values) / len(values)
        farther = sum(abs(1 - faithfulness) < abs(1 - value) for value in values) / len(values)
        shares.append(Share(draws.size, draws.fraction, len(values), beaten, farther))
    return RandomTest(size, faithfulness, tuple(shares), mark)


def random_test(
    problem: Runs[N],
    circuit: Collection[N],
    fractions: Sequence[float] = FRACTIONS,
    draws: int = DRAWS,
    seed: int = 0,
) -> RandomTest:
    """Draws random circuits of every size and counts those that the circuit beats."""
    faithfulness = float(problem.faithfulness([tuple(circuit)])[0])
    drawn = random_circuits(problem, fractions, draws, seed)
    return compare_with_random(faithfulness, len(circuit), drawn)
