"""CUDA graphs: a run that is captured once and replayed with other inputs.

A patched run of a small model is thousands of small kernels, and launching them takes longer than
they do. A graph launches all of them at once. Runs are captured by the shapes of their inputs, the
second time that they are met; every input is copied into memory of the graph's own, so a new mask,
prompt or ablation of the same shape is a replay. The eager run is the same function.
"""

import contextlib
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from unweave.cost import metered_apart, spend
from unweave.errors import UnweaveWarning
from unweave.model.weights import Network

# Tokens of a run below which launches take longer than kernels, in a model this wide; in a wider
# one kernels do more.
_TOKENS, _WIDTH = 1 << 13, 1024
_MOST = 32  # graphs of one network; the one that was not used for longest goes

TensorFunction = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]


@runtime_checkable
class Replay(Protocol):
    """A captured run."""

    result: tuple[Tensor, ...]

    def __call__(self) -> None:
        """Runs it again, from what its inputs hold now into `result`."""
        ...


# Given the run, its inputs, and where graphs of its network keep the memory that they share.
Capture = Callable[[TensorFunction, Sequence[Tensor], "GraphMemory"], Replay]


@dataclass(eq=False)
class GraphMemory:
    """What the graphs of one network share; it goes with the last of them."""

    pool: Any = None


@dataclass(eq=False)
class _Captured:
    """A run with its own inputs.

    Args:
        given: What was copied into them last.
        tokens: What one replay costs (`unweave.cost`).
    """

    replay: Replay
    inputs: list[Tensor]
    given: list[Tensor]
    tokens: float


@dataclass(eq=False)
class _Met:
    """Graphs of one network, and the runs that were met once."""

    graphs: "OrderedDict[Hashable, _Captured]" = field(default_factory=OrderedDict)
    once: set[Hashable] = field(default_factory=set)
    memory: GraphMemory = field(default_factory=GraphMemory)


_met: WeakKeyDictionary[Network, _Met] = WeakKeyDictionary()
_wanted: ContextVar[Capture | bool] = ContextVar("unweave_graphs", default=True)


@contextmanager
def capturing(how: Capture | bool) -> Iterator[None]:
    """Within this block runs are captured in this way, never (False), or on GPUs (True)."""
    token = _wanted.set(how)
    try:
        yield
    finally:
        _wanted.reset(token)


def captures(network: Network, tokens: int) -> bool:
    """Whether runs of this many tokens are captured."""
    how = _wanted.get()
    if how is False or _failed or (how is True and network.device.type != "cuda"):
        return False
    if network.window is not None:
        return False  # what it holds changes between two runs
    width = network.body.blocks[0].attention.out.shape[0]
    return tokens * max(1.0, (width / _WIDTH) ** 2) <= _TOKENS


def room(count: int) -> int:
    """For how many rows a graph is made that serves `count`: 1, 2, 3, 4, 6, 8, 12, 16, …"""
    size = 1 << max(0, (count - 1).bit_length())
    return 3 * size // 4 if size >= 4 and count <= 3 * size // 4 else size


