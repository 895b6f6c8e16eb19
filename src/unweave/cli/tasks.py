"""`unweave tasks`: the available behaviours, their prompts, and checks of your own file."""

import json
from typing import TYPE_CHECKING, Annotated, Any, no_type_check

import typer

from unweave.cli import commands

if TYPE_CHECKING:
    from rich.text import Text

    from unweave.batch import Batch
    from unweave.behaviours.task import Task
    from unweave.model.model import Model

_NEXT_LINE = "\n" + " " * 16  # keeps a prompt of several lines below its first
MEASURED = 32  # prompts on which `show` measures a model

app = typer.Typer(help="List tasks, show their prompts, check a task file.")
commands.register("tasks")(app)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
FirstToken = Annotated[
    bool, typer.Option("--first-token", help="Let the first token of a longer answer stand for it.")
]


@app.callback(invoke_without_command=True)
@no_type_check  # typer passes a base class of its own Context
def tasks(context: typer.Context, as_json: AsJson = False) -> None:
    """List tasks, show their prompts, check a task file."""
    if context.invoked_subcommand is None:
        _list(as_json)


def _list(as_json: bool) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

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
    console.print("Also: your own prompts in a .jsonl or .csv file (unweave tasks validate FILE).")


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
def show(
    task: Annotated[str, typer.Argument(help="A task's name, or a .jsonl or .csv file.")],
    model: Annotated[
        str | None,
        typer.Option("--model", help="The task's own or smollm2-135m unless given."),
    ] = None,
    n: Annotated[int, typer.Option("-n", min=1, help="How many prompts to show.")] = 3,
    seed: Annotated[int, typer.Option(help="Which prompts are drawn.")] = 0,
    first_token: FirstToken = False,
    as_json: AsJson = False,
) -> None:
    """Print prompts with their labelled tokens, the metric, and how a model does."""
    from rich.console import Console

    from unweave.behaviours.accuracy import lacks_bos, task_accuracy
    from unweave.behaviours.file import find_task
    from unweave.model.loading import load

    found = find_task(task, first_token)
    console = Console(stderr=True)
    name = model or found.own_model
    with console.status(f"loading {name}"):
        loaded = load(name)
    drawn = found.prompts(loaded, max(n, MEASURED), seed, "evaluate", only_correct=False)
    batch = found.encode(loaded, drawn)
    accuracy = task_accuracy(loaded, batch)
    if accuracy.fails and lacks_bos(loaded):
        console.print("warning: no BOS token is put in front; try bos=True", style="yellow")
    examples = [_example(loaded, batch, i) for i in range(min(n, len(batch)))]
    for example, prompt in zip(examples, drawn, strict=False):
        example |= {"answers": prompt.answers, "distractors": prompt.distractors}
    about = _about(found) | {
        "model": loaded.name,
        "measured": {"prompts": len(batch), **accuracy._asdict()},
        "prompts": examples,
    }
    if as_json:
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
    console.print(f"[bold]{about['name']}[/]: {about['summary']}")
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
def validate(
    file: Annotated[str, typer.Argument(help="A .jsonl or .csv file with prompts.")],
    model: Annotated[
        str | None,
        typer.Option("--model", help="Also check answers and positions with its tokenizer."),
    ] = None,
    first_token: FirstToken = False,
    as_json: AsJson = False,
) -> None:
    """Report every bad line of a task file; exits with 1 when there is one."""
    from unweave.behaviours.file import validate as check
    from unweave.model.loading import load

    problems = check(file, None if model is None else load(model), first_token)
    if as_json:
        typer.echo(json.dumps([problem._asdict() for problem in problems], indent=2))
    else:
        for line, reason in problems:
            typer.echo(f"line {line}: {reason}" if line else reason)
        typer.echo(f"{file}: {len(problems)} problems" if problems else f"{file}: no problems")
    if problems:
        raise typer.Exit(1)
