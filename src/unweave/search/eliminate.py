"""Eliminate: from a pool of high scores down to the smallest circuit that is worth its price.

1. The best third of the nodes by score join. 2. Blocks of those that do least leave, as long as
that costs nothing. 3. One or two nodes leave at a time, always what is missed least; every circuit
on the way is kept, so that sizes can be weighed against losses. 4. The circuit with the smallest
`loss + price·size` is polished by single changes. 5. It is checked on prompts that the search did
not use: if it is not faithful there, or the figure is not precise, the search takes more prompts
and polishes on; where that does not help, at a lower price. 6. If it is not faithful where it was
found either, the next best nodes join and it goes on. 7. The others follow in the order in which
they left, or so that faithfulness stays near 1 (`order=measured`).

Building a circuit *up* node by node fails where nodes work only together; taking it down does not.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import torch

from unweave.circuits import Scores
from unweave.estimates import Estimate
from unweave.options import Option, Options
from unweave.progress import progress
from unweave.scores.problem import Problem
from unweave.search.descent import SETTINGS, Descent
from unweave.search.edge_eliminate import find_edges
from unweave.search.loss import Loss
from unweave.search.order import measured_order
from unweave.search.prompts import SearchPrompts
from unweave.search.race import race
from unweave.search.search import (
    EDGE_PRICE,
    MAX_SIZE,
    PRICE,
    TOLERANCE,
    Finding,
    Round,
    SavedState,
    Search,
    Step,
    measured_round,
    ranked_sites,
    read_rounds,
    searches,
)
from unweave.sites import Site, parse


@dataclass(eq=False)
class _State:
    """A search that is under way: finished rounds, and the steps of the present one.

    Args:
        prompts: How many prompts the circuit was polished on so far; 0 before that.
        circuit: The polished circuit.
        halved: How often the price was halved, since a circuit at the full one was not faithful.
    """

    rounds: list[Round] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    prompts: int = 0
    circuit: list[str] = field(default_factory=list)
    halved: int = 0
    ranking: list[str] = field(default_factory=list)


_PLAIN = (
    "prompts",
    "circuit",
    "halved",
    "ranking",
)  # fields of a state that JSON keeps as they are


@dataclass(frozen=True, eq=False)
class _Run:
    """What all steps of a search share."""

    prompts: SearchPrompts[Problem]
    scores: Scores
    options: Options
    state: _State
    checkpoint: SavedState

    def save(self) -> None:
        self.checkpoint.save(asdict(self.state))

    @property
    def start(self) -> int:
        """Prompts of the way down."""
        return min(self.options["start"], self.prompts.own)


def find(problem: Problem, scores: Scores, options: Options, checkpoint: SavedState) -> Finding:
    """Rounds until the circuit is faithful, or the next nodes do not improve it."""
    state = _read(checkpoint)
    prompts = SearchPrompts(problem, options["most_prompts"])
    run = _Run(prompts, scores, options, state, checkpoint)
    ranking = ranked_sites(problem, scores)
    pool = max(SETTINGS.smallest_pool, round(options["pool"] * len(ranking)))
    while not _finished(state, options, len(ranking), pool):
        fresh = ranking[len(state.rounds) * pool :][:pool]
        state.rounds.append(_round(run, fresh))
        state.steps, state.prompts, state.circuit, state.halved = [], 0, [], 0
        run.save()
    best = min(state.rounds, key=lambda one: one.loss)
    if not state.ranking:
        others = _left_order(state.rounds, best, scores)
        if options["order"] == "measured":
            effects = _effects(problem, scores, state.rounds)
            others = measured_order(problem, best.circuit, others, effects)
        state.ranking = [*best.circuit, *others]
        run.save()
    return Finding(best.circuit, tuple(state.ranking), tuple(state.rounds))


def _read(checkpoint: SavedState) -> _State:
    record = checkpoint.load()
    if record is None:
        return _State()
    return _State(*read_rounds(record), *(record[name] for name in _PLAIN))


def _finished(state: _State, options: Options, count: int, pool: int) -> bool:
    if not state.rounds:
        return False
    last, before = state.rounds[-1], state.rounds[:-1]
    worse = bool(before) and last.loss >= min(one.loss for one in before)
    faithful = abs(1 - last.faithfulness) < options["tolerance"]
    everything = len(state.rounds) * pool >= count
    return worse or faithful or everything or len(state.rounds) >= options["rounds"]


def _round(run: _Run, fresh: Sequence[Site]) -> Round:
    """Takes the circuit so far, with the next nodes of the pool, down to the best."""
    state, price = run.state, run.options["price"]
    before = tuple(map(parse, state.rounds[-1].circuit)) if state.rounds else ()
    joined = (*before, *(node for node in fresh if node not in set(before)))
    limit = run.options["max_size"] or len(joined)
    if not state.circuit:
        _descend(run, joined)
        order = nested(joined, state.steps)
        fine = [step for step in state.steps if not step.blocks]
        allowed = [step for step in fine if step.size <= limit] or [fine[-1]]
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
    )


def _descend(run: _Run, joined: tuple[Site, ...]) -> None:
    """The way down: blocks on few prompts, then single nodes on many."""
    state, options = run.state, run.options
    gone = {name for step in state.steps for name in step.removed}
    nodes = tuple(node for node in joined if str(node) not in gone)
    with progress("Searching for the circuit", len(joined)) as advance:
        advance(len(gone))
        problem = run.prompts.on(run.start)
        for blocks in (True, False):
            if blocks and any(not step.blocks for step in state.steps):
                continue  # an interrupted search was past them
            descent = Descent(problem, Loss.of(problem), options["price"], blocks)
            while step := descent.next(nodes, state.steps):
                state.steps.append(step)
                nodes = tuple(node for node in nodes if str(node) not in step.removed)
                advance(len(step.removed))
                run.save()


def _widened(run: _Run, joined: Sequence[Site], limit: int) -> tuple[Site, ...]:
    """Polishes the circuit, on more and more prompts until the check holds.

    Where it does not hold on the most prompts either, nodes are too dear: being faithful comes
    before being small, so the price is halved, a few times at most.
    """
    state, options = run.state, run.options
    order = nested(joined, state.steps)
    wider = run.prompts.own
    while True:
        found = _checked(run, state)
        if found is not None:
            near = abs(1 - found.value) <= options["tolerance"]
            if near and (found.half <= options["precision"] or state.prompts >= run.prompts.most):
                break
            if not near and state.prompts >= run.prompts.most:
                if state.halved == SETTINGS.halvings:
                    break
                state.halved += 1
            wider = min(run.prompts.most, _needed(state.prompts, found.half, options["precision"]))
        problem, own = run.prompts.on(wider), set(state.circuit)
        left = [node for node in order if str(node) not in own]
        circuit, price = tuple(map(parse, state.circuit)), options["price"] / 2**state.halved
        kept = polish(problem, circuit, left, Loss.of(problem), price, limit)
        state.prompts, state.circuit = wider, list(map(str, kept))
        run.save()
    return tuple(map(parse, state.circuit))


def _needed(prompts: int, half: float, precision: float) -> int:
    """How many prompts make an interval as narrow as it should be, twice as many at least: steps
    between would be polished on and left again."""
    enough = prompts * (half / precision) ** 2 if precision else math.inf
    return max(2 * prompts, math.ceil(min(enough, 2**20) / SETTINGS.step) * SETTINGS.step)


def _checked(run: _Run, state: _State) -> Estimate | None:
    """Faithfulness of the polished circuit on as many check prompts; without any to draw, on the
    search's own. None before there is one to check."""
    if not state.prompts:
        return None
    check = (
        run.prompts.check(state.prompts)
        if run.prompts.problem.draw
        else run.prompts.on(state.prompts)
    )
    return check.reference.estimate(check.metric([tuple(map(parse, state.circuit))])[0])


