"""How well a model does a task: the first thing to know before asking how it does it."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unweave.batch import Batch
from unweave.errors import UnweaveError
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
    """Measures a model on the clean prompts of a batch."""
    values = clean_metric(model, batch)
    return Accuracy(values.mean().item(), (values > 0).float().mean().item())


def lacks_bos(model: Model) -> bool:
    """Whether a BOS token is left out: some families need one."""
    bos = getattr(model.tokenizer, "bos_token_id", None)
    return bos is not None and not model.prepend_bos and model.family == "decoder"


def check_able(model: Model, batch: Batch, task: str) -> Accuracy:
    """Measures a model on a task, and checks that it can do it at all.

    Raises:
        UnweaveError: When it cannot: there would be no behaviour to explain.
    """
    accuracy = task_accuracy(model, batch)
    if accuracy.fails:
        bos = ", or put a BOS token in front (--bos, bos=True)" if lacks_bos(model) else ""
        raise UnweaveError(
            f"{model.name} answers {accuracy.correct:.0%} of {task} prompts correctly (metric "
            f"{accuracy.metric:+.2f}), at least {FAILS_BELOW:.0%} are needed: there is no "
            "behaviour to explain; choose another model or task, or keep the prompts that it "
            f"answers (--only-correct){bos}"
        )
    return accuracy
