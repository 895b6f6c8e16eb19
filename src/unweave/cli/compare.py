"""`unweave compare`: methods side by side on the same prompts, ablations and metrics."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unweave.cli import commands
from unweave.cli import experiment_options as given
from unweave.cli.tables import FIGURES, by_part, method_table, show_tables
from unweave.errors import UnweaveError

if TYPE_CHECKING:
    from unweave.experiments.compare import Comparison, Loader
    from unweave.experiments.methods import Method
    from unweave.model.model import Model


TaskNames = Annotated[list[str], typer.Argument(help="Names of tasks, or .jsonl and .csv files.")]
Methods = Annotated[
    str,
    typer.Option(
        help="Methods, comma-separated: names, or SCORE+SEARCH such as eap-ig+eliminate; "
        "all named methods unless given."
    ),
]
ScoreNames = Annotated[
    str,
    typer.Option(help="Scores, comma-separated, each with every --search."),
]
SearchNames = Annotated[
    str, typer.Option(help="Searches, comma-separated, each with every --score.")
]
Seeds = Annotated[str, typer.Option(help="Numbers, comma-separated.")]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder for the results; by default runs/compare-MODEL.", show_default=False),
]
Draws = Annotated[int, typer.Option(min=1, max=given.MOST, help="Random circuits of each size.")]
Protocol = Annotated[
    str,
    typer.Option(
        help="curve: our nodes, ablation and curve; mib: CPR and CMD by MIB's protocol, as "
        "unweave mib run (--methods, --model, --prompts, --held-out, --seeds)."
    ),
]
Executor = Annotated[
    str,
    typer.Option(
        help="Run in parallel: local:4 (processes), slurm, slurm:partition=gpu,… "
        "(submitit), ray or ray:ADDRESS; one after the other unless given.",
        show_default=False,
    ),
]


@commands.register("compare")
@given.takes(*given.EXPERIMENT, *given.RUNNING, "dry_run")
def compare(
    tasks: TaskNames,
    methods: Methods = "",
    score: ScoreNames = "",
    search: SearchNames = "",
    model: given.Model = None,
    seeds: Seeds = "0",
    draws: Draws = 10,
    protocol: Protocol = "curve",
    out: Out = None,
    executor: Executor = "",
    **shared: Any,
) -> None:
    """Compare methods on tasks; an interrupted run continues where it was.

    Every result (task, method, seed) is saved in the folder as soon as it is finished. Exits with
    1 when every method failed.

    Example: unweave compare ioi docstring --score decomposition,eap --search top,eliminate
    """
    values, quiet, as_json = {**locals(), **shared}, shared["quiet"], shared["as_json"]
    device, bos = shared["device"], shared["bos"]
    if protocol == "mib":
        from unweave.cli.mib import show, table_of

        _check_mib(values)
        table = table_of(tasks, methods, model, seeds, values)
        return show(table, out, device, bos, quiet, as_json)
    if protocol != "curve":
        raise UnweaveError(f"--protocol {protocol}: expected curve or mib")
    from unweave.experiments.compare import Comparison, Loader

    model = common_model(tasks) if model is None else model
    base = given.specification(values, tasks[0], model)
    chosen = _methods(methods, score, search, values["option"] or [], values["level"] == "edge")
    comparison = Comparison(tuple(tasks), base, chosen, read_seeds(seeds), draws)
    folder = out or Path("runs") / f"compare-{Path(model).name}"
    if shared["dry_run"]:
        return _show_plans(comparison, Loader(device, bos), as_json)
    record = _run(comparison, folder, Loader(device, bos), executor, quiet, as_json)
    _show(record, folder, as_json)


def _run(
    comparison: "Comparison",
    folder: Path,
    loader: "Loader",
    executor: str,
    quiet: bool,
    as_json: bool,
) -> dict[str, Any]:
    """Runs the comparison, with a line for every result; Ctrl-C says how to continue."""
    from contextlib import nullcontext

    from unweave.distributed import on_first
    from unweave.experiments.compare import compare
    from unweave.experiments.executors import find_executor
    from unweave.experiments.locking import check_writable
    from unweave.progress import silent

    on_first(lambda: check_writable(folder))
    say = given.speaker(quiet)
    try:
        progress = silent() if quiet or as_json else nullcontext()
        workers = find_executor(executor, folder) if executor else nullcontext()
        with progress, workers as pool:
            return compare(comparison, folder, loader, say, pool)
    except KeyboardInterrupt:
        say(f"finished results are in {folder}: the same command continues")
        raise


def _check_mib(values: Mapping[str, Any]) -> None:
    """Options that MIB's protocol leaves no choice of are errors, not ignored."""
    fixed = {name: values[name] for name in ("score", "search", "option", "mlps")}
    fixed |= {"granularity": values["granularity"] != "head"}
    fixed |= {"ablation": values["ablation"] != "mean", "first-token": values["first_token"]}
    fixed |= {"only-correct": values["only_correct"] is not None}
    if unused := [name for name, value in fixed.items() if value]:
        raise UnweaveError(
            f"--{unused[0]} has no meaning in MIB's protocol, which fixes nodes and "
            "ablation: drop it; options of a score are written eap-ig:steps=10 in --methods"
        )


