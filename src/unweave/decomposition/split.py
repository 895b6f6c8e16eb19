"""`Split`: an activation as relevant part and total."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Split:
    """T = β + γ for many sources at once.

    Args:
        rel: β of each source, from position `start` on (it is 0 before); None is 0 everywhere,
            and costs nothing to propagate.
        total: T, shared by all sources, at every position.
        start: First position that `rel` holds.
    """

    rel: Float[Tensor, "source batch rel_position *unit"] | None
    total: Float[Tensor, "batch position *unit"]
    start: int = 0

    @property
    def seen(self) -> Float[Tensor, "batch rel_position *unit"]:
        """The total at the positions that `rel` holds."""
        return self.total[:, self.start :]
