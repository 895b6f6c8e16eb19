"""How a metric is read from what passes the logits' point: the cheapest exact way."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unweave.batch import Readout
from unweave.decomposition.rules import linear_shared_bias, linear_without_bias
from unweave.decomposition.ruleset import RuleSet
from unweave.errors import UnweaveError
from unweave.model.model import Model
from unweave.model.program import Inputs, logits
from unweave.model.weights import Head, Linear, Network


@dataclass(frozen=True, eq=False)
class Reader:
    """How a metric is read at the logits' point: the head that runs, and linear weights."""

    network: Network
    readout: Readout
    weights: Float[Tensor, "batch out"] | None


def reader(model: Model, inputs: Inputs, readout: Readout, rules: RuleSet) -> Reader:
    """Chooses the cheapest exact way to read the metric.

    A linear readout through a head that is linear in β is one vector a example, pulled back
    through the head; otherwise the head runs, with only the columns that the metric reads.
    """
    head, metric = model.network.head, readout.metric
    linear = metric.linear or rules.readout == "gradient"
    steps = [s for s in head.steps if isinstance(s, Linear | float)]
    # The rules of linear maps that are βW; the shared one only where there is no bias.
    biased = any(isinstance(s, Linear) and s.bias is not None for s in steps)
    plain = (linear_without_bias,) if biased else (linear_without_bias, linear_shared_bias)
    pure = len(steps) == len(head.steps) and rules.linear in plain and not rules.clamps("head")
    if linear:
        weights = _metric_gradient(model, inputs, readout)
        if pure:
            for step in reversed(steps):
                weights = weights @ step.matrix if isinstance(step, Linear) else weights * step
            if not torch.isfinite(weights).all():
                raise UnweaveError(
                    "the readout of the metric is not finite: look for NaN or infinite values in "
                    "the weights of the model's head"
                )
            bare = replace(model.network, head=replace(head, steps=()))
            return Reader(bare, readout, weights)
    else:
        weights = None
    if metric.local:
        ids = torch.cat((readout.answers.flatten(), readout.distractors.flatten()))
        columns, places = ids.clamp(min=0).unique(return_inverse=True)
        places = torch.where(ids < 0, -1, places)
        answers = places[: readout.answers.numel()].reshape(readout.answers.shape)
        others = places[readout.answers.numel() :].reshape(readout.distractors.shape)
        readout = replace(readout, answers=answers, distractors=others)
        network = replace(model.network, head=columns_of(head, columns))
        weights = None if weights is None else weights[:, columns]
        return Reader(network, readout, weights)
    return Reader(model.network, readout, weights)


def _metric_gradient(
    model: Model, inputs: Inputs, readout: Readout, rows: int = 8
) -> Float[Tensor, "batch out"]:
    """∂metric/∂logits at T, a few examples at a time: logits of all positions are wide."""
    parts = []
    for i in range(0, len(inputs.mask), rows):
        part = slice(i, i + rows)
        if readout.metric.linear:
            shape = (len(readout.read[part]), _outputs(model))
            out = torch.zeros(shape, dtype=model.network.dtype, device=model.network.device)
        else:
            whole = logits(model.network, inputs.select(part))
            at = readout.read[part] if whole.shape[1] > 1 else torch.zeros_like(readout.read[part])
            out = whole[torch.arange(len(whole), device=whole.device), at]
        parts.append(readout.select(part).gradient(out))
    return torch.cat(parts)


def _outputs(model: Model) -> int:
    linears = [s for s in model.network.head.steps if isinstance(s, Linear)]
    if not linears:
        raise UnweaveError(f"{model.name} has no output head to read a metric from")
    return len(linears[-1].matrix)


def columns_of(head: Head, columns: Int[Tensor, " n"]) -> Head:
    """The head with only some outputs of its last linear map."""
    places = [i for i, step in enumerate(head.steps) if isinstance(step, Linear)]
    if not places:
        raise UnweaveError("columns of the logits were asked for, but the model has no output head")
    steps, last = list(head.steps), places[-1]
    step = steps[last]
    assert isinstance(step, Linear)
    outside = columns[(columns < 0) | (columns >= len(step.matrix))]
    if len(outside):
        raise UnweaveError(
            f"logit column {int(outside[0])} does not exist: expected 0–{len(step.matrix) - 1}"
        )
    steps[last] = step.rows(columns.to(step.weight.device))
    return replace(head, steps=tuple(steps))
