"""`unweave paths`: the strongest paths from tokens through nodes to the logits."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from unweave.cli import commands
from unweave.cli import experiment_options as given


@commands.register("paths")
@given.takes(*given.LOADING, "quiet")
def paths(
    run: given.FoundRun,
    prompts: Annotated[int, typer.Option("-n", "--prompts", min=2, help="Held-out prompts.")] = 16,
    count: Annotated[int, typer.Option(min=1, max=given.MOST, help="How many paths to list.")] = 20,
    expansions: Annotated[
        int,
        typer.Option(
            min=1,
            max=given.MOST,
            help="How many partial paths to follow, the strongest first.",
        ),
    ] = 64,
    **shared: Any,
) -> None:
    """Find the strongest paths from tokens to the logits and write paths.json beside the run.

    The share is what a path carries of the metric; shares of all paths add up to 100%. The last
    column is what the metric really loses in a run in which that path is cut.
    """
    from contextlib import nullcontext

    from unweave.experiments.files import plain
    from unweave.experiments.paths import paths_of_run
    from unweave.experiments.run_folder import read_run
    from unweave.model.loading import load
    from unweave.progress import silent
    from unweave.report.html import write_report

    found, as_json = read_run(run), shared["as_json"]
    with silent() if shared["quiet"] or as_json else nullcontext():
        record = paths_of_run(
            found,
            lambda how: load(how.model, device=shared["device"], bos=how.bos),
            prompts,
            count,
            expansions,
        )
    write_report([run])
    if as_json:
        typer.echo(json.dumps(plain(record), indent=1, ensure_ascii=False))
        return
    _print(record, run)


def _print(record: Mapping[str, Any], run: Path) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("path")
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("lost when it is cut", justify="right", no_wrap=True)
    for one in record["paths"]:
        route = escape(" → ".join(one["path"]))
        table.add_row(route, *(_figure(one, name) for name in ("share", "measured")))
    console.print(table)
    console.print(
        f"{record['metric']}: {record['total']:+.3f} above the model with everything ablated "
        f"({record['ablation']} ablation, {record['prompts']} held-out prompts). Left over: "
        f"{record['left']:+.1%}, of which {record['left_after_all']:+.1%} in paths that were not "
        f"followed ({record['expanded']} were).",
        soft_wrap=True,
        markup=False,
    )
    console.print(f"Written: {run / 'paths.json'} and report.html", soft_wrap=True, markup=False)


def _figure(one: Mapping[str, Any], name: str) -> str:
    low, high = one["interval" if name == "share" else "measured_interval"]
    return f"{one[name]:+.1%} ± {(high - low) / 2:.1%}"
