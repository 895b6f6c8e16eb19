"""Refinement by elimination: from a large circuit to nested small ones.

Greedy refinement (docs/method.md §5, step 4) drops a node whenever the circuit without it is better.
Elimination goes on: it always drops what is missed least, and keeps the whole sequence of nested
circuits, so that their sizes can be weighed against their faithfulness. Building a circuit *up*
node by node fails where nodes work only together; taking it down does not.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.patching.circuits import keep_masks
from unweave.scores.gradients import differences, metric_gradients, node_products, parts
from unweave.scores.problem import Problem, normalised
from unweave.sites import Site

ROUNDING = 1e-6  # a smaller difference in faithfulness may be float32's
WORST = 0.8  # past this loss a circuit explains nothing, and its order does not matter
# Up to this size a step tries every node; above it, blocks (one node in so many) of those that do
# least, then the first few by one backward pass.
_FEW = 12
_BLOCKS = (4, 8)
_TRIED = 4
_GOOD = 0.15  # a block may leave if it costs no more than its nodes' price, or the loss stays below
_APART = 0.5  # weight of the examples' own deviations in the loss
_AGAIN = 8  # of the nodes that left last, so many are tried again
_EVERY = 8  # where blocks failed, they are tried again so many nodes later


@dataclass(frozen=True, eq=False)
class Standard:
    """What circuits are measured against: the whole model and the empty circuit.

    Args:
        full: The model's metric on each example.
        empty: Mean metric with every node ablated.
    """

    full: Float[Tensor, " batch"]
    empty: Float[Tensor, ""]

    def select(self, examples: slice) -> "Standard":
        """The same for a part of the examples."""
        return replace(self, full=self.full[examples])

    def faithfulness(self, metric: Float[Tensor, "circuit batch"]) -> Float[Tensor, " circuit"]:
        """`(m(C) − m(∅)) / (m(M) − m(∅))`"""
        return normalised(metric.mean(1), self.empty, self.full.mean())

    def loss(self, metric: Float[Tensor, "circuit batch"]) -> Float[Tensor, " circuit"]:
        """`|1 − f| + w·mean_b |m_b(C) − m_b(M)| / |m(M) − m(∅)|`

        The second part keeps a circuit from being right on average and wrong on every example.
        """
        return (1 - self.faithfulness(metric)).abs() + _APART * self._apart(metric).abs().mean(1)

    def error(self, metric: Float[Tensor, "circuit batch"]) -> Float[Tensor, " circuit"]:
        """Standard error of the faithfulness over the examples; 0 for a single one."""
        return self._apart(metric).std(1, correction=0) / math.sqrt(metric.shape[1])

    def _apart(self, metric: Float[Tensor, "circuit batch"]) -> Float[Tensor, "circuit batch"]:
        return (metric - self.full) / (self.full.mean() - self.empty).abs()


@dataclass(frozen=True)
class Step:
    """A circuit on the way down: its size and loss, and the nodes that left to reach it."""

    size: int
    loss: float
    faithfulness: float
    removed: tuple[Site, ...]


def standard(problem: Problem) -> Standard:
    """Runs the empty circuit and the whole model."""
    metric = problem.metric([(), problem.nodes])
    return Standard(metric[1], metric[0].mean())


def eliminate(
    problem: Problem,
    circuit: Sequence[Site],
    against: Standard,
    worst: float,
    price: float = 0.0,
    done: Sequence[Step] = (),
    every: bool = False,
) -> Iterator[Step]:
    """Takes a circuit down, yielding every step, until the loss passes `worst`.

    Args:
        price: Loss that one node less may cost.
        done: Steps made before, to go on from.
        every: Whether each step tries every node that is left, and drops one.
    """
    steps = list(done)
    if not steps:
        metric = problem.metric([tuple(circuit)])
        steps.append(_step(len(circuit), (), against, metric))
        yield steps[-1]
    gone = {node for step in steps for node in step.removed}
    nodes = tuple(node for node in circuit if node not in gone)
    while len(nodes) > 1 and steps[-1].loss <= worst:
        blocks = _try_blocks(steps)
        steps.append(_next(problem, nodes, against, steps[-1].loss, price, blocks, every))
        nodes = tuple(node for node in nodes if node not in steps[-1].removed)
        yield steps[-1]


def _try_blocks(steps: Sequence[Step]) -> bool:
    """After a block, and now and then between single nodes."""
    if len(steps) < 2 or len(steps[-1].removed) > 2:
        return True
    return steps[-1].size // _EVERY != steps[-2].size // _EVERY


def _next(
    problem: Problem,
    nodes: tuple[Site, ...],
    against: Standard,
    loss: float,
    price: float,
    blocks: bool,
    every: bool,
) -> Step:
    """The next circuit down: without a block that costs little, or without one or two nodes."""
    if every or len(nodes) <= _FEW:
        chosen = list(nodes)
    else:
        # An estimate only orders what is then tried: half of the prompts are enough.
        some = slice(0, -(-len(problem.batch) // 2))
        metric, effects = _estimated_effects(problem, nodes, some)
        # Blocks of those that do least: what to first order looks like a gain is often an error.
        small = _ordered(nodes, effects.abs().mean(1))
        block = _block(problem, nodes, small, against, loss, price) if blocks else None
        if block is not None:
            return block
        chosen = _ordered(nodes, against.select(some).loss(metric - effects))[:_TRIED]
    metric = problem.flipped(nodes, chosen)
    losses = against.loss(metric)
    best, second = losses.argsort(stable=True)[:2].tolist()
    if not every and len(nodes) > _FEW:
        # Two steps for the price of one, where the two best do not need each other.
        removed = (chosen[best], chosen[second])
        left = tuple(node for node in nodes if node not in removed)
        step = _step(len(left), removed, against, problem.metric([left]))
        if step.loss <= loss + price * len(removed):
            return step
    return _step(len(nodes) - 1, (chosen[best],), against, metric[best : best + 1])


def _block(
    problem: Problem,
    nodes: tuple[Site, ...],
    order: Sequence[Site],
    against: Standard,
    loss: float,
    price: float,
) -> Step | None:
    """The largest block of the first nodes of `order` that may leave at once."""
    for share in _BLOCKS:
        removed = tuple(order[: -(-len(nodes) // share)])
        left = tuple(node for node in nodes if node not in set(removed))
        step = _step(len(left), removed, against, problem.metric([left]))
        if step.loss <= max(loss + price * len(removed), _GOOD):
            return step
    return None


def _step(
    size: int,
    removed: tuple[Site, ...],
    against: Standard,
    metric: Float[Tensor, "1 batch"],
) -> Step:
    loss, faithfulness = against.loss(metric), against.faithfulness(metric)
    return Step(size, float(loss[0]), float(faithfulness[0]), removed)


def polish(
    problem: Problem,
    circuit: Sequence[Site],
    left: Sequence[Site],
    against: Standard,
    price: float,
    limit: int,
) -> tuple[Site, ...]:
    """Drops or takes back single nodes, the best one each time, as long as that pays.

    Blocks leave on an estimate, and what a node does depends on those that are still there. The
    loss, each node at its price, falls with every step, so that there is an end.

    Args:
        left: The nodes that left the circuit, the last one first.
        limit: The most nodes that the circuit may have.
    """
    kept, others = list(circuit), list(left[:_AGAIN])
    loss = float(against.loss(problem.metric([tuple(kept)]))[0])
    while loss <= WORST:
        tried = [*(kept if len(kept) > 1 else ()), *(others if len(kept) < limit else ())]
        if not tried:
            break
        metric = problem.flipped(kept, tried)
        losses = against.loss(metric).tolist()
        own = set(kept)
        gains = [
            loss - one + (price if node in own else -price)
            for node, one in zip(tried, losses, strict=True)
        ]
        best = max(range(len(tried)), key=lambda i: gains[i])
        if gains[best] <= ROUNDING:
            break
        node, loss = tried[best], losses[best]
        source, to = (kept, others) if node in own else (others, kept)
        source.remove(node)
        to.append(node)
    return tuple(kept)


def nested(circuit: Sequence[Site], steps: Sequence[Step]) -> list[Site]:
    """The nodes in the order in which elimination would miss them, the most missed first."""
    gone = [node for step in steps for node in step.removed]
    left = [node for node in circuit if node not in set(gone)]
    return left + gone[::-1]


def _ordered(nodes: Sequence[Site], by: Float[Tensor, " node"]) -> list[Site]:
    return [nodes[i] for i in torch.argsort(by, stable=True).tolist()]


def _estimated_effects(
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
        columns.append(
            node_products(problem, gradients, differences(values, ablation, batch), batch)
        )
    index = {node: i for i, node in enumerate(problem.nodes)}
    rows = [index[node] for node in nodes]
    return torch.cat(metrics), torch.cat(columns, 1)[rows]