def _show(record: Mapping[str, Any], folder: Path, as_json: bool) -> None:
    from unweave.experiments.files import plain

    if as_json:
        typer.echo(json.dumps(plain(record), indent=2))
        return
    show_tables(tables(record), f"Results and compare.json: {folder}")
    if all("error" in row for row in record["rows"]):
        raise typer.Exit(1)


def _show_plans(comparison: "Comparison", load: "Callable[[str], Model]", as_json: bool) -> None:
    """What every method of every task will take; a seed costs what another does."""
    from rich.console import Console
    from rich.table import Table

    from unweave.experiments.plan import plan
    from unweave.progress import silent

    model, rows = load(comparison.base.model), []
    for task in comparison.checked().tasks:
        for method in comparison.checked().methods:
            how = replace(comparison.base, task=task, **method.named())
            with silent():
                found = plan(model, task, how)
            rows.append({"task": task, "method": method.name, **found.to_json()})
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    table = Table("task", "method", "forward passes", "seconds", "peak MB", box=None)
    for row in rows:
        passes, seconds = (sum(row[key].values()) for key in ("forwards", "seconds"))
        peak = row["memory"]["peak"] / 1e6
        table.add_row(row["task"], row["method"], f"{passes:.0f}", f"{seconds:.0f}", f"{peak:.0f}")
    Console(highlight=False).print(table, f"times {len(comparison.seeds)} seed(s)")


def _methods(
    names: str, scores: str, searches: str, options: list[str], edges: bool = False
) -> "tuple[Method, ...]":
    """Named methods, and every score behind every search; without any, all that can do it."""
    from unweave.experiments.methods import METHODS, find_method, read_options

    found = [find_method(name) for name in _listed(names)]
    pairs = _listed(scores), _listed(searches)
    if any(pairs):
        level = "edge" if edges else "node"
        both = ((a, b) for a in pairs[0] or [None] for b in pairs[1] or [None])
        found += [find_method(None, *pair, level) for pair in both]
    found = found or [one for one in METHODS.values() if one.finds_edges or not edges]
    if not options:
        return tuple(found)
    known = [_with_known(method, options) for method in found]
    for text in options:
        if not any(text in used for _, used in known):
            read_options(found[0], [text])  # says which options there are
    return tuple(
        method.with_options(read_options(method, used)) if used else method
        for method, used in known
    )


def _with_known(method: "Method", options: list[str]) -> "tuple[Method, list[str]]":
    """A method with those of the options that its parts know."""
    from unweave.scores.score import scores
    from unweave.search.search import searches

    names = {*scores[method.score].options, *searches[method.search].options}
    return method, [text for text in options if text.partition("=")[0] in names]


def _listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def common_model(tasks: Sequence[str]) -> str:
    """The model that all of the tasks are run on by default."""
    from unweave.behaviours.file import find_task

    own = {name: find_task(name).own_model for name in tasks}
    if len(set(own.values())) > 1:
        listed = ", ".join(f"{name} on {model}" for name, model in own.items())
        raise UnweaveError(
            f"these tasks are run on different models ({listed}): compare those of one model, or "
            "give --model"
        )
    return next(iter(own.values()))


COLUMNS = (
    *("curve_gap", "curve_area", "k95", "auc", "size", "faithfulness", "off"),
    *("seconds", "score_forwards", "forwards"),
)


def tables(record: Mapping[str, Any]) -> list[Any]:
    """One table a task, a row a method."""
    found, settings = [], record["settings"]
    headed = {**FIGURES, "size": (f"{settings.get('level', 'node')}s", ".0f")}
    for (task,), rows in by_part(record["summary"], "task").items():
        known = any(row.get("auc") is not None for row in rows)
        figures = {name: headed[name] for name in COLUMNS if known or name != "auc"}
        title = f"{task}, {record['model']}, {settings['ablation']} ablation"
        found += method_table(title, figures, rows, _caption(record))
    return found


def _caption(record: Mapping[str, Any]) -> str:
    return (
        "gap, area (of the curve), k95: the ranking on held-out prompts; eliminate orders the "
        "nodes outside its circuit by measured faithfulness unless -o order=left; nodes, f, "
        "|1−f|: the circuit that the method returns; score, fwd: cost in forward passes of the "
        "score, and of score "
        f"and search; means of {len(record['seeds'])} seed(s)"
    )


def read_seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise UnweaveError(f"--seeds {text}: expected numbers such as 0,1,2") from None
