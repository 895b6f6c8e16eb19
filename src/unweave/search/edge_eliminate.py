"""Eliminate for edges: from all edges among some nodes to those that are worth their price.

1. All edges among the nodes of a circuit join, from the input and to the logits: as a run they are
that circuit. 2. Blocks of edges leave whose loss is foreseen to be small, from what each edge does
to first order on each example; one run decides on a block. 3. Single edges leave, each tried by a
run, those with the smallest foreseen loss first. 4. The circuit is checked on prompts that the
search did not use: if it is not faithful there, or the figure is not precise, the search takes more
prompts, and on the most prompts gives faithfulness more weight; edges come back and leave where
that pays there, and single edges leave again. 5. If the check does not hold then either, the
smallest circuit of the way down that is faithful on the check prompts is taken. 6. Of the other
edges those among the nodes follow, then with each further node its edges to and from those before
it: what is kept passes through circuits of nodes, which the search of nodes kept faithful.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from unweave.circuits import EdgeScores
from unweave.graph import edge_ends
from unweave.options import Options
from unweave.progress import progress
from unweave.scores.edge_problem import EdgeProblem
from unweave.search.edge_descent import SETTINGS, EdgeDescent, EdgeState
from unweave.search.loss import Loss
from unweave.search.prompts import SearchPrompts
from unweave.search.search import Among, Finding, SavedState, measured_round, step_from_dict


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
        loss = Loss.of(self.problem, SETTINGS.mean * 2**self.state.doubled)
        return EdgeDescent(self.problem, loss, price, self.state, self.save)


def find_edges(
    problem: EdgeProblem, scores: EdgeScores, nodes: Among, options: Options, checkpoint: SavedState
) -> Finding:
    """Finds a circuit of edges among some nodes.

    Args:
        nodes: Of a circuit, and in what order all of them matter.
    """
    joined = problem.graph.among(nodes.names)
    state = _read(checkpoint) or EdgeState(list(joined))
    state.prompts = state.prompts or min(options["start"], len(problem.batch))
    prompts = SearchPrompts(problem, options["most_prompts"])
    run = _Run(prompts, options, state, checkpoint)
    with progress("Searching for edges", len(joined)) as advance:
        known = len(joined)
        while state.phase != "done":
            advance(max(0, known - len(state.circuit)))
            known = min(known, len(state.circuit))
            _phase(run, joined)
            run.save()
    if not state.ranking:
        state.ranking = _ranking(run.problem, scores, state.circuit, nodes)
        run.save()
    return _finding(run.problem, scores, joined, state)


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
        state.begin("singles")
    elif state.phase == "singles":
        run.descent().singles()
        state.begin("check")
    elif state.phase == "exchange":
        run.descent().exchange(joined)
        state.begin("singles")
    elif run.prompts.problem.draw is None or _holds(run):
        state.begin("done")
    elif state.prompts < run.prompts.most:
        state.prompts, state.metric = min(run.prompts.most, 2 * state.prompts), None
        state.begin("exchange")
    elif state.doubled < SETTINGS.doublings:
        state.doubled += 1
        state.begin("exchange")
    else:
        state.circuit = _faithful(run, joined)
        state.begin("done")


def _holds(run: _Run) -> bool:
    """Whether the circuit is faithful on as many check prompts, and the figure is precise."""
    check = run.prompts.check(run.state.prompts)
    found = check.reference.estimate(check.metric([run.state.circuit])[0])
    near = abs(1 - found.value) <= run.options["tolerance"]
    # More prompts than the most would not come, so there the figure is as precise as it gets.
    precise = found.half <= run.options["precision"] or run.state.prompts >= run.prompts.most
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
    check = run.prompts.check(run.state.prompts)
    off = (1 - check.faithfulness(tried)).abs().tolist()
    near = [i for i, gap in enumerate(off) if gap <= run.options["tolerance"]]
    if near:
        return tried[min(near, key=lambda i: len(tried[i]))]
    return tried[min(range(len(tried)), key=lambda i: off[i])]


def _ranking(
    problem: EdgeProblem, scores: EdgeScores, circuit: list[str], nodes: Among
) -> list[str]:
    """Every edge: the circuit's by what they do to it, then those among the nodes, then with each
    other node those between it and the nodes before; within these, and at last, by score."""
    sizes = problem.effects(circuit, circuit).abs().mean(0).argsort(descending=True, stable=True)
    own = set(circuit)
    turn = dict.fromkeys(("input", "logits", *nodes.names), 0)
    turn |= {node: i for i, node in enumerate(nodes.ranking, 1) if node not in turn}
    last = len(nodes.ranking) + 1

    def joins(edge: str) -> int:
        source, target, _ = edge_ends(edge)
        return max(turn.get(source, last), turn.get(target, last))

    outside = (edge for edge in scores.ranking() if edge not in own)
    return [*(circuit[i] for i in sizes.tolist()), *sorted(outside, key=joins)]


def _finding(
    problem: EdgeProblem, scores: EdgeScores, joined: Sequence[str], state: EdgeState
) -> Finding:
    own = set(state.circuit)
    circuit = tuple(edge for edge in state.ranking if edge in own)
    values = dict(zip(scores.edges, scores.values.tolist(), strict=True))
    relevance = {edge: values[edge] for edge in joined}
    record = measured_round(problem, circuit, relevance, joined, steps=state.steps)
    return Finding(circuit, tuple(state.ranking), (record,))
