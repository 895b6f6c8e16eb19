"""The sweep: every source through the network in one pass over the weights.

Phases of one sweep, stage by stage (embedding, blocks, final norm, head):

1. The totals of the stage are computed once and kept on a tape (`RecordTotals`).
2. Sources of earlier stages are carried through it, a chunk at a time (`Decompose`).
3. Sources that begin in this stage are seeded on the way and join the carried ones.
4. Whatever a target needs is taken as the values pass its point; nothing else is kept.

Sources are grouped by the first position they reach: with causal attention, earlier positions
are exactly 0 and are not computed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unweave.decomposition import fused
from unweave.decomposition.algebra import Decompose, RecordTotals
from unweave.decomposition.memory import Chunks, even_spans, sources_per_call
from unweave.decomposition.precision import products
from unweave.decomposition.readers import Numbers, Reader
from unweave.decomposition.ruleset import RuleSet
from unweave.decomposition.sources import SourceSeeds
from unweave.decomposition.split import Split
from unweave.errors import UnweaveError
from unweave.model.program import Stage, Stream
from unweave.sites import Point

MakeAlgebra = Callable[..., Decompose]  # takes `Decompose`'s own arguments


@dataclass(frozen=True)
class Group:
    """Sources with one first position, numbered consecutively in the order they enter.

    Args:
        entries: Index of the stage at which each source enters, ascending.
        precise: Pushed in full precision even where the sweep uses TF32.
    """

    first: int
    start: int
    entries: tuple[int, ...]
    precise: bool = False

    def entered(self, stage: int) -> int:
        """How many sources have entered before this stage."""
        return sum(entry < stage for entry in self.entries)


@dataclass(eq=False)
class _Carried:
    """Between two stages, a group's sources: residual stream and encoder memory.

    Positions of `x` begin at `start`, which falls to 0 once values are cut to those read.
    """

    start: int
    x: Float[Tensor, "source batch rel_position d_model"] | None = None
    memory: Float[Tensor, "source batch memory d_model"] | None = None


@dataclass(eq=False)
class Sweep:
    """One pass of many sources over some examples.

    Args:
        stages: The forward pass up to the last stage that a target needs.
        seeds: Where each source is set.
        rules: How relevance passes each operation.
        readers: What is read on the way.
        numbers: The number under which readers know each source.
        reads: Positions read after the last attention; None for all.
        chunks: How many rows one call may push.
        tf32: Whether products of relevant parts (never those of totals) use TF32 on a GPU.
        algebra: Makes the operations on splits.
        output: After the run, the totals that left the last stage.
        finite: Of each stage that was run, whether all of its totals are finite.
    """

    stages: Sequence[Stage]
    seeds: SourceSeeds
    rules: RuleSet
    readers: Sequence[Reader]
    numbers: Numbers
    reads: Int[Tensor, "batch n"] | None
    chunks: Chunks
    tf32: bool = False
    algebra: MakeAlgebra = Decompose
    output: Tensor | None = None
    finite: list[Tensor] = field(default_factory=list)

    def run(self, groups: Sequence[Group]) -> Iterator[int]:
        """Runs the sweep, yielding the number of sources pushed after every call."""
        totals: Stream[Tensor] | None = None
        held = [_Carried(group.start) for group in groups]
        left = None
        for index, stage in enumerate(self.stages):
            record = RecordTotals(self.reads if stage.last else None)
            with products(tf32=False):
                after = stage.apply(record, totals)
            self.finite.append(torch.isfinite(after.x).all())
            for i, group in enumerate(groups):
                old, new = group.entered(index), group.entered(index + 1)
                if new:
                    start = group.start if left is None else 0
                    push = _Push(self, stage, record.tape, totals, left, group, held[i], start)
                    yield from push.run(old, new)
                    held[i] = push.after
            totals = after
            if stage.last:
                left = self.reads
        fused.forget()
        assert totals is not None
        self.output = totals.x

    def check_finite(self) -> None:
        """Raises where the totals were not finite. A GPU would be waited for at every stage, so it
        is asked once, at the end."""
        bad = (~torch.stack(self.finite)).nonzero().flatten().tolist()
        if bad:
            raise UnweaveError(
                f"the model's own activations are not finite after {self.stages[bad[0]].name}: "
                "look for NaN or infinite values in its weights"
            )


@dataclass(eq=False)
class _Push:
    """One group of sources through one stage."""

    sweep: Sweep
    stage: Stage
    tape: list[Tensor]
    totals: Stream[Tensor] | None
    left: Int[Tensor, "batch n"] | None
    group: Group
    before: _Carried
    entry_start: int
    after: _Carried = field(default_factory=lambda: _Carried(0))

    def run(self, old: int, new: int) -> Iterator[int]:
        # Carried and entering sources go apart: before its seed, an entering one costs nothing.
        for begin, end in (*self._spans(0, old), *self._spans(old, new)):
            out = self._call(begin, end, entering=begin >= old)
            yield end - begin
            if self.stage is self.sweep.stages[-1]:
                continue  # nothing reads what leaves the last stage
            self.after.start = out.x.start
            self.after.x = self._stored(self.after.x, self.before.x, out.x, begin, end)
            if out.memory is not None and out.memory.rel is not None:
                self.after.memory = self._stored(
                    self.after.memory, self.before.memory, out.memory, begin, end
                )

    def _call(self, begin: int, end: int, entering: bool) -> Stream[Split]:
        chunk = range(self.group.first + begin, self.group.first + end)
        sweep, numbers = self.sweep, self.sweep.numbers[chunk.start : chunk.stop]

        def visit(x: Split, point: Point, left: Tensor | None) -> Split:
            x = sweep.seeds.insert(x, point, chunk, left)
            for reader in sweep.readers:
                reader.take(x, point, numbers)
            return x

        start = self.entry_start if entering else self.before.start
        reads = sweep.reads if self.stage.last else None
        make = sweep.algebra
        ops = make(sweep.rules, self.tape, visit, start, reads, self.left, numbers, entering)
        with products(sweep.tf32 and not self.group.precise):
            out = self.stage.apply(ops, self._stream(begin, end, entering, start))
        ops.finish()
        return out

    def _stream(self, begin: int, end: int, entering: bool, start: int) -> Stream[Split] | None:
        if self.totals is None:
            return None

        def rows(x: Tensor | None) -> Tensor | None:
            return None if entering or x is None else x[begin:end]

        x = Split(rows(self.before.x), self.totals.x, start)
        if self.totals.memory is None:
            return Stream(x)
        return Stream(x, Split(rows(self.before.memory), self.totals.memory))

    def _spans(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        sample = self.tape[0] if self.totals is None else self.totals.x
        batch, positions = sample.shape[:2]
        # Groups of the cut or the head have few positions left, and start is 0 there. A decoder's
        # first stage gets the encoder's positions, which may be fewer than start.
        length = positions if self.left is not None else max(1, positions - self.group.start)
        chunks, head = self.sweep.chunks, self.stage.name == "head"
        rows = chunks.head_rows if head else chunks.rows
        return even_spans(begin, end, sources_per_call(rows, batch, length))

    def _stored(
        self, store: Tensor | None, before: Tensor | None, out: Split, begin: int, end: int
    ) -> Tensor:
        """Writes a chunk's result into the memory of the stage before, where shapes agree."""
        shape = (len(self.group.entries), *out.seen.shape)
        if store is None:
            # A decoder's first stage still reads what it would overwrite.
            begins = self.stage.name == "embed"
            fits = not begins and before is not None and before.shape == shape
            # Zeros, since a source of the decoder has no memory to write.
            store = before if fits else out.total.new_zeros(shape)
        assert store is not None
        store[begin:end] = 0.0 if out.rel is None else out.rel
        return store
