"""`unweave report`: a run as one page that opens anywhere."""

from pathlib import Path
from typing import Annotated

import typer

from unweave.cli import commands


@commands.register("report")
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Run folders; several are set side by side. A folder of unweave compare adds its "
            "methods to the curves."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="File; by default report.html in the run's folder, compare.html for several runs.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a page with the circuit, its curves and tests, prompts and options.

    Example: unweave report runs/ioi
    """
    from unweave.report.html import write_report

    typer.echo(write_report(runs, out))
