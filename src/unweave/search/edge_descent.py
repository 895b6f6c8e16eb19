"""The way down of edges: blocks that do least leave, then single edges; each change is a real run.

What an edge does to first order, at the circuit as it is, only proposes what is then tried.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from unweave.scores.edge_problem import EdgeProblem
from unweave.search.loss import Loss
from unweave.search.search import Step
from unweave.search.settings import SEARCH

SETTINGS = SEARCH.edges


@dataclass(eq=False)
class EdgeState:
    """A search for edges that is under way.

    Args:
        circuit: Edges that are left.
        phase: What comes next: "blocks", "singles", "check", "returns" or "done".
        prompts: On how many prompts.
        loss: Of the circuit on these prompts; None before it is measured.
        held: Edges that are needed in spite of a small effect to first order.
        untried: Edges that this pass over single edges has still to try.
        passes: Finished passes over single edges on these prompts; before that, how many times in a
            row no block could leave.
        changed: Whether an edge left in this pass.
        steps: Circuits on the way.
    """

    circuit: list[str]
    phase: str = "blocks"
    prompts: int = 0
    loss: float | None = None
    held: list[str] = field(default_factory=list)
    untried: list[str] = field(default_factory=list)
    passes: int = 0
    changed: bool = False
    steps: list[Step] = field(default_factory=list)
    ranking: list[str] = field(default_factory=list)

    def begin(self, phase: str) -> None:
        """Begins another phase."""
        self.phase, self.passes, self.changed = phase, 0, False
        self.held, self.untried = [], []


@dataclass(frozen=True, eq=False)
class EdgeDescent:
    """The way down on one set of prompts.

    Args:
        price: Loss that one edge less may cost.
        save: Called after every change of the state.
    """

    problem: EdgeProblem
    loss: Loss
    price: float
    state: EdgeState
    save: Callable[[], None]

    def measure(self, circuits: Sequence[Sequence[str]]) -> list[tuple[float, float]]:
        """Loss and faithfulness of each circuit."""
        metric = self.problem.metric(circuits)
        values = (self.loss(metric).tolist(), self.loss.faithfulness(metric).tolist())
        return list(zip(*values, strict=True))

    def blocks(self) -> None:
        """The largest block of edges that do least leaves, as long as one may.

        Where none may, the first edges of the order leave one half after the other, up to the one
        that is needed in spite of its small effect; it is held from then on.
        """
        present, state = self._present(), self.state
        while state.passes < SETTINGS.patience:
            order = self._by_effect(_without(state.circuit, state.held))
            large = sorted({len(order) // share for share in SETTINGS.blocks} - {0}, reverse=True)
            if not large:
                return
            for sizes in (large, _halves(large[-1])):
                found = self.measure([_without(state.circuit, order[:size]) for size in sizes])
                allowed = SETTINGS.block_price * self.price
                chosen = _first_cheap(sizes, found, present, allowed)
                if chosen is not None:
                    break
            state.passes = 0 if sizes is large else state.passes + 1
            if chosen is None:
                state.held.append(order[0])
                self.save()
                continue
            present = found[chosen][0]
            self._leave(order[: sizes[chosen]], found[chosen])

    def singles(self) -> None:
        """Every edge that is not worth its price leaves; each one that stays was tried."""
        state = self.state
        while True:
            if not state.untried:
                finished = state.passes > 0 and not state.changed
                if finished or state.passes >= SETTINGS.passes:
                    return
                state.untried, state.changed = self._by_effect(state.circuit), False
                state.passes += 1
            self._pass()

    def _pass(self) -> None:
        """Tries the edges that were not tried yet, those that do least to first order first."""
        present, state = self._present(), self.state
        while state.untried:
            tried = state.untried[: SETTINGS.tried]
            found = self.measure([_without(state.circuit, [one]) for one in tried])
            order = sorted(range(len(tried)), key=lambda i: found[i][0])
            mark = present + self.price + SETTINGS.rounding
            cheap = [tried[i] for i in order if found[i][0] <= mark][: len(state.circuit) - 1]
            state.untried = state.untried[SETTINGS.tried :]
            if cheap:
                sizes = _halves(len(cheap))
                found = self.measure([_without(state.circuit, cheap[:n]) for n in sizes])
                chosen = _first_cheap(sizes, found, present, self.price)
                chosen = len(sizes) - 1 if chosen is None else chosen
                present = found[chosen][0]
                self._leave(cheap[: sizes[chosen]], found[chosen])
            else:
                self.save()

    def returns(self, outside: Sequence[str]) -> None:
        """Edges outside come back, the best one each time, as long as that pays."""
        present, circuit, outside = self._present(), list(self.state.circuit), list(outside)
        while outside:
            tried = self._by_effect(outside, circuit)[::-1][: SETTINGS.tried]
            found = self.measure([[*circuit, one] for one in tried])
            best = min(range(len(tried)), key=lambda i: found[i][0])
            if found[best][0] > present - self.price - SETTINGS.rounding:
                break
            circuit, present = [*circuit, tried[best]], found[best][0]
            outside.remove(tried[best])
        self.state.circuit, self.state.loss = circuit, present

    def _present(self) -> float:
        """The loss of the circuit, as it was measured when the last edges left."""
        if self.state.loss is None:
            self.state.loss = self.measure([self.state.circuit])[0][0]
        return self.state.loss

    def _by_effect(self, edges: Sequence[str], circuit: Sequence[str] | None = None) -> list[str]:
        """Edges by the size of what they do to the circuit to first order, the smallest first."""
        circuit = self.state.circuit if circuit is None else circuit
        some = self.problem.select(slice(0, SETTINGS.estimated))
        taken = [some.effects(circuit, edges, part) for part in SETTINGS.removed_shares]
        effects = torch.stack(taken).abs().mean((0, 1))
        return [edges[int(i)] for i in torch.argsort(effects, stable=True)]

    def _leave(self, gone: Sequence[str], found: tuple[float, float]) -> None:
        state = self.state
        state.circuit, state.loss = _without(state.circuit, gone), found[0]
        state.changed = True
        prompts = len(self.problem.batch)
        state.steps.append(Step(len(state.circuit), *found, tuple(gone), prompts))
        self.save()


def _without(edges: Sequence[str], gone: Sequence[str]) -> list[str]:
    left = set(gone)
    return [edge for edge in edges if edge not in left]


def _halves(count: int) -> list[int]:
    sizes = [count]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] // 2)
    return sizes


def _first_cheap(
    sizes: Sequence[int], found: Sequence[tuple[float, float]], present: float, price: float
) -> int | None:
    """The first of some blocks that may leave: it costs no more than its price."""
    pairs = zip(sizes, found, strict=True)
    marks = (one[0] <= present + price * size + SETTINGS.rounding for size, one in pairs)
    return next((i for i, cheap in enumerate(marks) if cheap), None)
