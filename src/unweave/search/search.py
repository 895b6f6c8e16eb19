"""`Search`: from scores to a circuit, and the registry of searches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from types import MappingProxyType
from typing import Any, Protocol, TypeVar, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from unweave.circuits import EdgeScores, Scores
from unweave.errors import UnweaveError
from unweave.options import Option, Options, filled
from unweave.registry import Registry
from unweave.scores.edge_problem import EdgeProblem
from unweave.scores.problem import N, Problem, Runs
from unweave.search.loss import Loss
from unweave.sites import Site, parse


@dataclass(frozen=True)
class Step:
    """A circuit on the way down: its size and loss, and the nodes that left to reach it.

    Args:
        prompts: On how many prompts it was run.
    """

    size: int
    loss: float
    faithfulness: float
    removed: tuple[str, ...]
    prompts: int


@dataclass(frozen=True)
class Round:
    """One iteration of a search, as it went.

    Args:
        targets: What nodes were scored against.
        relevance: Each node's score against the targets.
        selected: Nodes that joined.
        steps: Circuits on the way from all that joined to the one that was kept.
        circuit: What was kept, the most needed first.
        dropped: What left.
        faithfulness: Of the circuit, on the prompts of the search.
        loss: Of the circuit, with the shift.
        shift: How much larger faithfulness is on the prompts of the last check.
    """

    targets: tuple[str, ...]
    relevance: dict[str, float]
    selected: tuple[str, ...]
    steps: tuple[Step, ...]
    circuit: tuple[str, ...]
    dropped: tuple[str, ...]
    loss: float
    faithfulness: float
    shift: float = 0.0

    @staticmethod
    def from_dict(record: Mapping[str, Any]) -> "Round":
        """Reads a round back from JSON."""
        names = ("targets", "selected", "circuit", "dropped")
        tuples = {name: tuple(record[name]) for name in names}
        steps = tuple(step_from_dict(step) for step in record["steps"])
        return Round(**{**record, **tuples, "steps": steps})


def step_from_dict(record: Mapping[str, Any]) -> Step:
    """Reads a step back from JSON."""
    return Step(**{**record, "removed": tuple(record["removed"])})


@dataclass(frozen=True)
class Finding:
    """What a search found.

    Args:
        circuit: Nodes, the most needed first.
        ranking: Every node, the most important first; the circuit need not be its beginning.
        rounds: Every iteration.
    """

    circuit: tuple[str, ...]
    ranking: tuple[str, ...]
    rounds: tuple[Round, ...] = ()

    @property
    def sites(self) -> tuple[Site, ...]:
        return tuple(map(parse, self.circuit))


@runtime_checkable
class SavedState(Protocol):
    """Where a search keeps its state, so that a killed run goes on from it."""

    def load(self) -> dict[str, Any] | None:
        """The state that was saved last; None at the beginning."""
        ...

    def save(self, state: Mapping[str, Any]) -> None:
        """Keeps a state, in place of the one before."""
        ...


class NoCheckpoint:
    """Keeps nothing: a search that is killed starts anew."""

    def load(self) -> dict[str, Any] | None:
        return None

    def save(self, state: Mapping[str, Any]) -> None:
        return None


PLAIN: Options = MappingProxyType({})  # every option at its default
NOWHERE: SavedState = NoCheckpoint()


@dataclass(eq=False)
class RoundsState:
    """A search in rounds that is under way; a search adds what else it has to go on from.

    Args:
        rounds: Those that are finished.
        steps: Of the present one.
    """

    rounds: list[Round] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def save(self, checkpoint: SavedState) -> None:
        checkpoint.save(asdict(self))

    @property
    def gone(self) -> set[str]:
        """Nodes that left in the present round."""
        return {name for step in self.steps for name in step.removed}


S = TypeVar("S", bound=RoundsState)


def check_state(kind: Any, record: Mapping[str, Any]) -> None:
    """Raises for a state that another version of a search has kept."""
    if odd := {field.name for field in fields(kind)} ^ record.keys():
        raise UnweaveError(
            f"this search was begun by another version of unweave (its state differs in "
            f"{', '.join(sorted(odd))}): delete its folder, or choose another --out"
        )


def read_state(kind: type[S], checkpoint: SavedState) -> S:
    """The state that a search saved last, or a new one."""
    record = checkpoint.load()
    if record is None:
        return kind()
    check_state(kind, record)
    rounds = [Round.from_dict(one) for one in record["rounds"]]
    steps = [step_from_dict(step) for step in record["steps"]]
    return kind(**{**record, "rounds": rounds, "steps": steps})


Find = Callable[[Problem, Scores, Options, SavedState], Finding]
Names = Sequence[str]  # of nodes; none for all of them
FindEdges = Callable[[EdgeProblem, EdgeScores, Names, Options, SavedState], Finding]


@dataclass(frozen=True)
class Search:
    """A way from scores to a circuit.

    Args:
        summary: One line for `unweave methods`.
        find: Finds the circuit.
        options: What can be changed, by name.
        pairs: Whether it uses the relevance of nodes to one another, where the score gives it.
        edges: Finds a circuit of edges, where it can.
        nodes_first: Whether edges are searched among the nodes that it found before.
        before_edges: Options of that search of nodes, in place of their defaults.
    """

    name: str
    summary: str
    find: Find
    options: Mapping[str, Option] = field(default_factory=dict)
    pairs: bool = False
    edges: FindEdges | None = None
    nodes_first: bool = True
    before_edges: Mapping[str, Any] = field(default_factory=dict)

    def run(
        self, problem: Problem, scores: Scores, options: Options = PLAIN, kept: SavedState = NOWHERE
    ) -> Finding:
        """Finds the circuit, from the beginning or from the state that was kept.

        Raises:
            UnweaveError: For an unknown option, or a value outside its meaning.
        """
        return self.find(problem, scores, self.filled(options), kept)

    def run_edges(
        self,
        problem: EdgeProblem,
        scores: EdgeScores,
        nodes: Names,
        options: Options = PLAIN,
        kept: SavedState = NOWHERE,
    ) -> Finding:
        """Finds a circuit of edges.

        Args:
            nodes: Names of the nodes that edges may lead between; none for all edges.

        Raises:
            UnweaveError: For an unknown option, or when this search finds nodes only.
        """
        if self.edges is None:
            able = ", ".join(name for name in searches if searches[name].edges is not None)
            raise UnweaveError(f"search {self.name} finds nodes, not edges: {able} can")
        return self.edges(problem, scores, nodes, self.filled(options), kept)

    def nodes_before_edges(self, options: Options) -> Options:
        """All options of the search of nodes that comes before that of edges.

        Args:
            options: What was asked for.
        """
        return self.filled({**self.before_edges, **options})

    def filled(self, options: Options) -> Options:
        """All options, the given ones in place of their defaults, each checked."""
        return filled(f"search {self.name}", self.options, options)


# Options that several searches have.
PRICE = Option(0.01, "faithfulness that one more node must be worth", low=0.0, high=1.0)
EDGE_PRICE = Option(0.001, "faithfulness that one more edge must be worth", low=0.0, high=1.0)
TOLERANCE = Option(0.05, "|1 − faithfulness| that is near enough", low=0.0)
MAX_SIZE = Option(0, "largest circuit to return; 0 for no limit", low=0)

searches: Registry[Search] = Registry("search", "unweave.search")


def ranked_sites(problem: Problem, scores: Scores) -> list[Site]:
    """The problem's nodes by magnitude of score, the largest first."""
    sites = {str(node): node for node in problem.nodes}
    return [sites[name] for name in scores.ranking()]


