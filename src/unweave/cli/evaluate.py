"""`unweave evaluate`: how faithful, how small, how much better than chance."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unweave.cli import commands

if TYPE_CHECKING:
    from unweave.evaluation.api import Evaluation


@commands.register("evaluate")
def evaluate(
    run: Annotated[Path, typer.Argument(help="A folder that unweave discover wrote.")],
    n: Annotated[
        int | None,
        typer.Option("-n", "--n-evaluate", min=1, help="Held-out prompts; by default the task's."),
    ] = None,
    parts: Annotated[
        str,
        typer.Option(
            help="curve,roc,chance,completeness,minimality,stability: all of them unless given."
        ),
    ] = "",
    draws: Annotated[int, typer.Option(min=1, help="Random circuits of each size.")] = 10,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Evaluate a found circuit on held-out prompts and write evaluation.json beside it."""
    from contextlib import nullcontext

    from rich.console import Console

    from unweave.evaluation.api import PARTS
    from unweave.experiments.evaluate import evaluate_run
    from unweave.experiments.files import plain, write_json
    from unweave.experiments.run_folder import read_run
    from unweave.model.loading import load
    from unweave.progress import silent
    from unweave.report.html import write_report

    wanted = tuple(part.strip() for part in parts.split(",") if part.strip()) or PARTS
    found = read_run(run)
    with silent() if quiet or as_json else nullcontext():
        evaluation = evaluate_run(
            found,
            lambda how: load(how.model, device=device, bos=how.bos),
            n=n,
            parts=wanted,
            draws=draws,
        )
    record = evaluation.to_json()
    write_json(run / "evaluation.json", record)
    write_report([run])
    if as_json:
        typer.echo(json.dumps(plain(record), indent=2))
        return
    console = Console(highlight=False)
    console.print(_table(evaluation, record))
    console.print(f"Written: {run / 'evaluation.json'} and report.html", soft_wrap=True)


def _table(evaluation: "Evaluation", record: Mapping[str, Any]) -> Any:
    from rich import box
    from rich.table import Table

    about = evaluation.about
    table = Table(
        title=f"{about['method']} on {about['task']}, {about['model']}: "
        f"{len(evaluation.circuit)} of {evaluation.nodes} nodes, "
        f"{evaluation.prompts} held-out prompts",
        box=box.SIMPLE_HEAD,
        title_justify="left",
        show_header=False,
    )
    table.add_column("what", no_wrap=True)
    table.add_column("figure")
    for what, figure in _lines(evaluation, record):
        table.add_row(what, figure)
    return table


def _lines(evaluation: "Evaluation", record: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines = []
    for name, found in evaluation.faithfulness.items():
        value = "no scale" if found.value is None else f"{found.value:.3f}"
        metrics = f"metric {found.metric:.3f}, all {found.full:.3f}, none {found.empty:.3f}"
        lines.append((f"faithfulness, {name} ablation", f"{value}  ({metrics})"))
    for name, curve in record["curves"].items():
        crossings = f"k80 {curve['k80']}, k95 {curve['k95']}"
        figures = f"CMD {curve['cmd']:.3f}, CPR {curve['cpr']:.3f}, {crossings}"
        lines.append((f"ranking, {name} ablation", figures))
    for name, value in evaluation.known.items():
        lines.append((f"{name} circuit", f"faithfulness {value:.3f}"))
    for name, roc in evaluation.roc.items():
        if roc.auc is not None and roc.sweep_auc is not None:
            figures = f"AUC {roc.auc:.3f} by rank, {roc.sweep_auc:.3f} by percentiles 90–99"
            lines.append((f"finds the {name} circuit", f"{figures} ({roc.known} of {roc.nodes})"))
    if evaluation.chance is not None:
        for farther, sense in ((False, "more faithful than"), (True, "closer to 1 than")):
            shares = [s.farther if farther else s.beaten for s in evaluation.chance.shares]
            by_size = " ".join(f"{share:.0%}" for share in shares)
            reach = f"{evaluation.chance.up_to(farther):.0%}"
            lines.append((f"{sense} random circuits", f"≥ 80% up to {reach} of the model"))
            lines.append(("  sizes 10% … 100%", by_size))
    if evaluation.completeness is not None:
        gap = f"{evaluation.completeness.mean:.3f}, worst {evaluation.completeness.worst:.3f}"
        lines.append(("completeness: mean gap", gap))
    if evaluation.minimality is not None:
        idle = evaluation.minimality.idle()
        told = f"{len(idle)} nodes change faithfulness by less than 0.01"
        lines.append(("minimality", f"{told}: {' '.join(idle[:8])}" if idle else told))
    if evaluation.stability is not None:
        stable = evaluation.stability
        figure = f"Jaccard {stable.overlap:.2f} with resampled prompts"
        lines.append(("stability of the top nodes", f"{figure}, {stable.between:.2f} between them"))
    return lines
