"""`unweave explain`: what each node of a found circuit does, with the evidence for it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unweave.cli import commands

if TYPE_CHECKING:
    from unweave.roles.explain import Explanation
    from unweave.scores.problem import Problem
    from unweave.sites import Site


@commands.register("explain")
def explain(
    run: Annotated[
        Path | None, typer.Argument(help="A folder that unweave discover wrote.")
    ] = None,
    node: Annotated[
        str | None, typer.Argument(help="Tell of this node only, such as a9.h6.")
    ] = None,
    roles: Annotated[
        Path | None, typer.Option(help="A TOML file of roles to add to those of unweave.")
    ] = None,
    prompts: Annotated[int, typer.Option("-n", "--prompts", min=2, help="Held-out prompts.")] = 32,
    budget: Annotated[
        float, typer.Option(min=8, help="Forward passes of these prompts that may be spent.")
    ] = 20.0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    measures: Annotated[
        bool, typer.Option("--measures", help="List what a role may require, and stop.")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Explain what each node of a circuit does and write explain.json beside it."""
    from contextlib import nullcontext

    from unweave.errors import UnweaveError
    from unweave.experiments.files import plain, write_json
    from unweave.progress import silent
    from unweave.roles import explain_with_cost
    from unweave.roles.definitions import read_roles
    from unweave.roles.measurements import VALUES

    if measures:
        for name, meaning in VALUES.items():
            typer.echo(f"{name:18}{meaning}")
        return
    if run is None:
        raise UnweaveError("no run folder: expected unweave explain RUN, or --measures")
    known = read_roles(roles)
    with silent() if quiet or as_json else nullcontext():
        problem, circuit = load_run(run, prompts, device)
        names = [str(site) for site in circuit]
        if node is not None and node not in names:
            raise UnweaveError(f"{node} is not in the circuit: it has {', '.join(names)}")
        found, cost = explain_with_cost(problem, circuit, known, budget)
    spent = {"passes": cost.passes, "by_part": cost.by_part, "prompts": len(problem.batch)}
    record = {"schema_version": 1, "cost": spent, "nodes": [one.to_json() for one in found]}
    write_json(run / "explain.json", record)
    shown_nodes = [one for one in found if node in (None, one.node)]
    if as_json:
        shown = {**record, "nodes": [one.to_json() for one in shown_nodes]}
        typer.echo(json.dumps(plain(shown), indent=2, ensure_ascii=False))
        return
    _print(shown_nodes, spent, run)


def load_run(folder: Path, prompts: int, device: str) -> "tuple[Problem, tuple[Site, ...]]":
    """A finished run's circuit, and its problem on held-out prompts."""
    from unweave.experiments.evaluate import set_up_again
    from unweave.experiments.run_folder import read_run
    from unweave.model.loading import load
    from unweave.roles.feeds import needed_points
    from unweave.sites import parse

    found = read_run(folder)
    circuit = tuple(parse(name) for name in found.circuit.nodes)
    experiment = set_up_again(found, lambda how: load(how.model, device=device, bos=how.bos))
    points = needed_points(experiment.model, circuit)
    return experiment.problem("evaluate", prompts, points), circuit


def _print(shown_nodes: "list[Explanation]", spent: dict[str, Any], run: Path) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    for one in shown_nodes:
        console.print(f"[bold]{one.node}[/]  {one.role}")
        console.print(f"  {escape(one.sentence)}")
    passes, prompts = spent["passes"], spent["prompts"]
    console.print(f"Cost: {passes:.1f} forward passes of {prompts} prompts.")
    console.print(f"Written: {run / 'explain.json'}", soft_wrap=True, markup=False)