def replayed(
    network: Network, what: Hashable, given: Any, f: Callable[[Any], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """`f(given)`, by a graph once the same run with other numbers has been met before.

    Args:
        what: With the shapes in `given`, everything that the run depends on.
        given: Records, tuples and dictionaries with the tensors that may change.
        f: Runs on a GPU alone: no number goes to the host and back within it.
    """
    met = _met.setdefault(network, _Met())
    flat: list[Tensor] = []
    key = (what, _shape(given, flat))

    def run(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return f(_rebuilt(given, iter(inputs)))

    if key not in met.graphs and key not in met.once:
        met.once.add(key)
        return _aside(run, flat)
    if key not in met.graphs:
        graph = _captured(run, flat, met.memory)
        if graph is None:
            return run(flat)
        met.graphs[key] = graph
        while len(met.graphs) > _MOST:
            met.graphs.popitem(last=False)
    met.graphs.move_to_end(key)
    found = met.graphs[key]
    _refill(found, flat)
    found.replay()
    spend(found.tokens)
    # Another graph may use the same memory.
    return tuple(x.clone() for x in found.replay.result)


# Why the first capture failed: torch is not sure to be as before, so it was the last one.
_failed: list[str] = []


def _captured(run: TensorFunction, given: list[Tensor], memory: GraphMemory) -> _Captured | None:
    how = _wanted.get()
    capture = how if callable(how) else capture_cuda
    inputs = [x.clone(memory_format=torch.contiguous_format) for x in given]
    try:
        with metered_apart() as meter:
            replay = capture(run, inputs, memory)
    except RuntimeError as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        _failed.append(reason)
        warnings.warn(
            f"a run cannot be captured as a CUDA graph ({reason}): from here on runs are launched "
            "kernel by kernel",
            UnweaveWarning,
            stacklevel=4,
        )
        return None
    return _Captured(replay, inputs, list(given), meter.tokens)


def _refill(graph: _Captured, given: list[Tensor]) -> None:
    """Copies the inputs that changed; what was copied last is kept, so its memory is still its."""
    new = [i for i, x in enumerate(given) if not _same(x, graph.given[i])]
    if new:
        inputs, values = [graph.inputs[i] for i in new], [given[i] for i in new]
        torch._foreach_copy_(inputs, values)  # pyright: ignore[reportPrivateImportUsage]
        for i in new:
            graph.given[i] = given[i]


def _same(x: Tensor, y: Tensor) -> bool:
    return (
        x.data_ptr() == y.data_ptr() and x.stride() == y.stride() and x._version == y._version
    ) and x.numel() > 0


@dataclass(eq=False)
class _CudaReplay:
    graph: torch.cuda.CUDAGraph
    result: tuple[Tensor, ...]

    def __call__(self) -> None:
        self.graph.replay()


_streams: dict[torch.device, torch.cuda.Stream] = {}


def _stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of captures."""
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]


def _aside(run: TensorFunction, given: list[Tensor]) -> tuple[Tensor, ...]:
    """Runs on the stream of captures: libraries make their workspaces there before a capture."""
    device = given[0].device
    if device.type != "cuda":
        return run(given)
    stream, present = _stream(device), torch.cuda.current_stream(device)
    stream.wait_stream(present)
    with torch.cuda.stream(stream):
        result = run(given)
    present.wait_stream(stream)
    return result


def capture_cuda(run: TensorFunction, inputs: Sequence[Tensor], memory: GraphMemory) -> Replay:
    """Captures a run as a CUDA graph."""
    device = inputs[0].device
    stream, present = _stream(device), torch.cuda.current_stream(device)
    graph = torch.cuda.CUDAGraph()
    # Of this network alone: torch frees a pool with the last graph that uses it.
    memory.pool = memory.pool or torch.cuda.graph_pool_handle()
    torch.cuda.synchronize(device)
    with torch.cuda.stream(stream):
        try:
            graph.capture_begin(pool=memory.pool, capture_error_mode="thread_local")
            result = run(inputs)
            graph.capture_end()
        except RuntimeError:
            _abandon(graph, device, memory.pool)
            raise
    present.wait_stream(stream)
    return _CudaReplay(graph, result)


def _abandon(graph: torch.cuda.CUDAGraph, device: torch.device, pool: Any) -> None:
    """Ends a capture that failed: torch leaves its generator and its allocator within it."""
    index = torch.cuda.current_device() if device.index is None else device.index
    for end in (graph.capture_end, lambda: torch._C._cuda_endAllocateToPool(index, pool)):
        with contextlib.suppress(RuntimeError):  # ended already, as far as it could be
            end()
    generator = torch.cuda.default_generators[index]
    generator.graphsafe_set_state(generator.clone_state())
    del _streams[device]


def _shape(x: Any, found: list[Tensor]) -> Hashable:
    """What a run depends on besides the numbers, and the tensors in order."""
    if isinstance(x, Tensor):
        found.append(x)
        return tuple(x.shape), x.dtype, x.device
    if isinstance(x, tuple):
        return tuple(_shape(item, found) for item in x)
    if isinstance(x, Mapping):
        return tuple((key, _shape(item, found)) for key, item in x.items())
    if is_dataclass(x) and not isinstance(x, type):
        return type(x), tuple(_shape(getattr(x, f.name), found) for f in fields(x))
    return x


def _rebuilt(x: Any, tensors: Iterator[Tensor]) -> Any:
    """The same records with other tensors, in the order of `_shape`."""
    if isinstance(x, Tensor):
        return next(tensors)
    if isinstance(x, tuple):
        return tuple(_rebuilt(item, tensors) for item in x)
    if isinstance(x, Mapping):
        return {key: _rebuilt(item, tensors) for key, item in x.items()}
    if is_dataclass(x) and not isinstance(x, type):
        return replace(x, **{f.name: _rebuilt(getattr(x, f.name), tensors) for f in fields(x)})
    return x
