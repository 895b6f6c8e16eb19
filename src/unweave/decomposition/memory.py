"""The planner: how many examples, sources and rows at once fit a memory budget."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from unweave.errors import UnweaveError
from unweave.model.program import Inputs
from unweave.model.weights import Linear, Network, Stack

# Enough rows to keep the matrix products busy, few enough that a CPU's elementwise work stays
# near its caches (benchmarks/sweep.py).
_CPU_ROWS, _GPU_ROWS = 2048, 1 << 16
# Sources that should share a call: what is done once per call with the totals is divided by them.
_SHARING = 8
# Sources with fewer rows than this go with those of later positions: reading the weights once more
# costs more than pushing zeros.
_CPU_FEW, _GPU_FEW = 128, 4096
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_FALLBACK = 4 * 10**9


@dataclass(frozen=True)
class Plan:
    """One sweep takes so many examples and sources, pushed so many rows a call."""

    examples: int
    sources: int
    rows: int
    head_rows: int


def memory_budget(memory: str | int | None, device: torch.device) -> int:
    """Bytes from "4GB", a number, or None: half of what is free.

    Raises:
        UnweaveError: For text that is not a size, or a size that is not positive.
    """
    if memory is None:
        return _free(device) // 2
    match = re.fullmatch(r"\s*(\d+\.?\d*)\s*([KMGT]?)i?B?\s*", str(memory), re.IGNORECASE)
    size = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if size <= 0:
        raise UnweaveError(f"memory {memory!r} is not a size: expected e.g. '4GB' or '500MB'")
    return size


def _free(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if "SC_AVPHYS_PAGES" in os.sysconf_names:
        pages = os.sysconf("SC_AVPHYS_PAGES")
        if os.path.exists("/proc/meminfo"):
            # Linux counts the page cache as used; what is available includes it.
            with open("/proc/meminfo") as file:
                fields = dict(line.split(":", 1) for line in file)
            if "MemAvailable" in fields:
                return int(fields["MemAvailable"].split()[0]) * 1024
        return pages * os.sysconf("SC_PAGE_SIZE")
    return _FALLBACK


def make_plan(
    network: Network, inputs: Inputs, starts: Sequence[int], kept: int, budget: int
) -> Plan:
    """Sizes a sweep.

    Args:
        starts: First position of each source.
        kept: Bytes that the collectors keep per source and example.
        budget: Bytes that the sweep may take beyond the model.
    """
    size = network.dtype.itemsize
    width, hidden, heads = _widths(network)
    positions = max(i.mask.shape[1] for i in (inputs, inputs.decoder) if i is not None)
    sides = 1 if network.encoder is None else 2
    state = [sides * (positions - start) * width * size + kept for start in starts]
    row = (10 * width + 6 * hidden + 4 * heads * positions) * size
    tape = positions * (14 * width + 6 * hidden + 3 * heads * positions) * size
    gpu = network.device.type == "cuda"
    rows = max(1, min(_GPU_ROWS if gpu else _CPU_ROWS, budget // 4 // row))
    head_rows = max(1, min(rows, budget // 8 // (4 * _outputs(network) * size)))
    room = max(0, budget * 6 // 10)
    together = max(1, rows // (min(_SHARING, len(starts)) * positions))
    examples = min(len(inputs.mask), together, room // (sum(state) + tape))
    sources = len(starts)
    if examples < 1:
        examples = 1
        sources = max(1, min(sources, (room - tape) // max(state)))
    return Plan(examples, sources, rows, head_rows)


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
    width = max(len(block.attention.out.matrix) for block in blocks)
    hidden = max((len(b.mlp.inp.matrix) for b in blocks if b.mlp is not None), default=width)
    heads = max(block.attention.heads for block in blocks)
    return width, hidden, heads


def _outputs(network: Network) -> int:
    linears = [step for step in network.head.steps if isinstance(step, Linear)]
    return max((len(step.matrix) for step in linears), default=1)
