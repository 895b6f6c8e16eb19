"""The prompts of a search: fewer than its own, more of them, and others to check itself on."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from unweave.scores.edge_problem import EdgeProblem
from unweave.scores.problem import Problem
from unweave.search.settings import SEARCH

P = TypeVar("P", Problem, EdgeProblem)


@dataclass(frozen=True, eq=False)
class SearchPrompts(Generic[P]):
    """A problem on as many prompts as a search needs; each number of them is drawn once.

    Args:
        problem: On the prompts that the search was given.
        limit: The most prompts that the search may draw.
    """

    problem: P
    limit: int
    drawn: dict[tuple[str, int], P] = field(default_factory=dict)

    @property
    def own(self) -> int:
        """How many prompts the search was given."""
        return len(self.problem.batch)

    @property
    def most(self) -> int:
        """The most prompts that the search may take."""
        return max(self.own, self.limit) if self.problem.draw else self.own

    def on(self, prompts: int) -> P:
        """The problem on this many prompts, or on all that there are."""
        if prompts < self.own:
            return self._once("own", prompts, lambda: self.problem.select(slice(0, prompts)))
        if prompts == self.own or self.problem.draw is None:
            return self.problem
        return self._draw("discover", prompts)

    def check(self, prompts: int) -> P:
        """As many prompts that the search does not use."""
        return self._draw("check", prompts)

    def _draw(self, part: str, prompts: int) -> P:
        draw = self.problem.draw
        assert draw is not None
        return self._once(part, prompts, lambda: draw(part, prompts))

    def _once(self, part: str, prompts: int, make: Callable[[], P]) -> P:
        if (part, prompts) not in self.drawn:
            self.drawn[part, prompts] = make()
        return self.drawn[part, prompts]


def needed(prompts: int, half: float, precision: float) -> int:
    """How many prompts make an interval as narrow as it should be, twice as many at least: steps
    between would be polished on and left again."""
    enough = prompts * (half / precision) ** 2 if precision else math.inf
    step = SEARCH.descent.proposing
    return max(2 * prompts, math.ceil(min(enough, 2**20) / step) * step)
