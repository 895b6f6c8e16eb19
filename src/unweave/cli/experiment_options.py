"""Options that every command with an experiment has: one spelling, one help text."""

import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from unweave.experiments.specification import Specification

F = TypeVar("F", bound=Callable[..., None])

FoundRun = Annotated[Path, typer.Argument(help="A folder that unweave discover wrote.")]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="A short name, hub name, folder or .gguf file; the task's own or smollm2-135m unless "
        "given.",
        show_default=False,
    ),
]
Score = Annotated[
    str | None,
    typer.Option(
        "--score",
        help="What scores the nodes: decomposition, eap, eap-ig, …, in place of the method's own.",
        show_default=False,
    ),
]
Search = Annotated[
    str | None,
    typer.Option(
        "--search",
        help="How scores become a circuit: top, algorithm1, eliminate or acdc, in place of the "
        "method's own.",
        show_default=False,
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        help="An option of the score or the search, name=value, e.g. -o rules=paper "
        "-o max_size=15; may be given again. See unweave methods.",
        show_default=False,
    ),
]
Granularity = Annotated[
    str,
    typer.Option(
        "--granularity",
        help="What nodes are: head, neuron, qkv, mlp; with @position one node for each named "
        "position, with @token one for each token.",
    ),
]
Mlps = Annotated[
    bool | None,
    typer.Option(
        "--mlps/--no-mlps",
        help="MLPs are nodes too; by default only with --level edge.",
        show_default=False,
    ),
]
Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        help="A named pair of score and search: see unweave methods.",
        show_default="eap+eliminate; cdt with --level edge",
    ),
]
Level = Annotated[
    str,
    typer.Option(
        "--level",
        help="What circuits are made of: node, or edge for edges among the nodes found first.",
    ),
]
Ablation = Annotated[
    str,
    typer.Option("--ablation", help="What replaces an ablated node: mean, counterfactual or zero."),
]
Prompts = Annotated[
    int | None,
    typer.Option("--prompts", "-n", min=1, help="Prompts to find the circuit on."),
]
HeldOut = Annotated[
    int | None, typer.Option("--held-out", min=2, help="Other prompts to measure it on.")
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, …")]


MOST = 10_000  # of what a command draws, repeats or follows: far more than any figure gains from


def not_nan(value: float) -> float:
    """For options with a range: NaN is in none, but no comparison says so."""
    if math.isnan(value):
        raise typer.BadParameter("nan is not a number")
    return value


def _ask_precision(precision: str | None) -> str | None:
    """The command that follows runs in this precision; `main` forgets it at the end."""
    from unweave.asked import ask_precision

    ask_precision(precision)
    return precision


def _ask_memory(memory: str | None) -> str | None:
    """The command that follows takes no more than this; `main` forgets it at the end."""
    from unweave.asked import ask_memory
    from unweave.model.sizes import memory_size

    if memory is not None:
        memory_size(memory)  # an error before anything is loaded
    ask_memory(memory)
    return memory


Precision = Annotated[
    str | None,
    typer.Option(
        "--precision",
        help="float32, tf32 or float64; by default float32, and tf32 for what a sweep splits "
        "where the GPU has it.",
        show_default=False,
        callback=_ask_precision,
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        help="Memory for weights and computation on the device, e.g. 16GB: on a GPU, layers that "
        "do not fit stay in CPU memory and are loaded when they are used.",
        show_default=False,
        callback=_ask_memory,
    ),
]
Bos = Annotated[
    bool | None, typer.Option("--bos/--no-bos", help="Put a BOS token before each prompt.")
]
FirstToken = Annotated[
    bool,
    typer.Option("--first-token", help="Let the first token of a longer answer stand for it."),
]
OnlyCorrect = Annotated[
    bool | None,
    typer.Option(
        "--only-correct/--keep-wrong",
        help="Use only prompts that the model answers correctly; by default as the task has it.",
        show_default=False,
    ),
]
RolesFile = Annotated[
    Path | None,
    typer.Option(
        "--roles", help="A TOML file of roles to add to those of unweave.", show_default=False
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Estimate forward passes, time and memory; run nothing else."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

_SPECIFIED = (
    *("granularity", "level", "mlps", "prompts", "held_out", "bos", "first_token"),
    "only_correct",
)
# With their defaults, so that no two commands differ in them.
_TAKEN: Mapping[str, tuple[Any, Any]] = {
    "option": (Options, None),
    "granularity": (Granularity, "head"),
    "level": (Level, "node"),
    "mlps": (Mlps, None),
    "ablation": (Ablation, "mean"),
    "prompts": (Prompts, None),
    "held_out": (HeldOut, None),
    "device": (Device, "cpu"),
    "precision": (Precision, None),
    "memory": (Memory, None),
    "bos": (Bos, None),
    "first_token": (FirstToken, False),
    "only_correct": (OnlyCorrect, None),
    "dry_run": (DryRun, False),
    "quiet": (Quiet, False),
    "as_json": (AsJson, False),
}
EXPERIMENT = ("option", *_SPECIFIED, "ablation", "device", "as_json")
RUNNING = ("precision", "memory", "quiet")
LOADING = ("device", "precision", "memory", "as_json")


def takes(*names: str) -> Callable[[F], F]:
    """Gives a command options that others have too; it takes them as keywords, by name."""

    def with_options(command: F) -> F:
        own = inspect.signature(command)
        kept = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        more = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
            for name, (annotation, default) in _TAKEN.items()
            if name in names
        ]
        # typer reads the signature, and parses what it finds there.
        setattr(command, "__signature__", own.replace(parameters=[*kept, *more]))  # noqa: B010
        return command

    return with_options


def specification(values: Mapping[str, Any], task: str, model: str, **own: Any) -> "Specification":
    """The experiment that a command's options ask for.

    Args:
        values: All options of the command by name (its `locals()`); those that every command with
            an experiment has are taken.
        own: What only this command has.
    """
    from unweave.ablations.kind import ablations
    from unweave.asked import asked_precision
    from unweave.experiments.specification import Specification

    shared = {name: values[name] for name in _SPECIFIED} | {"precision": asked_precision()}
    ablation = ablations[values["ablation"]].name
    return Specification(task=task, model=model, ablation=ablation, **shared, **own)


def speaker(quiet: bool) -> Callable[[str], None]:
    """Prints a line for people beside the result."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)

    def say(line: str) -> None:
        if not quiet:
            console.print(line, style="dim", markup=False, soft_wrap=True)

    return say


def method_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Method, score, search and their options, from the command's options by name."""
    from unweave.experiments.methods import find_method, read_options

    parts = {name: values[name] for name in ("method", "score", "search")}
    method = find_method(*parts.values(), level=values["level"])
    return {**parts, "options": read_options(method, values["option"] or [])}
