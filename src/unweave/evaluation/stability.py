"""Would other prompts have given the same nodes? A bootstrap over the prompts of discovery."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.circuits import Scores
from unweave.errors import UnweaveError

Select = Callable[[Float[Tensor, " source"]], Collection[int]]


@dataclass(frozen=True)
class Stability:
    """Jaccard overlap of node sets chosen from resampled prompts.

    Args:
        overlap: Mean overlap with the set of all prompts.
        between: Mean overlap of two resamples with each other.
        kept: By node of that set: the share of resamples that chose it too.
    """

    size: int
    draws: int
    overlap: float
    between: float
    kept: dict[str, float]


def stability(
    scores: Scores,
    size: int | None = None,
    select: Select | None = None,
    draws: int = 100,
    seed: int = 0,
) -> Stability:
    """Resamples prompts with replacement; nothing is run again, every prompt has its own scores.

    Args:
        size: Chooses the nodes with the largest magnitude, this many of them.
        select: Or another choice, from mean scores to places in `scores.sources`.

    Raises:
        UnweaveError: When neither is given, or the scores do not tell prompts apart.
    """
    count = scores.examples.shape[1]
    if select is None and size is None:
        raise UnweaveError("stability needs a size or a choice of nodes: pass size=…")
    if count < 2:
        raise UnweaveError(f"scores of {count} prompts cannot be resampled: use 2 prompts or more")
    choose = select or _largest(min(size or 0, len(scores.sources)))
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(count, (draws, count), generator=generator)
    examples = scores.examples.double()
    chosen = torch.zeros(draws + 1, len(scores.sources), dtype=torch.bool)
    for draw, values in enumerate([examples.mean(1), *(examples[:, r].mean(1) for r in rows)]):
        chosen[draw, list(choose(values))] = True
    first, others = chosen[0], chosen[1:]
    overlaps = torch.stack([_jaccard(first, other) for other in others])
    between = torch.stack(
        [_jaccard(one, two) for one, two in zip(others, others.roll(1, 0), strict=True)]
    )
    kept = others.double().mean(0)
    names = [name for name, there in zip(scores.sources, first.tolist(), strict=True) if there]
    return Stability(
        len(names),
        draws,
        float(overlaps.mean()),
        float(between.mean()),
        dict(zip(names, kept[first].tolist(), strict=True)),
    )


def _largest(size: int) -> Select:
    def choose(values: Float[Tensor, " source"]) -> list[int]:
        return torch.argsort(values.abs(), descending=True, stable=True)[:size].tolist()

    return choose


def _jaccard(one: Tensor, two: Tensor) -> Tensor:
    union = (one | two).sum()
    return (one & two).sum() / union if union > 0 else torch.tensor(1.0)
