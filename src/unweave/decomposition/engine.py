"""Drives sweeps over all examples and sources, within memory, with progress and checks."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from unweave.ablation import Ablation
from unweave.decomposition.memory import Plan, make_plan, shared_starts
from unweave.decomposition.ruleset import RuleSet
from unweave.decomposition.sources import Source, first_position, plant
from unweave.decomposition.sweep import Collector, Group, Sweep
from unweave.errors import UnweaveError
from unweave.model.algebra import Plain
from unweave.model.program import Inputs, Stage, stages
from unweave.model.weights import Network, tensors
from unweave.progress import progress
from unweave.sites import Point

# Relative difference between the totals of a sweep and a plain run that rounding explains.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}


@dataclass(frozen=True, eq=False)
class Job:
    """Everything that a set of sweeps needs.

    Args:
        network: The weights, its head replaced by what the targets read.
        sources: In the order in which results are numbered.
        reads: Positions read after the last attention; None for all.
        last: The deepest point that a target needs: the run stops behind it.
        kept: Bytes the collectors keep per source and example.
        budget: Bytes that the sweeps may take beyond the model.
        tf32: Whether products of relevant parts may use TF32 on a GPU.
    """

    network: Network
    inputs: Inputs
    sources: Sequence[Source]
    positions: Mapping[str, Int[Tensor, " batch"]]
    ablation: Ablation
    rules: RuleSet
    reads: Int[Tensor, "batch n"] | None
    last: Point
    kept: int
    budget: int
    tf32: bool = False


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a sweep; `examples` says how many leading examples are finished."""

    def __init__(self, examples: int) -> None:
        super().__init__(f"interrupted: the first {examples} examples are finished")
        self.examples = examples


def drive(job: Job, collectors: Callable[[slice], Sequence[Collector]]) -> float:
    """Runs every source over every example.

    Args:
        collectors: Given the examples of a part, the collectors that take its results.

    Returns:
        Completeness: how far the totals that β was split from lie from a plain run of the
        model, relative to its largest activation.

    Raises:
        UnweaveError: When that is more than rounding, or activations are not finite.
        Interrupted: On Ctrl-C, once the collectors hold some finished examples.
    """
    check_devices(job.network, job.inputs, job.ablation)
    causal = job.network.body.blocks[0].attention.causal
    examples, positions = job.inputs.mask.shape
    firsts = [first_position(s, job.inputs, job.positions, causal) for s in job.sources]
    starts = shared_starts(firsts, examples, positions, job.network.device)
    order = _order(job, starts)
    budget, done, count, worst = job.budget, 0, len(job.inputs.mask), 0.0
    with progress("Pushing relevance forward", count) as advance:
        while done < count:
            plan = make_plan(job.network, job.inputs, starts, job.kept, budget)
            part = slice(done, min(done + plan.examples, count))
            try:
                found = _part(job, part, plan, starts, order, collectors(part), advance)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not _out_of_memory(error) or (plan.examples == 1 and plan.sources == 1):
                    raise
                budget //= 2
                continue
            except KeyboardInterrupt as interrupt:
                raise Interrupted(done) from interrupt
            worst, done = max(worst, found), part.stop
    return worst


def _part(
    job: Job,
    part: slice,
    plan: Plan,
    starts: Sequence[int],
    order: Sequence[int],
    collectors: Sequence[Collector],
    advance: Callable[[float], None],
) -> float:
    inputs, count = job.inputs.select(part), part.stop - part.start
    positions = {name: where[part] for name, where in job.positions.items()}
    reads = None if job.reads is None else job.reads[part]
    steps = stages(job.network, inputs)
    stop = stage_of(job.last, steps) + 1
    ablation, sweep = job.ablation.select(part), None
    with torch.no_grad():
        for begin in range(0, len(order), plan.sources):
            chosen = order[begin : begin + plan.sources]
            sources = [job.sources[i] for i in chosen]
            seeds = plant(sources, inputs, positions, ablation)
            numbered = [_Renumbered(c, chosen) for c in collectors]
            groups = _groups(sources, [starts[i] for i in chosen], steps)
            limits = (plan.rows, plan.head_rows)
            sweep = Sweep(steps[:stop], seeds, job.rules, numbered, reads, *limits, job.tf32)
            work = sum(max(0, stop - entry) for group in groups for entry in group.entries)
            for pushed in sweep.run(groups):
                advance(count * pushed / work * len(chosen) / len(order))
        assert sweep is not None
        return _completeness(job, inputs, sweep)


def _completeness(job: Job, inputs: Inputs, sweep: Sweep) -> float:
    """Compares the sweep's totals of one example with a plain run that shares nothing with it."""
    stream, one = None, inputs.select(slice(0, 1))
    for stage in stages(job.network, one)[: len(sweep.stages)]:
        stream = stage.apply(Plain(), stream)
    assert stream is not None
    assert sweep.output is not None
    plain, ours = stream.x, sweep.output[:1]
    side = one if one.decoder is None or sweep.stages[-1].stack == "enc" else one.decoder
    if sweep.reads is not None and any(stage.last for stage in sweep.stages):
        plain = plain[:, sweep.reads[0]]
    elif plain.shape[1] == side.mask.shape[1]:
        plain, ours = plain[:, side.mask[0]], ours[:, side.mask[0]]
    worst = float((ours - plain).abs().max() / plain.abs().max().clamp(min=1e-30))
    if not math.isfinite(worst) or worst > _TOLERANCE[ours.dtype]:
        raise UnweaveError(
            f"completeness failed: totals differ from a plain run by {worst:.1e} of their size; "
            "run `unweave check` on this model"
        )
    return worst


@dataclass(frozen=True, eq=False)
class _Renumbered:
    """A collector that sees the job's numbers of sources, not the sweep's order."""

    inner: Collector
    numbers: Sequence[int]

    def take(self, x, point: Point, chunk: range) -> None:
        wanted = self.numbers[chunk.start : chunk.stop]
        # Runs of consecutive numbers are handed on whole.
        begin = 0
        for i in range(1, len(wanted) + 1):
            if i == len(wanted) or wanted[i] != wanted[i - 1] + 1:
                rel = None if x.rel is None else x.rel[begin:i]
                run_of = range(wanted[begin], wanted[i - 1] + 1)
                self.inner.take(replace(x, rel=rel), point, run_of)
                begin = i


def stage_of(point: Point, steps: Sequence[Stage]) -> int:
    """The index of the stage in which a point is passed."""
    if point.kind == "logits":
        return len(steps) - 1
    mine = [i for i, step in enumerate(steps[:-1]) if step.stack == point.stack]
    if point.kind == "embed":
        return mine[0]
    return mine[1 + point.layer]


def _order(job: Job, starts: Sequence[int]) -> list[int]:
    steps = stages(job.network, job.inputs.select(slice(0, 1)))
    entries = [stage_of(source.first, steps) for source in job.sources]
    return sorted(range(len(job.sources)), key=lambda i: (starts[i], entries[i]))


def _groups(
    sources: Sequence[Source], starts: Sequence[int], steps: Sequence[Stage]
) -> list[Group]:
    groups: list[Group] = []
    for number, (source, start) in enumerate(zip(sources, starts, strict=True)):
        entry = stage_of(source.first, steps)
        if groups and groups[-1].start == start:
            groups[-1] = replace(groups[-1], entries=(*groups[-1].entries, entry))
        else:
            groups.append(Group(number, start, (entry,)))
    return groups


def check_devices(network: Network, inputs: Inputs, ablation: Ablation) -> None:
    """Raises unless everything lies on one device."""
    found = {tensor.device for tensor in tensors(network)}
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
