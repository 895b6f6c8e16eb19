"""Plotly figures from names and numbers; every text is escaped, since plotly reads tags in it."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from unweave.display.grids import Cell, Grid, cell_of, grid_of
from unweave.display.tables import NEGATIVE, POSITIVE, number
from unweave.sites import parse

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_SCALE = [[0.0, NEGATIVE], [0.5, "#f4f4f4"], [1.0, POSITIVE]]


def head_heatmap(names: Sequence[str], values: Sequence[float], title: str) -> "Figure":
    """Layers × heads."""
    grid = grid_of(names, values)
    cells = [[_value(grid, row, column) for column in grid.columns] for row in grid.rows]
    return _heatmap(cells, grid.columns, grid.rows, title, "head", "layer")


def matrix_heatmap(
    values: Sequence[Sequence[float]], rows: Sequence[str], columns: Sequence[str], title: str
) -> "Figure":
    """Any matrix with names at both sides: sources × targets."""
    return _heatmap(values, columns, rows, title, "target", "source")


def circuit_graph(
    nodes: Sequence[str],
    scores: Sequence[float],
    title: str,
    edges: Sequence[tuple[str, str]] = (),
) -> "Figure":
    """The nodes of a circuit in their layers; a circle's area is the magnitude of its score.

    Args:
        edges: Pairs of nodes with a line between them; one with an end that is not among the
            nodes, such as the logits, is left out.
    """
    from plotly.graph_objects import Scatter

    grid = grid_of(nodes, scores)
    cells = list(grid.values)
    most = grid.most
    figure = _figure(title)
    placed = {name: cell_of(parse(name)) for name in nodes}
    ends = [(placed.get(source), placed.get(target)) for source, target in dict.fromkeys(edges)]
    lines = [(a, b, None) for a, b in ends if a is not None and b is not None]
    if lines:
        places = [cell for line in lines for cell in line]  # None ends a line
        figure.add_trace(
            Scatter(
                x=[cell and cell.column for cell in places],
                y=[cell and cell.row for cell in places],
                mode="lines",
                line={"width": 1, "color": "#8a929c"},
                hoverinfo="skip",
                showlegend=False,
            )
        )
    figure.add_trace(
        Scatter(
            x=[cell.column for cell in cells],
            y=[cell.row for cell in cells],
            mode="markers",
            marker={
                "size": [6 + 22 * (abs(_known(grid.values[cell])) / most) ** 0.5 for cell in cells],
                "color": [NEGATIVE if grid.values[cell] < 0 else POSITIVE for cell in cells],
            },
            hovertext=[f"{cell.row}, {cell.column}: {number(grid.values[cell])}" for cell in cells],
            hoverinfo="text",
        )
    )
    _axes(figure, grid.columns, grid.rows, "head", "layer")
    return figure


def bars(names: Sequence[str], values: Sequence[float], title: str) -> "Figure":
    """One bar a name, in their order; equal names are bars of their own."""
    from plotly.graph_objects import Bar

    figure = _figure(title)
    ticks = list(range(len(names)))
    colours = [NEGATIVE if value < 0 else POSITIVE for value in values]
    figure.add_trace(Bar(x=ticks, y=list(values), marker={"color": colours}))
    labels = [escape(name) for name in names]
    figure.update_xaxes(tickvals=ticks, ticktext=labels)
    return figure


def curves(lines: Mapping[str, tuple[Sequence[int], Sequence[float]]], title: str) -> "Figure":
    """Faithfulness over size: (sizes, values) by name; 1 is the whole model."""
    from plotly.graph_objects import Scatter

    figure = _figure(title)
    for name, (x, y) in lines.items():
        figure.add_trace(Scatter(x=list(x), y=list(y), mode="lines", name=escape(name)))
    figure.add_hline(y=1, line_dash="dash", line_width=1)
    figure.update_xaxes(title="nodes")
    figure.update_yaxes(title="faithfulness")
    return figure


def _figure(title: str) -> "Figure":
    from plotly.graph_objects import Figure

    return Figure(layout={"title": {"text": escape(title)}, "margin": {"t": 50, "b": 40}})


def _heatmap(
    values: Sequence[Sequence[float | None]],
    columns: Sequence[str],
    rows: Sequence[str],
    title: str,
    x: str,
    y: str,
) -> "Figure":
    from plotly.graph_objects import Heatmap

    known = (abs(v) for row in values for v in row if v is not None and math.isfinite(v))
    most = max(known, default=0.0) or 1.0
    across, down = list(map(escape, columns)), list(map(escape, rows))
    figure = _figure(title)
    figure.add_trace(
        Heatmap(
            z=[list(row) for row in values],
            x=across,
            y=down,
            zmin=-most,
            zmax=most,
            colorscale=_SCALE,
        )
    )
    _axes(figure, across, down, x, y)
    return figure


def _axes(figure: "Figure", columns: Sequence[str], rows: Sequence[str], x: str, y: str) -> None:
    """Named categories in their order, the first row on top."""
    ordered: dict[str, Any] = {"type": "category", "categoryorder": "array"}
    figure.update_xaxes(title=x, categoryarray=list(columns), **ordered)
    figure.update_yaxes(title=y, categoryarray=list(rows), autorange="reversed", **ordered)


def _known(value: float) -> float:
    """0 for a score that is not known."""
    return value if math.isfinite(value) else 0.0


def _value(grid: Grid, row: str, column: str) -> float | None:
    return grid.values.get(Cell(row, column))
