"""Lines of a task file for classifiers: `text`, `label`, and if wanted `corrupted` and `template`.

    {"text": "What are the main points of the report?", "label": "generic",
     "corrupted": "What are the late fees of the report?"}

The metric is the logit of the label minus the largest of the other classes. A line without a
corrupted text is paired with a text of another label of the nearest length, since only pairs
of one length align position by position.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from unweave.behaviours.prompt import OTHERS, Prompt, short
from unweave.errors import UnweaveError
from unweave.registry import nearest

LABELLED = ("text", "label", "corrupted", "template")


@dataclass(frozen=True)
class Labelled:
    """One line; the label is a class by name or number."""

    line: int
    text: str
    label: str | int
    corrupted: str | None
    template: str


def read_labelled(line: int, fields: Mapping[str, Any]) -> Labelled:
    """Checks the fields of one line.

    Raises:
        UnweaveError: With the reason.
    """
    for name in fields:
        if name not in LABELLED:
            raise UnweaveError(
                f"{short(name)} beside text and label: {nearest(name[:40], LABELLED)}"
            )
    for name in ("text", "label"):
        if name not in fields:
            raise UnweaveError(f"{name!r} is missing: add it")
    for name in ("text", "corrupted", "template"):
        if not isinstance(fields.get(name, ""), str):
            raise UnweaveError(f"{name} is {short(fields[name])}: expected a text")
    label = fields["label"]
    if not isinstance(label, str | int) or isinstance(label, bool) or label == "":
        raise UnweaveError(f"label is {short(label)}: expected the name of a class, or its number")
    if isinstance(label, str) and label.isascii() and label.isdigit():
        label = int(label)  # as CSV writes it
    return Labelled(
        line, fields["text"], label, fields.get("corrupted"), fields.get("template", "")
    )


def pair_up(
    rows: Sequence[Labelled],
) -> tuple[list[tuple[int, Prompt]], list[tuple[int, str]]]:
    """The prompts of all lines by line number, and what is wrong with the others."""
    used: dict[str, int] = {}
    paired, failed = [], []
    for row in rows:
        try:
            paired.append((row.line, _prompt(row, rows, used)))
        except UnweaveError as error:
            failed.append((row.line, str(error)))
    keys = _connected_keys([prompt for _, prompt in paired])
    return [(n, replace(p, key=key)) for (n, p), key in zip(paired, keys, strict=True)], failed


def _prompt(row: Labelled, rows: Sequence[Labelled], used: dict[str, int]) -> Prompt:
    """The prompt of a line.

    Args:
        rows: All lines, to find a partner in.
        used: How often each text is a partner already; the least used is taken.

    Raises:
        UnweaveError: When there is no text to compare with.
    """
    corrupted = row.corrupted
    if corrupted is None:
        others = [other for other in rows if other.label != row.label]
        if not others:
            raise UnweaveError(
                f"every line has the label {row.label!r}: add lines of another, or corrupted texts"
            )
        length = len(row.text.split())
        partner = min(
            others,
            key=lambda other: (
                other.template != row.template,
                abs(len(other.text.split()) - length),
                used.get(other.text, 0),
                other.line,
            ),
        )
        corrupted = partner.text
        used[corrupted] = used.get(corrupted, 0) + 1
    return Prompt(row.text, corrupted, (row.label,), (OTHERS,), row.template)


def _connected_keys(prompts: Sequence[Prompt]) -> list[str]:
    """One key for all prompts that share a text, directly or through others.

    Prompts with one key stay in one part, so that no text is seen in two.
    """
    parent: dict[str, str] = {}

    def root(text: str) -> str:
        parent.setdefault(text, text)
        while parent[text] != text:
            parent[text] = text = parent[parent[text]]
        return text

    for prompt in prompts:
        parent[root(prompt.clean)] = root(prompt.corrupted)
    return [root(prompt.clean) for prompt in prompts]
