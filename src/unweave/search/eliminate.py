"""Eliminate: from a pool of high scores down to the smallest circuit that is worth its price.

1. The best third of the nodes by score join, and more where these alone are far from the model. 2.
Blocks of them leave, as long as they cost no more than their price. 3. Then one or two nodes leave
at a time, always what is missed least; every circuit on the way is kept, so that sizes can be
weighed against losses. 4. The circuit with the smallest `loss + price·size` is polished: single
nodes leave or join, or take another's place, with what prompts that the search does not use say
about its own. 5. It is checked on these: if it is not faithful there, the search takes more
prompts, and polishes on. 6. If it is not faithful where it was found either, the next best nodes
join and it goes on. 7. All nodes are ordered by a way down from the whole model through the
circuit, so that faithfulness stays near 1 at every size (`order=measured`).

Building a circuit *up* node by node fails where nodes work only together; taking it down does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from unweave.circuits import Scores
from unweave.options import Option, Options
from unweave.progress import progress
from unweave.scores.problem import Problem
from unweave.search.descent import Descent
from unweave.search.edge_eliminate import find_edges
from unweave.search.loss import Loss
from unweave.search.order import measured_order
from unweave.search.polish import polish
from unweave.search.prompts import SearchPrompts
from unweave.search.search import (
    EDGE_PRICE,
    MAX_SIZE,
    PRICE,
    TOLERANCE,
    Finding,
    Round,
    RoundsState,
    SavedState,
    Search,
    Step,
    measured_round,
    ranked_sites,
    read_state,
    searches,
)
from unweave.search.settings import SEARCH
from unweave.sites import Site, parse

SETTINGS = SEARCH.rounds


@dataclass(eq=False)
class _State(RoundsState):
    """With the polish of the present round, and the ranking at the end.

    Args:
        prompts: How many prompts the circuit was polished on so far; 0 before that.
        circuit: The polished circuit.
        checks: How often other prompts said that it is not faithful there.
        shift: By how much faithfulness was larger there, of which the last polish knew.
        doubled: How often the weight of faithfulness was doubled, since a polish missed its aim.
    """

    prompts: int = 0
    circuit: list[str] = field(default_factory=list)
    checks: int = 0
    shift: float = 0.0
    doubled: int = 0
    ranking: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class _Run:
    """What all steps of a search share."""

    prompts: SearchPrompts[Problem]
    scores: Scores
    options: Options
    state: _State
    checkpoint: SavedState

    def save(self) -> None:
        self.state.save(self.checkpoint)

    @property
    def start(self) -> int:
        """Prompts of the way down."""
        return min(self.options["start"], self.prompts.own)


def find(problem: Problem, scores: Scores, options: Options, checkpoint: SavedState) -> Finding:
    """Rounds until the circuit is faithful, or the next nodes do not improve it."""
    state = read_state(_State, checkpoint)
    prompts = SearchPrompts(problem, options["most_prompts"], options["checked"])
    run = _Run(prompts, scores, options, state, checkpoint)
    ranking = ranked_sites(problem, scores)
    pool = max(SETTINGS.smallest_pool, round(options["pool"] * len(ranking)))
    while not _finished(state, options, len(ranking)):
        state.rounds.append(_round(run, _fresh(run, ranking, pool)))
        state.steps, state.prompts, state.circuit = [], 0, []
        state.checks, state.shift, state.doubled = 0, 0.0, 0
        run.save()
    best = min(state.rounds, key=lambda one: one.loss)
    if not state.ranking:
        state.ranking = _ranking(run, best)
        run.save()
    circuit = tuple(state.ranking[: len(best.circuit)])
    return Finding(circuit, tuple(state.ranking), tuple(state.rounds))


def _finished(state: _State, options: Options, count: int) -> bool:
    if not state.rounds:
        return False
    last, before = state.rounds[-1], state.rounds[:-1]
    worse = bool(before) and last.loss >= min(one.loss for one in before)
    faithful = abs(1 - last.faithfulness - last.shift) < options["tolerance"]
    everything = len(_joined(state)) >= count
    return worse or faithful or everything or len(state.rounds) >= options["rounds"]


def _joined(state: _State) -> set[str]:
    """Every node that joined in a round, also one that a polish brought in."""
    return {name for one in state.rounds for name in (*one.circuit, *one.dropped)}


def _fresh(run: _Run, ranking: Sequence[Site], pool: int) -> list[Site]:
    """The next nodes by score: a pool of them, or twice as many and so on, until they are not far
    from the model with the circuit so far."""
    rounds, problem = run.state.rounds, run.prompts.on(run.start)
    before = tuple(map(parse, rounds[-1].circuit)) if rounds else ()
    seen = _joined(run.state)
    left = [node for node in ranking if str(node) not in seen]
    while pool < len(left):
        joined = tuple(dict.fromkeys((*before, *left[:pool])))
        if abs(1 - float(problem.faithfulness([joined])[0])) <= SETTINGS.begin:
            break
        pool *= 2
    return left[:pool]


def _round(run: _Run, fresh: Sequence[Site]) -> Round:
    """Takes the circuit so far, with the next nodes of the pool, down to the best."""
    state, price = run.state, run.options["price"]
    before = tuple(map(parse, state.rounds[-1].circuit)) if state.rounds else ()
    joined = (*before, *(node for node in fresh if node not in set(before)))
    limit = run.options["max_size"] or len(joined)
    if not state.circuit:
        _descend(run, joined)
        order = nested(joined, state.steps)
        allowed = [step for step in state.steps if step.size <= limit] or [state.steps[-1]]
        best = min(allowed, key=lambda step: step.loss + price * step.size)
        state.circuit = [str(node) for node in order[: min(best.size, limit)]]
    kept = _widened(run, joined, limit)
    relevance = dict(zip(run.scores.sources, run.scores.values.tolist(), strict=True))
    return measured_round(
        run.prompts.on(state.prompts),
        kept,
        relevance,
        joined,
        selected=[node for node in joined if node not in set(before)],
        steps=state.steps,
        shift=state.shift,
    )


def _descend(run: _Run, joined: tuple[Site, ...]) -> None:
    """The way down, from all that joined."""
    state, options = run.state, run.options
    gone = state.gone
    nodes = tuple(node for node in joined if str(node) not in gone)
    problem = run.prompts.on(run.start)
    descent = Descent(problem, Loss.of(problem), options["price"])
    with progress("Searching for the circuit", len(joined)) as advance:
        advance(len(gone))
        while step := descent.next(nodes, state.steps):
            state.steps.append(step)
            nodes = tuple(node for node in nodes if str(node) not in step.removed)
            advance(len(step.removed))
            run.save()


def _widened(run: _Run, joined: Sequence[Site], limit: int) -> tuple[Site, ...]:
    """Polishes the circuit until it is faithful on prompts that the search does not use.

    On the way down single examples tell circuits apart; what is left is to be right on average, so
    faithfulness has more weight. Every polish takes into account how much further above the model,
    or below, the circuit is on other prompts. Where the polished circuit is not faithful there, the
    next polish takes more prompts, if there are more; where a polish missed what it aimed at on its
    own prompts, faithfulness has twice the weight in the next.
    """
    state, options = run.state, run.options
    order, prompts = nested(joined, state.steps), state.prompts or _first(run)
    if not state.prompts:
        # What others say of the circuit is nearly what they will say of the polished one.
        state.shift = run.prompts.check(prompts, _circuit(state), options["precision"]).shift
    while True:
        if state.prompts:
            if state.checks == SETTINGS.checks:
                break
            found, shift = run.prompts.check(state.prompts, _circuit(state), options["precision"])
            missed = abs(1 - found.value + shift - state.shift) > options["tolerance"]
            state.shift = shift
            if abs(1 - found.value) <= options["tolerance"]:
                break
            state.checks, state.doubled = state.checks + 1, state.doubled + missed
            prompts = run.prompts.wider(state.prompts, found.half, options["precision"])
        problem = run.prompts.on(prompts)
        loss = Loss.of(problem, SEARCH.polish.mean * 2**state.doubled, state.shift)
        kept = polish(problem, loss, _circuit(state), order, options["price"], limit)
        state.prompts, state.circuit = prompts, list(map(str, kept))
        run.save()
    return _circuit(state)


def _circuit(state: _State) -> tuple[Site, ...]:
    return tuple(map(parse, state.circuit))


def _first(run: _Run) -> int:
    """Prompts of the first polish: the search's own, or as many as their error asks for."""
    own, precision = run.prompts.own, run.options["precision"]
    problem = run.prompts.on(own)
    half = problem.reference.estimate(problem.metric([_circuit(run.state)])[0]).half
    return own if half <= precision else run.prompts.wider(own, half, precision)


