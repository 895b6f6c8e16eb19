"""`unweave compare`: methods side by side on the same prompts, ablations and metrics."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from unweave.cli import commands
from unweave.errors import UnweaveError


@commands.register("compare")
def compare(
    tasks: Annotated[list[str], typer.Argument(help="Names of tasks, or .jsonl and .csv files.")],
    methods: Annotated[
        str, typer.Option(help="Names with commas between; all methods unless given.")
    ] = "",
    model: Annotated[
        str | None,
        typer.Option(
            help="A short name, a hub name, a folder or a .gguf file [default: the tasks' own].",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Numbers with commas between.")] = "0",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the cells; by default runs/compare-MODEL.", show_default=False
        ),
    ] = None,
    n_discover: Annotated[
        int | None, typer.Option(min=1, help="Prompts to score nodes with; by default the task's.")
    ] = None,
    n_evaluate: Annotated[
        int | None, typer.Option(min=1, help="Held-out prompts; by default the task's.")
    ] = None,
    ablation: Annotated[
        str, typer.Option(help="mean, counterfactual or zero: what an ablated node becomes.")
    ] = "mean",
    mlps: Annotated[bool, typer.Option("--mlps", help="MLPs are nodes too.")] = False,
    draws: Annotated[int, typer.Option(min=1, help="Random circuits of each size.")] = 10,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Compare methods on tasks; a run that was stopped goes on where it was.

    Every cell (task, method, seed) is saved in the folder as soon as it is finished. Exits with 1
    when every cell failed.
    """
    from contextlib import nullcontext

    from rich.console import Console

    from unweave.experiments.compare import Plan, methods_named
    from unweave.experiments.compare import compare as run
    from unweave.experiments.comparison_cells import Budget
    from unweave.experiments.files import plain
    from unweave.model.loading import load
    from unweave.progress import silent

    model = model or _own_model(tasks)
    nodes = "heads+mlps" if mlps else "heads"
    budget = Budget(_ablation(ablation), n_discover, n_evaluate, nodes, draws)
    plan = Plan(tuple(tasks), methods_named(methods), model, _seeds(seeds), budget)
    folder = out or Path("runs") / f"compare-{Path(model).name}"
    told = Console(stderr=True, highlight=False)

    def say(line: str) -> None:
        if not quiet:
            told.print(line, style="dim", markup=False, soft_wrap=True)

    with silent() if quiet or as_json else nullcontext():
        record = run(plan, folder, lambda name: load(name, device=device), say)
    if as_json:
        typer.echo(json.dumps(plain(record), indent=2))
        return
    console = Console(highlight=False)
    for table in tables(record):
        console.print(table)
    console.print(f"Cells and compare.json: {folder}", soft_wrap=True)
    if all("error" in row for row in record["rows"]):
        raise typer.Exit(1)


def _own_model(tasks: Sequence[str]) -> str:
    """The model that all of the tasks are run on unless told otherwise."""
    from unweave.behaviours.file import find_task

    own = {name: find_task(name).own_model for name in tasks}
    if len(set(own.values())) > 1:
        listed = ", ".join(f"{name} on {model}" for name, model in own.items())
        raise UnweaveError(
            f"these tasks are run on different models ({listed}): compare those of one model, or "
            "give --model"
        )
    return next(iter(own.values()))


def tables(record: Mapping[str, Any]) -> list[Any]:
    """One table a task, a row a method."""
    from rich import box
    from rich.table import Table

    found = []
    for task in dict.fromkeys(row["task"] for row in record["summary"]):
        rows = [row for row in record["summary"] if row["task"] == task]
        sizes = [row["size"] for row in rows if "size" in row]
        at = f"{sizes[0]:.0f}" if sizes else "–"
        known = any(row.get("auc") is not None for row in rows)
        budget = record["budget"]
        table = Table(
            title=f"{task}, {record['model']}, {budget['ablation']} ablation",
            box=box.SIMPLE_HEAD,
            title_justify="left",
            pad_edge=False,
            collapse_padding=True,
        )
        table.add_column("method", no_wrap=True)
        auc = ["AUC"] if known else []
        faithful = f"f at {at}"
        for name in ("CMD", "CPR", "k80", "k95", *auc, faithful, "|1−f|", "beats", "s", "fwd"):
            table.add_column(name, justify="right", no_wrap=True)
        for row in rows:
            table.add_row(row["method"], *_cells(row, known))
        table.caption = (
            "f: faithfulness of a circuit of that size, and how far it is from 1; beats: share of "
            "random circuits of that size that it is more faithful than / closer to 1 than; s, "
            "fwd: time to score, in seconds and in plain forward passes; "
            f"means of {len(record['seeds'])} seed(s)"
        )
        table.caption_justify = "left"
        found.append(table)
        errors: dict[str, list[str]] = {}
        for row in rows:
            if "error" in row:
                errors.setdefault(row["error"], []).append(row["method"])
        for error, failed in errors.items():
            found.append(f"[red]{', '.join(failed)}[/]: {_escaped(error)}")
    return found


def _cells(row: Mapping[str, Any], known: bool) -> Sequence[str]:
    if not row["seeds"]:
        return ["failed"]
    figures = [
        _figure(row, "cmd", ".3f"),
        _figure(row, "cpr", ".3f"),
        _figure(row, "k80", ".0f"),
        _figure(row, "k95", ".0f"),
    ]
    if known:
        figures.append(_figure(row, "auc", ".2f"))
    beats = f"{_figure(row, 'beaten', '.0%')}/{_figure(row, 'farther', '.0%')}"
    figures += [_figure(row, "faithfulness", ".3f"), _figure(row, "off", ".3f"), beats]
    return [*figures, _figure(row, "seconds", ".2f"), _figure(row, "forwards", ".1f")]


def _figure(row: Mapping[str, Any], name: str, spec: str) -> str:
    value = row.get(name)
    return "–" if value is None else format(value, spec)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise UnweaveError(f"--seeds {text}: expected numbers such as 0,1,2") from None


def _ablation(name: str) -> Any:
    from unweave.evaluation.faithfulness import ABLATIONS
    from unweave.registry import nearest

    if name not in ABLATIONS:
        raise UnweaveError(f"unknown ablation {name!r}: {nearest(name, ABLATIONS)}")
    return name
