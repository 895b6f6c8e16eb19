"""The way down of edges: blocks whose loss is foreseen to be small, then single edges.

What edges do to first order on every example, at the circuit as it is, proposes what leaves; one
real run of the circuit without it decides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.scores.edge_problem import EdgeProblem
from unweave.search.forecast import Forecast
from unweave.search.loss import Loss
from unweave.search.search import Step
from unweave.search.settings import SEARCH

SETTINGS = SEARCH.edges


@dataclass(eq=False)
class EdgeState:
    """A search for edges that is under way.

    Args:
        circuit: Edges that are left.
        phase: What comes next: "blocks", "singles", "check", "exchange" or "done".
        prompts: On how many prompts.
        metric: Of the circuit on each of these prompts; None before it is measured.
        share: One edge in this many leaves at once.
        doubled: How often the weight of faithfulness was doubled, since a circuit lacked it.
        untried: Edges that this pass over single edges has still to try.
        passes: Finished passes over single edges, or exchanges, on these prompts.
        changed: Whether an edge left in this pass.
        steps: Circuits on the way.
    """

    circuit: list[str]
    phase: str = "blocks"
    prompts: int = 0
    metric: list[float] | None = None
    share: int = SETTINGS.blocks[0]
    doubled: int = 0
    untried: list[str] = field(default_factory=list)
    passes: int = 0
    changed: bool = False
    steps: list[Step] = field(default_factory=list)
    ranking: list[str] = field(default_factory=list)

    def begin(self, phase: str) -> None:
        """Begins another phase."""
        self.phase, self.passes, self.changed, self.untried = phase, 0, False, []


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

    def blocks(self) -> None:
        """The block of edges with the smallest foreseen loss leaves, as long as one may.

        A block that may not leave is halved. After one that left, the next is twice as large: a
        run costs less than the effects that propose it.
        """
        state, least = self.state, SETTINGS.blocks[-1]
        while state.share <= least and len(state.circuit) >= state.share:
            forecast = self._forecast(state.circuit)
            order = forecast.together(len(state.circuit) // state.share)
            while state.share <= least and len(state.circuit) >= state.share:
                gone = [state.circuit[i] for i in order[: len(state.circuit) // state.share]]
                found = self._measure([_without(state.circuit, gone)])
                allowed = SETTINGS.block_price * self.price * len(gone) + SETTINGS.rounding
                if float(self.loss(found)[0]) <= self._present() + allowed:
                    state.share = max(SETTINGS.blocks[0], state.share // 2)
                    self._leave(gone, found[0])
                    break
                state.share *= 2
                self.save()

    def singles(self) -> None:
        """Edges that are not worth their price leave, each tried by a run of its own.

        Those with the smallest foreseen loss are tried first. In a circuit of more than one batch,
        a batch of which hardly any leave ends this: it costs as much as several blocks.
        """
        state = self.state
        while True:
            if not state.untried:
                finished = state.passes > 0 and not state.changed
                if finished or state.passes >= SETTINGS.passes:
                    return
                order = self._forecast(state.circuit).losses().argsort(stable=True)
                state.untried = [state.circuit[int(i)] for i in order]
                state.changed, state.passes = False, state.passes + 1
            self._batch_of_singles()

    def _batch_of_singles(self) -> None:
        state, few = self.state, slice(0, SETTINGS.estimated)
        tried, circuit = state.untried[: SETTINGS.tried], state.circuit
        state.untried = state.untried[SETTINGS.tried :]
        part, loss = self.problem.select(few), self.loss.select(few)
        found = loss(part.metric([_without(circuit, [one]) for one in tried])).tolist()
        mark = float(loss(self._metric()[None, few])[0]) + self.price + SETTINGS.rounding
        order = sorted(range(len(tried)), key=lambda i: found[i])
        cheap = [tried[i] for i in order if found[i] <= mark][: len(circuit) - 1]
        gone, metric = self._largest(cheap)
        if len(gone) < SETTINGS.worthwhile and len(circuit) > SETTINGS.tried:
            state.untried, state.passes = [], SETTINGS.passes
        if metric is not None:
            self._leave(gone, metric)
        self.save()

    def _largest(
        self, cheap: Sequence[str]
    ) -> tuple[Sequence[str], Float[Tensor, " batch"] | None]:
        """Of edges that may leave one by one, as many as may leave together, and the metric
        then."""
        count = len(cheap)
        while count:
            found = self._measure([_without(self.state.circuit, cheap[:count])])
            allowed = self.price * count + SETTINGS.rounding
            if float(self.loss(found)[0]) <= self._present() + allowed:
                return cheap[:count], found[0]
            count //= 2
        return (), None

    def exchange(self, joined: Sequence[str]) -> None:
        """Edges come back and leave where that pays, several at once, as they are foreseen to."""
        state = self.state
        while state.passes < SETTINGS.passes:
            own = set(state.circuit)
            forecast = self._forecast(joined)
            prices = torch.tensor([-self.price if one in own else self.price for one in joined])
            paying = forecast.paying(prices.to(forecast.size), SETTINGS.tried)
            if not paying:
                return
            tried = [
                _flipped(state.circuit, [joined[i] for i in paying[:count]])
                for count in _halves(len(paying))
            ]
            found = self._measure(tried)
            worth = [
                float(value) + self.price * len(one)
                for value, one in zip(self.loss(found), tried, strict=True)
            ]
            best = min(range(len(tried)), key=lambda i: worth[i])
            if worth[best] >= self._present() + self.price * len(own) - SETTINGS.rounding:
                return
            state.circuit, state.metric = tried[best], found[best].tolist()
            state.passes += 1
            self.save()

    def _measure(self, circuits: Sequence[Sequence[str]]) -> Float[Tensor, "circuit batch"]:
        return self.problem.metric(circuits)

    def _metric(self) -> Float[Tensor, " batch"]:
        """The circuit's metric, as it was measured when the last edges left."""
        state, full = self.state, self.loss.reference.full
        if state.metric is None:
            state.metric = self._measure([state.circuit])[0].tolist()
        return torch.tensor(state.metric, dtype=full.dtype, device=full.device)

    def _present(self) -> float:
        return float(self.loss(self._metric()[None])[0])

    def _forecast(self, edges: Sequence[str]) -> Forecast:
        """What leaving, or coming back, of some edges does to the circuit to first order."""
        circuit, scale = self.state.circuit, self.loss.scale
        own = set(circuit)
        signs = torch.tensor([-1.0 if edge in own else 1.0 for edge in edges])
        # An edge into a saturated softmax has no derivative at the circuit, so its size is taken
        # with edges partly removed too; that needs fewer prompts than what it does on each.
        few, shares = self.problem.select(slice(0, SETTINGS.estimated)), SETTINGS.removed_shares
        effects = self.problem.effects(circuit, edges) / scale
        sizes = [effects.abs().mean(0)]
        sizes += [few.effects(circuit, edges, part).abs().mean(0) / scale for part in shares]
        off = (self._metric() - self.loss.reference.full) / scale
        return Forecast(off, effects * signs.to(effects), torch.stack(sizes).mean(0))

    def _leave(self, gone: Sequence[str], metric: Float[Tensor, " batch"]) -> None:
        state = self.state
        state.circuit, state.metric = _without(state.circuit, gone), metric.tolist()
        state.changed = True
        figures = float(self.loss(metric[None])[0]), float(self.loss.faithfulness(metric[None])[0])
        prompts = len(self.problem.batch)
        state.steps.append(Step(len(state.circuit), *figures, tuple(gone), prompts))
        self.save()


def _without(edges: Sequence[str], gone: Sequence[str]) -> list[str]:
    left = set(gone)
    return [edge for edge in edges if edge not in left]


def _flipped(circuit: Sequence[str], edges: Sequence[str]) -> list[str]:
    own = set(circuit)
    return [*_without(circuit, edges), *(edge for edge in edges if edge not in own)]


def _halves(count: int) -> list[int]:
    sizes = [count]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] // 2)
    return sizes
