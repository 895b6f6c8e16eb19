"""How a metric is read from what passes the logits' point: the cheapest exact way."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unweave.batch import Readout
from unweave.decomposition.algebra import gather_positions
from unweave.decomposition.rules import linear_shared_bias, linear_without_bias
from unweave.decomposition.ruleset import RuleSet
from unweave.errors import UnweaveError
from unweave.model.algebra import Plain
from unweave.model.model import Model
from unweave.model.program import Inputs, run
from unweave.model.weights import Head, Linear, Network


@dataclass(frozen=True, eq=False)
class MetricHead:
    """How a metric is read at the logits' point: the head that runs, and linear weights."""

    network: Network
    readout: Readout
    weights: Float[Tensor, "batch out"] | None


def metric_head(model: Model, inputs: Inputs, readout: Readout, rules: RuleSet) -> MetricHead:
    """Chooses the cheapest exact way to read the metric.

    A linear readout through a head that is linear in β is one vector per example, pulled back
    through the head; otherwise the head runs, with only the columns that the metric reads.
    """
    head, metric = model.network.head, readout.metric
    weights = None
    if metric.linear or rules.readout == "gradient":
        weights = _metric_gradient(model, inputs, readout)
        if _is_linear(head, rules):
            bare = replace(model.network, head=replace(head, steps=()))
            return MetricHead(bare, readout, _pulled_back(weights, head))
    if not metric.local:
        return MetricHead(model.network, readout, weights)
    columns, few = _local(readout)
    network = replace(model.network, head=columns_of(head, columns))
    return MetricHead(network, few, None if weights is None else weights[:, columns])


def _is_linear(head: Head, rules: RuleSet) -> bool:
    """Whether every step is βW; the rule that shares biases is, only where there is none."""
    steps = [s for s in head.steps if isinstance(s, Linear | float)]
    biased = any(isinstance(s, Linear) and s.bias is not None for s in steps)
    plain = (linear_without_bias,) if biased else (linear_without_bias, linear_shared_bias)
    return len(steps) == len(head.steps) and rules.linear in plain and not rules.clamps("head")


def _pulled_back(weights: Float[Tensor, "batch out"], head: Head) -> Float[Tensor, "batch inner"]:
    for step in reversed(head.steps):
        assert isinstance(step, Linear | float)
        weights = weights @ step.matrix if isinstance(step, Linear) else weights * step
    if not torch.isfinite(weights).all():
        raise UnweaveError(
            "the readout of the metric is not finite: look for NaN or infinite values in "
            "the weights of the model's head"
        )
    return weights


def _local(readout: Readout) -> tuple[Int[Tensor, " column"], Readout]:
    """The logit columns that a metric reads, and the metric on those alone."""
    ids = torch.cat((readout.answers.flatten(), readout.distractors.flatten()))
    columns, places = ids.clamp(min=0).unique(return_inverse=True)
    places = torch.where(ids < 0, -1, places)
    answers = places[: readout.answers.numel()].reshape(readout.answers.shape)
    others = places[readout.answers.numel() :].reshape(readout.distractors.shape)
    return columns, replace(readout, answers=answers, distractors=others)


@dataclass(eq=False)
class _ReadOnly(Plain):
    """A plain run whose head sees only the positions that are read: logits are wide."""

    reads: Int[Tensor, "batch 1"]

    def cut(self, x: Tensor) -> Tensor:
        return gather_positions(x, self.reads, 0)


def _metric_gradient(
    model: Model, inputs: Inputs, readout: Readout, rows: int = 8
) -> Float[Tensor, "batch out"]:
    """∂metric/∂logits at T, a few examples at a time."""
    parts = []
    for i in range(0, len(inputs.mask), rows):
        part = slice(i, i + rows)
        reads = readout.read[part][:, None]
        if readout.metric.linear:
            shape = (len(reads), _outputs(model))
            out = torch.zeros(shape, dtype=model.network.dtype, device=model.network.device)
        else:
            reads = torch.zeros_like(reads) if model.network.head.first else reads
            with torch.no_grad():
                out = run(model.network, inputs.select(part), _ReadOnly(reads))[:, 0]
        parts.append(readout.select(part).gradient(out))
    return torch.cat(parts)


def _outputs(model: Model) -> int:
    linears = [s for s in model.network.head.steps if isinstance(s, Linear)]
    if not linears:
        raise UnweaveError(
            f"{model.name} has no output head to read a metric from: load the language model or "
            "classifier"
        )
    return linears[-1].shape[0]


def columns_of(head: Head, columns: Int[Tensor, " n"]) -> Head:
    """The head with only some outputs of its last linear map."""
    places = [i for i, step in enumerate(head.steps) if isinstance(step, Linear)]
    if not places:
        raise UnweaveError(
            "columns of the logits were asked for, but the model has no output head: load the "
            "language model or classifier"
        )
    steps, last = list(head.steps), places[-1]
    step = steps[last]
    assert isinstance(step, Linear)
    outside = columns[(columns < 0) | (columns >= step.shape[0])]
    if len(outside):
        raise UnweaveError(
            f"logit column {int(outside[0])} does not exist: expected 0–{step.shape[0] - 1}"
        )
    steps[last] = step.rows(columns.to(step.weight.device))
    return replace(head, steps=tuple(steps))
