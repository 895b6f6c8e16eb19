"""`Specification`: an experiment as the user asked for it, and `Experiment`: the same, set up."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeVar

from unweave.ablations.kind import Apply, ablations, prepared, task_ablation
from unweave.asked import checked_precision
from unweave.batch import Batch
from unweave.behaviours.accuracy import Accuracy, check_able
from unweave.behaviours.file import find_task
from unweave.behaviours.task import Part, Task
from unweave.decomposition.precision import widened
from unweave.errors import NotFiniteError, UnweaveError
from unweave.experiments.fingerprint import fingerprint
from unweave.experiments.methods import Method, find_method
from unweave.model.model import Model
from unweave.nodes.node import find_nodes, read_granularity
from unweave.registry import nearest
from unweave.roles.feeds import needed_points
from unweave.roles.nodes import KINDS as EXPLAINED_KINDS
from unweave.scores.problem import Problem, Runs
from unweave.sites import Point, Site

_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("task", "model", "granularity", "ablation", "level"), (str,)),
    **dict.fromkeys(("method", "score", "search", "precision"), (str, type(None))),
    "first_token": (bool,),
    **dict.fromkeys(("bos", "only_correct", "mlps"), (bool, type(None))),
    **dict.fromkeys(("prompts", "held_out"), (int, type(None))),
    "seed": (int,),
    "options": (dict,),
}
P = TypeVar("P", bound=Runs)
SEARCH_PROMPTS = 64  # to search on, unless the task has more or the user asks for another number


def check_seed(seed: int) -> None:
    """Files of runs and torch's generators hold seeds of 64 bits.

    Raises:
        UnweaveError: For one that does not fit.
    """
    if not -(2**63) <= seed < 2**63:
        raise UnweaveError(
            f"a seed of {seed.bit_length()} bits: expected a number from -2**63 to 2**63 - 1"
        )


@dataclass(frozen=True)
class Specification:
    """Everything that changes a number.

    Args:
        task: Name of a task, or a .jsonl or .csv file.
        method: A named pair of score and search; None for the level's default.
        score, search: In place of the method's own.
        options: Options of score and search that differ from their defaults.
        granularity: What nodes are: head, head@position, head@token, neuron, qkv, ….
        mlps: Whether MLPs are nodes too (else they are never ablated); None for yes where circuits
            are made of edges, for no elsewhere.
        ablation: What stands for an ablated node.
        seed: Decides which prompts are drawn.
        prompts, held_out: How many prompts; None takes the task's own numbers.
        bos: Whether a BOS token comes before each prompt; None leaves it to the model.
        first_token: Whether the first token of a longer answer stands for it (file tasks).
        only_correct: Whether to keep only prompts that the model answers correctly; None leaves
            it to the task.
        level: What circuits are made of: "node", or "edge" for edges among the nodes found first.
        precision: "float32", "tf32" or "float64"; None is float32, with TF32 for what a sweep
            splits where the GPU has it.
    """

    task: str
    model: str
    method: str | None = None
    score: str | None = None
    search: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    granularity: str = "head"
    mlps: bool | None = None
    ablation: str = "mean"
    seed: int = 0
    prompts: int | None = None
    held_out: int | None = None
    bos: bool | None = None
    first_token: bool = False
    only_correct: bool | None = None
    level: str = "node"
    precision: str | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)
        checked_precision(self.precision)
        method = self.resolved
        read_granularity(self.granularity)
        if self.level == "edge":
            method.check_edges()
            if self.granularity != "head":
                raise UnweaveError(
                    f"level edge with granularity {self.granularity!r}: edges lead between whole "
                    "heads and MLPs; use granularity head"
                )
        if self.mlps is None:
            object.__setattr__(self, "mlps", self.level == "edge")

    @cached_property
    def resolved(self) -> Method:
        """The score and the search with their options, all of them checked."""
        method = find_method(self.method, self.score, self.search, self.level)
        return method.with_options(self.options)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the names of score and search in place of what stands for them."""
        method = self.resolved
        record = asdict(self) | {
            "method": method.name,
            "score": method.score,
            "search": method.search,
        }
        record["options"] = {**method.score_options, **method.search_options}
        return record

    @staticmethod
    def from_dict(record: Mapping[str, Any]) -> "Specification":
        """Reads a specification back.

        Raises:
            UnweaveError: For a field that is missing or not known.
        """
        known = {one.name for one in fields(Specification)}
        given = dict(record)
        if strange := sorted(given.keys() - known):
            raise UnweaveError(
                f"a specification has no field {strange[0]!r}: {nearest(strange[0], known)}"
            )
        if missing := sorted({"task", "model"} - given.keys()):
            raise UnweaveError(f"a specification needs the field {missing[0]!r}: add it")
        for name, kinds in _TYPES.items():
            if name in given and type(given[name]) not in kinds:
                expected = " or ".join(kind.__name__ for kind in kinds)
                raise UnweaveError(f"{name} is {given[name]!r}: expected {expected}")
        return Specification(**given)


