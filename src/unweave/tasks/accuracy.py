"""How well a model does a task: the first thing to know before asking how it does it."""

import warnings
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unweave.batch import Batch
from unweave.model.algebra import Plain
from unweave.model.model import Model
from unweave.model.program import run
from unweave.progress import progress

ROWS = 16  # prompts in one forward pass
FAILS_BELOW = 0.6  # share of correct answers: with one distractor, chance is a half


class Accuracy(NamedTuple):
    """The metric's mean, and the share of prompts on which it is positive."""

    metric: float
    correct: float

    @property
    def fails(self) -> bool:
        return self.correct < FAILS_BELOW


class _AtRead(Plain):
    """The plain forward pass that ends with one position a prompt, the one that is read."""

    def __init__(self, read: Int[Tensor, " batch"]) -> None:
        self._read = read

    def cut(self, x: Tensor) -> Tensor:
        return x[torch.arange(len(x), device=x.device), self._read].unsqueeze(1)


def clean_metric(model: Model, batch: Batch) -> Float[Tensor, " batch"]:
    """The metric of each clean prompt, some rows at a time."""
    values = []
    with torch.no_grad(), progress("clean prompts", len(batch)) as advance:
        for start in range(0, len(batch), ROWS):
            rows = batch.select(slice(start, start + ROWS))
            logits = run(model.network, rows.clean, _AtRead(rows.readout.read))
            values.append(rows.readout.measure(logits[:, 0]))
            advance(float(len(rows)))
    return torch.cat(values)


def task_accuracy(model: Model, batch: Batch) -> Accuracy:
    """Measures a model on the clean prompts of a batch.

    Warns when it fails and has no BOS token in front: some families do nothing sensible without.
    """
    values = clean_metric(model, batch)
    accuracy = Accuracy(values.mean().item(), (values > 0).float().mean().item())
    bos = getattr(model.tokenizer, "bos_token_id", None)
    if accuracy.fails and bos is not None and not model.prepend_bos and model.family == "decoder":
        warnings.warn(
            f"{model.name} answers {accuracy.correct:.0%} of these prompts correctly, and no BOS "
            "token is put in front of them, which some models need: try bos=True",
            stacklevel=2,
        )
    return accuracy
