"""Tables that a command prints: means of methods, a row each."""

from collections.abc import Mapping, Sequence
from typing import Any

TableRow = Mapping[str, Any]
# Headings by format: a figure has one of each in all tables.
_HEADINGS = {
    ".0f": {"k95": "k95", "size": "nodes"},
    ".1f": {"forwards": "fwd", "score_forwards": "score"},
    ".2f": {"auc": "AUC", "seconds": "s"},
    ".3f": {
        "curve_gap": "gap",
        "curve_area": "area",
        "faithfulness": "f",
        "off": "|1−f|",
        "cpr": "CPR",
        "cmd": "CMD",
        "log_accuracy": "log acc",
    },
}
FIGURES: Mapping[str, tuple[str, str]] = {
    name: (heading, spec)
    for spec, headings in _HEADINGS.items()
    for name, heading in headings.items()
}


def by_part(rows: Sequence[TableRow], *names: str) -> dict[tuple[Any, ...], list[TableRow]]:
    """Rows that have the same values under some names, which get a table together."""
    parts: dict[tuple[Any, ...], list[TableRow]] = {}
    for row in rows:
        parts.setdefault(tuple(row[name] for name in names), []).append(row)
    return parts


_ONE_LINE = 16  # characters of a method's name


def method_table(
    title: str, figures: Mapping[str, tuple[str, str]], rows: Sequence[TableRow], caption: str
) -> list[Any]:
    """A table, and below it a line for each error with the methods that failed with it.

    Args:
        figures: Heading and format of each column, by the name of what it shows.
        rows: A method's figures by name, over how many `seeds`, and an `error` where one failed.
    """
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), box=box.SIMPLE_HEAD, title_justify="left")
    table.pad_edge, table.padding = False, (0, 0)  # 80 columns are enough
    # Where the table is too wide, a method's name is folded and no figure is cut.
    table.add_column("method", overflow="fold")
    for heading, _ in figures.values():
        table.add_column(heading, justify="right", no_wrap=True)
    errors: dict[str, list[str]] = {}
    for row in rows:
        shown = [_figure(row.get(name), spec) for name, (_, spec) in figures.items()]
        table.add_row(escape(_name(row["method"])), *(shown if row["seeds"] else ["failed"]))
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


def show_tables(tables: Sequence[Any], where: str) -> None:
    """Prints tables, and below them the files that have their figures."""
    from rich.console import Console

    console = Console(highlight=False)
    for table in tables:
        console.print(table)
    console.print(where, soft_wrap=True, markup=False)
