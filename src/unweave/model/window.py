"""Weights that stay as they are stored, in half precision or in other memory, and are widened and
moved to the device that computes layer by layer.

A network with a window computes in the window's dtype and on its device. The large matrices and the
token table stay where and as they are; norms and biases are small and are converted once. The
window holds the layer in use. Where weights come from other memory the next layer travels beside
it, on a stream of its own, so that a sweep with hundreds of sources hardly waits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unweave.errors import UnweaveError
from unweave.model.devices import device_of
from unweave.model.weights import Alibi, Embedding, Linear, Network, Rotary, tensors


class Window:
    """The available part of weights that are stored otherwise.

    Args:
        groups: The stored matrices of each layer, in the order of the forward pass.
        dtype: In which the network computes; less wide weights are widened.
        device: On which it computes.
    """

    def __init__(
        self, groups: list[list[Tensor]], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.groups, self.dtype, self.device = groups, dtype, device
        # A tied matrix belongs to the first group that has it.
        self.number = {id(x): i for i, group in reversed([*enumerate(groups)]) for x in group}
        self.held: dict[int, dict[tuple[int, str], Tensor]] = {}
        self.coming: dict[int, torch.cuda.Event] = {}
        self.stream: torch.cuda.Stream | None = None

    @property
    def bytes(self) -> int:
        """What it holds at most: a layer as it is used, and the next one where weights travel."""
        return max((sum(map(self._size, group)) for group in self.groups), default=0)

    def _size(self, stored: Tensor) -> int:
        each = self.dtype.itemsize
        each += 2 * stored.itemsize if self.has_halves(stored) else 0
        each += 2 * stored.itemsize if stored.device != self.device else 0
        return stored.numel() * each

    def get(self, stored: Tensor) -> Tensor:
        """A matrix as the network computes with it."""
        if stored.dtype == self.dtype and stored.device == self.device:
            return stored
        return self._kept(stored, "wide", lambda x: x.to(self.dtype))

    def has_halves(self, stored: Tensor) -> bool:
        """Whether `twice` gives all of a matrix: bfloat16 on a GPU that computes in float32."""
        wide = self.dtype == torch.float32 and self.device.type == "cuda"
        return wide and stored.dtype == torch.bfloat16

    def twice(self, stored: Tensor) -> Tensor:
        """[W, W] as it is stored: the factor of an input that was cut into two halves."""

        def doubled(x: Tensor) -> Tensor:
            matrix = x.flatten(0, -2)
            return torch.cat((matrix, matrix), -1)

        return self._kept(stored, "twice", doubled)

    def _kept(self, stored: Tensor, form: str, make: Callable[[Tensor], Tensor]) -> Tensor:
        """A form of a matrix, kept while its layer is in use."""
        number = self.number.get(id(stored))
        if number is None:
            return make(stored.to(self.device))
        self._enter(number)
        group = self.held[number]
        if (id(stored), form) not in group:
            group[id(stored), form] = make(self._here(stored, group))
        self._fetch(number + 1)
        return group[id(stored), form]

    def _enter(self, number: int) -> None:
        """Lets go of all layers but this one and the next; waits for this one's arrival."""
        if number not in self.held or len(self.held) > 1:
            self.held = {i: g for i, g in self.held.items() if i in (number, number + 1)}
            self.held.setdefault(number, {})
        if number in self.coming:
            present = torch.cuda.current_stream(self.device)
            present.wait_event(self.coming.pop(number))
            for x in self.held[number].values():
                x.record_stream(present)

    def _here(self, stored: Tensor, group: dict[tuple[int, str], Tensor]) -> Tensor:
        """A stored matrix on the device that computes: narrow weights travel, wide ones do not."""
        if stored.device == self.device:
            return stored
        if (id(stored), "stored") not in group:
            group[id(stored), "stored"] = stored.to(self.device, non_blocking=True)
        return group[id(stored), "stored"]

    def _fetch(self, number: int) -> None:
        """Begins to bring a layer from other memory, beside what is computed."""
        if self.device.type != "cuda" or number >= len(self.groups) or number in self.held:
            return
        group: dict[tuple[int, str], Tensor] = {}
        self.stream = self.stream or torch.cuda.Stream(self.device)
        with torch.cuda.stream(self.stream):
            for x in self.groups[number]:
                self._here(x, group)
            if group:
                self.held[number] = group
                self.coming[number] = torch.cuda.Event()
                self.coming[number].record(self.stream)


