"""`unweave attribute`: which words of a text make the model say what it says."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unweave.cli import commands
from unweave.cli import experiment_options as given
from unweave.errors import UnweaveError

if TYPE_CHECKING:
    from rich.console import Console

    from unweave.model.model import Model

Text = Annotated[str | None, typer.Argument(help="The text to explain.", show_default=False)]
File = Annotated[
    str | None,
    typer.Option("--file", help="Texts from a file, one a line.", show_default=False),
]
ModelName = Annotated[
    str, typer.Option("--model", help="A classifier or language model: name, folder or file.")
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target", help="A class or token [default: the prediction].", show_default=False
    ),
]
Against = Annotated[
    str | None,
    typer.Option(
        "--against", help="What it is compared with [default: runner-up].", show_default=False
    ),
]
Level = Annotated[
    int, typer.Option("--level", min=0, help="0: the embedding; L: what enters layer L.")
]
Phrases = Annotated[
    list[str] | None,
    typer.Option(
        "--phrase",
        help="Also score this piece of the text; two or more: also their interactions.",
        show_default=False,
    ),
]
Rules = Annotated[
    str | None, typer.Option("--rules", help="A rule set or a mix.", show_default=False)
]
Ablation = Annotated[
    str | None,
    typer.Option(
        "--ablation",
        help="What a word is compared with: padding or zero [default: padding].",
        show_default=False,
    ),
]
Corrupted = Annotated[
    str | None,
    typer.Option(
        "--corrupted",
        help="Compare each word with its counterpart in this text.",
        show_default=False,
    ),
]
Compare = Annotated[
    bool, typer.Option("--compare", help="Compare with integrated gradients and occlusion.")
]
Truncate = Annotated[
    bool, typer.Option("--truncate", help="Cut texts longer than the model's limit.")
]


@commands.register("attribute")
@given.takes(*given.LOADING)
def attribute(
    text: Text = None,
    file: File = None,
    model: ModelName = "question-classifier",
    target: Target = None,
    against: Against = None,
    level: Level = 0,
    phrase: Phrases = None,
    rules: Rules = None,
    ablation: Ablation = None,
    corrupted: Corrupted = None,
    compare: Compare = False,
    truncate: Truncate = False,
    **shared: Any,
) -> None:
    """Show how much each word adds to a class or token, over the runner-up."""
    values = locals()
    from rich.console import Console
    from rich.markup import escape

    from unweave.model.loading import load

    _check_ablation(ablation, corrupted, file)
    if compare and (level or phrase or corrupted is not None):
        raise UnweaveError(
            "--compare scores words of the embedding against padding: drop --level, --phrase and "
            "--corrupted"
        )
    texts = _texts(text, file)
    progress = Console(stderr=True)
    with progress.status(f"loading {escape(model)}") as status:
        loaded = load(model, device=shared["device"])
        status.update("attributing")
        results = (
            _compared(values, texts, loaded) if compare else _attributed(values, texts, loaded)
        )
    if shared["as_json"]:
        found = [result.to_json() for result in results]
        typer.echo(json.dumps(found[0] if file is None or compare else found, indent=2))
    else:
        _show(Console(), results)


def _compared(values: Mapping[str, Any], texts: list[str], model: "Model") -> list[Any]:
    """Words by every method, with the command's options by name."""
    from unweave.attribution import compare_attributions
    from unweave.attribution.attribute import RULES

    rules, ablation = values["rules"] or RULES, values["ablation"] or "padding"
    target, against, truncate = values["target"], values["against"], values["truncate"]
    return [
        compare_attributions(
            model, texts, target, against, rules=rules, ablation=ablation, truncate=truncate
        )
    ]


def _attributed(values: Mapping[str, Any], texts: list[str], model: "Model") -> list[Any]:
    """Words of each text, with the command's options by name."""
    from unweave.attribution import attribute

    phrases = values["phrase"] or []
    pairs = [(a, b) for i, a in enumerate(phrases) for b in phrases[i + 1 :]]
    names = ("target", "against", "level", "rules", "ablation", "corrupted", "truncate")
    options = {name: values[name] for name in names}
    found = attribute(model, texts, phrases=phrases, interactions=pairs, **options)
    assert isinstance(found, list)
    return found


def _check_ablation(ablation: str | None, corrupted: str | None, file: str | None) -> None:
    """What a word is compared with, before the model is loaded."""
    if ablation not in ("padding", "zero", None):
        raise UnweaveError(
            f"--ablation {ablation}: expected padding or zero (or --corrupted TEXT instead)"
        )
    if file is not None and corrupted is not None:
        raise UnweaveError("--corrupted is for one text: drop --file")


def _show(console: "Console", results: list) -> None:
    for number, result in enumerate(results):
        if number:
            console.print()
        console.print(result)


def _texts(text: str | None, file: str | None) -> list[str]:
    """The text given, or the lines of a file that are not blank."""
    from pathlib import Path

    if (text is None) == (file is None):
        raise UnweaveError('give a text or a file: unweave attribute "text", or --file FILE')
    if file is None:
        return [str(text)]
    try:
        lines = Path(file).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise UnweaveError(f"{file} cannot be read: {reason}") from error
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise UnweaveError(f"{file} is empty: write one text a line")
    return texts