def nested(circuit: Sequence[Site], steps: Sequence[Step]) -> list[Site]:
    """The nodes in the order in which elimination would miss them, the most missed first."""
    gone = [parse(name) for step in steps for name in step.removed]
    left = [node for node in circuit if node not in set(gone)]
    return left + gone[::-1]


def _ranking(run: _Run, best: Round) -> list[str]:
    """The circuit's nodes, then the others: so that faithfulness stays near 1 at every size, or as
    they were missed, and by score."""
    own, order = set(best.circuit), list[Site]()
    for one in reversed(run.state.rounds):
        joined = [parse(name) for name in (*one.circuit, *one.dropped)]
        order += nested(joined, one.steps)
    order += ranked_sites(run.prompts.problem, run.scores)
    rest = [node for node in dict.fromkeys(order) if str(node) not in own]
    if run.options["order"] == "measured":
        circuit, known = tuple(map(parse, best.circuit)), best.faithfulness + best.shift
        return list(map(str, measured_order(run.prompts.problem, circuit, rest, known)))
    return [*best.circuit, *map(str, rest)]


searches.register("eliminate")(
    Search(
        "eliminate",
        "drops what is missed least, then keeps the circuit that is worth its price",
        find,
        {
            "start": Option(64, "prompts on which the way down is searched", low=1),
            "most_prompts": Option(
                128, "prompts that the search may take where its check does not hold", low=1
            ),
            "checked": Option(
                1024,
                "other prompts that a circuit is checked on, at most; 0 for the search's own",
                low=0,
            ),
            "pool": Option(0.33, "share of the nodes that joins in a round", low=0.0, high=1.0),
            "price": PRICE,
            "max_size": MAX_SIZE,
            "edge_price": EDGE_PRICE,
            "tolerance": TOLERANCE,
            "precision": Option(
                0.03, "half of the 95% interval on check prompts that is precise enough", low=0.0
            ),
            "rounds": Option(3, "rounds at most", low=1),
            "order": Option(
                "measured",
                "of nodes: measured (so that faithfulness stays near 1 with fewer and with more of "
                "them) or left (as they were missed, and by score)",
                choices=("measured", "left"),
            ),
        },
        edges=find_edges,
        # Edges are as faithful as the nodes that they lead between, at best: these cost half, and
        # unneeded ones leave with their edges. Other edges come back in an order of their own.
        before_edges={"price": PRICE.default / 2, "order": "left"},
    )
)
