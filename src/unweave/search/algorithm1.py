"""CD-T: circuits by contextual decomposition (the paper's Algorithm 1, docs/method.md §5).

1. One sweep scores every source against the metric and against every other head at once.
2. Targets are the logits at first.
3. The sources most relevant to the targets join the circuit.
4. The circuit is refined: nodes that are not missed leave.
5. It ends when the circuit is faithful, when it did not improve, or when nothing is upstream.
6. Otherwise what joined becomes the target, and its relevance is looked up in the same sweep.
7. The nodes that are left follow in an order that keeps faithfulness near 1.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.circuits import Scores
from unweave.decomposition.api import relevance
from unweave.errors import UnweaveError
from unweave.progress import progress
from unweave.registry import nearest
from unweave.scores.problem import Method, Problem, methods
from unweave.search.eliminate import (
    ROUNDING,
    WORST,
    Standard,
    Step,
    eliminate,
    nested,
    polish,
    standard,
)
from unweave.sites import Site, parse

Refinement = Literal["eliminate", "greedy", "none"]

# The share of the model that may join in one round; the sizes of circuits people read lie far
# below it (docs/rules.md has the study behind every default here).
_DEFAULTS: Mapping[str, Any] = {
    "rules": "removal",
    "sweep": 0.5,
    "select": "fraction:0.33",
    "refine": "eliminate",
    "price": 0.005,
    "tolerance": 0.05,
    "max_size": 0,
    "iterations": 3,
    "measure": "ratio",
    "normalise": False,
    "pairs": True,
}
_SMALL = 12  # a fraction is of no fewer nodes: small models are searched whole
# The order of the nodes outside the circuit (see `in_turn`).
_TRIED = 24  # so many are tried one by one; of the others an effect is known from elsewhere
_SOON = 3  # faithfulness is measured again after so many nodes, then less and less often
_HELP: Mapping[str, str] = {
    "rules": "rule set of the decomposition, e.g. removal, paper, 'paper, attention=frozen'",
    "sweep": "share of the prompts that the sweep scores on; refinement uses all of them",
    "select": "who joins: top:N, fraction:F (12 nodes at least), percentile:P or outliers:Z "
    "(standard deviations)",
    "refine": "eliminate (nested circuits, size weighed), greedy (the paper's) or none",
    "price": "faithfulness that one more node must be worth (eliminate)",
    "tolerance": "stop once |1 − faithfulness| is below this",
    "max_size": "largest circuit to return; 0 for no limit",
    "iterations": "rounds of Algorithm 1 at most",
    "measure": "relevance to inner targets: ratio, share or signed",
    "normalise": "divide scores by the mean magnitude of their layer",
    "pairs": "compute relevance between all heads (needed past the first round)",
}


@dataclass(frozen=True)
class Round:
    """One iteration of Algorithm 1, as it went."""

    targets: tuple[str, ...]
    relevance: dict[str, float]
    selected: tuple[str, ...]
    steps: tuple[dict[str, Any], ...]
    circuit: tuple[str, ...]
    dropped: tuple[str, ...]
    loss: float
    faithfulness: float


@dataclass(frozen=True)
class Search:
    """The rounds so far; enough to go on from.

    Args:
        pending: Steps of the round that is under way.
        after: In the end, all nodes outside the last circuit, in their order.
    """

    rounds: tuple[Round, ...] = ()
    finished: bool = False
    pending: tuple[dict[str, Any], ...] = ()
    after: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(record: Mapping[str, Any]) -> "Search":
        """Reads a search back from JSON."""

        def tuples(value: Any) -> Any:
            return tuple(tuples(v) for v in value) if isinstance(value, list) else value

        rounds = tuple(Round(**{k: tuples(v) for k, v in r.items()}) for r in record["rounds"])
        pending, after = tuples(record["pending"]), tuples(record["after"])
        return Search(rounds, record["finished"], pending, after)


Save = Callable[[Search], None]


def sweep(problem: Problem, options: Mapping[str, Any]) -> Scores:
    """Phase 1: nodes against the metric, and against every head."""
    part = problem.select(slice(0, max(1, round(options["sweep"] * len(problem.batch)))))
    heads = [node for node in problem.nodes if node.unit is not None]
    return relevance(
        problem.model,
        part.batch,
        problem.nodes,
        rules=options["rules"],
        ablation=part.ablation,
        pairs=heads if options["pairs"] else (),
        normalise=options["normalise"],
    )


def search(
    problem: Problem,
    scores: Scores,
    options: Mapping[str, Any],
    found: Search | None = None,
    save: Save | None = None,
) -> Search:
    """Phases 2–7, from the beginning or from where an earlier search was stopped.

    Args:
        save: Called with the search so far after every step.
    """
    found, save = found or Search(), save or (lambda _: None)
    against = standard(problem)
    while not found.finished:
        found = _round(problem, scores, options, against, found, save)
        save(found)
    if found.rounds and not found.after:
        found = replace(found, after=_after(problem, scores, against, found))
        save(found)
    return found


def _round(
    problem: Problem,
    scores: Scores,
    options: Mapping[str, Any],
    against: Standard,
    found: Search,
    save: Save,
) -> Search:
    last = found.rounds[-1] if found.rounds else None
    targets = ("logits",) if last is None else last.selected
    values = _relevance(scores, targets, options["measure"])
    circuit = () if last is None else tuple(map(parse, last.circuit))
    tried = {name for one in found.rounds for name in one.selected}
    upstream = _upstream(problem, targets)
    chosen = [
        site
        for site in _select(values, problem.nodes, options["select"])
        if str(site) not in tried and site in upstream
    ]
    if not chosen:
        return replace(found, finished=True)
    joined = (*circuit, *chosen)
    steps = _refine(problem, joined, against, options, found, save)
    kept = _kept(joined, steps, options)
    if options["refine"] == "eliminate":
        left = nested(joined, steps)[len(kept) :]
        limit = options["max_size"] or len(joined)
        kept = polish(problem, kept, left, against, options["price"], limit)
    metric = problem.metric([kept])
    this = Round(
        targets=targets,
        relevance={str(n): float(values[i]) for i, n in enumerate(problem.nodes)},
        selected=tuple(map(str, chosen)),
        steps=tuple(_step_record(step) for step in steps),
        circuit=tuple(map(str, kept)),
        dropped=tuple(str(n) for n in joined if n not in set(kept)),
        loss=float(against.loss(metric)[0]),
        faithfulness=float(against.faithfulness(metric)[0]),
    )
    better = last is None or this.loss < last.loss
    rounds = (*found.rounds, this) if better else found.rounds
    done = (
        not better
        or abs(1 - this.faithfulness) < options["tolerance"]
        or len(rounds) >= options["iterations"]
        or not options["pairs"]
    )
    return Search(rounds, done)


def _relevance(scores: Scores, targets: Sequence[str], measure: str) -> Float[Tensor, " source"]:
    """R(s, T): the metric's own score for the logits, else the sum over the targets (eq. 18)."""
    if tuple(targets) == ("logits",):
        return scores.values.abs()
    columns = [scores.targets.index(target) for target in targets if target in scores.targets]
    return scores.pairs[measure][:, columns].abs().sum(1)


