"""Eliminate: from a pool of high scores down to the smallest circuit that is worth its price.

1. The best third of the nodes by score join. 2. Blocks of those that do least leave, then one or
two nodes at a time, always what is missed least; every circuit on the way is kept, so that sizes
can be weighed against losses. 3. The circuit with the smallest `loss + price·size` is polished by
single changes. 4. If it is not faithful, the next best nodes join and it goes on. 5. The others
follow in the order in which they left, or so that faithfulness stays near 1 (`order=measured`).

Building a circuit *up* node by node fails where nodes work only together; taking it down does not.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.circuits import Scores
from unweave.options import Option, Options
from unweave.patching.circuits import keep_masks
from unweave.progress import progress
from unweave.scores.gradients import differences, metric_gradients, node_products, parts
from unweave.scores.problem import Problem
from unweave.search.loss import Loss
from unweave.search.order import measured_order
from unweave.search.search import (
    MAX_SIZE,
    PRICE,
    Checkpoint,
    Finding,
    Round,
    Search,
    Step,
    ranked_sites,
    searches,
    step_from_dict,
)
from unweave.sites import Site, parse


@dataclass(frozen=True)
class Settings:
    """Constants of elimination; docs/rules.md has the study behind each.

    Args:
        few: Up to this size a step tries every node; above it, a few that an estimate proposes.
        tried: How many are proposed.
        blocks: One node in this many leaves at once, the larger block first.
        good: A block may leave if its nodes are worth no more than their price, or the loss stays
            below this.
        again: Nodes between two tries of a block, once blocks have failed.
        worst: Past this loss a circuit explains nothing, and its order does not matter.
        returning: How many of the nodes that left last may come back.
        rounding: A smaller difference in faithfulness may be float32's.
        smallest_pool: Models with fewer nodes are searched whole.
        preference: How much dearer a node is that does nothing in the whole model than one that
            does much: of circuits that are equally good, the one of nodes that matter is kept, and
            other prompts lead to the same.
        known: The effect in the whole model, as a share of its metric, at which half of that
            preference is reached.
    """

    few: int = 12
    tried: int = 4
    blocks: tuple[int, ...] = (4, 8)
    good: float = 0.15
    again: int = 8
    worst: float = 0.8
    returning: int = 8
    rounding: float = 1e-6
    smallest_pool: int = 12
    preference: float = 0.0
    known: float = 0.02


SETTINGS = Settings()


@dataclass(eq=False)
class _State:
    """A search that is under way: finished rounds, and the steps of the present one."""

    rounds: list[Round] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    ranking: list[str] = field(default_factory=list)


def find(problem: Problem, scores: Scores, options: Options, checkpoint: Checkpoint) -> Finding:
    """Rounds until the circuit is faithful, or the next nodes do not improve it."""
    state, loss = _read(checkpoint), Loss.of(problem)

    def save() -> None:
        checkpoint.save(asdict(state))

    ranking = ranked_sites(problem, scores)
    pool = max(SETTINGS.smallest_pool, round(options["pool"] * len(ranking)))
    while not _finished(state, options, len(ranking), pool):
        fresh = ranking[len(state.rounds) * pool :][:pool]
        state.rounds.append(_round(problem, scores, fresh, loss, options, state, save))
        state.steps = []
        save()
    best = min(state.rounds, key=lambda one: one.loss)
    if not state.ranking:
        others = _left_order(state.rounds, best, scores)
        if options["order"] == "measured":
            others = measured_order(problem, best.circuit, others, _effects(scores, loss, state))
        state.ranking = [*best.circuit, *others]
        save()
    return Finding(best.circuit, tuple(state.ranking), tuple(state.rounds))


def _read(checkpoint: Checkpoint) -> _State:
    record = checkpoint.load()
    if record is None:
        return _State()
    rounds = [Round.from_dict(one) for one in record["rounds"]]
    steps = [step_from_dict(step) for step in record["steps"]]
    return _State(rounds, steps, list(record["ranking"]))


def _finished(state: _State, options: Options, count: int, pool: int) -> bool:
    if not state.rounds:
        return False
    last, before = state.rounds[-1], state.rounds[:-1]
    worse = bool(before) and last.loss >= min(one.loss for one in before)
    faithful = abs(1 - last.faithfulness) < options["tolerance"]
    everything = len(state.rounds) * pool >= count
    return worse or faithful or everything or len(state.rounds) >= options["rounds"]


def _round(
    problem: Problem,
    scores: Scores,
    fresh: Sequence[Site],
    loss: Loss,
    options: Options,
    state: _State,
    save: Callable[[], None],
) -> Round:
    """Takes the circuit so far, with the next nodes of the pool, down to the best."""
    before = tuple(map(parse, state.rounds[-1].circuit)) if state.rounds else ()
    joined = (*before, *(node for node in fresh if node not in set(before)))
    prices = node_prices(scores, loss, options["price"])
    with progress("Searching for the circuit", len(joined)) as advance:
        advance(sum(len(step.removed) for step in state.steps))
        for step in eliminate(problem, joined, loss, prices, tuple(state.steps)):
            state.steps.append(step)
            advance(len(step.removed))
            save()
    limit = options["max_size"] or len(joined)
    allowed = [step for step in state.steps if step.size <= limit] or [state.steps[-1]]
    order = nested(joined, state.steps)
    best = min(allowed, key=lambda step: step.loss + _price(order[: step.size], prices))
    size = min(best.size, limit)
    kept = polish(problem, order[:size], order[size:], loss, prices, limit)
    metric = problem.metric([kept])
    return Round(
        targets=("logits",),
        relevance=dict(zip(scores.sources, scores.values.tolist(), strict=True)),
        selected=tuple(str(node) for node in joined if node not in set(before)),
        steps=tuple(state.steps),
        circuit=tuple(map(str, kept)),
        dropped=tuple(str(node) for node in joined if node not in set(kept)),
        loss=float(loss(metric)[0]),
        faithfulness=float(loss.faithfulness(metric)[0]),
    )


Prices = Mapping[str, float]


def node_prices(scores: Scores, loss: Loss, price: float) -> dict[str, float]:
    """What each node has to be worth: the price, more for nodes that hardly matter in the whole
    model."""
    effects = (scores.values / loss.scale).abs().tolist()
    half = SETTINGS.known
    return {
        name: price * (1 + SETTINGS.preference * (half / (half + effect)))
        for name, effect in zip(scores.sources, effects, strict=True)
    }


def _price(nodes: Iterable[Site], prices: Prices) -> float:
    return sum(prices[str(node)] for node in nodes)


def eliminate(
    problem: Problem,
    circuit: Sequence[Site],
    loss: Loss,
    prices: Prices,
    done: Sequence[Step] = (),
) -> Iterator[Step]:
    """Takes a circuit down, yielding every step, until the loss passes `SETTINGS.worst`.

    Args:
        prices: Loss that a circuit may have more without a node.
        done: Steps made before, to go on from.
    """
    steps = list(done)
    if not steps:
        steps.append(_step(len(circuit), (), loss, problem.metric([tuple(circuit)])))
        yield steps[-1]
    gone = {name for step in steps for name in step.removed}
    nodes = tuple(node for node in circuit if str(node) not in gone)
    while len(nodes) > 1 and steps[-1].loss <= SETTINGS.worst:
        steps.append(_next(problem, nodes, loss, steps[-1].loss, prices, _try_blocks(steps)))
        nodes = tuple(node for node in nodes if str(node) not in steps[-1].removed)
        yield steps[-1]


def _try_blocks(steps: Sequence[Step]) -> bool:
    """After a block, and now and then between single nodes."""
    if len(steps) < 2 or len(steps[-1].removed) > 2:
        return True
    return steps[-1].size // SETTINGS.again != steps[-2].size // SETTINGS.again


def _next(
    problem: Problem,
    nodes: tuple[Site, ...],
    loss: Loss,
    present: float,
    prices: Prices,
    blocks: bool,
) -> Step:
    """The next circuit down: without a block that costs little, or without one or two nodes."""
    many = len(nodes) > SETTINGS.few
    chosen = list(nodes)
    if many:
        # An estimate only orders what is then tried: half of the prompts are enough.
        some = slice(0, -(-len(problem.batch) // 2))
        metric, effects = estimated_effects(problem, nodes, some)
        if blocks:
            # Of those that do least: what to first order looks like a gain is often an error.
            small = _ordered(nodes, effects.abs().mean(1))
            block = _block(problem, nodes, small, loss, present, prices)
            if block is not None:
                return block
        costs = loss.select(some)(metric - effects)
        chosen = _ordered(nodes, costs - _tensor(nodes, prices, costs))[: SETTINGS.tried]
    metric = problem.flipped(nodes, chosen)
    costs = loss(metric)
    best, second = (costs - _tensor(chosen, prices, costs)).argsort(stable=True)[:2].tolist()
    if many:
        # Two steps at the cost of one, where the two best do not need each other.
        both = (chosen[best], chosen[second])
        step = _without(problem, nodes, both, loss)
        if step.loss <= present + _price(both, prices):
            return step
    return _step(len(nodes) - 1, (chosen[best],), loss, metric[best : best + 1])


def _block(
    problem: Problem,
    nodes: tuple[Site, ...],
    order: Sequence[Site],
    loss: Loss,
    present: float,
    prices: Prices,
) -> Step | None:
    """The largest block of the first nodes of `order` that may leave at once."""
    for share in SETTINGS.blocks:
        block = tuple(order[: -(-len(nodes) // share)])
        step = _without(problem, nodes, block, loss)
        if step.loss <= max(present + _price(block, prices), SETTINGS.good):
            return step
    return None


def _tensor(nodes: Sequence[Site], prices: Prices, like: Tensor) -> Float[Tensor, " node"]:
    return like.new_tensor([prices[str(node)] for node in nodes])


def _without(
    problem: Problem, nodes: tuple[Site, ...], removed: tuple[Site, ...], loss: Loss
) -> Step:
    left = tuple(node for node in nodes if node not in set(removed))
    return _step(len(left), removed, loss, problem.metric([left]))


def _step(
    size: int, removed: tuple[Site, ...], loss: Loss, metric: Float[Tensor, "1 batch"]
) -> Step:
    names = tuple(map(str, removed))
    return Step(size, float(loss(metric)[0]), float(loss.faithfulness(metric)[0]), names)


def polish(
    problem: Problem,
    circuit: Sequence[Site],
    left: Sequence[Site],
    loss: Loss,
    prices: Prices,
    limit: int,
) -> tuple[Site, ...]:
    """Drops or takes back single nodes, the best one each time, as long as that pays.

    Blocks leave on an estimate, and what a node does depends on those that are still there. The
    loss, each node at its price, falls with every step, so it ends.

    Args:
        left: The nodes that left the circuit, the last one first.
        limit: The most nodes that the circuit may have.
    """
    kept, others = list(circuit), list(left[: SETTINGS.returning])
    present = float(loss(problem.metric([tuple(kept)]))[0])
    while present <= SETTINGS.worst:
        tried = [*(kept if len(kept) > 1 else ()), *(others if len(kept) < limit else ())]
        if not tried:
            break
        losses = loss(problem.flipped(kept, tried)).tolist()
        own = set(kept)
        gains = [
            present - one + (prices[str(node)] if node in own else -prices[str(node)])
            for node, one in zip(tried, losses, strict=True)
        ]
        best = max(range(len(tried)), key=lambda i: gains[i])
        if gains[best] <= SETTINGS.rounding:
            break
        node, present = tried[best], losses[best]
        source, to = (kept, others) if node in own else (others, kept)
        source.remove(node)
        to.append(node)
    return tuple(kept)


def nested(circuit: Sequence[Site], steps: Sequence[Step]) -> list[Site]:
    """The nodes in the order in which elimination would miss them, the most missed first."""
    gone = [parse(name) for step in steps for name in step.removed]
    left = [node for node in circuit if node not in set(gone)]
    return left + gone[::-1]


def estimated_effects(
    problem: Problem, nodes: tuple[Site, ...], some: slice
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "node batch"]]:
    """The circuit's metric, and to first order what each node adds: ⟨∂m/∂z, z − μ⟩ there.

    Args:
        some: The examples to run.
    """
    problem = problem.select(some)
    metrics, columns = [], []
    for part in parts(len(problem.batch), problem.model.network.device):
        batch, ablation = problem.batch.select(part), problem.ablation.select(part)
        keep = keep_masks([nodes], problem.points, problem.model, batch)
        gradients, values, metric = metric_gradients(
            problem.model, batch, problem.points, keep, ablation
        )
        metrics.append(metric)
        deltas = differences(values, ablation, batch)
        columns.append(node_products(problem, gradients, deltas, batch))
    index = {node: i for i, node in enumerate(problem.nodes)}
    return torch.cat(metrics), torch.cat(columns, 1)[[index[node] for node in nodes]]


def _ordered(nodes: Sequence[Site], by: Float[Tensor, " node"]) -> list[Site]:
    return [nodes[i] for i in torch.argsort(by, stable=True).tolist()]


def _left_order(rounds: Sequence[Round], best: Round, scores: Scores) -> list[str]:
    """Nodes outside the circuit: those that left, the last one first, then the rest by score."""
    order: list[str] = []
    for one in reversed(rounds):
        joined = [parse(name) for name in (*one.circuit, *one.dropped)]
        order += map(str, nested(joined, one.steps))
    circuit = set(best.circuit)
    return [n for n in dict.fromkeys((*order, *scores.ranking())) if n not in circuit]


def _effects(scores: Scores, loss: Loss, state: _State) -> dict[str, float]:
    """What a node adds to faithfulness: as it was seen to leave, else in the whole model."""
    values = scores.values.tolist()
    effect = {n: v / loss.scale for n, v in zip(scores.sources, values, strict=True)}
    for one in state.rounds:
        for before, step in zip(one.steps, one.steps[1:], strict=False):
            fall = before.faithfulness - step.faithfulness
            effect |= dict.fromkeys(step.removed, fall / len(step.removed))
    return effect


searches.register("eliminate")(
    Search(
        "eliminate",
        "drops what is missed least, then keeps the circuit that is worth its price",
        find,
        {
            "pool": Option(
                0.33,
                "share of the nodes that joins in a round, the best by score",
                low=0.0,
                high=1.0,
            ),
            "price": PRICE,
            "max_size": MAX_SIZE,
            "tolerance": Option(0.05, "ends when |1 − faithfulness| is below", low=0.0),
            "rounds": Option(3, "rounds at most", low=1),
            "order": Option(
                "measured",
                "nodes outside the circuit: measured (so that faithfulness stays near 1) or left "
                "(the last to leave first)",
                choices=("measured", "left"),
            ),
        },
    )
)
