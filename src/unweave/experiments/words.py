"""The words of the example prompt with their scores, for people to look at."""

from typing import Any

import torch

from unweave.attribution import attribute
from unweave.attribution.target import read_logits
from unweave.batch import Batch
from unweave.model.model import Model

MOST_TOKENS = 128  # the cost grows with the square of the length: a longer text would take minutes


def word_scores(model: Model, batch: Batch) -> dict[str, Any] | None:
    """How much each word of the first prompt adds to its answer, as `Attribution.to_json` tells.

    Of several answers or distractors, the one that the model likes best; None for a long prompt.
    """
    first = batch.select(slice(0, 1))
    if int(first.clean.mask.sum()) > MOST_TOKENS:
        return None
    logits = read_logits(model, first.clean, first.readout.read)[0]

    def best(outputs: torch.Tensor) -> int | None:
        known = outputs[outputs >= 0]
        return int(known[logits[known].argmax()]) if len(known) else None

    answer, distractor = best(first.readout.answers[0]), best(first.readout.distractors[0])
    found = attribute(model, batch.texts[0], answer, distractor, corrupted=batch.corrupted_texts[0])
    assert not isinstance(found, list)
    return found.to_json()
