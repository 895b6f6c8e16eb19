"""Sites: the places in a transformer that can be a source, a target or a node of a circuit.

The grammar, with `@` naming a position (no `@`: every position):

    a9.h6          output of head 6 in layer 9 (z, before the output projection)
    a9.h6.q|k|v    its query, key or value (with grouped heads, k and v count key-value heads)
    c2.h1[.q|k|v]  the same in a decoder's cross-attention
    m3, m3.n17     output of the MLP in layer 3; its hidden neuron 17
    resid4         residual stream that enters layer 4
    embed, logits  what enters the first layer; the output
    enc.…          any of these in the encoder of an encoder-decoder
    a9.h6@end      at the position named `end`; `@14` at position 14; `@other` at all others
"""

import re
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

from unweave.errors import UnweaveError

Kind = Literal[
    "embed", "resid", "q", "k", "v", "z", "cq", "ck", "cv", "cz", "neuron", "mlp", "logits"
]
StackName = Literal["", "enc"]
OTHER = "other"  # the position that stands for every token without a name
HEAD_KINDS: frozenset[str] = frozenset({"q", "k", "v", "z", "cq", "ck", "cv", "cz"})

# Within one layer, activations come into being in this order.
_ORDER = {kind: i for i, kind in enumerate(get_args(Kind))}

_GRAMMAR = re.compile(
    r"""(?P<stack>enc\.)?
        (?: (?P<attention>[ac])(?P<layer>\d+)\.h(?P<head>\d+)(?:\.(?P<part>[qkvz]))?
          | m(?P<mlp>\d+)(?:\.n(?P<neuron>\d+))?
          | resid(?P<resid>\d+)
          | (?P<plain>embed|logits) )
        (?:@(?P<position>\S+))?""",
    re.VERBOSE,
)
# Spellings that other tools and papers print: "9.6", "A9.6", "(9, 6)", "MLP 5".
_FOREIGN_HEAD = re.compile(r"\(?\s*[aAlL]?(\d+)\s*[.,]\s*[hH]?(\d+)\s*\)?(@\S+)?")
_FOREIGN_MLP = re.compile(r"(?:mlp|MLP|m|M)\s*(\d+)(@\S+)?")


@dataclass(frozen=True)
class Point:
    """A named activation of the forward pass: every unit, every position.

    Args:
        kind: What it is; kinds with a leading `c` belong to cross-attention.
        layer: Block index; 0 for `embed` and `logits`.
        stack: "" for the (only) decoder or encoder, "enc" for an encoder-decoder's encoder.
    """

    kind: Kind
    layer: int = 0
    stack: Literal["", "enc"] = ""

    @property
    def depth(self) -> tuple[int, int, int]:
        """Sort key along the forward pass: a point reads only points of smaller depth."""
        stack = 0 if self.stack == "enc" else 1
        if self.kind == "logits":
            return stack, 1_000_000, 0
        return stack, -1 if self.kind == "embed" else self.layer, _ORDER[self.kind]

    def __str__(self) -> str:
        return str(Site(self, 0 if self.kind in HEAD_KINDS else None)).replace(".h0", "")


@dataclass(frozen=True)
class Site:
    """One unit of a point (or all of it), at one position (or at all of them)."""

    point: Point
    unit: int | None = None
    position: str | int | None = None

    def at(self, position: str | int | None) -> "Site":
        """The same site at another position."""
        return replace(self, position=position)

    def __str__(self) -> str:
        point, where = self.point, "" if self.position is None else f"@{self.position}"
        prefix = "enc." if point.stack else ""
        if point.kind in HEAD_KINDS:
            letter, part = ("c", point.kind[1]) if point.kind[0] == "c" else ("a", point.kind)
            suffix = "" if part == "z" else f".{part}"
            return f"{prefix}{letter}{point.layer}.h{self.unit}{suffix}{where}"
        if point.kind in ("mlp", "neuron"):
            unit = "" if self.unit is None else f".n{self.unit}"
            return f"{prefix}m{point.layer}{unit}{where}"
        layer = str(point.layer) if point.kind == "resid" else ""
        return f"{prefix}{point.kind}{layer}{where}"


def head_point(part: str, layer: int, stack: Literal["", "enc"] = "", cross: bool = False) -> Point:
    """The point of a head's q, k, v or z, of self-attention or of cross-attention."""
    return Point(cast(Kind, f"c{part}" if cross else part), layer, stack)


def _position(text: str | None) -> str | int | None:
    if text is None:
        return None
    return int(text) if text.lstrip("-").isdigit() else text


def parse(text: "str | Site | tuple[int, int]") -> Site:
    """Reads a site in our grammar or in the spellings that other tools print.

    Raises:
        UnweaveError: When the text fits neither.
    """
    if isinstance(text, Site):
        return text
    if isinstance(text, tuple):
        return Site(Point("z", text[0]), text[1])
    if match := _GRAMMAR.fullmatch(text.strip()):
        group = match.groupdict()
        stack, position = "enc" if group["stack"] else "", _position(group["position"])
        if group["attention"]:
            cross = group["attention"] == "c"
            point = head_point(group["part"] or "z", int(group["layer"]), stack, cross)
            return Site(point, int(group["head"]), position)
        if group["mlp"]:
            layer = int(group["mlp"])
            if group["neuron"] is None:
                return Site(Point("mlp", layer, stack), None, position)
            return Site(Point("neuron", layer, stack), int(group["neuron"]), position)
        if group["resid"]:
            return Site(Point("resid", int(group["resid"]), stack), None, position)
        kind: Kind = "embed" if group["plain"] == "embed" else "logits"
        return Site(Point(kind, 0, stack), None, position)
    if match := _FOREIGN_HEAD.fullmatch(text.strip()):
        layer, head, position = match.groups()
        return Site(Point("z", int(layer)), int(head), _position(position and position[1:]))
    if match := _FOREIGN_MLP.fullmatch(text.strip()):
        layer, position = match.groups()
        return Site(Point("mlp", int(layer)), None, _position(position and position[1:]))
    raise UnweaveError(
        f"{text!r} is not a site: expected e.g. a9.h6, a9.h6.q, m3, m3.n17, resid4, embed or "
        "logits, with an optional @position such as @end or @14"
    )
