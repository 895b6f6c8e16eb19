"""Refinement by elimination: from a large circuit to nested small ones.

Greedy refinement (METHOD.md §5, step 4) drops a node whenever the circuit without it is better.
Elimination goes on: it always drops what is missed least, and keeps the whole sequence of nested
circuits, so that their sizes can be weighed against their faithfulness. Building a circuit *up*
node by node fails where nodes work only together; taking it down does not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.methods.gradients import differences, metric_gradients, node_products, parts
from unweave.methods.method import Problem, normalised
from unweave.patching.ablation import keep_masks
from unweave.patching.toggles import run_toggles
from unweave.sites import Site

# Up to this size, every node's loss is run exactly; above it, estimated by one backward pass.
_EXACT = 40
_SINGLE = 24  # up to this size, nodes leave one at a time; above it, up to one in _BLOCK at once
_BLOCK = 8
_SLACK = 0.005  # a block may cost so much more than the best single node
_APART = 0.5  # weight of the examples' own deviations in the loss


@dataclass(frozen=True, eq=False)
class Standard:
    """What circuits are measured against: the whole model and the empty circuit.

    Args:
        full: The model's metric on each example.
        empty: Mean metric with every node ablated.
    """

    full: Float[Tensor, " batch"]
    empty: Float[Tensor, ""]

    def faithfulness(self, metric: Float[Tensor, "circuit batch"]) -> Float[Tensor, " circuit"]:
        """`(m(C) − m(∅)) / (m(M) − m(∅))`"""
        return normalised(metric.mean(1), self.empty, self.full.mean())

    def loss(self, metric: Float[Tensor, "circuit batch"]) -> Float[Tensor, " circuit"]:
        """`|1 − f| + w·mean_b |m_b(C) − m_b(M)| / |m(M) − m(∅)|`

        The second part keeps a circuit from being right on average and wrong on every example.
        """
        scale = (self.full.mean() - self.empty).abs()
        apart = (metric - self.full).abs().mean(1) / scale
        return (1 - self.faithfulness(metric)).abs() + _APART * apart


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
    problem: Problem, circuit: Sequence[Site], against: Standard, worst: float
) -> Iterator[Step]:
    """Takes a circuit down, yielding every step, until the loss passes `worst`.

    Each step orders the nodes by the loss of the circuit without each of them, then runs the best
    one and blocks of the best ones, and takes the largest block that costs little more.
    """
    nodes = tuple(circuit)
    metric = problem.metric([nodes])
    step = Step(len(nodes), float(against.loss(metric)[0]), _first(against, metric), ())
    yield step
    while len(nodes) > 1 and step.loss <= worst:
        step = next_step(problem, nodes, against)
        nodes = tuple(node for node in nodes if node not in step.removed)
        yield step


def next_step(problem: Problem, nodes: tuple[Site, ...], against: Standard) -> Step:
    """The next circuit down from this one."""
    order = _least_missed(problem, nodes, against)
    block = len(nodes) // _BLOCK if len(nodes) > _SINGLE else 1
    sizes = sorted({1, -(-block // 2), block})
    circuits = [tuple(n for n in nodes if n not in set(order[:size])) for size in sizes]
    metric = problem.metric(circuits)
    losses = against.loss(metric)
    good = (losses <= losses.min() + _SLACK).nonzero().flatten().tolist()
    best = max(good)
    found = metric[best : best + 1]
    return Step(
        len(circuits[best]),
        float(losses[best]),
        _first(against, found),
        tuple(order[: sizes[best]]),
    )


def nested(circuit: Sequence[Site], steps: Sequence[Step]) -> list[Site]:
    """The nodes in the order in which elimination would miss them, the most missed first."""
    gone = [node for step in steps for node in step.removed]
    left = [node for node in circuit if node not in set(gone)]
    return left + gone[::-1]


def _first(against: Standard, metric: Float[Tensor, "circuit batch"]) -> float:
    return float(against.faithfulness(metric)[0])


def _least_missed(problem: Problem, nodes: tuple[Site, ...], against: Standard) -> list[Site]:
    """Nodes by the loss of the circuit without each of them, smallest first."""
    if len(nodes) <= _EXACT:
        metric = run_toggles(
            problem.model, problem.batch, nodes, nodes, problem.points, problem.baseline
        )
    else:
        metric = _estimated_toggles(problem, nodes)
    order = torch.argsort(against.loss(metric), stable=True)
    return [nodes[i] for i in order.tolist()]


def _estimated_toggles(problem: Problem, nodes: tuple[Site, ...]) -> Float[Tensor, "node batch"]:
    """To first order, the metric without each node: m(C) − ⟨∂m/∂z, z − μ⟩ at the circuit's run."""
    columns = []
    for part in parts(len(problem.batch), problem.model.network.device):
        batch, baseline = problem.batch.select(part), problem.baseline.select(part)
        keep = keep_masks([nodes], problem.points, problem.model, batch)
        gradients, values, metric = metric_gradients(
            problem.model, batch, problem.points, keep, baseline
        )
        effects = node_products(problem, gradients, differences(values, baseline, batch), batch)
        columns.append(metric - effects)
    index = {node: i for i, node in enumerate(problem.nodes)}
    rows = [index[node] for node in nodes]
    return torch.cat(columns, 1)[rows]
