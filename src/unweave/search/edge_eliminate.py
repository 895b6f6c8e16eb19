"""Eliminate for edges: from all edges among some nodes to those that are worth their price.

1. All edges among the nodes of a circuit join, from the input and to the logits: as a run they are
that circuit. 2. Blocks of those that do least to first order leave, as long as the run without them
costs next to nothing. 3. Single edges leave, each tried by a run, until every one that is left is
worth its price. 4. The circuit is checked on prompts that the search did not use: if it is not
faithful there, or the figure is not precise, the search takes more prompts; edges that are worth
their price there come back, and single edges leave again. 5. If the check does not hold on the most
prompts, the smallest circuit of the way down that is faithful on the check prompts is taken. 6. The
other edges follow by score, positive and negative ones interleaved so that faithfulness stays
near 1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from unweave.circuits import EdgeScores
from unweave.estimates import standard_error
from unweave.options import Options
from unweave.progress import progress
from unweave.scores.edge_problem import EdgeProblem
from unweave.search.edge_descent import SETTINGS, EdgeDescent, EdgeState
from unweave.search.loss import Loss
from unweave.search.order import SETTINGS as ORDER
from unweave.search.order import interleaved
from unweave.search.search import Finding, Round, SavedState, step_from_dict


@dataclass(frozen=True, eq=False)
class _Run:
    """What all phases share."""

    problem: EdgeProblem
    options: Options
    state: EdgeState
    checkpoint: SavedState
    drawn: dict[tuple[str, int], EdgeProblem] = field(default_factory=dict)

    def save(self) -> None:
        self.checkpoint.save(asdict(self.state))

    @property
    def most(self) -> int:
        """The most prompts that the search may take."""
        own = len(self.problem.batch)
        return max(own, self.options["most_prompts"]) if self.problem.draw else own

    def on(self, prompts: int) -> EdgeProblem:
        """The problem on this many prompts, or on all that there are."""
        own = len(self.problem.batch)
        if prompts == own:
            return self.problem
        if prompts < own:
            return self._kept("own", prompts, lambda: self.problem.select(slice(0, prompts)))
        return self._draw("discover", prompts)

    def check(self, prompts: int) -> EdgeProblem:
        """As many prompts that the search does not use."""
        return self._draw("check", prompts)

    def descent(self) -> EdgeDescent:
        problem = self.on(self.state.prompts)
        price = self.options["edge_price"]
        return EdgeDescent(problem, Loss.of(problem), price, self.state, self.save)

    def _draw(self, part: str, prompts: int) -> EdgeProblem:
        draw = self.problem.draw
        assert draw is not None
        return self._kept(part, prompts, lambda: draw(part, prompts))

    def _kept(self, part: str, prompts: int, make: Callable[[], EdgeProblem]) -> EdgeProblem:
        if (part, prompts) not in self.drawn:
            self.drawn[part, prompts] = make()
        return self.drawn[part, prompts]


def find_edges(
    problem: EdgeProblem,
    scores: EdgeScores,
    nodes: Sequence[str],
    options: Options,
    checkpoint: SavedState,
) -> Finding:
    """Finds a circuit of edges among some nodes.

    Args:
        nodes: Names of the nodes of a circuit.
    """
    joined = problem.graph.among(nodes)
    state = _read(checkpoint) or EdgeState(list(joined))
    state.prompts = state.prompts or min(options["start"], len(problem.batch))
    run = _Run(problem, options, state, checkpoint)
    with progress("Searching for edges", len(joined)) as advance:
        known = len(joined)
        while state.phase != "done":
            advance(max(0, known - len(state.circuit)))
            known = min(known, len(state.circuit))
            _phase(run, joined)
            run.save()
    if not state.ranking:
        state.ranking = _ranking(run.on(state.prompts), scores, joined, state)
        run.save()
    return _finding(run.on(state.prompts), scores, joined, state)


def _read(checkpoint: SavedState) -> EdgeState | None:
    record: Mapping[str, Any] | None = checkpoint.load()
    if record is None:
        return None
    return EdgeState(**{**record, "steps": [step_from_dict(step) for step in record["steps"]]})


def _phase(run: _Run, joined: Sequence[str]) -> None:
    """One phase, after which the state says what comes next."""
    state = run.state
    if state.phase == "blocks":
        run.descent().blocks()
        state.go_on("singles")
    elif state.phase == "singles":
        run.descent().singles()
        state.go_on("check")
    elif state.phase == "returns":
        own = set(state.circuit)
        run.descent().returns([edge for edge in joined if edge not in own])
        state.go_on("singles")
    elif state.prompts < run.most and not _holds(run):
        state.prompts, state.loss = min(run.most, 2 * state.prompts), None
        state.go_on("returns")
    else:
        if run.problem.draw is not None and not _holds(run):
            state.circuit = _faithful(run, joined)
        state.go_on("done")


def _holds(run: _Run) -> bool:
    """Whether the circuit is faithful on as many check prompts, and the figure is precise."""
    if run.problem.draw is None:
        return False
    check = run.check(run.state.prompts)
    found = check.reference.estimate(check.metric([run.state.circuit])[0])
    near = abs(1 - found.value) <= run.options["tolerance"]
    # More prompts than the most would not come, so there the figure is as precise as it gets.
    precise = found.half <= run.options["precision"] or run.state.prompts >= run.most
    return near and precise


def _faithful(run: _Run, joined: Sequence[str]) -> list[str]:
    """The smallest circuit of the way down that is faithful on check prompts, or the nearest."""
    circuit, path = list(joined), [list(joined)]
    for step in run.state.steps:
        gone = set(step.removed)
        circuit = [edge for edge in circuit if edge not in gone]
        path.append(circuit)
    few = sorted({round(i * (len(path) - 1) / SETTINGS.path) for i in range(SETTINGS.path + 1)})
    tried = [run.state.circuit, *(path[i] for i in few)]
    check = run.check(run.state.prompts)
    off = (1 - check.faithfulness(tried)).abs().tolist()
    near = [i for i, gap in enumerate(off) if gap <= run.options["tolerance"]]
    if near:
        return tried[min(near, key=lambda i: len(tried[i]))]
    return tried[min(range(len(tried)), key=lambda i: off[i])]


def _ranking(
    problem: EdgeProblem, scores: EdgeScores, joined: Sequence[str], state: EdgeState
) -> list[str]:
    """Every edge: the circuit's by what they do, then the others, so that f stays near 1."""
    circuit = state.circuit
    effects = problem.effects(circuit, circuit).abs().mean(0).argsort(descending=True, stable=True)
    first = [circuit[i] for i in effects.tolist()]
    part = problem.select(slice(0, ORDER.prompts))
    reference, own = part.reference, set(circuit)
    scale = float(reference.scale)
    values = dict(zip(scores.edges, (scores.values / scale).tolist(), strict=True))
    others = [edge for edge in scores.ranking() if edge not in own]

    def missing(more: Sequence[str]) -> float:
        metric = part.metric([[*circuit, *more]])[0]
        aim = 1 + float(standard_error((metric - reference.full) / reference.scale))
        return aim - float(reference.faithfulness(metric))

    return [*first, *interleaved((), others, values, missing)]


def _finding(
    problem: EdgeProblem, scores: EdgeScores, joined: Sequence[str], state: EdgeState
) -> Finding:
    own, loss = set(state.circuit), Loss.of(problem)
    circuit = tuple(edge for edge in state.ranking if edge in own)
    metric = problem.metric([circuit])
    values = dict(zip(scores.edges, scores.values.tolist(), strict=True))
    record = Round(
        targets=("logits",),
        relevance={edge: values[edge] for edge in joined},
        selected=tuple(joined),
        steps=tuple(state.steps),
        circuit=circuit,
        dropped=tuple(edge for edge in joined if edge not in own),
        loss=float(loss(metric)[0]),
        faithfulness=float(loss.faithfulness(metric)[0]),
    )
    return Finding(circuit, tuple(state.ranking), (record,))
