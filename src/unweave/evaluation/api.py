"""`evaluate`: everything that speaks for or against a circuit, in one record."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from unweave.ablation import Ablation
from unweave.circuits import Scores
from unweave.display.frames import frame
from unweave.display.tables import block, table
from unweave.errors import UnweaveError
from unweave.evaluation.checks import Completeness, Minimality, completeness, minimality
from unweave.evaluation.curves import Curve, curve_sizes, faithfulness_curve
from unweave.evaluation.faithfulness import Faithfulness, by_ablation
from unweave.evaluation.random_circuits import (
    DRAWS,
    FRACTIONS,
    Draws,
    RandomTest,
    compare_with_random,
    random_circuits,
)
from unweave.evaluation.roc import Roc, roc_of_each
from unweave.evaluation.stability import Stability, stability
from unweave.registry import nearest
from unweave.scores.problem import N, Problem, Runs
from unweave.sites import Site, parse

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure

EvaluationPart = Literal[
    "curve", "roc", "random_circuits", "completeness", "minimality", "stability"
]
EVALUATION_PARTS: tuple[EvaluationPart, ...] = get_args(EvaluationPart)
SCHEMA_VERSION = 2


@dataclass(frozen=True)
class Evaluation:
    """What was found out about a circuit on prompts that discovery did not see (docs/method.md §9).

    Args:
        circuit: Names of its nodes.
        nodes: How many nodes the model has.
        prompts: How many prompts were used.
        ablation: The one that curve, random circuits, completeness and minimality stand under.
        faithfulness: By ablation.
        templates: By kind ("seen" and "new" to the search), under the main ablation; empty where
            the task keeps no templates from the search.
        curves: By ablation: faithfulness as nodes join in the order of the ranking.
        known: By known circuit: its own faithfulness under the main ablation.
        roc: By known circuit: how well the scores find it.
        random: Faithfulness of random circuits of each size.
        about: Where circuit and prompts come from.
    """

    circuit: tuple[str, ...]
    nodes: int
    prompts: int
    ablation: str
    faithfulness: Mapping[str, Faithfulness]
    curves: Mapping[str, Curve] = field(default_factory=dict)
    known: Mapping[str, float] = field(default_factory=dict)
    roc: Mapping[str, Roc] = field(default_factory=dict)
    random: tuple[Draws, ...] = ()
    random_circuits: RandomTest | None = None
    completeness: Completeness | None = None
    minimality: Minimality | None = None
    stability: Stability | None = None
    about: Mapping[str, str] = field(default_factory=dict)
    templates: Mapping[str, Faithfulness] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain data for `json.dump`, with the summaries beside the raw figures."""
        record = {"schema_version": SCHEMA_VERSION, **asdict(self), "size": len(self.circuit)}
        record["curves"] = {name: curve_json(curve) for name, curve in self.curves.items()}
        if self.random_circuits is not None:
            record["random_circuits"] = random_test_json(self.random_circuits)
        if self.completeness is not None:
            figures = {"mean_gap": self.completeness.mean, "worst_gap": self.completeness.worst}
            record["completeness"] |= figures
        if self.minimality is not None:
            record["minimality"]["idle"] = self.minimality.idle()
        return record

    def to_frame(self) -> "DataFrame":
        """A data frame of the curves: faithfulness by ablation and size (needs pandas)."""
        rows = [
            (ablation, size, value)
            for ablation, curve in self.curves.items()
            for size, value in zip(curve.sizes, curve.faithfulness, strict=True)
        ]
        names = ("ablation", "size", "faithfulness")
        return frame({name: [row[i] for row in rows] for i, name in enumerate(names)})

    def plot(self) -> "Figure":
        """A plotly figure of the curves, with the mean of random circuits where it is known."""
        from unweave.display.figures import curves

        lines = {name: (one.sizes, one.faithfulness) for name, one in self.curves.items()}
        if self.random:
            means = [sum(draws.faithfulness) / len(draws.faithfulness) for draws in self.random]
            lines["random circuits"] = (tuple(draws.size for draws in self.random), tuple(means))
        return curves(lines, f"{len(self.circuit)} of {self.nodes} nodes")

    def _repr_html_(self) -> str:
        rows = []
        for name, found in self.faithfulness.items():
            low, high = found.interval
            value = "–" if found.value is None else f"{found.value:.3f}"
            rows.append((name, value, f"{low:.3f} to {high:.3f}", f"{found.metric:.3f}"))
        headings = ("ablation", "faithfulness", "95% interval", "metric")
        parts = [table(headings, rows)]
        own = None if self.random_circuits is None else self.random_circuits.own
        if own is not None:
            text = f"{own.beaten:.0%} of {own.draws} random circuits with {own.size} nodes"
            parts.append(table((), [("more faithful than", text)]))
        if self.known:
            known = [(name, f"{value:.3f}") for name, value in self.known.items()]
            parts.append(table(("known circuit", "faithfulness"), known))
        title = f"Evaluation of {len(self.circuit)} of {self.nodes} nodes"
        return block(title, (f"{self.prompts} prompts", *self.about.values()), *parts)


def curve_json(curve: Curve) -> dict[str, Any]:
    """A curve with its areas and first crossings."""
    crossings = {"k80": curve.first(0.8), "k95": curve.first(0.95)}
    return {**asdict(curve), "curve_gap": curve.gap, "curve_area": curve.area, **crossings}


def random_test_json(test: RandomTest) -> dict[str, Any]:
    """The test against random circuits with how far it is passed, in both senses."""
    own = None if test.own is None else asdict(test.own)
    reach = {"up_to": test.up_to(), "up_to_farther": test.up_to(farther=True)}
    return {**asdict(test), "own": own, **reach}


