"""`unweave discover`: name a behaviour, get its circuit."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unweave.cli import commands
from unweave.cli import experiment_options as given
from unweave.cli.evaluate import template_figure
from unweave.cli.plan import show_plan
from unweave.errors import UnweaveError

if TYPE_CHECKING:
    from rich.table import Table

    from unweave.behaviours.task import Task
    from unweave.circuits import Circuit
    from unweave.experiments.specification import Specification
    from unweave.model.model import Model

_MOST_EDGES = 20  # in the table that is printed


TaskName = Annotated[
    str, typer.Argument(help="A task (see unweave tasks), or your own .jsonl or .csv file.")
]
Seed = Annotated[int, typer.Option(help="Decides which prompts are drawn.")]
Out = Annotated[
    Path | None, typer.Option(help="Folder for the run; by default a new one under runs/.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the interrupted run in --out.")]
OpenReport = Annotated[
    bool, typer.Option("--open", help="Open the report in a browser when it is finished.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Also print every round.")]


@commands.register("discover")
@given.takes(*given.EXPERIMENT, *given.RUNNING, "dry_run")
def discover(
    task: TaskName,
    model: given.Model = None,
    method: given.Method = None,
    score: given.Score = None,
    search: given.Search = None,
    seed: Seed = 0,
    out: Out = None,
    resume: Resume = False,
    open_report: OpenReport = False,
    explain: Annotated[
        bool, typer.Option("--explain/--no-explain", help="Explain what each node does.")
    ] = True,
    roles: given.RolesFile = None,
    verbose: Verbose = False,
    **shared: Any,
) -> None:
    """Find the circuit of a behaviour, and measure it on prompts that it was not found on.

    Example: unweave discover ioi --out runs/ioi

    Example: unweave discover ioi --score eap-ig --search eliminate -o steps=10

    Example: unweave discover ioi --level edge
    """
    values, as_json = {**locals(), **shared}, shared["as_json"]
    from unweave.behaviours.file import find_task
    from unweave.distributed import on_first, ranks, restarted
    from unweave.experiments.locking import check_out, new_folder
    from unweave.model.loading import load
    from unweave.roles.definitions import read_roles

    if resume and out is None:
        raise UnweaveError("--resume needs the run's folder: give it with --out")
    if roles is not None and not explain:
        raise UnweaveError("--roles adds roles to explain nodes by: drop it, or --no-explain")
    read_roles(roles)  # an error before the model is loaded
    found = find_task(task, shared["first_token"])
    name = found.own_model if model is None else model
    specification = given.specification(values, task, name, **given.method_of(values), seed=seed)
    wanted = {key: shared[key] for key in ("device", "bos")}
    if shared["dry_run"]:
        return show_plan(load(name, **wanted), found, specification, as_json)
    resume = resume or restarted()
    if out is not None:
        on_first(lambda: check_out(out, resume))  # before the model is loaded
    loaded = load(name, **wanted)
    folder = out or Path(on_first(lambda: str(new_folder(found.name, name, seed))))
    resume, quiet = resume or not out, shared["quiet"] or as_json
    circuit = _run(
        loaded, found, specification, folder, resume, quiet, (explain, roles), new=not out
    )
    if ranks().first:
        _report(folder, open_report)
        _show(circuit, folder, verbose, as_json)


def _report(folder: Path, open_report: bool) -> None:
    from unweave.report.html import write_report

    report = write_report([folder])
    if open_report:
        typer.launch(str(report))


def _run(
    model: "Model",
    task: "Task",
    specification: "Specification",
    folder: Path,
    resume: bool,
    quiet: bool,
    explaining: tuple[bool, Path | None],
    new: bool,
) -> "Circuit":
    """Runs the discovery, with a line for every phase; Ctrl-C says how to continue.

    Args:
        explaining: Whether nodes are explained, and a file of roles to add.
        new: Whether the folder was made for this run: it goes again if it stays empty.
    """
    from contextlib import nullcontext

    from unweave.distributed import ranks
    from unweave.experiments.discover import discover as run
    from unweave.experiments.locking import remove_empty
    from unweave.progress import silent

    def say(text: str) -> None:
        if not quiet:
            typer.echo(text, err=True)

    say(repr(model))
    try:
        with silent() if quiet else nullcontext():
            return run(model, task, specification, folder, resume, say, *explaining)
    except KeyboardInterrupt:
        if (folder / "state.json").exists():
            say(f"what is finished is in {folder}: continue with --resume --out {folder}")
        raise
    finally:
        if new and ranks().first:
            remove_empty(folder, folder.parent)  # of a run that failed


def _show(circuit: "Circuit", folder: Path, verbose: bool, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(circuit.to_json(), indent=1))
        return
    from rich.console import Console
    from rich.markup import escape

    from unweave.experiments.run_folder import read_run

    console, record = Console(), read_run(folder).record
    tell = partial(console.print, soft_wrap=True)
    if verbose:
        for number, one in enumerate(record.get("rounds") or (), 1):
            tell(
                f"round {number}: targets {', '.join(one['targets'][:8])}; "
                f"{len(one['selected'])} joined, {len(one['dropped'])} left, "
                f"faithfulness {one['faithfulness']:.3f} where it was found"
            )
    if sentence := (record.get("verdict") or {}).get("sentence"):
        tell(escape(sentence), style="bold")
    console.print(_table(circuit))
    if circuit.edges:
        console.print(_edge_table(circuit))
    half = (circuit.interval[1] - circuit.interval[0]) / 2
    tell(
        f"[bold]{circuit.parts}, faithfulness "
        f"{circuit.faithfulness:.3f} ± {half:.3f}[/bold] (95%, {circuit.prompts} held-out prompts; "
        f"{circuit.found:.3f} where it was found)"
    )
    if kinds := (record.get("verdict") or {}).get("templates"):
        figures = (f"{template_figure(one)} of {name} templates" for name, one in kinds.items())
        tell("held-out prompts by template: " + ", ".join(figures))
    metric = record.get("metric") or {}
    seconds, passes = (sum((record.get(key) or {}).values()) for key in ("seconds", "forwards"))
    if all(metric.get(key) is not None for key in ("name", "full", "empty")):
        tell(
            f"{escape(metric['name'])}: whole model {metric['full']:.3f}, every node ablated "
            f"{metric['empty']:.3f}; {seconds:.0f} s, {passes:.0f} forward passes"
        )
    tell(
        f"Next: open {escape(str(folder / 'report.html'))}, or unweave evaluate "
        f"{escape(str(folder))}"
    )


def _table(circuit: "Circuit") -> "Table":
    from rich import box
    from rich.table import Table

    columns = ["node"]
    if circuit.summaries:
        columns.append("role")
    # A score only estimates what the evidence has measured.
    columns += ["effect", "", "again", "instead"] if circuit.evidence else ["score"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    if circuit.evidence:
        table.caption = (
            "effect: what faithfulness loses without the node; again: how often resampled prompts "
            "keep it; instead: a node that can take its place"
        )
    for column in columns:
        whole = column in ("node", "score", "effect", "")
        table.add_column(column, no_wrap=whole, min_width=16 if column == "role" else None)
    for name, score in zip(circuit.nodes, circuit.scores, strict=True):
        row = [name]
        if circuit.summaries:
            row.append(circuit.summaries[name].role if name in circuit.summaries else "")
        if name in circuit.evidence:
            known = circuit.evidence[name]
            often = "" if known.frequency is None else f"{known.frequency:.0%}"
            row += [f"{known.effect:+.2f} ± {known.half:.2f}", known.group or "", often]
            row.append(" ".join(known.swaps[:3]))
        elif not circuit.evidence:
            row.append(f"{score:+.3f}")
        table.add_row(*row)
    return table


def _edge_table(circuit: "Circuit") -> Any:
    """The edges with the largest effects: how much faithfulness falls without each."""
    from rich import box
    from rich.table import Table

    shown = sorted(circuit.edges, key=lambda edge: -abs(edge.effect))[:_MOST_EDGES]
    table = Table("edge", "score", "effect", box=box.SIMPLE_HEAD)
    for edge in shown:
        half = (edge.interval[1] - edge.interval[0]) / 2
        table.add_row(edge.name, f"{edge.score:+.3f}", f"{edge.effect:+.3f} ± {half:.3f}")
    if len(shown) < len(circuit.edges):
        table.add_row(f"… {len(circuit.edges) - len(shown)} more in circuit.json", "", "")
    return table
