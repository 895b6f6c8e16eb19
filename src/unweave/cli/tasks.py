"""`unweave tasks`: the available behaviours, their prompts, and checks of your own file."""

import json
from typing import TYPE_CHECKING, Annotated, Any, no_type_check

import typer

from unweave.cli import commands
from unweave.cli import experiment_options as given

if TYPE_CHECKING:
    from rich.text import Text

    from unweave.batch import Batch
    from unweave.behaviours.sampling import Part
    from unweave.behaviours.task import Task
    from unweave.behaviours.validation import Validation
    from unweave.model.model import Model

_NEXT_LINE = "\n" + " " * 16  # keeps a prompt of several lines below its first
MEASURED = 32  # prompts on which `show` measures a model
SHOWN_WRONG = 8  # wrongly answered prompts that `validate` prints
_USES: "dict[Part, str]" = {
    "discover": "to search on",
    "check": "to check on",
    "evaluate": "to evaluate on",
    "reference": "for reference means",
}

app = typer.Typer(help="List tasks, show their prompts, check a task file.")
commands.register("tasks")(app)

Name = Annotated[str, typer.Argument(help="A task's name, or a .jsonl or .csv file.")]
File = Annotated[str, typer.Argument(help="A .jsonl or .csv file with prompts.")]
ShownModel = Annotated[
    str | None, typer.Option("--model", help="The task's own or smollm2-135m unless given.")
]
CheckedModel = Annotated[
    str | None, typer.Option("--model", help="The model to use it with [default: smollm2-135m].")
]
Shown = Annotated[int | None, typer.Option("-n", help="How many prompts to show [default: 3].")]
Seed = Annotated[int, typer.Option(help="Which prompts are drawn.")]
FileOnly = Annotated[
    bool, typer.Option("--file-only", help="Check the lines alone and load no model.")
]


@app.callback(invoke_without_command=True)
@no_type_check  # typer passes a base class of its own Context
def tasks(context: typer.Context, as_json: given.AsJson = False) -> None:
    """List tasks, show their prompts, check a task file."""
    if context.invoked_subcommand is None:
        _list(as_json)


def _list(as_json: bool) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from unweave.behaviours.mib_hub import DATASETS
    from unweave.behaviours.task import synthetic_tasks
    from unweave.behaviours.task import tasks as registered

    found = [
        _about(registry[name]) for registry in (registered, synthetic_tasks) for name in registry
    ]
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    table = Table("task", "what", "known circuit (heads)", box=box.SIMPLE_HEAD)
    for task in found:
        known = ", ".join(f"{model} ({len(nodes)})" for model, nodes in task["known"].items())
        table.add_row(task["name"], task["summary"], known)
    console = Console()
    console.print(table)
    console.print("Also: your own prompts in a .jsonl or .csv file (unweave tasks validate FILE),")
    console.print(f"and MIB's datasets from the Hugging Face hub: {', '.join(DATASETS)}.")


def _about(task: "Task") -> dict[str, Any]:
    return {
        "name": task.name,
        "summary": task.summary,
        "metric": task.metric.name,
        "formula": task.metric.formula,
        "n_discover": task.n_discover,
        "n_evaluate": task.n_evaluate,
        "only_correct": task.only_correct,
        "known": {name: [str(n) for n in circuit.nodes] for name, circuit in task.known.items()},
    }


@app.command()
@given.takes("first_token", *given.LOADING)
def show(
    task: Name,
    model: ShownModel = None,
    n: Shown = None,
    seed: Seed = 0,
    **shared: Any,
) -> None:
    """Print prompts with their labelled tokens, the metric, and how a model does."""
    from rich.console import Console
    from rich.markup import escape

    from unweave.behaviours.accuracy import lacks_bos, task_accuracy
    from unweave.behaviours.file import find_task
    from unweave.behaviours.task import check_count
    from unweave.model.loading import load

    found, shown = find_task(task, shared["first_token"]), 3 if n is None else n
    check_count(shown)
    console = Console(stderr=True)
    name = model or found.own_model
    with console.status(f"loading {escape(name)}"):
        loaded = load(name, device=shared["device"])
    if n is not None:
        found.require(loaded, n, "evaluate")
    drawn = found.prompts(loaded, max(shown, MEASURED), seed, "evaluate", only_correct=False)
    batch = found.encode(loaded, drawn)
    accuracy = task_accuracy(loaded, batch)
    if accuracy.fails and lacks_bos(loaded):
        console.print("warning: no BOS token is put in front; try bos=True", style="yellow")
    examples = [_example(loaded, batch, i) for i in range(min(shown, len(batch)))]
    for example, prompt in zip(examples, drawn, strict=False):
        example |= {"answers": prompt.answers, "distractors": prompt.distractors}
    about = _about(found) | {
        "model": loaded.name,
        "measured": {"prompts": len(batch), **accuracy._asdict()},
        "prompts": examples,
    }
    if shared["as_json"]:
        typer.echo(json.dumps(about, indent=2))
    else:
        _print(about, loaded)


