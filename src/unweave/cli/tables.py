"""Tables that a command prints: means of methods, a row each."""

from collections.abc import Mapping, Sequence
from typing import Any

Columns = Sequence[tuple[str, str, str]]  # heading, name of the figure, format
_ONE_LINE = 16  # characters of a method's name


def method_table(
    title: str, columns: Columns, rows: Sequence[Mapping[str, Any]], caption: str
) -> list[Any]:
    """A table, and below it a line for each error with the methods that failed with it.

    Args:
        rows: A method's figures by name, over how many `seeds`, and an `error` where one failed.
    """
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), box=box.SIMPLE_HEAD, title_justify="left")
    table.pad_edge, table.padding = False, (0, 0)  # 80 columns are enough
    # Where the table is too wide, a method's name is folded and no figure is cut.
    table.add_column("method", overflow="fold")
    for heading, _, _ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    errors: dict[str, list[str]] = {}
    for row in rows:
        figures = [_figure(row.get(name), spec) for _, name, spec in columns]
        table.add_row(escape(_name(row["method"])), *(figures if row["seeds"] else ["failed"]))
        if "error" in row:
            errors.setdefault(row["error"], []).append(row["method"])
    table.caption, table.caption_justify = caption, "left"
    lines = (
        f"[red]{escape(', '.join(names))}[/]: {escape(text)}" for text, names in errors.items()
    )
    return [table, *lines]


def _name(method: str) -> str:
    """A long pair of score and search on two lines."""
    return method if len(method) <= _ONE_LINE else method.replace("+", "+\n", 1)


def _figure(value: int | float | None, spec: str) -> str:
    return "–" if value is None else format(value, spec)
