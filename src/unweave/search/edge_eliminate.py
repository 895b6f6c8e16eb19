"""Eliminate for edges: from all edges to those among some nodes that are worth their price.

1. Edges that do not lead between the nodes of a circuit leave, half of them at a time, those first
that do least. 2. Blocks of the others leave whose loss is foreseen to be small, from what each edge
does to first order on some examples; one run decides on a block. 3. Single edges leave, each tried
by a run, those with the smallest foreseen loss first. 4. The circuit is checked on prompts that the
search does not use: if it is not faithful there, the search takes more prompts, and into account by
how much its own flatter the circuit; edges come back and leave where that pays, and single edges
leave again. 5. If the check does not hold in the end either, the smallest circuit of the way down
is taken that is faithful on the check prompts as far as they can tell. 6. The other edges follow in
the reverse of the order in which they left, so that larger circuits stay near the model too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from unweave.circuits import EdgeScores
from unweave.estimates import Estimate
from unweave.options import Options
from unweave.progress import progress
from unweave.scores.edge_problem import EdgeProblem
from unweave.search.edge_descent import SETTINGS, EdgeDescent, EdgeState
from unweave.search.loss import Loss
from unweave.search.prompts import SearchPrompts
from unweave.search.search import (
    Finding,
    Names,
    SavedState,
    check_state,
    measured_round,
    step_from_dict,
)
from unweave.search.settings import SEARCH


@dataclass(frozen=True, eq=False)
class _Run:
    """What all phases share."""

    prompts: SearchPrompts[EdgeProblem]
    options: Options
    state: EdgeState
    checkpoint: SavedState

    @property
    def problem(self) -> EdgeProblem:
        """On as many prompts as the search takes now."""
        return self.prompts.on(self.state.prompts)

    def save(self) -> None:
        self.checkpoint.save(asdict(self.state))

    def descent(self) -> EdgeDescent:
        price = self.options["edge_price"]
        state = self.state
        loss = Loss.of(self.problem, SEARCH.polish.mean * 2**state.doubled, state.shift)
        return EdgeDescent(self.problem, loss, price, self.state, self.save)


def find_edges(
    problem: EdgeProblem, scores: EdgeScores, nodes: Names, options: Options, checkpoint: SavedState
) -> Finding:
    """Finds a circuit of edges among some nodes.

    Args:
        nodes: Of a circuit; none for all edges of the model.
    """
    joined = problem.graph.among(nodes) if nodes else problem.nodes
    state = _read(checkpoint) or EdgeState(list(problem.nodes))
    state.prompts = state.prompts or min(options["start"], len(problem.batch))
    prompts = SearchPrompts(problem, options["most_prompts"], options["checked"])
    run = _Run(prompts, options, state, checkpoint)
    with progress("Searching for edges", len(problem.nodes)) as advance:
        known = len(problem.nodes)
        while state.phase != "done":
            advance(max(0, known - len(state.circuit)))
            known = min(known, len(state.circuit))
            _phase(run, joined)
            run.save()
    if not state.ranking:
        state.ranking = _ranking(run.problem, state)
        run.save()
    return _finding(run.problem, scores, joined, state)


def _read(checkpoint: SavedState) -> EdgeState | None:
    record: Mapping[str, Any] | None = checkpoint.load()
    if record is None:
        return None
    check_state(EdgeState, record)
    return EdgeState(**{**record, "steps": [step_from_dict(step) for step in record["steps"]]})


def _phase(run: _Run, joined: Sequence[str]) -> None:
    """One phase, after which the state says what comes next."""
    state = run.state
    if state.phase == "outside":
        run.descent().outside(set(joined))
        state.begin("blocks")
    elif state.phase == "blocks":
        run.descent().blocks()
        state.begin("singles")
    elif state.phase == "singles":
        run.descent().singles()
        state.begin("check")
    elif state.phase == "exchange":
        run.descent().exchange(set(joined))
        state.begin("singles")
    else:
        _check(run, joined)


def _check(run: _Run, joined: Sequence[str]) -> None:
    """Looks at the circuit on prompts that the search does not use, and goes on with what they say
    where it is not faithful there."""
    state, tolerance, precision = run.state, run.options["tolerance"], run.options["precision"]
    found, shift = run.prompts.check(state.prompts, state.circuit, precision)
    off = abs(1 - found.value)
    if off <= tolerance:
        return state.begin("done")
    if state.checks == SEARCH.rounds.checks:
        state.circuit = _faithful(run, joined)
        return state.begin("done")
    wider = run.prompts.wider(state.prompts, found.half, precision)
    if wider != state.prompts:
        state.prompts, state.metric = wider, None
    missed = abs(1 - found.value + shift - state.shift) > tolerance
    state.checks, state.shift, state.doubled = state.checks + 1, shift, state.doubled + missed
    return state.begin("exchange")


def _faithful(run: _Run, joined: Sequence[str]) -> list[str]:
    """Of the circuits on the way down, and the one that is there, the smallest that is faithful on
    check prompts as far as they can tell; where none is, the smallest that may be the nearest."""
    circuit, path = list(joined), [list(joined)]
    for step in run.state.steps:
        gone = set(step.removed)
        circuit = [edge for edge in circuit if edge not in gone]
        path.append(circuit)
    few = sorted({round(i * (len(path) - 1) / SETTINGS.path) for i in range(SETTINGS.path + 1)})
    tried = [run.state.circuit, *(path[i] for i in few)]
    found = _elsewhere(run, tried)
    least = [abs(1 - one.value) - one.half for one in found]
    allowed = max(run.options["tolerance"], min(abs(1 - one.value) for one in found))
    return min((one for one, low in zip(tried, least, strict=True) if low <= allowed), key=len)


def _elsewhere(run: _Run, circuits: Sequence[Sequence[str]]) -> list[Estimate]:
    """Faithfulness on the prompts of the last check."""
    others = run.prompts.others(run.state.prompts, run.state.circuit, run.options["precision"])
    # One at a time: all of them together would run at the cost of the largest.
    return [others.reference.estimate(others.metric([one])[0]) for one in circuits]


def _ranking(problem: EdgeProblem, state: EdgeState) -> list[str]:
    """Every edge: the circuit's by what they do to it, then those that left, the last one first."""
    circuit = state.circuit
    sizes = problem.effects(circuit, circuit).abs().mean(0).argsort(descending=True, stable=True)
    return [*(circuit[i] for i in sizes.tolist()), *reversed(state.gone)]


def _finding(
    problem: EdgeProblem, scores: EdgeScores, joined: Sequence[str], state: EdgeState
) -> Finding:
    own = set(state.circuit)
    circuit = tuple(edge for edge in state.ranking if edge in own)
    values = dict(zip(scores.edges, scores.values.tolist(), strict=True))
    relevance = {edge: values[edge] for edge in joined}
    record = measured_round(problem, circuit, relevance, joined, steps=state.steps)
    return Finding(circuit, tuple(state.ranking), (record,))