def _example(model: "Model", batch: "Batch", row: int) -> dict[str, Any]:
    """A prompt with the characters of its labelled tokens."""
    text = batch.texts[row]
    _, spans = model.encode(text)
    labels: dict[int, list[str]] = {}
    for name, where in batch.positions.items():
        labels.setdefault(int(where[row]), []).append(name)
    positions = {
        "/".join(names): {"index": index, "characters": spans[index]}
        for index, names in sorted(labels.items())
    }
    return {"clean": text, "corrupted": batch.corrupted_texts[row], "positions": positions}


def _print(about: dict[str, Any], model: "Model") -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    measured = about["measured"]
    console.print(
        Text(about["name"], style="bold").append(f": {about['summary']}", style="not bold")
    )
    console.print(Text(f"metric: {about['metric']} at end, {about['formula']}"))
    console.print(
        Text(
            f"{about['model']} ({'with' if model.prepend_bos else 'no'} BOS): "
            f"{measured['correct']:.0%} correct, {about['metric']} {measured['metric']:.3f} "
            f"on {measured['prompts']} prompts"
        )
    )
    for name, nodes in about["known"].items():
        console.print(Text(f"known circuit in {name}, {len(nodes)} heads: {' '.join(nodes)}"))
    for number, example in enumerate(about["prompts"], start=1):
        console.print()
        lines = [_labelled(example), Text(example["corrupted"].replace("\n", _NEXT_LINE))]
        for kind in ("answers", "distractors"):
            lines.append(Text(" ".join(repr(word) for word in example[kind])))
        kinds = (f"{number}. clean", "   corrupted", "   answers", "   distractors")
        for kind, line in zip(kinds, lines, strict=True):
            console.print(Text(f"{kind:{len(_NEXT_LINE) - 1}}").append(line), soft_wrap=True)


def _labelled(example: dict[str, Any]) -> "Text":
    """The clean text with its labelled tokens in brackets, each followed by its label."""
    from rich.text import Text

    clean, text, done = example["clean"], Text(), 0
    for label, position in example["positions"].items():
        start, end = position["characters"]
        word = clean[start:end]
        blank = len(word) - len(word.lstrip())
        text.append(clean[done : start + blank].replace("\n", _NEXT_LINE))
        text.append(f"‹{word.lstrip()}›", style="bold").append(label, style="cyan")
        done = end
    return text.append(clean[done:].replace("\n", _NEXT_LINE))


@app.command()
@given.takes("first_token", "only_correct", *given.LOADING)
def validate(
    file: File,
    model: CheckedModel = None,
    file_only: FileOnly = False,
    **shared: Any,
) -> None:
    """Check a task file as discover will: lines, parts, accuracy; exits with 1 for a problem."""
    from rich.console import Console
    from rich.markup import escape

    from unweave.behaviours.validation import is_labelled
    from unweave.behaviours.validation import validate as check
    from unweave.errors import UnweaveError
    from unweave.model.loading import load
    from unweave.model.sources import DEFAULT

    if file_only and model is not None:
        raise UnweaveError("--file-only loads no model: drop it, or --model")
    if model is None and not file_only and is_labelled(file):
        raise UnweaveError(
            f"{file} has text and label, which need a classifier: give one with --model, or check "
            "the lines alone with --file-only"
        )
    loaded, name = None, model or DEFAULT
    if not file_only:
        with Console(stderr=True).status(f"loading {escape(name)}"):
            loaded = load(name, device=shared["device"])
    found = check(file, loaded, shared["first_token"], bool(shared["only_correct"]))
    if shared["as_json"]:
        typer.echo(json.dumps(found.to_json(), indent=2))
    else:
        for line in _findings(file, found):
            typer.echo(line)
        if loaded is not None and not found.problems:
            named = () if model is None else ("--model", model)
            typer.echo(" ".join(("next: unweave discover", file, *named, *found.options)))
    if found.problems:
        raise typer.Exit(1)


def _findings(file: str, found: "Validation") -> list[str]:
    """What `validate` prints."""
    lines = []
    if found.sizes:
        sizes = ", ".join(f"{found.sizes[part]} {use}" for part, use in _USES.items())
        lines.append(f"{found.prompts} prompts: {sizes}")
    if found.accuracy is not None:
        lines.append(
            f"{found.model} on the {found.measured} discovery prompts: "
            f"{found.accuracy.correct:.0%} correct (discover needs {found.needed:.0%}), metric "
            f"{found.accuracy.metric:+.2f}"
        )
    for wrong in found.wrong[:SHOWN_WRONG]:
        text = wrong.clean if len(wrong.clean) <= 60 else f"…{wrong.clean[-59:]}"
        lines.append(f"  wrong, line {wrong.line}: metric {wrong.metric:+.2f} after {text!r}")
    if len(found.wrong) > SHOWN_WRONG:
        lines.append(f"  and {len(found.wrong) - SHOWN_WRONG} more (--json lists all)")
    lines += [f"note: {note}" for note in found.notes]
    lines += [f"line {n}: {reason}" if n else f"problem: {reason}" for n, reason in found.problems]
    count = len(found.problems)
    lines.append(f"{file}: {count} problem{'s' * (count > 1)}" if count else f"{file}: no problems")
    return lines
