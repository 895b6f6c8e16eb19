"""The prompts of a search: fewer than its own, more of them, and others to check itself on."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from unweave.estimates import Estimate
from unweave.scores.edge_problem import EdgeProblem
from unweave.scores.problem import Problem, Runs
from unweave.search.settings import SEARCH

P = TypeVar("P", Problem, EdgeProblem)


class Checked(NamedTuple):
    """A circuit on prompts that the search does not use.

    Args:
        faithfulness: There.
        shift: How much larger it is there than on the search's own prompts.
    """

    faithfulness: Estimate
    shift: float


@dataclass(frozen=True, eq=False)
class SearchPrompts(Generic[P]):
    """A problem on as many prompts as a search needs; each number of them is drawn once.

    Args:
        problem: On the prompts that the search was given.
        limit: The most prompts that the search may take, if that is more than its own.
        checked: The most prompts that a circuit is checked on; 0 for its own.
    """

    problem: P
    limit: int
    checked: int
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

    def wider(self, prompts: int, half: float, precision: float) -> int:
        """How many prompts make an interval as narrow as it should be, twice as many at least:
        steps between would be polished on and left again."""
        return min(self.most, max(2 * prompts, _needed(prompts, half, precision)))

    def others(self, prompts: int, circuit: Sequence[Any], precision: float) -> P:
        """Prompts that the search does not use, enough for an interval as narrow as `precision`, by
        a circuit's interval on this many of its own; where none can be drawn, all of its own."""
        return self._others(prompts, _estimate(self.on(prompts), circuit).half, precision)

    def check(self, prompts: int, circuit: Sequence[Any], precision: float) -> Checked:
        """A circuit that was found on this many prompts, on others.

        Among many circuits a search takes one that its own prompts flatter. One circuit on many
        others costs little, and says by how much.
        """
        own = _estimate(self.on(prompts), circuit)
        found = _estimate(self._others(prompts, own.half, precision), circuit)
        return Checked(found, found.value - own.value)

    def _others(self, prompts: int, half: float, precision: float) -> P:
        if not (self.problem.draw and self.checked):
            return self.problem
        return self._draw("check", min(self.checked, _needed(prompts, half, precision)))

    def _draw(self, part: str, prompts: int) -> P:
        draw = self.problem.draw
        assert draw is not None
        return self._once(part, prompts, lambda: draw(part, prompts))

    def _once(self, part: str, prompts: int, make: Callable[[], P]) -> P:
        if (part, prompts) not in self.drawn:
            self.drawn[part, prompts] = make()
        return self.drawn[part, prompts]


def _estimate(problem: Runs[Any], circuit: Sequence[Any]) -> Estimate:
    return problem.reference.estimate(problem.metric([circuit])[0])


def _needed(prompts: int, half: float, precision: float) -> int:
    """How many prompts make an interval as narrow as it should be."""
    enough = prompts * (half / precision) ** 2 if precision else math.inf
    step = SEARCH.descent.proposing
    return math.ceil(max(prompts, min(enough, 2**20)) / step) * step
