"""A text with its words coloured by score: in the terminal and as HTML."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

    from unweave.attribution.attribute import Attribution

# Towards the target and away from it, as in most heat maps; readable on light and dark.
_FOR, _AGAINST = (178, 24, 43), (33, 102, 172)
_PAPER = (255, 255, 255)


def colour(score: float, largest: float) -> tuple[int, int, int]:
    """From white at 0 to red (for) or blue (against) at the largest magnitude."""
    share = min(1.0, abs(score) / largest) if largest > 0 else 0.0
    end = _FOR if score > 0 else _AGAINST
    red, green, blue = (round(p + (e - p) * share) for p, e in zip(_PAPER, end, strict=True))
    return red, green, blue


def ink(background: tuple[int, int, int]) -> str:
    """Black or white, whichever can be read on a background."""
    red, green, blue = background
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#ffffff"


def largest(scores: Sequence[float]) -> float:
    """The magnitude that gets the full colour."""
    return max((abs(score) for score in scores), default=0.0)


def coloured(text: str, score: float, most: float) -> "Text":
    """A text on the colour of its score, for the terminal."""
    from rich.text import Text

    red, green, blue = background = colour(score, most)
    return Text(text, style=f"{ink(background)} on #{red:02x}{green:02x}{blue:02x}")


def terminal(found: "Attribution") -> "Text":
    """The words with their scores below the target's line."""
    from rich.text import Text

    target, most = found.target, largest(found.scores)
    lines = Text(f"{target.name}: {target.metric:+.3f}   (predicted: {target.predicted})\n")
    for word, score in zip(found.words, found.scores, strict=True):
        lines.append(coloured(f" {word.text} ", score, most))
        lines.append(f"{score:+.2f} ", style="dim")
    for word, score in found.phrases:
        lines.append(f"\nphrase {word.text!r}: {score:+.3f}")
    for one, other, excess in found.interactions:
        lines.append(f"\n{one.text!r} with {other.text!r}: {excess:+.3f} beyond their sum")
    lines.append(f"\n{adds_up(found)}", style="dim")
    return lines


_WITHOUT = {"padding": "with padding for every word", "counterfactual": "with the corrupted words"}


def adds_up(found: "Attribution") -> str:
    """How the metric is the sum of its parts, in one line."""
    parts = [
        (found.ablated, _WITHOUT.get(found.ablation, "without words")),
        (found.summed, "words"),
        (found.combined, "words in combination"),
        (found.remainder, "remainder, assigned to no word"),
    ]
    listed = " ".join(f"{value:+.3f} {noun}," for value, noun in parts)
    return f"{found.target.metric:+.3f} = {listed.rstrip(',')}"


def html(found: "Attribution") -> str:
    """The same for a notebook or a report; every text is escaped."""
    target, most = found.target, largest(found.scores)
    spans = []
    for word, score in zip(found.words, found.scores, strict=True):
        red, green, blue = background = colour(score, most)
        style = (
            f"background:rgb({red},{green},{blue});color:{ink(background)};"
            "padding:1px 4px;margin:1px;border-radius:3px;display:inline-block"
        )
        spans.append(f'<span style="{style}" title="{score:+.4f}">{escape(word.text)}</span>')
    notes = [f"phrase “{escape(w.text)}”: {s:+.3f}" for w, s in found.phrases]
    notes += [
        f"“{escape(a.text)}” with “{escape(b.text)}”: {s:+.3f} beyond their sum"
        for a, b, s in found.interactions
    ]
    notes.append(escape(adds_up(found)))
    return (
        '<div style="font-family:sans-serif;line-height:1.8">'
        f"<div><b>{escape(target.name)}</b> = {target.metric:+.3f}, predicted: "
        f"{escape(target.predicted)}</div>"
        f"<div>{' '.join(spans)}</div>"
        f'<div style="opacity:.7">{"<br>".join(notes)}</div></div>'
    )
