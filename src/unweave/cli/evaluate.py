"""`unweave evaluate`: how faithful, how small, how much better than random circuits."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from unweave.cli import commands
from unweave.cli import experiment_options as given

HeldOut = Annotated[
    int | None,
    typer.Option("-n", "--n-evaluate", min=2, help="Held-out prompts; by default the task's."),
]
Parts = Annotated[
    str,
    typer.Option(
        help="curve,roc,random_circuits,completeness,minimality,stability: all unless given."
    ),
]
Repeat = Annotated[
    int,
    typer.Option(
        min=0,
        max=given.MOST,
        help="Repeat the whole search this many times, on other prompts each time.",
    ),
]

Draws = Annotated[int, typer.Option(min=1, max=given.MOST, help="Random circuits of each size.")]


@commands.register("evaluate")
@given.takes(*given.LOADING, "quiet")
def evaluate(
    run: given.FoundRun,
    n: HeldOut = None,
    parts: Parts = "",
    draws: Draws = 10,
    repeat: Repeat = 0,
    **shared: Any,
) -> None:
    """Evaluate a found circuit on held-out prompts and write evaluation.json beside it.

    Every part is saved as soon as it is there: an interrupted evaluation continues with the
    same command.
    """
    from contextlib import nullcontext

    from unweave.distributed import ranks
    from unweave.evaluation.api import EVALUATION_PARTS
    from unweave.experiments.evaluate import evaluate_run
    from unweave.experiments.files import plain
    from unweave.experiments.run_folder import read_run
    from unweave.model.loading import load
    from unweave.progress import silent
    from unweave.report.html import write_report

    found, as_json = read_run(run), shared["as_json"]
    quiet = shared["quiet"] or as_json

    def say(line: str) -> None:
        if not quiet:
            typer.echo(line, err=True)

    try:
        with silent() if quiet else nullcontext():
            record = evaluate_run(
                found,
                lambda how: load(how.model, device=shared["device"], bos=how.bos),
                n=n,
                parts=tuple(part.strip() for part in parts.split(",") if part.strip())
                or EVALUATION_PARTS,
                draws=draws,
                repeat=repeat,
                say=say,
            )
    except KeyboardInterrupt:
        say(f"finished parts are in {run / 'evaluation.json'}: the same command continues")
        raise
    if not ranks().first:
        return
    write_report([run])
    if as_json:
        typer.echo(json.dumps(plain(record), indent=2))
        return
    _show(record, run)


def _show(record: Mapping[str, Any], run: Path) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.print(_table(record))
    console.print(
        f"Written: {run / 'evaluation.json'} and report.html", soft_wrap=True, markup=False
    )


def _table(record: Mapping[str, Any]) -> Any:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    about = record["about"]
    title = f"{about['method']} on {about['task']}, {about['model']}: "
    size = f"{record['size']} of {record['nodes']} {_kind(record)}s"
    title += f"{size}, {record['prompts']} held-out prompts"
    table = Table(title=escape(title), box=box.SIMPLE_HEAD, title_justify="left", show_header=False)
    table.add_column("what", no_wrap=True)
    table.add_column("figure")
    for what, figure in _lines(record):
        table.add_row(escape(what), escape(figure))
    return table


def _kind(record: Mapping[str, Any]) -> str:
    """What the circuit is made of: node or edge."""
    return record["about"].get("level", "node")


def _lines(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines = []
    for name, found in record["faithfulness"].items():
        value = "no scale" if found["value"] is None else f"{found['value']:.3f}"
        ends = f"metric {found['metric']:.3f}, all {found['full']:.3f}, none {found['empty']:.3f}"
        lines.append((f"faithfulness, {name} ablation", f"{value}  ({ends})"))
    for name, found in record.get("templates", {}).items():
        lines.append((f"  {name} templates", template_figure(found)))
    for name, curve in record.get("curves", {}).items():
        crossings = f"k80 {curve['k80']}, k95 {curve['k95']}"
        figures = f"curve gap {curve['curve_gap']:.3f}, area {curve['curve_area']:.3f}, {crossings}"
        lines.append((f"ranking, {name} ablation", figures))
    for name, value in record["known"].items():
        lines.append((f"{name} circuit", f"faithfulness {value:.3f}"))
    for name, roc in record.get("roc", {}).items():
        if roc["auc"] is not None and roc["sweep_auc"] is not None:
            figures = f"AUC {roc['auc']:.3f} by rank, {roc['sweep_auc']:.3f} by percentiles 90–99"
            figures += f" ({roc['known']} of {roc['nodes']})"
            lines.append((f"finds the {name} circuit", figures))
    return lines + _test_lines(record)


def template_figure(found: Mapping[str, Any]) -> str:
    """Faithfulness on prompts of one kind of templates, with its error."""
    if found["value"] is None:
        return f"no scale ({found['prompts']} prompts)"
    half = (found["interval"][1] - found["interval"][0]) / 2
    return f"{found['value']:.3f} ± {half:.3f} ({found['prompts']} prompts)"


def _test_lines(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines = []
    if test := record.get("random_circuits"):
        senses = (("beaten", "up_to", "more faithful than"),)
        senses += (("farther", "up_to_farther", "closer to 1 than"),)
        for share, reach, sense in senses:
            by_size = " ".join(f"{one[share]:.0%}" for one in test["shares"])
            text = f"≥ 80% up to {test[reach]:.0%} of the model"
            lines.append((f"{sense} random circuits", text))
            lines.append(("  sizes 10% … 100%", by_size))
    if found := record.get("completeness"):
        gap = f"{found['mean_gap']:.3f}, worst {found['worst_gap']:.3f}"
        lines.append(("completeness: mean gap", gap))
    if found := record.get("minimality"):
        idle = found["idle"]
        kind = _kind(record)
        changes = f"{kind} changes" if len(idle) == 1 else f"{kind}s change"
        text = f"{len(idle)} {changes} faithfulness by less than 0.01"
        lines.append(("minimality", f"{text}: {' '.join(idle[:8])}" if idle else text))
    if stable := record.get("stability"):
        figure = f"Jaccard {stable['overlap']:.2f} with resampled prompts"
        text = f"{figure}, {stable['between']:.2f} between them"
        lines.append((f"stability of the top {_kind(record)}s", text))
    if found := record.get("repeats"):
        figure = f"Jaccard {found['overlap']:.2f} with {len(found['searches'])} repeated searches"
        lines.append(("stability of the circuit", f"{figure}, {found['between']:.2f} of any two"))
        always = [name for name, share in found["kept"].items() if share == 1]
        lines.append(("  found every time", " ".join(always) or f"no {_kind(record)}"))
    return lines
