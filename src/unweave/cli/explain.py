"""`unweave explain`: what each node of a found circuit does, with the evidence for it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unweave.cli import commands
from unweave.cli import experiment_options as given

if TYPE_CHECKING:
    from unweave.experiments.explanation import Explained
    from unweave.roles.explain import Explanation


Budget = Annotated[
    float,
    typer.Option(min=8, callback=given.not_nan, help="Most forward passes of these prompts."),
]


@commands.register("explain")
@given.takes(*given.LOADING, "quiet")
def explain(
    run: Annotated[
        Path | None, typer.Argument(help="A folder that unweave discover wrote.")
    ] = None,
    node: Annotated[str | None, typer.Argument(help="Show this node only, such as a9.h6.")] = None,
    roles: given.RolesFile = None,
    prompts: Annotated[int, typer.Option("-n", "--prompts", min=2, help="Held-out prompts.")] = 32,
    budget: Budget = 20.0,
    measures: Annotated[
        bool, typer.Option("--measures", help="List what a role may require, and stop.")
    ] = False,
    **shared: Any,
) -> None:
    """Explain what each node of a circuit does, and keep it in the run.

    Roles and sentences go into run.json and circuit.json, every measurement into explain.json, and
    report.html is written again.
    """
    from contextlib import nullcontext

    from unweave.errors import UnweaveError
    from unweave.experiments.explain import explain_run
    from unweave.experiments.files import plain
    from unweave.experiments.run_folder import read_run
    from unweave.model.loading import load
    from unweave.progress import silent
    from unweave.report.html import write_report
    from unweave.roles.definitions import read_roles
    from unweave.roles.measurements import VALUES

    if measures:
        for name, meaning in VALUES.items():
            typer.echo(f"{name:18}{meaning}")
        return
    if run is None:
        raise UnweaveError("no run folder: expected unweave explain RUN, or --measures")
    known, names = read_roles(roles), (found := read_run(run)).circuit.nodes
    if node is not None and node not in names:
        raise UnweaveError(f"{node} is not in the circuit: it has {', '.join(names)}")
    device, as_json = shared["device"], shared["as_json"]
    with silent() if shared["quiet"] or as_json else nullcontext():
        explained = explain_run(
            found, lambda how: load(how.model, device=device, bos=how.bos), prompts, known, budget
        )
    write_report([run])
    if as_json:
        record = explained.to_json()
        shown = [one for one in record["nodes"] if node in (None, one["node"])]
        typer.echo(json.dumps(plain({**record, "nodes": shown}), indent=2, ensure_ascii=False))
        return
    _print([one for one in explained.nodes if node in (None, one.node)], explained, run)


def _print(shown: "list[Explanation]", explained: "Explained", run: Path) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    for one in shown:
        console.print(f"[bold]{one.node}[/]  {one.role}")
        console.print(f"  {escape(one.sentence)}")
    console.print(f"Cost: {explained.passes:.1f} forward passes of {explained.prompts} prompts.")
    console.print(
        f"Written: {run / 'explain.json'}, circuit.json, run.json and report.html",
        soft_wrap=True,
        markup=False,
    )
