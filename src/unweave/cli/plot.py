"""`unweave plot`: one figure of a run, ready for a paper."""

from pathlib import Path
from typing import Annotated

import typer

from unweave.cli import commands
from unweave.cli import experiment_options as given
from unweave.errors import UnweaveError


@commands.register("plot")
def plot(
    run: given.FoundRun,
    figure: Annotated[
        str,
        typer.Option(
            "--figure", "-f", help="roc, faithfulness, random_circuits, heatmap or circuit."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="A .png, .svg or .pdf file.")],
    position: Annotated[
        str | None, typer.Option(help="For the heatmap: one position; by default their sum.")
    ] = None,
    round_: Annotated[
        int, typer.Option("--round", min=1, help="For the heatmap: which round of discovery.")
    ] = 1,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="For the circuit: how many nodes to draw.")
    ] = None,
    relevance: Annotated[
        bool,
        typer.Option(
            "--relevance", help="For the circuit: also relevance between nodes (untested)."
        ),
    ] = False,
    width: Annotated[
        float,
        typer.Option(
            min=1,
            max=100,
            callback=given.not_nan,
            help="In inches: 3.4 for one column, 7 for two.",
        ),
    ] = 3.4,
    compare: Annotated[
        Path | None, typer.Option(help="A folder of unweave compare, for other methods' curves.")
    ] = None,
) -> None:
    """Draw one figure of a run (needs matplotlib: pip install 'unweave[plots]').

    Example: unweave plot runs/ioi --figure faithfulness -o faithfulness.pdf
    """
    from unweave.experiments.compare import read_comparison
    from unweave.registry import nearest
    from unweave.report.folder import read_shown
    from unweave.report.plots import FIGURES, SUFFIXES, PlotOptions, save

    if figure not in FIGURES:
        raise UnweaveError(f"unknown figure {figure!r}: {nearest(figure, FIGURES)}")
    if out.suffix.lower() not in SUFFIXES:
        raise UnweaveError(f"{out}: expected a file that ends in {', '.join(SUFFIXES)}")
    comparison = None if compare is None else read_comparison(compare / "compare.json")
    found = read_shown(run, comparison)
    save(found, figure, out, PlotOptions(width, position, round_, nodes, relevance))
    typer.echo(out)