def _upstream(problem: Problem, targets: Sequence[str]) -> set[Site]:
    deepest = max(parse(target).point.depth for target in targets)
    return {node for node in problem.nodes if node.point.depth < deepest}


def _select(values: Float[Tensor, " node"], nodes: Sequence[Site], rule: str) -> list[Site]:
    """The best nodes by relevance, most relevant first.

    Raises:
        UnweaveError: For a rule that is not known, or a number that makes no sense for it.
    """
    kind, _, text = rule.partition(":")
    known = ("top", "fraction", "percentile", "outliers")
    try:
        number = float(text)
    except ValueError:
        kind, number = "", 0.0
    if kind not in known or number <= 0 or (kind == "fraction" and number > 1):
        raise UnweaveError(
            f"select {rule!r}: expected top:N, fraction:F (0–1), percentile:P or outliers:Z; "
            f"{nearest(kind or rule, known)}"
        )
    order = torch.argsort(values, descending=True, stable=True).tolist()
    if kind == "top":
        count = int(number)
    elif kind == "fraction":
        count = max(_SMALL, round(number * len(nodes)))
    elif kind == "percentile":
        count = int((values >= torch.quantile(values, min(number, 100.0) / 100)).sum())
    else:
        count = int((values > values.mean() + number * values.std()).sum())
    return [nodes[i] for i in order[:count] if values[i] > 0]


def _refine(
    problem: Problem,
    circuit: tuple[Site, ...],
    against: Standard,
    options: Mapping[str, Any],
    found: Search,
    save: Save,
) -> list[Step]:
    """Phase 4. Steps that an interrupted search had made are taken over, not made again."""
    if options["refine"] == "none":
        return []
    steps = [_read_step(record) for record in found.pending]
    greedy = options["refine"] == "greedy"
    worst, price = math.inf if greedy else WORST, options["price"]
    goes_down = eliminate(problem, circuit, against, worst, price, steps, greedy)
    with progress("Refining the circuit", len(circuit)) as advance:
        advance(sum(len(step.removed) for step in steps))
        for step in goes_down:
            if greedy and steps and step.loss >= steps[-1].loss:
                break
            steps.append(step)
            advance(len(step.removed))
            save(replace(found, pending=tuple(map(_step_record, steps))))
    return steps


def _kept(
    circuit: tuple[Site, ...], steps: Sequence[Step], options: Mapping[str, Any]
) -> tuple[Site, ...]:
    """The circuit to keep: the smallest loss, each node at its price; most missed nodes first."""
    limit = options["max_size"] or len(circuit)
    if not steps:
        return circuit[:limit]
    price = options["price"] if options["refine"] == "eliminate" else 0.0
    allowed = [step for step in steps if step.size <= limit] or [steps[-1]]
    best = min(allowed, key=lambda step: step.loss + price * step.size)
    return tuple(nested(circuit, steps)[: min(best.size, limit)])


