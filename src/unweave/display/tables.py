"""HTML tables for notebooks; every text is escaped."""

import math
from collections.abc import Sequence
from html import escape

POSITIVE, NEGATIVE = "#2f6fb5", "#c2571a"
MOST = 20  # rows that are shown


def number(value: float | None) -> str:
    """A number in few digits; a dash for what is not known."""
    return "–" if value is None or not math.isfinite(value) else f"{value:+.3g}"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], most: int = MOST) -> str:
    """A table of texts."""
    head = "".join(f'<th style="text-align:left">{escape(text)}</th>' for text in headings)
    lines = [f"<tr>{head}</tr>"] if headings else []
    for row in rows[:most]:
        cells = (f'<td style="text-align:left">{escape(cell)}</td>' for cell in row)
        lines.append(f"<tr>{''.join(cells)}</tr>")
    if len(rows) > most:
        lines.append(f'<tr><td colspan="{len(rows[0])}">… {len(rows) - most} more</td></tr>')
    return f"<table>{''.join(lines)}</table>"


def bar_table(
    rows: Sequence[tuple[str, float]], most: int = MOST, notes: Sequence[Sequence[str]] = ()
) -> str:
    """Names with their scores and a bar each.

    Args:
        notes: For each row, texts that stand behind its bar.
    """
    finite = [abs(score) for _, score in rows if math.isfinite(score)]
    unit = 80 / (max(finite, default=0.0) or 1.0)
    lines = []
    for index, (name, score) in enumerate(rows[:most]):
        width = round(abs(score) * unit) if math.isfinite(score) else 0
        colour = NEGATIVE if score < 0 else POSITIVE
        bar = f'<div style="background:{colour};height:.7em;width:{width}px"></div>'
        # In a narrow window a name is not broken into letters.
        code = f'<code style="white-space:nowrap">{escape(name)}</code>'
        cells = [code, number(score), bar, *map(escape, notes[index] if notes else ())]
        shown = "".join(f'<td style="padding:.2em .6em">{cell}</td>' for cell in cells)
        lines.append(f"<tr>{shown}</tr>")
    if len(rows) > most:
        lines.append(f'<tr><td colspan="3">… {len(rows) - most} more</td></tr>')
    return f'<div style="overflow-x:auto"><table>{"".join(lines)}</table></div>'


def block(title: str, about: Sequence[str], *parts: str) -> str:
    """A title with what it is about, above parts that are HTML already."""
    notes = escape(", ".join(map(str, about)))
    return f"<div><p><b>{escape(title)}</b> {notes}</p>{''.join(parts)}</div>"
