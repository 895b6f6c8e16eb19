"""Where nodes stand in a picture: layers upward, heads or positions from left to right."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unweave.errors import UnweaveError
from unweave.sites import HEAD_KINDS, Site, parse

MOST = 1000  # layers, and heads in one; a name beyond it is a slip and would blow up the picture


@dataclass(frozen=True)
class Place:
    """One node in a picture.

    Args:
        kind: "head", "cross", "mlp", "neuron" or "stream" (embedding, residual stream).
        row: Its layer among all layers, counted from the bottom.
        unit: Head or neuron number; None for a whole layer.
        position: Name or number of its position; None for all positions.
    """

    kind: str
    row: int
    unit: int | None
    position: str | int | None


@dataclass(frozen=True)
class NodeLayout:
    """All nodes of a run.

    Args:
        rows: Names of the layers from the bottom.
        heads: How many heads a layer shows.
        positions: Of nodes at single positions, from left to right.
        by_site: Place of every node whose name is understood.
    """

    rows: tuple[str, ...]
    heads: int
    positions: tuple[str | int, ...]
    by_site: Mapping[str, Place]


def node_layout(names: Iterable[str], prompt: Mapping[str, Any] | None = None) -> NodeLayout:
    """Gives every node its place.

    Args:
        names: Site names; those that fit no grammar get no place.
        prompt: An example prompt: its named positions give their order from left to right.
    """
    sites = {name: site for name in names if (site := _site(name)) is not None}
    layers = sorted({_layer(site) for site in sites.values()})
    if layers:
        # Layers without a node are shown too: depth is part of the picture.
        gaps = {(stack, n) for stack, top in dict(layers).items() for n in range(top + 1)}
        layers = sorted({*layers, *gaps})
    rows = {layer: i for i, layer in enumerate(layers)}
    stacks = {stack for stack, _ in layers}
    names_of_rows = [
        ("enc " if stack == 0 and len(stacks) > 1 else "") + ("embed" if n < 0 else str(n))
        for stack, n in layers
    ]
    found = {
        name: Place(_kind(site), rows[_layer(site)], site.unit, site.position)
        for name, site in sites.items()
    }
    heads = [p.unit for p in found.values() if p.kind in ("head", "cross") and p.unit is not None]
    positions = {p.position for p in found.values() if p.position is not None}
    ordered = _in_order(positions, prompt or {})
    return NodeLayout(tuple(names_of_rows), max(heads, default=-1) + 1, ordered, found)


def context_index(position: str | int | None, prompt: Mapping[str, Any]) -> int | None:
    """The token of a prompt that a position stands for; None where there is none."""
    tokens = prompt.get("tokens") or []
    named = prompt.get("positions")
    index = named.get(position) if isinstance(named, Mapping) else None
    if index is None and isinstance(position, int):
        index = position
    if not isinstance(index, int) or isinstance(index, bool):
        return None
    return index + len(tokens) if index < 0 else index


def _site(name: str) -> Site | None:
    try:
        site = parse(name)
    except UnweaveError:
        return None
    in_reach = site.point.layer < MOST and (site.unit or 0) < (
        10**9 if _kind(site) == "neuron" else MOST
    )
    return site if in_reach and site.point.kind != "logits" else None


def _layer(site: Site) -> tuple[int, int]:
    stack, layer, _ = site.point.depth
    return stack, layer


def _kind(site: Site) -> str:
    kind = site.point.kind
    if kind in HEAD_KINDS:
        return "cross" if kind.startswith("c") else "head"
    return kind if kind in ("mlp", "neuron") else "stream"


def _in_order(positions: Iterable[str | int], prompt: Mapping[str, Any]) -> tuple[str | int, ...]:
    def key(position: str | int) -> tuple[bool, int, str]:
        index = context_index(position, prompt)
        return index is None, index or 0, str(position)

    return tuple(sorted(positions, key=key))


def head_grid(
    values: Mapping[str, float | None], found: NodeLayout, position: str | int | None = None
) -> list[list[float | None]]:
    """Values as layers × (heads, then the MLP), summed over positions unless one is named."""
    width = found.heads + any(p.kind == "mlp" for p in found.by_site.values())
    grid: list[list[float | None]] = [[None] * width for _ in found.rows]
    for name, value in values.items():
        place = found.by_site.get(name)
        if place is None or value is None or value != value:
            continue
        if position is not None and place.position != position:
            continue
        column = _column(place, found.heads)
        if column is not None:
            grid[place.row][column] = (grid[place.row][column] or 0.0) + value
    return grid


def _column(place: Place, heads: int) -> int | None:
    if place.kind == "mlp":
        return heads
    return place.unit if place.kind == "head" else None


def column_names(found: NodeLayout) -> Sequence[str]:
    """What stands below a grid of `head_grid`."""
    mlp = any(p.kind == "mlp" for p in found.by_site.values())
    return [*map(str, range(found.heads)), *(["MLP"] if mlp else [])]
