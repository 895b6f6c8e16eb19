"""`unweave check`: our forward pass against transformers', component by component."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from unweave.cli import commands
from unweave.errors import UnweaveError

if TYPE_CHECKING:
    from rich.table import Table

    from unweave.testing import Parity

LENGTHS = (8, 32)


@commands.register("check")
def check(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A short name, a hub name, a folder or a .gguf file.", show_default=False
        ),
    ] = None,
    architecture: Annotated[
        str | None,
        typer.Option(
            "--architecture",
            help="Check a family instead, on tiny random models: gpt2, llama, …",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Compare logits and every block's output with transformers' own, on random tokens.

    Names the first component that diverges and exits with 1 when there is one.
    """
    from rich.console import Console

    if bool(model) == bool(architecture):
        raise UnweaveError(
            "check needs a model or a family: unweave check smollm2-135m, "
            "or unweave check --architecture llama"
        )
    console = Console()
    table, failures = _check_model(model) if model else _check_architecture(str(architecture))
    console.print(table)
    for line in failures:
        console.print(line, style="red", soft_wrap=True, markup=False)
    if failures:
        raise typer.Exit(1)


def _check_model(name: str) -> "tuple[Table, list[str]]":
    from unweave.model.loading import comparison
    from unweave.testing import find_parity

    found = comparison(name)
    parity = find_parity(found.network, found.reference, name, lengths=LENGTHS)
    table = _component_table(parity)
    allowed = min(delta.bound for delta in parity.deltas if delta.component == parity.output)
    table.caption = (
        f"output: max |Δ| {parity.worst:.1e}, allowed {allowed:.0e}; "
        f"top-1 equal at {parity.agreement:.1%} of tokens"
    )
    table.caption += f"\n{found.note}" if found.note else ""
    return table, [] if parity.passed else [str(parity)]


def _component_table(parity: "Parity") -> "Table":
    """A row a component, a column a batch."""
    components = list(dict.fromkeys(delta.component for delta in parity.deltas))
    cases = list(dict.fromkeys(delta.case for delta in parity.deltas))
    found = {(delta.component, delta.case): delta for delta in parity.deltas}
    headings = [case.replace(", ", ",\n") for case in cases]
    table = _table(f"{parity.name} against transformers: max |Δ|", ["component", *headings])
    for component in components:
        deltas = [found[component, case] for case in cases]
        verdict = _verdict(all(delta.passed for delta in deltas))
        table.add_row(component, *(f"{delta.worst:.1e}" for delta in deltas), verdict)
    return table


def _check_architecture(name: str) -> "tuple[Table, list[str]]":
    from unweave.testing.architecture import negative_control, parities

    table = _table(f"{name} against transformers: max |Δ| of the output", ["variant", "max |Δ|"])
    failures = []
    for parity in parities(name):
        table.add_row(
            parity.name.removeprefix(f"{name}, "), f"{parity.worst:.1e}", _verdict(parity.passed)
        )
        failures += [] if parity.passed else [str(parity)]
    control = negative_control(name)
    noticed = "[green]differs, as it must[/]" if not control.passed else "[red]agrees[/]"
    table.add_row("wrong on purpose", f"{control.worst:.1e}", noticed)
    if control.passed:
        failures.append(f"{control.name}: agrees, so the comparison would miss a mistake")
    return table, failures


def _table(title: str, columns: Sequence[str]) -> "Table":
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    # A path may have brackets in it, which are not markup.
    table = Table(
        title=escape(title), box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left"
    )
    first, *others = columns
    table.add_column(first, no_wrap=True)
    for column in others:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    return table


def _verdict(passed: bool) -> str:
    return "[green]agrees[/]" if passed else "[red]differs[/]"
