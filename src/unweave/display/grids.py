"""Sites on a grid of layers and heads: what heatmaps and circuit graphs are drawn on."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from unweave.display.tables import NEGATIVE, POSITIVE, number
from unweave.sites import HEAD_KINDS, Site, parse

MLP = "MLP"
_CELL = 15  # pixels


class Cell(NamedTuple):
    """A place in the grid: the layer's name ("3", "enc.0", "c2") and the head's number or "MLP"."""

    row: str
    column: str


def cell_of(site: Site) -> Cell | None:
    """Where a head or MLP lies; None for other sites. Neurons share the cell of their MLP."""
    point = site.point
    prefix = "enc." if point.stack else ""
    if point.kind in HEAD_KINDS:
        cross = "c" if point.kind.startswith("c") else ""
        return Cell(f"{prefix}{cross}{point.layer}", str(site.unit))
    if point.kind in ("mlp", "neuron"):
        return Cell(f"{prefix}{point.layer}", MLP)
    return None


class Grid(NamedTuple):
    """Values by cell, rows in the order of the forward pass.

    Args:
        values: The value with the largest magnitude of each cell (a head has several positions).
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: Mapping[Cell, float]

    @property
    def most(self) -> float:
        """The largest magnitude that is known; 1 where there is none."""
        known = (abs(value) for value in self.values.values() if math.isfinite(value))
        return max(known, default=0.0) or 1.0


def grid_of(names: Sequence[str], values: Sequence[float]) -> Grid:
    """Arranges scores of sites; what is neither a head nor an MLP is left out."""
    placed: dict[Cell, float] = {}
    order: dict[str, tuple[int, int, int]] = {}
    for name, value in zip(names, values, strict=True):
        site = parse(name)
        cell = cell_of(site)
        if cell is None:
            continue
        depth = site.point.depth
        order[cell.row] = min(order.get(cell.row, depth), depth)
        if cell not in placed or abs(value) > abs(placed[cell]):
            placed[cell] = value
    heads = sorted({int(cell.column) for cell in placed if cell.column != MLP})
    columns = [*map(str, range(heads[-1] + 1 if heads else 0))]
    columns += [MLP] if any(cell.column == MLP for cell in placed) else []
    return Grid(tuple(sorted(order, key=lambda row: order[row])), tuple(columns), placed)


def heatmap_svg(grid: Grid) -> str:
    """Layers × heads, blue for positive and orange for negative; a title tells each value."""
    parts = _labels(grid)
    for (row, column), value in grid.values.items():
        x, y = _corner(grid, Cell(row, column))
        colour = NEGATIVE if value < 0 else POSITIVE
        share = abs(value) / grid.most if math.isfinite(value) else 0.0
        title = escape(f"layer {row}, {_named(column)}: {number(value)}")
        parts.append(
            f'<rect x="{x}" y="{y}" width="{_CELL - 1}" height="{_CELL - 1}" fill="{colour}" '
            f'fill-opacity="{max(0.04, share):.3f}"><title>{title}</title></rect>'
        )
    return _svg(grid, parts)


def _named(column: str) -> str:
    return column if column == MLP else f"head {column}"


def _corner(grid: Grid, cell: Cell) -> tuple[int, int]:
    return 40 + _CELL * grid.columns.index(cell.column), _CELL * grid.rows.index(cell.row)


def _labels(grid: Grid) -> list[str]:
    """Names of rows at the left and of columns below."""
    text = '<text x="{}" y="{}" font-size="9" fill="currentColor" text-anchor="{}">{}</text>'
    below = _CELL * len(grid.rows) + 10
    rows = [text.format(34, _CELL * i + 11, "end", escape(row)) for i, row in enumerate(grid.rows)]
    return rows + [
        text.format(47 + _CELL * i, below, "middle", escape(column))
        for i, column in enumerate(grid.columns)
    ]


def _svg(grid: Grid, parts: Sequence[str]) -> str:
    width, height = 56 + _CELL * len(grid.columns), 16 + _CELL * len(grid.rows)
    if not grid.rows:
        return ""
    return (
        f'<svg role="img" aria-label="layers and heads" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" style="max-width:100%">{"".join(parts)}</svg>'
    )