@dataclass(frozen=True)
class Placement:
    """Where the parts of a network are stored: "embed", "head" and "blocks.0", "enc.blocks.0", ….

    Args:
        device: On which it computes.
    """

    parts: Mapping[str, torch.device]
    device: torch.device


def windowed(
    network: Network,
    dtype: torch.dtype | None = None,
    placement: Placement | None = None,
    device: torch.device | None = None,
) -> Network:
    """The network with its matrices as they are stored, computing in another dtype or elsewhere.

    Args:
        dtype: In which it computes; None for its own.
        placement: Where weights are to be stored; None leaves them where they are.
        device: On which it computes where weights stay; None for its own.
    """
    dtype = dtype or network.dtype
    network = unwindowed(network)
    if placement is not None:
        network = _placed(network, placement)
    own = network.device if device is None else device
    device = own if placement is None else placement.device
    blocks = [*(network.encoder.blocks if network.encoder else ()), *network.body.blocks]
    groups = [_matrices(record) for record in (*blocks, network.head)]
    window = Window(groups, dtype, device)
    return replace(_through(network, window, {}), window=window)


def unwindowed(network: Network) -> Network:
    """The network with its weights as they are stored."""
    return network if network.window is None else replace(_through(network, None, {}), window=None)


def _matrices(record: Any) -> list[Tensor]:
    found: list[Tensor] = []

    def visit(x: Any) -> None:
        if isinstance(x, Linear):
            found.append(x.weight)
        elif isinstance(x, tuple):
            for item in x:
                visit(item)
        elif is_dataclass(x) and not isinstance(x, type):
            for one in fields(x):
                visit(getattr(x, one.name))

    visit(record)
    return found


def _through(record: Any, window: Window | None, done: dict[int, Any]) -> Any:
    """Records that look at their matrices through a window, small tensors converted."""
    if id(record) in done:
        return done[id(record)]
    if isinstance(record, Tensor):
        wide = record.is_floating_point() and window is not None
        result: Any = record.to(window.device, window.dtype) if wide and window else record
    elif isinstance(record, Rotary | Alibi):
        # Their precision is their own.
        result = record if window is None else _elsewhere(record, window.device)
    elif isinstance(record, Linear):
        result = Linear(record.weight, _through(record.bias, window, done), window)
    elif isinstance(record, tuple):
        result = tuple(_through(item, window, done) for item in record)
    elif is_dataclass(record) and not isinstance(record, type):
        stored = ("tokens",) if isinstance(record, Embedding) else ()
        changes = {
            one.name: _through(getattr(record, one.name), window, done)
            for one in fields(record)
            if one.name not in stored
        }
        if isinstance(record, Embedding):
            changes["dtype"] = None if window is None else window.dtype
        result = replace(record, **changes)
    else:
        return record
    done[id(record)] = result
    return result


def _elsewhere(record: Rotary | Alibi, device: torch.device) -> Rotary | Alibi:
    if isinstance(record, Rotary):
        return replace(record, inverse_frequencies=record.inverse_frequencies.to(device))
    return replace(record, slopes=record.slopes.to(device))


