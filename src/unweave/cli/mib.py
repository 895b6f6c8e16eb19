"""`unweave mib`: MIB's circuit track, its table and the files of a submission."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unweave.cli import commands
from unweave.cli import experiment_options as given
from unweave.cli.tables import FIGURES, by_part, method_table, show_tables

if TYPE_CHECKING:
    from unweave.experiments.mib_folder import MibTable

app = typer.Typer(help="MIB's circuit track: CPR and CMD by its protocol, and submissions.")
commands.register("mib")(app)

_PEERS = "decomposition,eap,eap-ig:steps=5,eap-ig:steps=10,gim,masks"
Methods = Annotated[
    str,
    typer.Option(
        help="Scores or methods, comma-separated, options after colons: eap-ig:steps=10; "
        f"unless given {_PEERS}.",
        show_default=False,
    ),
]
Level = Annotated[str, typer.Option(help="What is kept by share: node, edge or neuron.")]
Seeds = Annotated[str, typer.Option(help="Numbers, comma-separated.")]


@app.command("run")
@given.takes("prompts", "held_out", "bos", *given.LOADING, "quiet")
def run(
    tasks: Annotated[list[str], typer.Argument(help="Names of tasks, or .jsonl and .csv files.")],
    methods: Methods = "",
    level: Level = "node",
    model: given.Model = None,
    seeds: Seeds = "0",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder; by default runs/mib-MODEL.", show_default=False),
    ] = None,
    **shared: Any,
) -> None:
    """Score the items of a level and print CPR and CMD by MIB's protocol.

    Example: unweave mib run ioi --methods decomposition,eap,eap-ig:steps=10

    Example: unweave mib run mib-bench/ioi --model gpt2 --methods eap,gim
    """
    table = table_of(tasks, methods, model, seeds, {"level": level, **shared})
    show(table, out, *(shared[name] for name in ("device", "bos", "quiet", "as_json")))


def table_of(
    tasks: Sequence[str],
    methods: str,
    model: str | None,
    seeds: str,
    values: Mapping[str, Any],
) -> "MibTable":
    """What the command line asks for, checked.

    Args:
        values: Level and numbers of prompts, among the command's options by name.
    """
    from unweave.cli.compare import common_model, read_seeds
    from unweave.experiments.mib import mib_method, read_level
    from unweave.experiments.mib_folder import MibTable

    name = common_model(tasks) if model is None else model
    texts = [text.strip() for text in (methods or _PEERS).split(",") if text.strip()]
    chosen = tuple(map(mib_method, texts))
    where = read_level(values["level"]), read_seeds(seeds)
    counts = values["prompts"], values["held_out"]
    return MibTable(tuple(tasks), name, chosen, *where, *counts)


def show(
    table: "MibTable", out: Path | None, device: str, bos: bool | None, quiet: bool, as_json: bool
) -> None:
    """Runs and prints the table; also `unweave compare --protocol mib`."""
    from contextlib import nullcontext

    from unweave.experiments.files import plain
    from unweave.experiments.locking import check_writable, locked
    from unweave.experiments.mib_folder import run_table
    from unweave.model.loading import load
    from unweave.progress import silent

    name = table.model
    folder = out or Path("runs") / f"mib-{Path(name).name}"
    say = given.speaker(quiet)
    check_writable(folder)
    with locked(folder), silent() if quiet or as_json else nullcontext():
        record = run_table(table, load(name, device=device, bos=bos), folder, say)
    if as_json:
        typer.echo(json.dumps(plain(record), indent=2))
    else:
        show_tables(tables(record), f"Scores and mib.json: {folder}")
    if all("error" in result for result in record["results"]):
        raise typer.Exit(1)


_COLUMNS = ("cpr", "cmd", "log_accuracy", "forwards", "seconds")


def tables(record: Mapping[str, Any]) -> list[Any]:
    """One table a task and level, a row a method."""
    found, figures = [], {name: FIGURES[name] for name in _COLUMNS}
    for (task, level), rows in by_part(record["summary"], "task", "level").items():
        title = f"{task}, {record['model']}, {level}s, counterfactual patching (MIB)"
        found += method_table(title, figures, rows, _CAPTION)
    return found


_CAPTION = (
    "CPR: area of faithfulness, items by score (more is better); CMD: area of |1 − f|, items by "
    "magnitude (0 is perfect); log acc: accuracy over log share; fwd: cost of the score in "
    "forward passes; on held-out prompts"
)


@app.command("pack")
def pack(
    folder: Annotated[Path, typer.Argument(help="Folder of unweave mib run.")],
    method: Annotated[
        str | None,
        typer.Option(help="Which method, where there are several.", show_default=False),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(help="Where to write; by default FOLDER/submission.", show_default=False),
    ] = None,
    model_name: Annotated[
        str | None,
        typer.Option(help="MIB's name of the model, e.g. gpt2 or qwen2.5.", show_default=False),
    ] = None,
) -> None:
    """Write a method's scores in the layout of MIB's submissions.

    Example: unweave mib pack runs/mib-gpt2 --method eap --model-name gpt2
    """
    from unweave.experiments.mib_folder import pack as write

    for path in write(folder, method, to or folder / "submission", model_name):
        typer.echo(str(path))