def polish(
    problem: Problem,
    circuit: Sequence[Site],
    left: Sequence[Site],
    loss: Loss,
    price: float,
    limit: int,
) -> tuple[Site, ...]:
    """Drops or takes back single nodes, the best one each time, as long as that pays.

    What a node does depends on those that are still there. The loss, each node at its price, falls
    with every step, so it ends. The nodes come back in the order in which they are missed.

    Args:
        left: The nodes that left the circuit, the last one first.
        limit: The most nodes that the circuit may have.
    """
    kept, others = list(circuit), list(left[: SETTINGS.returning])
    present = float(loss(problem.metric([tuple(kept)]))[0])
    missed: dict[Site, float] = {}
    while True:
        tried = [*(kept if len(kept) > 1 else ()), *(others if len(kept) < limit else ())]
        if not tried:
            break
        own = set(kept)
        worth = torch.tensor([price if node in own else -price for node in tried])
        heats = race(problem, kept, tried, loss, worth)
        missed = dict(zip(tried, heats.values, strict=True))
        best = heats.order[0]
        node, metric = tried[best], heats.whole(best)
        if metric is None:
            metric = problem.metric([tuple(_flip(kept, node))])
        value = float(loss(metric)[0])
        if present - value + float(worth[best]) <= SETTINGS.rounding:
            break
        present, to = value, (others if node in own else kept)
        (kept if node in own else others).remove(node)
        to.append(node)
    return tuple(sorted(kept, key=lambda node: -missed.get(node, 0.0)))