@dataclass(frozen=True, eq=False)
class Experiment:
    """A specification with its model and task; prompts and ablations are made when asked for.

    Args:
        explains: Whether nodes will be explained: what that needs is recorded with the rest.
    """

    specification: Specification
    model: Model
    task: Task
    explains: bool = False

    @staticmethod
    def set_up(
        specification: Specification,
        model: Model,
        task: Task | None = None,
        explains: bool = False,
    ) -> "Experiment":
        """Finds the task; a task that is given need not be registered. The model is widened to the
        specification's precision."""
        found = task or find_task(specification.task, specification.first_token)
        if specification.only_correct is not None:
            found = replace(found, only_correct=specification.only_correct)
        if specification.precision is not None:
            model = widened(model, checked_precision(specification.precision))
        return Experiment(specification, model, found, explains)

    @cached_property
    def nodes(self) -> tuple[Site, ...]:
        """Every node that a circuit may hold."""
        batch, how = self.discovery_batch, self.specification
        mlps = bool(how.mlps)
        return find_nodes(self.model, how.granularity, mlps, batch.clean, batch.positions)

    @cached_property
    def accuracy(self) -> Accuracy:
        """How well the model does the task.

        Raises:
            UnweaveError: When it cannot do it: there would be no behaviour to explain.
        """
        return check_able(self.model, self.discovery_batch, self.task.name)

    @cached_property
    def discovery(self) -> Problem:
        """The prompts to search on."""
        problem = self._problem(self.discovery_batch, self.specification.ablation)
        # A number of prompts that the user asked for is kept to.
        fixed = self.specification.prompts is not None
        return problem if fixed else replace(problem, draw=self.problem)

    @cached_property
    def held_out(self) -> Problem:
        """Prompts that nothing is chosen on.

        Raises:
            UnweaveError: For a single one, whose faithfulness would be printed with an error of 0.
        """
        problem = self.problem("evaluate", self.specification.held_out)
        if len(problem.batch) < 2:
            raise UnweaveError(
                "1 held-out prompt gives no error of faithfulness: take 2 or more with --held-out; "
                "a task file needs 6 lines for that"
            )
        return problem

    @cached_property
    def check(self) -> Problem:
        """Check prompts, for the evidence on single nodes: no circuit is polished on them."""
        return self.problem("check", len(self.discovery.batch))

    def prepare(self) -> None:
        """Draws every part and records its ablation, so that prompts that it cannot be built for
        are found before any work.

        Raises:
            UnweaveError: For those, when the model cannot do the task, or when ablating every node
                leaves the metric where it is.
        """
        _ = self.accuracy, self.discovery, self.held_out, self.check
        _ = self.discovery.reference.scale  # before anything is scored

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """What the names of task and model stand for: a file may change between two runs."""
        return fingerprint(self.model, self.task, self.specification.seed)

    def problem(
        self, part: Part, n: int | None = None, more: Collection[Point] = frozenset()
    ) -> Problem:
        """Prompts of a part.

        Args:
            more: Points beside the nodes' at which the ablation has to be known.
        """
        how = self.specification
        batch = self.task.batch(self.model, n, seed=how.seed, part=part)
        points = self._points | set(more)
        if points <= self._recorded(how.ablation):
            return self._problem(batch, how.ablation, points)
        ablation = task_ablation(self.task, self.model, batch, how.ablation, points, how.seed)
        return Problem(self.model, batch, self.nodes, ablation)

    def under(self, problem: Problem, ablation: str) -> Problem | None:
        """The same prompts under another ablation; None where it cannot be built for them."""
        return under_ablation(problem, ablation, self._problem)

    def known(self) -> dict[str, tuple[Site, ...]]:
        """The published circuit of this model, and the augmented one where the authors give one."""
        circuit = self.task.known_circuit(self.model)
        if circuit is None:
            return {}
        found = {"published": circuit.under(self.specification.ablation)}
        return found | {"augmented": circuit.augmented} if circuit.added else found

    @cached_property
    def discovery_batch(self) -> Batch:
        """The prompts to search on, without an ablation."""
        how = self.specification
        n = how.prompts or max(SEARCH_PROMPTS, self.task.n_discover)
        return self.task.batch(self.model, n, seed=how.seed)

    @cached_property
    def _ablations(self) -> dict[str, Apply]:
        return {}

    @cached_property
    def _points(self) -> frozenset[Point]:
        return frozenset(node.point for node in self.nodes)

    def _recorded(self, ablation: str) -> frozenset[Point]:
        """Where an ablation is recorded: reference prompts need not run again for explanations."""
        if not self.explains or not ablations[ablation].shared or self.model.network.encoder:
            return self._points
        heads = [node for node in self.nodes if node.point.kind in EXPLAINED_KINDS]
        return self._points | needed_points(self.model, heads)

    def _problem(
        self, batch: Batch, ablation: str, points: Collection[Point] | None = None
    ) -> Problem:
        seed = self.specification.seed
        if ablation not in self._ablations:
            recorded = self._recorded(ablation)
            self._ablations[ablation] = prepared(self.task, self.model, ablation, recorded, seed)
        values = self._ablations[ablation](batch).at_points(points or self._points)
        return Problem(self.model, batch, self.nodes, values)


def under_ablation(problem: P, ablation: str, build: Callable[[Batch, str], P], /) -> P | None:
    """A problem's prompts under another ablation; None where it cannot be built for them.

    Args:
        build: The problem of some prompts under an ablation.
    """
    if ablation == problem.ablation.name:
        return problem
    try:
        return build(problem.batch, ablation)
    except NotFiniteError:
        raise
    except UnweaveError:
        return None