def measured_round(
    problem: Runs[N],
    circuit: Sequence[N],
    relevance: Mapping[str, float],
    joined: Sequence[N],
    targets: Sequence[str] = ("logits",),
    *,
    selected: Sequence[N] | None = None,
    steps: Sequence[Step] = (),
    shift: float = 0.0,
) -> Round:
    """The record of an iteration: its circuit is run on the prompts of the search.

    Args:
        circuit: What was kept of what joined.
        joined: Everything that the circuit was chosen from.
        selected: What joined in this iteration; all unless given.
        shift: What the last check said.
    """
    metric, loss = problem.metric([circuit]), Loss.of(problem, shift=shift)
    kept = set(circuit)
    return Round(
        tuple(targets),
        dict(relevance),
        tuple(map(str, joined if selected is None else selected)),
        tuple(steps),
        tuple(map(str, circuit)),
        tuple(str(one) for one in joined if one not in kept),
        float(loss(metric)[0]),
        float(loss.faithfulness(metric)[0]),
        shift,
    )


def one_round(
    problem: Problem, scores: Scores, circuit: tuple[Site, ...], loss: Float[Tensor, ""]
) -> Round:
    """The record of a search that has no rounds: scores against the logits, then a choice."""
    names = tuple(map(str, circuit))
    values = dict(zip(scores.sources, scores.values.tolist(), strict=True))
    faithfulness = float(problem.faithfulness([circuit])[0])
    return Round(("logits",), values, names, (), names, (), float(loss), faithfulness)
