"""`unweave methods`: the ways to score nodes, and their options."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unweave.cli import commands

if TYPE_CHECKING:
    from unweave.scores.problem import Method


@commands.register("methods")
def methods(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """List the methods that discover and compare know, with their options and defaults."""
    from unweave.scores.problem import methods as registered

    found = [_about(registered[name]) for name in registered]
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table("method", "what", "positions", "edges", box=box.SIMPLE_HEAD)
    for one in found:
        can = ("yes" if one[what] else "no" for what in ("positions", "edges"))
        table.add_row(one["name"], one["summary"], *can)
    options = Table("method", "option (-o)", "default", "meaning", box=box.SIMPLE_HEAD)
    for one in found:
        for name, option in one["options"].items():
            options.add_row(one["name"], name, str(option["default"]), option["meaning"])
    console = Console()
    console.print(table)
    console.print(options)


def _about(method: "Method") -> dict[str, Any]:
    return {
        "name": method.name,
        "summary": method.summary,
        "positions": method.positions,
        "edges": method.edges,
        "options": {
            name: {"default": default, "meaning": method.help.get(name, "")}
            for name, default in method.options.items()
        },
    }
