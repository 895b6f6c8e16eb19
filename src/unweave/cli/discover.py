"""`unweave discover`: name a behaviour, get its circuit."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unweave.cli import commands

if TYPE_CHECKING:
    from unweave.circuits import Circuit


@commands.register("discover")
def discover(
    task: Annotated[
        str, typer.Argument(help="A task (see unweave tasks), or your own .jsonl or .csv file.")
    ],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="A short name, hub name, folder or .gguf file; the task's own or smollm2-135m "
            "unless given.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        str, typer.Option("--method", help="cdt, eap, eap-ig, patching, …: see unweave methods.")
    ] = "cdt",
    granularity: Annotated[
        str, typer.Option(help="Nodes are each a head, or a head@position (named positions).")
    ] = "head",
    mlps: Annotated[bool, typer.Option("--mlps", help="MLPs are nodes too.")] = False,
    ablation: Annotated[
        str,
        typer.Option(help="What stands for an ablated node: mean, counterfactual or zero."),
    ] = "mean",
    prompts: Annotated[
        int | None, typer.Option("--prompts", "-n", help="Prompts to find the circuit on.")
    ] = None,
    held_out: Annotated[
        int | None, typer.Option("--held-out", help="Other prompts to measure it on.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            help="An option of the method, name=value, e.g. -o rules=paper -o select=top:20 "
            "-o refine=greedy -o max_size=15; may be given again.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides which prompts are drawn.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the run; by default a new one under runs/.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the interrupted run in --out.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    bos: Annotated[
        bool | None, typer.Option("--bos/--no-bos", help="Put a BOS token before each prompt.")
    ] = None,
    first_token: Annotated[
        bool,
        typer.Option("--first-token", help="Let the first token of a longer answer stand for it."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the circuit as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also print every iteration.")
    ] = False,
) -> None:
    """Find the circuit of a behaviour, and measure it on prompts that it was not found on.

    Example: unweave discover ioi --model smollm2-135m --out runs/ioi
    """
    from unweave.behaviours.file import find_task
    from unweave.experiments.discover import discover as run
    from unweave.experiments.specification import Plan
    from unweave.model.loading import load
    from unweave.progress import silent
    from unweave.report.html import write_report

    found = find_task(task, first_token)
    name = model or found.own_model
    plan = Plan(
        task=task,
        model=name,
        method=method,
        granularity=granularity,
        mlps=mlps,
        ablation=_one_of(ablation, "ablation", ("mean", "counterfactual", "zero")),
        seed=seed,
        discover=prompts,
        evaluate=held_out,
        first_token=first_token,
        options=_options(method, option or []),
    )
    folder = out or Path("runs") / f"{found.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    hushed = quiet or as_json
    loaded = load(name, device=device, bos=bos)
    if not hushed:
        typer.echo(repr(loaded), err=True)
    say = (lambda text: None) if hushed else (lambda text: typer.echo(text, err=True))
    if hushed:
        with silent():
            circuit = run(loaded, found, plan, folder, resume, say)
    else:
        circuit = run(loaded, found, plan, folder, resume, say)
    write_report([folder])
    if as_json:
        typer.echo(json.dumps(circuit.to_json(), indent=1))
        return
    _show(circuit, folder, verbose)


def _one_of(value: str, noun: str, known: tuple[str, ...]) -> Any:
    from unweave.errors import UnweaveError
    from unweave.registry import nearest

    if value not in known:
        raise UnweaveError(f"{noun} {value!r}: {nearest(value, known)}")
    return value


def _options(method: str, given: list[str]) -> dict[str, Any]:
    """Options as the method's defaults have them: numbers stay numbers."""
    from unweave.errors import UnweaveError
    from unweave.scores.problem import methods

    known, result = methods[method].options, {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise UnweaveError(f"option {text!r}: expected name=value")
        methods[method].checked({name: value})
        default = known[name]
        try:
            result[name] = _like(default, value)
        except ValueError as error:
            raise UnweaveError(
                f"option {name}={value}: expected a {type(default).__name__}, as in {default!r}"
            ) from error
    return result


def _like(default: Any, value: str) -> Any:
    """A value of the default's type."""
    if isinstance(default, bool):
        if value.lower() not in ("true", "false"):
            raise ValueError(value)
        return value.lower() == "true"
    if isinstance(default, int):
        return int(value)
    return float(value) if isinstance(default, float) else value


def _show(circuit: "Circuit", folder: Path, verbose: bool) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from unweave.experiments.files import read_json
    from unweave.sites import parse

    console, run = Console(), read_json(folder / "run.json", "a finished run")
    if verbose:
        for number, one in enumerate(run["iterations"], 1):
            console.print(
                f"iteration {number}: targets {', '.join(one['targets'][:8])}; "
                f"{len(one['selected'])} joined, {len(one['dropped'])} left, "
                f"faithfulness {one['faithfulness']:.3f}"
            )
    table = Table("node", "layer", "unit", "position", "score", box=box.SIMPLE_HEAD)
    for name, score in zip(circuit.nodes, circuit.scores, strict=True):
        site = parse(name)
        unit = f"head {site.unit}" if site.unit is not None else "MLP"
        where = "all" if site.position is None else str(site.position)
        table.add_row(name, str(site.point.layer), unit, where, f"{score:+.3f}")
    console.print(table)
    full, empty = run["metric"]["full"], run["metric"]["empty"]
    seconds = sum(run["seconds"].values())
    console.print(
        f"[bold]{circuit.size} of {circuit.total} nodes, faithfulness "
        f"{circuit.faithfulness:.3f}[/bold] on {len(run['prompts']['evaluate'])} held-out prompts "
        f"({circuit.found:.3f} where it was found)"
    )
    console.print(
        f"{run['metric']['name']}: whole model {full:.3f}, every node ablated {empty:.3f}; "
        f"{seconds:.0f} s; all of it is in {folder}"
    )
