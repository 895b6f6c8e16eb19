"""What the JSON files of runs and comparisons look like; a file is checked before it is used.

A check takes a value and its place in the file, and raises for what does not fit. JSON has no NaN,
so null stands for a number that is not known, and for a field that is not there.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from unweave.errors import UnweaveError

FieldCheck = Callable[[Any, str], None]


def check_file(path: Path, value: Any, check: FieldCheck, remedy: str) -> None:
    """Checks what a file holds.

    Raises:
        UnweaveError: Naming the file, the place in it, what was expected, and the remedy.
    """
    try:
        check(value, "")
    except _Mismatch as error:
        raise UnweaveError(f"{path} is broken ({error}): {remedy}") from None


class _Mismatch(Exception):
    """A value that does not fit."""


def _fail(value: Any, where: str, expected: str) -> NoReturn:
    found = repr(value)
    found = found if len(found) <= 40 else f"{found[:40]}…"
    raise _Mismatch(f"{where or 'the file'} is {found}, expected {expected}")


def anything(value: Any, where: str) -> None:
    """Whatever JSON can hold."""


def text(value: Any, where: str) -> None:
    """A text."""
    if not isinstance(value, str):
        _fail(value, where, "a text")


def whole(value: Any, where: str) -> None:
    """A count."""
    if type(value) is not int or not -(2**63) <= value < 2**63:
        _fail(value, where, "a whole number")


def amount(value: Any, where: str) -> None:
    """A finite number."""
    if type(value) not in (int, float) or not _finite(value):
        _fail(value, where, "a number")


def number(value: Any, where: str) -> None:
    """A number, or null for one that is not known."""
    if value is None or (type(value) is float and not math.isfinite(value)):
        return
    amount(value, where)


def _finite(value: int | float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond the largest float
        return False


def each(check: FieldCheck, size: int | None = None) -> FieldCheck:
    """A list whose items fit, of this size where one is given."""

    def run(value: Any, where: str) -> None:
        if not isinstance(value, list) or size not in (None, len(value)):
            _fail(value, where, "a list" if size is None else f"a list of {size}")
        for index, item in enumerate(value):
            check(item, f"{where}[{index}]")

    return run


def named(check: FieldCheck) -> FieldCheck:
    """An object of any names whose values fit."""

    def run(value: Any, where: str) -> None:
        if not isinstance(value, Mapping):
            _fail(value, where, "an object")
        for name, item in value.items():
            check(item, f"{where}.{name}" if where else name)

    return run


def fields(checks: Mapping[str, FieldCheck], needed: Sequence[str] = ()) -> FieldCheck:
    """An object whose known fields fit; those that are needed are there."""

    def run(value: Any, where: str) -> None:
        if not isinstance(value, Mapping):
            _fail(value, where, "an object")
        for name in needed:
            if value.get(name) is None:
                _fail(value, where, f"an object with {name}")
        for name, check in checks.items():
            if value.get(name) is not None:
                check(value[name], f"{where}.{name}" if where else name)

    return run


_NAMES = each(text)
_PAIR = each(number, 2)


def curve(value: Any, where: str) -> None:
    """Sizes with the faithfulness at each."""
    lists = {"sizes": each(whole), **dict.fromkeys(("faithfulness", "low", "high"), each(number))}
    figures = dict.fromkeys(("curve_gap", "curve_area", "k80", "k95"), number)
    fields(lists | figures | {"nodes": whole}, ("sizes", "faithfulness"))(value, where)
    for name in lists:
        if value.get(name) and len(value[name]) != len(value["sizes"]):
            _fail(value[name], f"{where}.{name}", f"{len(value['sizes'])} numbers, one for a size")


_WORD = fields({"text": text, "score": number}, ("text",))
_WORDS = fields({"text": text, "target": text, "metric": number, "words": each(_WORD)}, ("words",))
_PROMPT = fields(
    {
        **dict.fromkeys(("clean", "corrupted"), text),
        **dict.fromkeys(("answers", "distractors", "tokens"), _NAMES),
        "positions": named(whole),
        "metric": named(number),
        "words": _WORDS,
        "effects": named(number),
    }
)
_ROUND = fields(
    {
        **dict.fromkeys(("targets", "selected", "dropped", "circuit"), _NAMES),
        "relevance": named(number),
        **dict.fromkeys(("loss", "faithfulness", "shift", "size"), number),
    }
)
_KNOCKOUTS = each(fields({"removed": _NAMES, "circuit": number, "model": number}))
_DRAWS = each(
    fields(
        {"size": whole, "fraction": amount, "faithfulness": each(number)},
        ("size", "fraction", "faithfulness"),
    )
)
_FAITHFULNESS = named(
    fields(
        {
            **dict.fromkeys(("value", "metric", "empty", "full", "prompts"), number),
            "interval": _PAIR,
        }
    )
)
_COMPLETENESS = fields({"mean_gap": number, "worst_gap": number, "knockouts": _KNOCKOUTS})
_MINIMALITY = fields({"effects": named(number), "idle": _NAMES, "prompts": whole})


def boolean(value: Any, where: str) -> None:
    """Yes or no; null for what could not be tested."""
    if value is not None and not isinstance(value, bool):
        _fail(value, where, "true or false")


_CHECK = fields({"role": text, "says": text, "held": boolean}, ("role", "says"))
_FEEDER = fields(
    {
        **dict.fromkeys(("source", "input"), text),
        **dict.fromkeys(("share", "falls", "error"), number),
        "held": boolean,
    },
    ("source", "input"),
)
_UNDECIDED = fields(
    {
        **dict.fromkeys(("role", "measure", "limit"), text),
        **dict.fromkeys(("value", "error"), number),
        "given": boolean,
    },
    ("role", "measure"),
)
EXPLANATION = fields(
    {
        "prompts": whole,
        "passes": number,
        "reason": text,
        "nodes": each(
            fields(
                {
                    "node": text,
                    "roles": _NAMES,
                    "sentence": text,
                    "checks": each(_CHECK),
                    "undecided": each(_UNDECIDED),
                    "feeders": each(_FEEDER),
                    "writes": number,
                },
                ("node", "roles", "sentence"),
            )
        ),
    }
)

RUN = fields(
    {
        **dict.fromkeys(("command", "created", "task", "model", "method", "ablation"), text),
        **dict.fromkeys(("score", "search"), text),
        "identity": fields({"specification": named(anything), "fingerprint": named(text)}),
        "seed": whole,
        "versions": named(text),
        "options": named(anything),
        "accuracy": named(number),
        "metric": fields({"name": text, "formula": text, "empty": number, "full": number}),
        "prompts": named(each(_PROMPT)),
        "rounds": each(_ROUND),
        "curve": curve,
        "edge_curve": curve,
        "edge_rounds": each(_ROUND),
        "level": text,
        "summary": named(number),
        "words": _WORDS,
        "nodes_total": whole,
        "shape": named(anything),
        "seconds": named(amount),
        "forwards": named(amount),
        "verdict": fields(
            {
                "sentence": text,
                "prompts": whole,
                **dict.fromkeys(("faithfulness", "templates"), _FAITHFULNESS),
                "random": _DRAWS,
                "completeness": _COMPLETENESS,
                "minimality": _MINIMALITY,
            }
        ),
        "overshoot": each(fields({"site": text, "effect": number})),
        "explanation": EXPLANATION,
        "published": boolean,
    }
)

_PATH = fields(
    {
        "path": _NAMES,
        **dict.fromkeys(("share", "measured"), number),
        **dict.fromkeys(("interval", "measured_interval"), _PAIR),
    },
    ("path",),
)
PATHS = fields(
    {
        **dict.fromkeys(("prompts", "expanded", "known"), whole),
        **dict.fromkeys(("ablation", "metric"), text),
        **dict.fromkeys(("total", "error", "left", "left_after_all"), number),
        "paths": each(_PATH),
    },
    ("prompts", "paths"),
)

_NODE = fields(
    {
        **dict.fromkeys(("site", "group", "sentence", "at"), text),
        **dict.fromkeys(("score", "effect", "frequency", "whole"), number),
        "interval": _PAIR,
        **dict.fromkeys(("swaps", "roles", "feeders"), _NAMES),
    },
    ("site",),
)
_CIRCUIT = fields(
    {
        **dict.fromkeys(("task", "model", "method"), text),
        "nodes": each(_NODE),
        "level": text,
        "edges": each(
            fields({"edge": text, "score": number, "effect": number, "interval": _PAIR}, ("edge",))
        ),
        **dict.fromkeys(("total", "size", "prompts", "edges_total"), whole),
        **dict.fromkeys(("faithfulness", "faithfulness_on_discovery"), number),
        "interval": _PAIR,
    },
    ("task", "model", "method", "nodes", "total"),
)


def sized_circuit(value: Any, where: str) -> None:
    """A circuit, of nodes or of edges among them, whose size is the number of its nodes."""
    _CIRCUIT(value, where)
    count = len(value["nodes"])
    if value.get("size") not in (None, count):
        _fail(value["size"], f"{where}.size" if where else "size", f"{count}, one for a node")


_SHARE = fields(
    {"size": whole, **dict.fromkeys(("fraction", "beaten", "farther"), amount)},
    ("size", "fraction", "beaten", "farther"),
)
_ROC = fields(
    {
        **dict.fromkeys(("auc", "sweep_auc"), number),
        "points": each(each(number, 3)),
        **dict.fromkeys(("known", "nodes"), whole),
    },
    ("known", "nodes"),
)
EVALUATION = fields(
    {
        "about": named(text),
        "forwards": named(amount),
        "settings": named(anything),
        **dict.fromkeys(("circuit", "parts"), _NAMES),
        "ablation": text,
        **dict.fromkeys(("nodes", "size", "prompts"), whole),
        **dict.fromkeys(("faithfulness", "templates"), _FAITHFULNESS),
        "curves": named(curve),
        "known": named(number),
        "roc": named(_ROC),
        "random": _DRAWS,
        "random_circuits": fields(
            {
                "size": whole,
                "faithfulness": number,
                "shares": each(_SHARE),
                **dict.fromkeys(("mark", "up_to", "up_to_farther"), amount),
            },
            ("shares", "up_to", "up_to_farther"),
        ),
        "completeness": _COMPLETENESS,
        "minimality": _MINIMALITY,
        "repeats": fields(
            {
                "searches": each(fields({"seed": whole, "circuit": _NAMES}, ("seed", "circuit"))),
                **dict.fromkeys(("overlap", "between"), number),
                "kept": named(number),
            },
            ("searches", "kept"),
        ),
        "stability": fields(
            {
                **dict.fromkeys(("size", "draws"), whole),
                **dict.fromkeys(("overlap", "between"), number),
                "kept": named(number),
            }
        ),
    }
)

_KEY = {"task": text, "method": text, "seed": whole, "settings": named(anything)}
RESULT = fields(
    {
        **_KEY,
        **dict.fromkeys(("score", "search"), text),
        "circuit": _NAMES,
        "faithfulness": amount,
        "interval": _PAIR,
        "seconds": amount,
        "forwards": fields({"score": amount, "search": amount}, ("score", "search")),
        "curve": curve,
        "curves": named(curve),
        "roc": named(_ROC),
    },
    ("circuit", "faithfulness", "seconds", "forwards", "curve", "curves", "roc", "score", "search"),
)
REFERENCE_RESULT = fields(
    {
        **_KEY,
        "nodes": whole,
        "random": _DRAWS,
        "known": named(fields({"faithfulness": number, "size": whole}, ("size",))),
    },
    ("nodes", "random", "known"),
)
_LINE = {"task": text, "method": text, "line": text, "seconds": number, "auc": number}
COMPARISON = fields(
    {
        "model": text,
        "figures": named(
            each(
                fields(_LINE | {"sizes": each(whole), "faithfulness": anything, "beaten": anything})
            )
        ),
        "summary": each(named(anything)),
    }
)
