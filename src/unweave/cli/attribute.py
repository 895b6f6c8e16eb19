"""`unweave attribute`: which words of a text make the model say what it says."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from unweave.cli import commands
from unweave.errors import UnweaveError

if TYPE_CHECKING:
    from rich.console import Console

    from unweave.model.model import Model


@commands.register("attribute")
def attribute(
    text: Annotated[
        str | None, typer.Argument(help="The text to explain.", show_default=False)
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", help="Texts from a file, one a line.", show_default=False),
    ] = None,
    model: Annotated[
        str, typer.Option("--model", help="A classifier or language model: name, folder or file.")
    ] = "question-classifier",
    target: Annotated[
        str | None,
        typer.Option(
            "--target", help="A class or token [default: the prediction].", show_default=False
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against", help="What it is compared with [default: runner-up].", show_default=False
        ),
    ] = None,
    level: Annotated[
        int, typer.Option("--level", min=0, help="0: the embedding; L: what enters layer L.")
    ] = 0,
    phrase: Annotated[
        list[str] | None,
        typer.Option(
            "--phrase",
            help="Also score this piece of the text; two or more: also their interactions.",
            show_default=False,
        ),
    ] = None,
    rules: Annotated[
        str | None, typer.Option("--rules", help="A rule set or a mix.", show_default=False)
    ] = None,
    ablation: Annotated[
        str | None,
        typer.Option(
            "--ablation",
            help="What a word is compared with: padding or zero [default: padding].",
            show_default=False,
        ),
    ] = None,
    corrupted: Annotated[
        str | None,
        typer.Option(
            "--corrupted",
            help="Compare each word with its counterpart in this text.",
            show_default=False,
        ),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare", help="Words and tests beside integrated gradients and occlusion."
        ),
    ] = False,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut texts longer than the model's limit.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Show how much each word adds to a class or token, over the runner-up."""
    from rich.console import Console
    from rich.markup import escape

    from unweave.attribution import attribute as attribute_texts
    from unweave.attribution import compare as compare_texts
    from unweave.attribution.attribute import RULES
    from unweave.model.loading import load

    if ablation not in ("padding", "zero", None):
        raise UnweaveError(
            f"--ablation {ablation}: expected padding or zero (or --corrupted TEXT instead)"
        )
    if compare and (level or phrase or corrupted is not None):
        raise UnweaveError(
            "--compare scores words of the embedding against padding: drop --level, --phrase and "
            "--corrupted"
        )
    if file is not None and corrupted is not None:
        raise UnweaveError("--corrupted is for one text: drop --file")
    texts = _texts(text, file)
    progress = Console(stderr=True)
    with progress.status(f"loading {escape(model)}") as status:
        loaded: Model = load(model)
        status.update("attributing")
        if compare:
            found = compare_texts(
                loaded,
                texts,
                target,
                against,
                rules=rules or RULES,
                ablation=ablation or "padding",
                truncate=truncate,
            )
            results = [found]
        else:
            phrases = phrase or []
            pairs = [(a, b) for i, a in enumerate(phrases) for b in phrases[i + 1 :]]
            results = attribute_texts(
                loaded,
                texts,
                target,
                against,
                level=level,
                phrases=phrases,
                interactions=pairs,
                rules=rules,
                ablation=ablation,
                corrupted=corrupted,
                truncate=truncate,
            )
            assert isinstance(results, list)
    if as_json:
        found = [result.to_json() for result in results]
        typer.echo(json.dumps(found[0] if file is None or compare else found, indent=2))
    else:
        _show(Console(), results)


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
