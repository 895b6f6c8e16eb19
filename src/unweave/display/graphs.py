"""The graph of a circuit as SVG: its nodes by layer, later layers above, lines for its edges."""

import math
from collections.abc import Mapping, Sequence
from html import escape

from unweave.display.grids import cell_of
from unweave.display.tables import NEGATIVE, POSITIVE, number
from unweave.sites import parse

_ROW, _COLUMN, _LEFT = 44, 96, 60  # pixels


def graph_svg(
    nodes: Sequence[str], values: Sequence[float], edges: Sequence[tuple[str, str]] = ()
) -> str:
    """Only layers that hold a node have a row. A circle's area is the magnitude of its value.

    Args:
        edges: Pairs of nodes with a line between them; one with an end that is not among the
            nodes, such as the logits, is left out.
    """
    layers = _layers(nodes)
    if not layers:
        return ""
    width = _LEFT + _COLUMN * max(map(len, layers.values()))
    height = _ROW * len(layers)
    known = dict(zip(nodes, values, strict=True))
    most = max((abs(v) for v in known.values() if math.isfinite(v)), default=0.0) or 1.0
    parts, places = [], {}
    for row, (layer, names) in enumerate(layers.items()):
        y = height - _ROW * (row + 0.5)
        parts.append(_text(4.0, y, f"layer {layer}", 9))
        room = (width - _LEFT) / len(names)
        # Rows are shifted in turn, so that a line does not run through the nodes between its ends.
        shift = (row % 3 - 1) * min(14.0, room / 8)
        places |= {name: (_LEFT + room * (i + 0.3) + shift, y) for i, name in enumerate(names)}
    for source, target in dict.fromkeys(edges):
        if source in places and target in places:
            (x1, y1), (x2, y2) = places[source], places[target]
            parts.append(
                f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" '
                'stroke="currentColor" stroke-opacity=".35"/>'
            )
    for name, (x, y) in places.items():
        parts.append(_circle(name, known[name], most, x, y))
    return (
        f'<svg role="img" aria-label="circuit by layer" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" style="max-width:100%">{"".join(parts)}</svg>'
    )


def _layers(nodes: Sequence[str]) -> Mapping[str, list[str]]:
    """Names by layer, from the first to the last; what is neither a head nor an MLP is left out."""
    layers: dict[str, list[str]] = {}
    for name in sorted(nodes, key=lambda name: parse(name).point.depth):
        cell = cell_of(parse(name))
        if cell is not None:
            layers.setdefault(cell.row, []).append(name)
    return layers


def _circle(name: str, value: float, most: float, x: float, y: float) -> str:
    share = abs(value) / most if math.isfinite(value) else 0.0
    radius = 3 + 7 * share**0.5
    colour = NEGATIVE if value < 0 else POSITIVE
    return (
        f'<circle cx="{x:.0f}" cy="{y:.0f}" r="{radius:.1f}" fill="{colour}">'
        f"<title>{escape(f'{name}: {number(value)}')}</title></circle>"
        + _text(x + radius + 4, y, name, 12)
    )


def _text(x: float, y: float, text: str, size: int) -> str:
    return (
        f'<text x="{x:.0f}" y="{y + 4:.0f}" font-size="{size}" fill="currentColor">'
        f"{escape(text)}</text>"
    )