def evaluate(
    problem: Problem,
    ranking: Scores | Sequence[Site | str],
    circuit: Collection[Site | str] | None = None,
    *,
    size: int | None = None,
    ablations: Mapping[str, Ablation] | None = None,
    known: Mapping[str, Collection[Site]] | None = None,
    parts: Collection[str] = EVALUATION_PARTS,
    sizes: Sequence[int] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    about: Mapping[str, str] | None = None,
) -> Evaluation:
    """Evaluates a circuit and the ranking that it came from, many circuits in one batch.

    Args:
        problem: Held-out prompts, all nodes, and the main ablation.
        ranking: Scores, or nodes in order, the best first; those not named come last. ROC and
            stability need scores.
        circuit: Its nodes; None takes the first `size` of the ranking.
        size: By default the smallest size with faithfulness ≥ 0.8.
        ablations: Other ablations for the same prompts, by name.
        known: Known circuits by name.
        parts: What to find out besides faithfulness.
        sizes: Where the curve is measured; None for a grid that is fine where circuits are small.
        draws: Random circuits a size, and knocked-out parts of the circuit.

    Raises:
        UnweaveError: For an unknown part or node, an empty ranking, or a metric that ablation
            does not move.
    """
    _check_parts(parts)
    scores = ranking if isinstance(ranking, Scores) else None
    names = ranking.ranking() if isinstance(ranking, Scores) else ranking
    order, known = complete(problem, _sites(problem, names)), dict(known or {})
    curves = {}
    if "curve" in parts or circuit is None:
        curves[problem.ablation.name] = faithfulness_curve(problem, order, sizes)
    if circuit is None:
        k = size or curves[problem.ablation.name].first(0.8) or len(order)
        circuit = order[:k]
    nodes = tuple(_sites(problem, circuit))
    others = {n: replace(problem, ablation=b) for n, b in (ablations or {}).items()}
    others.pop(problem.ablation.name, None)
    if "curve" in parts:
        grid = coarse_sizes(len(problem.nodes), len(nodes))
        curves |= {n: faithfulness_curve(other, order, grid) for n, other in others.items()}
    return Evaluation(
        circuit=tuple(map(str, nodes)),
        nodes=len(problem.nodes),
        prompts=len(problem.batch),
        ablation=problem.ablation.name,
        faithfulness=by_ablation({problem.ablation.name: problem, **others}, nodes),
        curves=curves,
        known=known_faithfulness(problem, known),
        roc=roc_of_each(scores, known) if scores is not None and "roc" in parts else {},
        **_tests(problem, nodes, scores, parts, draws, seed),
        about=dict(about or {}),
    )


def _check_parts(parts: Collection[str]) -> None:
    for part in parts:
        if part not in EVALUATION_PARTS:
            raise UnweaveError(
                f"unknown part {part!r} of an evaluation: {nearest(part, EVALUATION_PARTS)}"
            )


def _tests(
    problem: Problem,
    nodes: tuple[Site, ...],
    scores: Scores | None,
    parts: Collection[str],
    draws: int,
    seed: int,
) -> dict[str, Any]:
    """The tests of one circuit, those that were asked for."""
    found: dict[str, Any] = {}
    if "random_circuits" in parts:
        found["random"] = random_circuits(problem, FRACTIONS, draws, seed)
        own = float(problem.faithfulness([nodes])[0])
        found["random_circuits"] = compare_with_random(own, len(nodes), found["random"])
    if "completeness" in parts and nodes:
        found["completeness"] = completeness(problem, nodes, draws, seed)
    if "minimality" in parts and nodes:
        found["minimality"] = minimality(problem, nodes)
    if "stability" in parts and scores is not None and scores.examples.shape[1] > 1:
        found["stability"] = stability(scores, len(nodes), seed=seed)
    return found


def known_faithfulness(problem: Problem, known: Mapping[str, Collection[Site]]) -> dict[str, float]:
    """Faithfulness of known circuits that fit the problem's nodes."""
    fitting = {}
    for name, sites in known.items():
        wanted = {site.at(None) for site in sites}
        # At positions, a published head stands for all of its positions.
        nodes = tuple(node for node in problem.nodes if node.at(None) in wanted)
        if {node.at(None) for node in nodes} == wanted:
            fitting[name] = nodes
    if not fitting:
        return {}
    values = problem.faithfulness(list(fitting.values())).tolist()
    return dict(zip(fitting, values, strict=True))


def complete(problem: Runs[N], ranking: Sequence[N]) -> list[N]:
    """A ranking of all nodes: those that it leaves out come last, in the model's own order."""
    named = set(ranking)
    return [*ranking, *(node for node in problem.nodes if node not in named)]


def coarse_sizes(nodes: int, *more: int) -> list[int]:
    """A dozen sizes or so, for the ablations that are not the main one."""
    steps = {round(nodes * tenth / 10) for tenth in range(11)}
    small = {size for size in (1, 2, 4, 8, 16) if size < nodes}
    return sorted({0, *small, *steps, *(size for size in more if size <= nodes)})


def _sites(problem: Problem, names: Collection[Site | str]) -> list[Site]:
    known = {str(node): node for node in problem.nodes}
    sites = []
    for name in names:
        text = str(parse(name))
        if text not in known:
            close = nearest(text, known, f"{len(known)} nodes such as {next(iter(known))}")
            raise UnweaveError(f"{text} is not a node of this problem: {close}")
        sites.append(known[text])
    if len(set(sites)) != len(sites):
        raise UnweaveError("a node is named twice in a ranking or circuit: name each once")
    return sites


__all__ = [
    "EVALUATION_PARTS",
    "Evaluation",
    "EvaluationPart",
    "curve_json",
    "curve_sizes",
    "evaluate",
]
