"""The way down of edges: blocks whose loss is foreseen to be small, then single edges.

What edges do to first order on some examples, at the circuit as it is, proposes what leaves; one
real run of the circuit without it decides.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import islice

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
        phase: What comes next: "outside", "blocks", "singles", "check", "exchange" or "done".
        prompts: On how many prompts.
        metric: Of the circuit on each of these prompts; None before it is measured.
        share: One edge in this many leaves at once.
        checks: How often other prompts said that the circuit is not faithful there.
        shift: By how much faithfulness was larger there.
        doubled: How often the weight of faithfulness was doubled, since the search missed its aim.
        untried: Edges that this pass over single edges has still to try.
        passes: Finished passes over single edges, or exchanges, on these prompts.
        changed: Whether an edge left in this pass.
        left: Edges that left, in order; some came back.
        steps: Circuits on the way.
    """

    circuit: list[str]
    phase: str = "outside"
    prompts: int = 0
    metric: list[float] | None = None
    share: int = 2
    checks: int = 0
    shift: float = 0.0
    doubled: int = 0
    untried: list[str] = field(default_factory=list)
    passes: int = 0
    changed: bool = False
    left: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    ranking: list[str] = field(default_factory=list)

    def begin(self, phase: str) -> None:
        """Begins another phase."""
        self.phase, self.passes, self.changed, self.untried = phase, 0, False, []

    @property
    def gone(self) -> list[str]:
        """Edges that are not in the circuit, in the order in which they left."""
        own = set(self.circuit)
        last = dict.fromkeys(edge for edge in reversed(self.left) if edge not in own)
        return list(last)[::-1]


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

    def outside(self, inside: Collection[str]) -> None:
        """Edges that will not be searched among leave, half of them at a time: in what order they
        come back keeps larger circuits near the model."""
        state = self.state
        while left := [edge for edge in state.circuit if edge not in inside]:
            count = -(-len(left) // 2)
            few = len(left) <= SETTINGS.tried
            gone = left if few else [left[i] for i in _together(self._forecast(left), count)]
            state.left += gone
            state.circuit, state.metric = _without(state.circuit, gone), None
            self.save()

    def blocks(self) -> None:
        """The block of edges with the smallest foreseen loss leaves, as long as one may.

        A block that may not leave is halved. After one that left, the next is twice as large: a
        run costs less than the effects that propose it.
        """
        state, least = self.state, SETTINGS.smallest_block
        while state.share <= least and len(state.circuit) >= state.share:
            forecast = self._forecast(state.circuit)
            while state.share <= least and len(state.circuit) >= state.share:
                if self._block(forecast, len(state.circuit) // state.share):
                    break
                state.share *= 2
                self.save()

    def _block(self, forecast: Forecast, count: int) -> bool:
        """Whether this many edges may leave; then they do, and the next block may be larger.

        What the first block turns out to miss of the mean that was foreseen, the second one makes
        up for.
        """
        state, miss = self.state, 0.0
        circuit = state.circuit
        allowed = min(SETTINGS.block_price * self.price * count, SETTINGS.block_loss)
        for _ in range(SETTINGS.proposals):
            places = _together(forecast.moved(miss), count)
            gone = [circuit[i] for i in places]
            found = self._measure([_without(circuit, gone)])
            if float(self.loss(found)[0]) <= self._present() + allowed + SEARCH.loss.rounding:
                state.share = max(2, state.share // 2)
                self._leave(gone, found[0])
                return True
            off = float((found[0] - self.loss.reference.full).mean()) / self.loss.scale
            miss = off - float(forecast.off.mean() + forecast.moves[:, places].sum(1).mean())
        return False

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
                order = self._forecast(state.circuit, together=False).losses().argsort(stable=True)
                state.untried = [state.circuit[int(i)] for i in order]
                state.changed, state.passes = False, state.passes + 1
            self._batch_of_singles()

    def _batch_of_singles(self) -> None:
        state, few = self.state, slice(0, SETTINGS.estimated)
        tried, circuit = state.untried[: SETTINGS.tried], state.circuit
        state.untried = state.untried[SETTINGS.tried :]
        part, loss = self.problem.select(few), self.loss.select(few)
        found = loss(part.metric([_without(circuit, [one]) for one in tried])).tolist()
        mark = float(loss(self._metric()[None, few])[0]) + self.price + SEARCH.loss.rounding
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
            allowed = self.price * count + SEARCH.loss.rounding
            if float(self.loss(found)[0]) <= self._present() + allowed:
                return cheap[:count], found[0]
            count //= 2
        return (), None

    def exchange(self, inside: Collection[str]) -> None:
        """Edges come back and leave where that pays, as many at once as a run confirms.

        Args:
            inside: Edges of which those that left last may come back.
        """
        state = self.state
        while state.passes < SETTINGS.passes:
            last = (edge for edge in reversed(state.gone) if edge in inside)
            others = list(islice(last, SETTINGS.returning))
            own, edges = set(state.circuit), [*state.circuit, *others]
            forecast = self._forecast(edges, together=False)
            prices = torch.tensor([-self.price] * len(own) + [self.price] * len(others))
            paying = forecast.paying(prices.to(forecast.size), SETTINGS.tried)
            if not any(self._exchanged([edges[i] for i in paying[:n]]) for n in _halves(paying)):
                return
            state.passes += 1
            self.save()

    def _exchanged(self, edges: Sequence[str]) -> bool:
        """Whether the circuit is better with those of the edges that it lacks and without the
        others; then it changes."""
        state = self.state
        tried = _flipped(state.circuit, edges)
        found = self._measure([tried])
        grown = len(tried) - len(state.circuit)
        worse = float(self.loss(found)[0]) + self.price * grown - self._present()
        if not tried or worse >= -SEARCH.loss.rounding:
            return False
        state.left += _without(state.circuit, tried)
        state.circuit, state.metric = tried, found[0].tolist()
        return True

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

    def _forecast(self, edges: Sequence[str], together: bool = True) -> Forecast:
        """What leaving, or coming back, of some edges does to the circuit to first order.

        Args:
            together: Whether many will leave together: then what each does is taken half on the
                way to a circuit without edges too, since the last ones to leave leave another
                circuit than the first.
        """
        circuit, scale = self.state.circuit, self.loss.scale
        own, large = set(circuit), max(len(circuit), len(edges)) > SETTINGS.many
        signs = torch.tensor([-1.0 if edge in own else 1.0 for edge in edges])
        some = slice(0, SETTINGS.estimated if large else SEARCH.descent.proposing)
        part = self.problem.select(some)
        # An edge into a saturated softmax has no derivative at the circuit, so its size is taken
        # with edges partly removed too.
        shares = (0.0, SETTINGS.removed)
        found = torch.stack([part.effects(circuit, edges, share) / scale for share in shares])
        effects = found.mean(0) if together else found[0]
        off = (self._metric() - self.loss.reference.full) / scale
        # What these prompts say of single examples; how far off the mean is, all prompts say.
        off = off[some] + (off.mean() - off[some].mean())
        size = found.abs().mean((0, 1))
        moves = effects * signs.to(effects)
        return Forecast(off, moves, size, self.loss.mean, self.loss.shift)

    def _leave(self, gone: Sequence[str], metric: Float[Tensor, " batch"]) -> None:
        state = self.state
        state.circuit, state.metric = _without(state.circuit, gone), metric.tolist()
        state.left += gone
        state.changed = True
        figures = float(self.loss(metric[None])[0]), float(self.loss.faithfulness(metric[None])[0])
        prompts = len(self.problem.batch)
        state.steps.append(Step(len(state.circuit), *figures, tuple(gone), prompts))
        self.save()


def _together(forecast: Forecast, count: int) -> list[int]:
    """This many changes to make together, in this order."""
    many = len(forecast.size) > SETTINGS.many
    return forecast.balanced(count) if many else forecast.together(count)


def _without(edges: Sequence[str], gone: Sequence[str]) -> list[str]:
    left = set(gone)
    return [edge for edge in edges if edge not in left]


def _flipped(circuit: Sequence[str], edges: Sequence[str]) -> list[str]:
    own = set(circuit)
    return [*_without(circuit, edges), *(edge for edge in edges if edge not in own)]


def _halves(found: Sequence[int]) -> list[int]:
    """As many as there are, then half as many, a few times."""
    counts = (len(found) >> i for i in range(SETTINGS.halved))
    return [count for count in counts if count]