def _placed(network: Network, placement: Placement) -> Network:
    """Stores every part where it is to be."""

    def moved(x: Any, where: torch.device, done: dict[int, Any]) -> Any:
        if id(x) in done:
            return done[id(x)]
        if isinstance(x, Tensor):
            # What the CPU keeps for a GPU is pinned, and never there twice.
            pinned = where.type == "cpu" and placement.device.type == "cuda"
            result: Any = torch.empty(x.shape, dtype=x.dtype, pin_memory=True) if pinned else x
            result = result.copy_(x) if pinned else x.to(where)
        elif isinstance(x, tuple):
            result = tuple(moved(item, where, done) for item in x)
        elif is_dataclass(x) and not isinstance(x, type):
            changes = {one.name: moved(getattr(x, one.name), where, done) for one in fields(x)}
            result = replace(x, **changes)
        else:
            return x
        done[id(x)] = result
        return result

    parts, done = placement.parts, {}

    def stack(x: Any, prefix: str) -> Any:
        blocks = tuple(
            moved(block, parts[f"{prefix}blocks.{i}"], done) for i, block in enumerate(x.blocks)
        )
        embedding = moved(x.embedding, parts[f"{prefix}embed"], done)
        return replace(x, blocks=blocks, embedding=embedding)

    return replace(
        network,
        body=stack(network.body, ""),
        encoder=None if network.encoder is None else stack(network.encoder, "enc."),
        head=moved(network.head, parts["head"], done),
    )


def part_sizes(network: Network) -> dict[str, int]:
    """Bytes of every part that can be placed by itself, in the order of the forward pass."""
    sizes: dict[str, int] = {}
    seen: set[int] = set()

    def add(name: str, record: Any) -> None:
        new = {id(x): x for x in tensors(record) if id(x) not in seen}
        seen.update(new)
        sizes[name] = sum(x.numel() * x.element_size() for x in new.values())

    for prefix, stack in (("enc.", network.encoder), ("", network.body)):
        if stack is None:
            continue
        add(f"{prefix}embed", stack.embedding)
        for i, block in enumerate(stack.blocks):
            add(f"{prefix}blocks.{i}", block)
    add("head", network.head)
    return sizes


def placement_of(
    network: Network,
    device_map: str | Mapping[str, Any],
    device: torch.device | str | None,
    free: Callable[[torch.device], int],
) -> Placement:
    """Where each part is stored.

    Args:
        device_map: "auto" fills the GPUs in order, each up to its share of free memory, and leaves
            the rest to the CPU; or a device for each part, "" for all that are not named.
        device: On which to compute; None takes the first GPU of the map, else the CPU.
        free: Bytes that may be used on a device.

    Raises:
        UnweaveError: For a part that the network does not have, or one without a device.
    """
    sizes = part_sizes(network)
    if isinstance(device_map, str):
        if device_map != "auto":
            raise UnweaveError(
                f"device_map {device_map!r}: expected 'auto' or a device for each part"
            )
        return _filled(sizes, device, free)
    if unknown := [name for name in device_map if name and name not in sizes]:
        raise UnweaveError(
            f"device_map names {unknown[0]!r}, which this model does not have: its parts are "
            f"{', '.join(list(sizes)[:2])}, …, {list(sizes)[-1]}, and '' for all others; name one "
            "of these"
        )
    if missing := [name for name in sizes if name not in device_map and "" not in device_map]:
        raise UnweaveError(f"device_map has no device for {missing[0]!r}: name it, or '' for all")
    parts = {name: device_of(device_map.get(name, device_map.get(""))) for name in sizes}
    gpus = [where for where in parts.values() if where.type != "cpu"]
    main = device if device is not None else (gpus[0] if gpus else "cpu")
    return Placement(parts, device_of(main))


def _filled(
    sizes: Mapping[str, int],
    device: torch.device | str | None,
    free: Callable[[torch.device], int],
) -> Placement:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = [torch.device("cuda", i) for i in range(count)]
    main = device_of(device) if device is not None else (gpus or [torch.device("cpu")])[0]
    if main.type == "cuda":
        gpus.sort(key=lambda gpu: gpu != main)
    room, parts = [(gpu, free(gpu)) for gpu in gpus], {}
    for name, size in sizes.items():
        while room and room[0][1] < size:
            room.pop(0)
        if room:
            room[0] = (room[0][0], room[0][1] - size)
        parts[name] = room[0][0] if room else torch.device("cpu")
    return Placement(parts, main)
