"""Memory and chunks: how much a sweep takes, and how many examples, sources and rows at once fit.

Every size that the engine chooses is chosen here. A budget is a promise about what a call takes
beyond the model: results, the ablation it computes, totals, relevant parts and their temporaries.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unweave.ablation import side_of
from unweave.errors import UnweaveError
from unweave.model.program import Inputs
from unweave.model.sizes import free_memory, memory_size
from unweave.model.weights import Linear, Network, Stack, tensors
from unweave.sites import HEAD_KINDS, Point, Site

# Enough rows to keep the matrix products busy, few enough that a CPU's elementwise work stays
# near its caches (benchmarks/sweep.py).
_CPU_ROWS, _GPU_ROWS = 2048, 1 << 17
# On a GPU wide models need fewer rows to be busy: what a call's temporaries take, and the fewest.
_GPU_CALL, _GPU_LEAST = 4 << 30, 1 << 14
# Sources that should share a call: what is done once per call with the totals is divided by them.
_SHARING = 8
# Sources with fewer rows than this go with those of later positions: reading the weights once more
# costs more than pushing zeros.
_CPU_FEW, _GPU_FEW = 128, 4096
# Elements of a part of elementwise work: about what a core's cache holds.
_CACHE = 1 << 18
# Examples of a plain run before the sweep (ablations, the metric's gradient).
_PLAIN_EXAMPLES = 32
# What the allocator and the interpreter take beyond the tensors of a small job.
_OVERHEAD = 4 << 20


@dataclass(frozen=True)
class Chunks:
    """How much of a job goes at once: examples and sources a sweep, rows a call.

    Args:
        rows: Source × example × position rows that one call pushes; never less than one source.
        head_rows: The same through the head, whose outputs are much wider.
    """

    examples: int
    sources: int
    rows: int
    head_rows: int


@dataclass(frozen=True)
class Footprint:
    """Bytes that a job takes, by what they grow with.

    Args:
        fixed: Whatever the chunks: results and the ablation that was computed for the call.
        example: Totals of the widest stage, for each example.
        carried: The residual stream of each source and example, between two stages.
        row: Temporaries of a stage, for each row of a call.
        head_row: The same in the head.
        positions: Rows of one source and one example.
        read: Rows of one source and one example in the head.
    """

    fixed: int
    example: int
    carried: int
    row: int
    head_row: int
    positions: int
    read: int

    def bytes(self, chunks: Chunks) -> int:
        """The peak of a job that is cut so."""
        rows = max(chunks.rows, chunks.examples * self.positions)
        head_rows = max(chunks.head_rows, chunks.examples * self.read)
        pushed = max(rows * self.row, head_rows * self.head_row)
        state = chunks.examples * chunks.sources * self.carried
        return self.fixed + chunks.examples * self.example + state + pushed

    @property
    def least(self) -> int:
        """The smallest possible budget: one source on one example at a time."""
        return self.bytes(Chunks(1, 1, self.positions, self.read))

    def check(self, budget: int) -> None:
        """Raises when even one source on one example needs more than the budget."""
        if self.least > budget:
            raise UnweaveError(
                f"memory {_amount(budget, math.floor)} is not enough: one source on one example "
                f"and the results take {_amount(self.least, math.ceil)}, the smallest possible "
                "budget"
            )


def memory_budget(memory: str | int | None, device: torch.device) -> int:
    """Bytes from "4GB", a number, or None: half of what is free.

    Raises:
        UnweaveError: For text that is not a size, or a size that is not positive.
    """
    return free_memory(device) // 2 if memory is None else memory_size(memory)


def stored_bytes(network: Network) -> int:
    """What a network's weights take on the device that computes."""
    here = {id(x): x for x in tensors(network) if x.device == network.device}
    return sum(x.numel() * x.element_size() for x in here.values())


def footprint(network: Network, inputs: Inputs, fixed: int, read: int | None) -> Footprint:
    """What a sweep of a network takes.

    Args:
        fixed: Bytes of results and of what else was made for the call.
        read: Positions that the head sees; None for all, 0 where the run stops before it.
    """
    size = network.dtype.itemsize
    width, hidden, heads = _widths(network)
    outputs = _outputs(network)
    sides = [i.mask.shape[1] for i in (inputs, inputs.decoder) if i is not None]
    positions = max(sides)
    seen = positions if read is None else read
    tape = positions * (14 * width + 4 * hidden + 3 * heads * positions) * size
    head = seen * 3 * outputs * size
    return Footprint(
        fixed=fixed + _OVERHEAD + (0 if network.window is None else network.window.bytes),
        example=max(tape, head),
        carried=sum(sides) * width * size,
        # Attention's temporaries are gone when the MLP's begin.
        row=max(13 * width + 4 * heads * positions, 5 * width + 4 * hidden) * size,
        head_row=3 * outputs * size,
        positions=positions,
        read=seen,
    )


