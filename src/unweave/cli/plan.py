"""`unweave plan`: what a discovery will take, before it is started."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unweave.cli import commands
from unweave.cli import experiment_options as given

if TYPE_CHECKING:
    from unweave.experiments.plan import Plan


@commands.register("plan")
@given.takes(*given.EXPERIMENT, "precision", "memory")
def plan(
    task: Annotated[
        str, typer.Argument(help="A task (see unweave tasks), or your own .jsonl or .csv file.")
    ],
    model: given.Model = None,
    method: given.Method = None,
    score: given.Score = None,
    search: given.Search = None,
    seed: Annotated[int, typer.Option(help="Decides which prompts are drawn.")] = 0,
    **shared: Any,
) -> None:
    """Estimate nodes, forward passes, time and memory of a discovery, from a run on four prompts.

    Example: unweave plan ioi --granularity neuron
    """
    from unweave.behaviours.file import find_task
    from unweave.model.loading import load

    found = find_task(task, shared["first_token"])
    name = found.own_model if model is None else model
    values = {"method": method, "score": score, "search": search, **shared}
    specification = given.specification(values, task, name, **given.method_of(values), seed=seed)
    loaded = load(name, device=shared["device"], bos=shared["bos"])
    show_plan(loaded, found, specification, shared["as_json"])


def show_plan(model: Any, task: Any, specification: Any, as_json: bool) -> None:
    """Makes the plan of one discovery and prints it."""
    from rich.console import Console

    from unweave.experiments.plan import plan as make
    from unweave.progress import silent

    with silent():
        found = make(model, task, specification)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=1))
        return
    console = Console(highlight=False)
    for line in lines(found):
        console.print(line, soft_wrap=True)


def lines(found: "Plan") -> list[Any]:
    """A table of the phases, then memory."""
    from rich import box
    from rich.table import Table

    table = Table("phase", "prompts", "forward passes", "time", box=box.SIMPLE_HEAD)
    for name, passes in found.passes.items():
        count = found.prompts.get(name)
        shown = "" if count is None else str(count)
        table.add_row(name, shown, f"{passes:.0f}", _time(found.seconds[name]))
    whole = sum(found.passes.values()), sum(found.seconds.values())
    table.add_row("all", "", f"{whole[0]:.0f}", _time(whole[1]), style="bold")
    memory = found.memory
    parts = ", ".join(f"{name} {_size(size)}" for name, size in memory.parts.items())
    said = [f"{found.nodes} nodes", table, f"peak memory about {_size(memory.peak)} ({parts})"]
    for device, free in found.free.items():
        said.append(f"  {device}: {_size(free)} free, {_fits(found, device)}")
    said.append("A search that its own check does not satisfy takes more prompts, and longer.")
    return said


def _fits(found: "Plan", device: str) -> str:
    memory, free = found.memory, found.free[device]
    if memory.peak <= free:
        return "fits"
    if memory.least <= free:
        return f"fits: the sweep cuts itself smaller, to {_size(memory.least)} if need be"
    options = " or ".join(found.remedies.get(device, ())) or "only a smaller model"
    return f"does not fit: at least {_size(memory.least)}; would fit: {options}"


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
