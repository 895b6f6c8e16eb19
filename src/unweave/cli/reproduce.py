"""`unweave reproduce`: the paper's tables and figures in one command."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from unweave.cli import commands
from unweave.cli import experiment_options as given

TaskNames = Annotated[
    list[str] | None,
    typer.Argument(
        help="ioi, greater-than, docstring, or a synthetic model such as wired-induction; all "
        "of them unless given.",
        show_default=False,
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="In place of gpt2 and attn-only-4l, e.g. a folder that benchmarks/gpt2_like.py wrote.",
        show_default=False,
    ),
]
Prompts = Annotated[
    int | None,
    typer.Option("--prompts", "-n", min=1, help="To search on; the paper's numbers unless given."),
]
Seed = Annotated[int, typer.Option(help="Decides which prompts are drawn.")]
Draws = Annotated[
    int,
    typer.Option(min=1, max=given.MOST, help="Random circuits of each size, and random orders."),
]
Out = Annotated[Path, typer.Option(help="Folder for the page and its parts.")]
OpenPage = Annotated[
    bool, typer.Option("--open", help="Open the page in a browser when it is finished.")
]


@commands.register("reproduce")
def reproduce(
    tasks: TaskNames = None,
    model: ModelName = None,
    prompts: Prompts = None,
    held_out: given.HeldOut = None,
    seed: Seed = 0,
    draws: Draws = 10,
    out: Out = Path("runs/reproduce"),
    device: given.Device = "cpu",
    precision: given.Precision = None,
    memory: given.Memory = None,
    open_page: OpenPage = False,
    quiet: given.Quiet = False,
    as_json: given.AsJson = False,
) -> None:
    """Measure the paper's tables and figures, and write them as one page.

    Every part is saved as soon as it is finished: the same command continues where it was. A model
    that cannot be loaded is named on the page, and the others are measured.

    Example: unweave reproduce ioi wired-induction --out runs/reproduce
    """
    from contextlib import nullcontext

    from unweave.experiments.locking import check_writable
    from unweave.experiments.reproduction.reproduce import Reproduction
    from unweave.experiments.reproduction.reproduce import reproduce as run
    from unweave.experiments.reproduction.subjects import chosen_subjects
    from unweave.model.loading import load
    from unweave.progress import silent
    from unweave.report.reproduction import write_reproduction

    subjects = chosen_subjects(tuple(tasks or ()), model, prompts, held_out)
    check_writable(out)
    say = given.speaker(quiet or as_json)
    try:
        with silent() if quiet or as_json else nullcontext():
            wanted = Reproduction(subjects, seed, draws)
            record = run(wanted, out, lambda name: load(name, device=device), say)
    except KeyboardInterrupt:
        say(f"finished parts are in {out}: the same command continues")
        raise
    page = write_reproduction(record, out / "reproduce.html")
    if open_page:
        typer.launch(str(page))
    if as_json:
        typer.echo(json.dumps(record, indent=1))
        return
    _show(record, page)


def _show(record: Mapping[str, Any], page: Path) -> None:
    from rich.console import Console

    shown = Console(highlight=False)
    for one in record["subjects"]:
        if one.get("parts"):
            shown.print(_table(one))
        if "error" in one:
            shown.print(f"{one['task']} on {one['model']}: {one['error']}", markup=False)
    shown.print(f"Next: open {page}", markup=False, soft_wrap=True)


def _table(subject: Mapping[str, Any]) -> Any:
    """ROC AUC, circuit and cost of every method on one subject."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    title = escape(f"{subject['task']}, {subject['model']}")
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    table.add_column("method", no_wrap=True)
    for heading in ("AUC", "nodes", "f", "correct", "s", "fwd"):
        table.add_column(heading, justify="right", no_wrap=True)
    parts = subject["parts"]
    measured = (parts.get("table") or {}).get("rows", {})
    for name, method in (parts.get("sweep") or {}).get("methods", {}).items():
        row = measured.get(name, {})
        figures = (
            ((method.get("roc") or {}).get("auc"), ".2f"),
            (len(method["circuit"]), "d"),
            (row.get("faithfulness"), ".3f"),
            (row.get("correct"), ".0%"),
            (method["seconds"], ".2f"),
            (method["forwards"], ".0f"),
        )
        cells = ["–" if value is None else format(value, spec) for value, spec in figures]
        table.add_row(name, *cells)
    return table