def fit(job: Footprint, examples: int, sources: int, budget: int, device: torch.device) -> Chunks:
    """The chunks of a job within a budget.

    Raises:
        UnweaveError: When even one source on one example needs more, naming how much.
    """
    job.check(budget)
    room = budget - job.fixed
    wanted = _CPU_ROWS
    if device.type == "cuda":
        wanted = min(_GPU_ROWS, max(_GPU_LEAST, _GPU_CALL // job.row))
    rows = min(wanted, room // 4 // job.row)
    rows = max(rows, job.positions)
    together = max(1, rows // (min(_SHARING, sources) * job.positions))
    head_rows = max(job.read, min(rows, rows * job.row // job.head_row))

    def fits(some: int, many: int) -> bool:
        return job.bytes(Chunks(some, many, rows, head_rows)) <= budget

    while rows > job.positions and not fits(1, 1):
        rows = max(job.positions, rows // 2)
        head_rows = max(job.read, min(rows, rows * job.row // job.head_row))
    some = min(examples, together)
    while some > 1 and not fits(some, sources):
        some -= 1
    many = sources
    if not fits(some, many):
        left = budget - job.bytes(Chunks(some, 0, rows, head_rows))
        many = max(1, left // job.carried)
    return Chunks(some, many, rows, head_rows)


def _amount(size: int, rounded: Callable[[float], int]) -> str:
    """A size that `memory_budget` reads back as no less (ceil) or no more (floor)."""
    if size < 10**6:
        return f"{rounded(size / 10**3)}KB"
    return f"{rounded(size / 10**6)}MB"


def point_bytes(network: Network, inputs: Inputs, points: Iterable[Point]) -> int:
    """What activations at some points take, for all examples."""
    each = sum(side_of(p, inputs).mask.numel() * _units(network, p) for p in points)
    return each * network.dtype.itemsize


def kept_bytes(network: Network, inputs: Inputs, sites: Sequence[Site], sources: int) -> int:
    """What the relevant parts of every source at some sites take, and their totals."""
    each = 0
    for site in sites:
        mask = side_of(site.point, inputs).mask
        rows = len(mask) if site.position is not None else mask.numel()
        units = 1 if site.unit is None else _unit_count(network, site.point)
        each += rows * _units(network, site.point) // units
    return each * (sources + 1) * network.dtype.itemsize


def scores_bytes(network: Network, inputs: Inputs, sources: int, targets: int) -> int:
    """What scores of every source and pair take: two sets of sums while a part runs, and those
    that are returned."""
    each = 4 * len(inputs.mask) + 12 * targets
    return each * sources * network.dtype.itemsize


def edge_bytes(network: Network, inputs: Inputs, nodes: int) -> int:
    """What edge scores hold for each example: what all nodes wrote, and a run's gradients."""
    width, hidden, heads = _widths(network)
    positions = inputs.mask.shape[1]
    graph = len(network.body.blocks) * (16 * width + 6 * hidden + 4 * heads * positions)
    return positions * max(nodes * width, graph) * network.dtype.itemsize


def _unit_count(network: Network, point: Point) -> int:
    _, hidden, heads = _widths(network)
    return hidden if point.kind == "neuron" else heads if point.kind in HEAD_KINDS else 1


def _units(network: Network, point: Point) -> int:
    """Numbers at one position of a point."""
    width, hidden, _ = _widths(network)
    if point.kind == "logits":
        return _outputs(network)
    return hidden if point.kind == "neuron" else width


def plain_examples(network: Network, inputs: Inputs, budget: int) -> int:
    """How many examples a plain run takes before the sweep, which then needs the same memory."""
    one = footprint(network, inputs, 0, 1)
    return max(1, min(_PLAIN_EXAMPLES, budget // 2 // max(1, one.example + one.row)))


def sources_per_call(rows: int, batch: int, positions: int) -> int:
    return max(1, rows // (batch * positions))


def even_spans(begin: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    """Cuts a range into even spans of at most `size`: a last chunk of one source would waste the
    matrix products."""
    count = -(-(end - begin) // size)
    for i in range(count):
        yield begin + (end - begin) * i // count, begin + (end - begin) * (i + 1) // count


def cache_parts(x: Tensor) -> Iterator[tuple[slice, slice, slice]]:
    """Cuts sources, examples and positions into parts that a cache holds; on a GPU, one part."""
    sources, examples, positions = x.shape[:3]
    each = max(1, x.shape[3:].numel())
    rows = x.numel() if x.is_cuda else max(1, _CACHE // each)
    p = min(rows, positions)
    e = min(rows // p, examples)
    s = rows // (p * e)
    for i in range(0, examples, e):
        for j in range(0, positions, p):
            for k in range(0, sources, s):
                yield slice(k, k + s), slice(i, i + e), slice(j, j + p)


def shared_starts(
    starts: Sequence[int], examples: int, positions: int, device: torch.device
) -> list[int]:
    """First positions, lowered so that sources with few rows share their pass over the weights.

    Before its first position a source's relevant part is exactly 0, computed or not.
    """
    few = _GPU_FEW if device.type == "cuda" else _CPU_FEW
    shared: dict[int, int] = {}
    rows, first = few, 0
    for start in sorted(starts):
        if rows >= few and start not in shared:
            rows, first = 0, start
        shared.setdefault(start, first)
        rows += examples * (positions - first)
    return [shared[start] for start in starts]


def _widths(network: Network) -> tuple[int, int, int]:
    stacks: list[Stack] = [network.body, *([network.encoder] if network.encoder else [])]
    blocks = [block for stack in stacks for block in stack.blocks]
    width = max(n for block in blocks for n in block.attention.out.shape)
    hidden = max((b.mlp.inp.shape[0] for b in blocks if b.mlp is not None), default=width)
    heads = max(block.attention.heads for block in blocks)
    return width, hidden, heads


def _outputs(network: Network) -> int:
    linears = [step for step in network.head.steps if isinstance(step, Linear)]
    return max((step.shape[0] for step in linears), default=_widths(network)[0])