def _flip(circuit: Sequence[Site], node: Site) -> list[Site]:
    if node in set(circuit):
        return [one for one in circuit if one != node]
    return [*circuit, node]


def nested(circuit: Sequence[Site], steps: Sequence[Step]) -> list[Site]:
    """The nodes in the order in which elimination would miss them, the most missed first."""
    gone = [parse(name) for step in steps for name in step.removed]
    left = [node for node in circuit if node not in set(gone)]
    return left + gone[::-1]


def _left_order(rounds: Sequence[Round], best: Round, scores: Scores) -> list[str]:
    """Nodes outside the circuit: those that left, the last one first, then the rest by score."""
    order: list[str] = []
    for one in reversed(rounds):
        joined = [parse(name) for name in (*one.circuit, *one.dropped)]
        order += map(str, nested(joined, one.steps))
    circuit = set(best.circuit)
    return [n for n in dict.fromkeys((*order, *scores.ranking())) if n not in circuit]


def _effects(problem: Problem, scores: Scores, rounds: Iterable[Round]) -> Mapping[str, float]:
    """What a node adds to faithfulness: as it was seen to leave, else in the whole model."""
    values, scale = scores.values.tolist(), float(problem.reference.scale)
    effect = {n: v / scale for n, v in zip(scores.sources, values, strict=True)}
    for one in rounds:
        for before, step in zip(one.steps, one.steps[1:], strict=False):
            if before.prompts == step.prompts and step.removed:
                fall = before.faithfulness - step.faithfulness
                effect |= dict.fromkeys(step.removed, fall / len(step.removed))
    return effect


searches.register("eliminate")(
    Search(
        "eliminate",
        "drops what is missed least, then keeps the circuit that is worth its price",
        find,
        {
            "start": Option(32, "prompts on which the way down is searched", low=1),
            "most_prompts": Option(
                256, "prompts that the search may take while its check does not hold", low=1
            ),
            "pool": Option(0.33, "share of the nodes that joins in a round", low=0.0, high=1.0),
            "price": PRICE,
            "max_size": MAX_SIZE,
            "edge_price": EDGE_PRICE,
            "tolerance": TOLERANCE,
            "precision": Option(
                0.05, "half of the 95% interval on check prompts that is precise enough", low=0.0
            ),
            "rounds": Option(3, "rounds at most", low=1),
            "order": Option(
                "measured",
                "nodes outside the circuit: measured (so that faithfulness stays near 1) or left "
                "(the last to leave first)",
                choices=("measured", "left"),
            ),
        },
        edges=find_edges,
    )
)
