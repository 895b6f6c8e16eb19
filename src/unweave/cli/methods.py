"""`unweave methods`: scores, searches, the named pairs of them, and their options."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from unweave.cli import commands
from unweave.cli import experiment_options as given

if TYPE_CHECKING:
    from unweave.scores.score import Score
    from unweave.search.search import Search


@commands.register("methods")
def methods(as_json: given.AsJson = False) -> None:
    """List scores, searches and the methods made of them, with options and defaults.

    Every score goes with every search: unweave discover ioi --score eap --search eliminate.
    """
    from unweave.experiments.methods import METHODS
    from unweave.scores.score import scores
    from unweave.search.search import searches

    found = {
        "methods": [
            {
                "name": method.name,
                "score": method.score,
                "search": method.search,
                "options": {**method.score_options, **method.search_options},
                "summary": method.summary,
            }
            for method in METHODS.values()
        ],
        "scores": [
            _about(scores[name]) | {"edges": scores[name].edges is not None} for name in scores
        ],
        "searches": [_about(searches[name]) for name in searches],
    }
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    _print(found)


def _print(found: Mapping[str, list[dict[str, Any]]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("method", "score", "search", "what", box=box.SIMPLE_HEAD)
    for one in found["methods"]:
        own = ", ".join(f"{name}={value}" for name, value in one["options"].items())
        table.add_row(
            one["name"], one["score"], one["search"], one["summary"] + (f" ({own})" if own else "")
        )
    console.print(table)
    for kind in ("scores", "searches"):
        table = Table(kind, "what", box=box.SIMPLE_HEAD)
        for one in found[kind]:
            table.add_row(one["name"], one["summary"])
        console.print(table)
    options = Table("of", "option (-o)", "default", "meaning", box=box.SIMPLE_HEAD)
    for kind in ("scores", "searches"):
        for one in found[kind]:
            for name, option in one["options"].items():
                options.add_row(one["name"], name, str(option["default"]), option["meaning"])
    console.print(options)


def _about(part: "Score | Search") -> dict[str, Any]:
    return {
        "name": part.name,
        "summary": part.summary,
        "options": {
            name: {"default": option.default, "meaning": option.help, "expected": option.expected}
            for name, option in part.options.items()
        },
    }
