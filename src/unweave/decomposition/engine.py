"""Runs sweeps over all examples and sources, within memory, with progress and checks."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unweave.ablation import Ablation
from unweave.decomposition.algebra import Decompose
from unweave.decomposition.completeness import check_part
from unweave.decomposition.memory import Chunks, Footprint, fit, shared_starts
from unweave.decomposition.precision import TF32_TOLERANCE
from unweave.decomposition.readers import Reader
from unweave.decomposition.ruleset import RuleSet
from unweave.decomposition.sources import Source, first_position, make_seeds
from unweave.decomposition.sweep import Group, MakeAlgebra, Sweep
from unweave.errors import UnweaveError
from unweave.model.program import Inputs, Stage, stages
from unweave.model.weights import Network, tensors
from unweave.progress import progress
from unweave.sites import Point

Advance = Callable[[float], None]


@dataclass(frozen=True, eq=False)
class Job:
    """Everything that a set of sweeps needs.

    Args:
        network: The weights, its head replaced by what the targets read.
        sources: In the order in which results are numbered.
        reads: Positions read after the last attention; None for all.
        last: The deepest point that a target needs: the run stops behind it.
        footprint: What the job takes, results and ablation included.
        budget: Bytes that it may take beyond the model.
        tf32: Whether products of relevant parts use TF32 on a GPU.
        algebra: Given the examples of a part, what makes its operations on splits; None for
            `Decompose` as it is.
    """

    network: Network
    inputs: Inputs
    sources: Sequence[Source]
    positions: Mapping[str, Int[Tensor, " batch"]]
    ablation: Ablation
    rules: RuleSet
    reads: Int[Tensor, "batch n"] | None
    last: Point
    footprint: Footprint
    budget: int
    tf32: bool = False
    algebra: Callable[[slice], MakeAlgebra] | None = None

    @property
    def rechecked(self) -> tuple[int, ...]:
        """Sources that are pushed once more in full precision, where the others use TF32."""
        count = len(self.sources)
        return tuple(sorted({0, count // 2, count - 1})) if self.tf32 else ()

    @property
    def rows(self) -> int:
        """How many rows results have: the sources, and again those that are rechecked."""
        return len(self.sources) + len(self.rechecked)

    def select(self, sources: slice, examples: slice) -> "Job":
        """The job of some sources on some examples, without an algebra of its own."""
        assert self.algebra is None
        return replace(
            self,
            inputs=self.inputs.select(examples),
            sources=self.sources[sources],
            positions={name: where[examples] for name, where in self.positions.items()},
            ablation=self.ablation.select(examples),
            reads=None if self.reads is None else self.reads[examples],
        )


@dataclass(frozen=True, eq=False)
class SweptPart:
    """A finished part of a job.

    Args:
        readers: They hold the results of these examples.
        completeness: The largest relative difference that the checks found.
        tf32: By how much TF32 changed the rechecked sources, as a share of the largest value;
            None where it was not used or not checked.
    """

    examples: slice
    readers: Sequence[Reader]
    completeness: float
    tf32: float | None


@dataclass(frozen=True, eq=False)
class _Order:
    """Sources in the order of the sweep: by first position, then by the stage they enter at."""

    numbers: tuple[int, ...]
    starts: tuple[int, ...]
    entries: tuple[int, ...]


def sweep_parts(job: Job, readers: Callable[[slice], Sequence[Reader]]) -> Iterator[SweptPart]:
    """Runs every source over every example.

    Args:
        readers: Given the examples of a part, the readers that take its results. A part that ran
            out of memory is begun again with fewer examples and new readers.

    Raises:
        UnweaveError: When a check fails, activations are not finite, or the budget is too small.
    """
    check_devices(job.network, job.inputs, job.ablation)
    order, done, count = _order(job), 0, len(job.inputs.mask)
    budget, device = job.budget, job.network.device
    with progress("Pushing relevance forward", count) as advance:
        while done < count:
            chunks = fit(job.footprint, count - done, len(job.sources), budget, device)
            part = slice(done, min(done + chunks.examples, count))
            taken = readers(part)
            try:
                completeness = _PartRun(job, part, chunks, order, taken).run(advance)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                budget //= 2
                if not _out_of_memory(error) or budget < job.footprint.least:
                    raise
                continue
            change = _change_by_tf32(job, taken) if job.rechecked and done == 0 else None
            if change is not None and change > TF32_TOLERANCE:
                warnings.warn(
                    f"TF32 changes relevant parts by {change:.1%} of the largest: full float32 "
                    "is used instead",
                    stacklevel=3,
                )
                job = replace(job, tf32=False)
                continue
            yield SweptPart(part, taken, completeness, change)
            done = part.stop


@dataclass(frozen=True, eq=False)
class _PartRun:
    """Every source over the examples of one part."""

    job: Job
    part: slice
    chunks: Chunks
    order: _Order
    readers: Sequence[Reader]

    def run(self, advance: Advance) -> float:
        """Returns what the checks found."""
        job, inputs = self.job, self.job.inputs.select(self.part)
        steps = stages(job.network, inputs)
        steps = steps[: stage_of(job.last, steps) + 1]
        total, first, output = len(self.order.numbers), self.part.start == 0, None
        algebra = Decompose if job.algebra is None else job.algebra(self.part)
        swept: list[Sweep] = []
        with torch.no_grad():
            for begin in range(0, total, self.chunks.sources):
                some = range(begin, min(begin + self.chunks.sources, total))
                again = job.rechecked if first and some.stop == total else ()
                sweep, groups = self._sweep(steps, some, again)
                sweep = replace(sweep, algebra=algebra)
                work = sum(len(steps) - e for g in groups for e in g.entries if e < len(steps))
                for pushed in sweep.run(groups):
                    advance(len(inputs.mask) * pushed / work * len(some) / total)
                swept.append(sweep)
                output = sweep.output
            assert output is not None
            one = inputs.select(slice(0, 1))
            rules = job.rules if first and job.rules.conserves else None
            begun = stages(job.network, one)[: len(steps)]
            check = check_part(begun, one, self.reads, output, rules, later=output.is_cuda)
            for sweep in swept:
                sweep.check_finite()
            return check()

    @property
    def reads(self) -> Int[Tensor, "batch n"] | None:
        return None if self.job.reads is None else self.job.reads[self.part]

    def _sweep(
        self, steps: Sequence[Stage], some: range, again: Sequence[int]
    ) -> tuple[Sweep, list[Group]]:
        """One sweep of some of the sources, those that are rechecked `again` behind them."""
        job, order = self.job, self.order
        chosen = [*some, *(order.numbers.index(number) for number in again)]
        sources = [job.sources[order.numbers[i]] for i in chosen]
        positions = {name: where[self.part] for name, where in job.positions.items()}
        inputs, ablation = job.inputs.select(self.part), job.ablation.select(self.part)
        seeds = make_seeds(sources, inputs, positions, ablation)
        numbers = [order.numbers[i] for i in some]
        numbers += range(len(job.sources), len(job.sources) + len(again))
        groups: list[Group] = []
        for i, place in enumerate(chosen):
            start, entry, precise = order.starts[place], order.entries[place], i >= len(some)
            if groups and (groups[-1].start, groups[-1].precise) == (start, precise):
                groups[-1] = replace(groups[-1], entries=(*groups[-1].entries, entry))
            else:
                groups.append(Group(i, start, (entry,), precise))
        index = torch.tensor(numbers, device=job.network.device)
        sweep = Sweep(
            steps, seeds, job.rules, self.readers, index, self.reads, self.chunks, job.tf32
        )
        return sweep, groups


def _change_by_tf32(job: Job, readers: Sequence[Reader]) -> float:
    """The largest difference between rechecked sources and their rows in full precision."""
    device, worst = job.network.device, 0.0
    fast = torch.tensor(job.rechecked, device=device)
    full = torch.arange(len(job.sources), job.rows, device=device)
    for reader in readers:
        before, after = reader.values(fast), reader.values(full)
        if before is not None and after is not None:
            size = _largest(reader, job).clamp(min=torch.finfo(after.dtype).tiny)
            worst = max(worst, float((before - after).abs().max() / size))
    return worst


def _largest(reader: Reader, job: Job) -> Float[Tensor, ""]:
    """The largest of all values that were read: those rechecked may be small ones."""
    found = []
    for numbers in torch.arange(job.rows, device=job.network.device).split(64):
        values = reader.values(numbers)
        assert values is not None
        found.append(values.abs().max())
    return torch.stack(found).max()


def stage_of(point: Point, steps: Sequence[Stage]) -> int:
    """The index of the stage in which a point is passed."""
    if point.kind == "logits":
        return len(steps) - 1
    mine = [i for i, step in enumerate(steps[:-1]) if step.stack == point.stack]
    if point.kind == "embed":
        return mine[0]
    return mine[1 + point.layer]


def _order(job: Job) -> _Order:
    causal = job.network.body.blocks[0].attention.causal
    examples, positions = job.inputs.mask.shape
    firsts = [first_position(s, job.inputs, job.positions, causal) for s in job.sources]
    starts = shared_starts(firsts, examples, positions, job.network.device)
    steps = stages(job.network, job.inputs.select(slice(0, 1)))
    entries = [stage_of(source.first, steps) for source in job.sources]
    rank = sorted(range(len(job.sources)), key=lambda i: (starts[i], entries[i]))
    return _Order(tuple(rank), tuple(starts[i] for i in rank), tuple(entries[i] for i in rank))


def check_devices(network: Network, inputs: Inputs, ablation: Ablation) -> None:
    """Raises unless everything lies on one device."""
    own = {tensor.device for tensor in tensors(network)}
    found = own if network.window is None else {network.device}
    found |= {inputs.mask.device, *(v.device for v in ablation.values.values())}
    if len(found) > 1:
        listed = ", ".join(sorted(map(str, found)))
        raise UnweaveError(
            f"weights, prompts and ablation are on several devices ({listed}): move them to one "
            "with model.to(…)"
        )


def _out_of_memory(error: RuntimeError) -> bool:
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or (
        "memory" in text and ("allocate" in text or "not enough" in text)
    )