def ranking(scores: Scores, found: Search) -> list[str]:
    """Every node: the circuit's by how much they are missed, then those that follow it."""
    return [*found.rounds[-1].circuit, *found.after] if found.rounds else scores.ranking()


def _after(problem: Problem, scores: Scores, against: Standard, found: Search) -> tuple[str, ...]:
    """The nodes outside the circuit: the dropped ones, the last first, and the rest by score, are
    put into the order of `in_turn`.
    """
    circuit = found.rounds[-1].circuit
    order: list[str] = []
    for one in reversed(found.rounds):
        joined = (*one.circuit, *one.dropped)
        steps = [_read_step(step) for step in one.steps]
        order += map(str, nested([parse(name) for name in joined], steps)) if steps else joined
    names = [n for n in dict.fromkeys((*order, *scores.ranking())) if n not in set(circuit)]
    kept, tried, others = tuple(map(parse, circuit)), names[:_TRIED], names[_TRIED:]
    gains = against.faithfulness(problem.flipped(kept, list(map(parse, tried))))
    gains -= against.faithfulness(problem.metric([kept]))
    gains[gains.abs() <= ROUNDING] = 0.0
    effect = _effects(scores, against, found) | dict(zip(tried, gains.tolist(), strict=True))
    done = 0
    with progress("Ordering the other nodes", len(names)) as advance:

        def missing(more: Sequence[str]) -> float:
            nonlocal done
            advance(len(more) - done)
            done = len(more)
            metric = problem.metric([(*kept, *map(parse, more))])
            # A circuit does a little worse on prompts that it was not found on.
            aim = 1 + float(against.error(metric)[0])
            return aim - float(against.faithfulness(metric)[0])

        return tuple(in_turn(tried, others, effect, missing))


def _effects(scores: Scores, against: Standard, found: Search) -> dict[str, float]:
    """What a node adds to faithfulness: as it was seen to leave, else in the whole model."""
    unit = float(against.full.mean() - against.empty)
    effect = {n: v / unit for n, v in zip(scores.sources, scores.values.tolist(), strict=True)}
    for one in found.rounds:
        for before, step in pairwise(one.steps):
            fall = before["faithfulness"] - step["faithfulness"]
            effect |= dict.fromkeys(step["removed"], fall / len(step["removed"]))
    return effect


def in_turn(
    tried: Sequence[str],
    others: Sequence[str],
    effect: Mapping[str, float],
    measure: Callable[[Sequence[str]], float],
) -> list[str]:
    """Nodes after a circuit, so that faithfulness stays near its aim.

    The next of those that were tried is the one whose effect is nearest to what is missing. Then
    the others, raising and lowering ones each in their order, none of them in a body: always the
    kind that brings faithfulness nearer. Effects do not add up for long, so what is missing is
    measured again: soon at first, then less often, as nodes come to matter less.

    Args:
        tried: Nodes whose effect was seen just after the circuit.
        effect: What a node adds to faithfulness; those that add nothing come last.
        measure: What faithfulness lacks of its aim with these nodes after the circuit.
    """
    left = [name for name in tried if effect[name]]
    raising = deque(name for name in others if effect[name] > 0)
    lowering = deque(name for name in others if effect[name] < 0)
    order: list[str] = []
    missing, due = 0.0, 0
    while left or (raising and lowering):
        if len(order) == due:
            missing = measure(order)
            due += max(_SOON, due // 4)
        if left:
            order.append(min(left, key=lambda name: abs(missing - effect[name])))
            left.remove(order[-1])
        else:
            order.append((raising if missing > 0 else lowering).popleft())
        missing -= effect[order[-1]]
    idle = (name for name in (*tried, *others) if not effect[name])
    return [*order, *raising, *lowering, *idle]


def _step_record(step: Step) -> dict[str, Any]:
    return {**asdict(step), "removed": tuple(map(str, step.removed))}


def _read_step(record: Mapping[str, Any]) -> Step:
    return Step(**{**record, "removed": tuple(map(parse, record["removed"]))})


def score(problem: Problem, options: Mapping[str, Any]) -> Scores:
    """The whole algorithm; the ranking is the order in which nodes are missed."""
    scores = sweep(problem, options)
    found = search(problem, scores, options)
    # The circuit is the beginning of the ranking, so that its size says all.
    size = len(found.rounds[-1].circuit) if found.rounds else 0
    about = {**scores.about, "method": "cdt", "circuit": str(size)}
    return replace(scores, about=about, order=tuple(ranking(scores, found)))


methods.register("cdt")(
    Method("cdt", "contextual decomposition and Algorithm 1", score, _DEFAULTS, help=_HELP)
)
