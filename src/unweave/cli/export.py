"""`unweave export`: a run in the formats of other tools."""

from pathlib import Path
from typing import Annotated

import typer

from unweave.cli import commands
from unweave.cli import experiment_options as given
from unweave.errors import UnweaveError


@commands.register("export")
def export(
    run: given.FoundRun,
    form: Annotated[
        str,
        typer.Option("--format", "-f", help="eap-ig (also for MIB), neuronpedia, csv or edges."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="File, or - for the terminal; by default in the run's folder."
        ),
    ] = None,
) -> None:
    """Write a circuit for EAP-IG and MIB, for Neuronpedia, or as a table.

    Example: unweave export runs/ioi --format eap-ig -o ioi.json
    """
    from unweave.experiments.files import write_text
    from unweave.registry import nearest
    from unweave.report.exports import FORMATS
    from unweave.report.folder import read_shown

    if form not in FORMATS:
        raise UnweaveError(f"unknown format {form!r}: {nearest(form, FORMATS)}")
    name, write = FORMATS[form]
    text = write(read_shown(run))
    if str(out) == "-":
        typer.echo(text, nl=False)
        return
    path = out or run / name
    write_text(path, text)
    typer.echo(path)
