"""The deletion and insertion test: does the order of words by score hold in real runs?

Words leave the text one after the other, the highest score first (deletion), or come into an empty
text in that order (insertion). The target's logit difference should fall fast, or rise fast. The
area is its mean over the fraction of words; small is good for deletion, large for insertion. Words
really leave: the text is shorter, and no token stands in for what is gone.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.attribution.target import MetricTarget, read_logits, reads_of
from unweave.attribution.texts import EncodedText, Word
from unweave.model.model import Model

_POINTS = 24  # of a curve at most: longer texts lose several words at a time
_ROWS = 64


class Areas(NamedTuple):
    """Mean logit difference while words leave, and while they come."""

    deletion: float
    insertion: float

    @property
    def gap(self) -> float:
        """Insertion − deletion: one number, large is good."""
        return self.insertion - self.deletion


def areas(
    model: Model,
    text: EncodedText,
    target: MetricTarget,
    ranking: Sequence[Word],
    decoder: Sequence[int] | None = None,
) -> Areas:
    """Both areas of one text.

    Args:
        ranking: The words that may leave, the highest score first.
    """
    count = len(ranking)
    sizes = sorted({round(i * count / min(count, _POINTS)) for i in range(min(count, _POINTS) + 1)})
    left = [ranking[size:] for size in sizes] + [ranking[:size] for size in sizes]
    kept = [_kept(text, ranking, some) for some in left]
    values = subset_metrics(model, text, target, kept, decoder)
    # Without special tokens the empty text has no tokens, and no output: the curve ends before.
    known = torch.tensor([bool(some) for some in kept])
    fractions = torch.tensor(sizes, dtype=torch.double) / max(count, 1)
    found = []
    for curve, there in zip(values.double().chunk(2), known.chunk(2), strict=True):
        x, y = fractions[there], curve[there]
        found.append(float(torch.trapezoid(y, x) / (x[-1] - x[0])) if len(x) > 1 else float(y[0]))
    return Areas(*found)


def subset_metrics(
    model: Model,
    text: EncodedText,
    target: MetricTarget,
    kept: Sequence[tuple[int, ...]],
    decoder: Sequence[int] | None = None,
) -> Float[Tensor, " subset"]:
    """The logit difference of a text of which only some tokens are left; 0 where none is."""
    values = torch.zeros(len(kept))
    some = [i for i, tokens in enumerate(kept) if tokens]
    for begin in range(0, len(some), _ROWS):
        rows = some[begin : begin + _ROWS]
        shorter = [_shortened(text, kept[i]) for i in rows]
        inputs = model.rows([one.ids for one in shorter], decoder)
        found = read_logits(model, inputs, reads_of(model, shorter, decoder))
        values[rows] = (found[:, target.answer] - found[:, target.other]).float().cpu()
    return values


def _kept(text: EncodedText, free: Sequence[Word], left: Sequence[Word]) -> tuple[int, ...]:
    gone = {i for word in free for i in word.tokens} - {i for word in left for i in word.tokens}
    return tuple(i for i in range(len(text.ids)) if i not in gone)


def _shortened(text: EncodedText, kept: tuple[int, ...]) -> EncodedText:
    read = kept.index(text.read) if text.read in kept else len(kept) - 1
    return replace(text, ids=tuple(text.ids[i] for i in kept), read=read)
