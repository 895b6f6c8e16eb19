"""`report.html`: one file that opens from disk and loads nothing.

Every text of a run is data. Jinja escapes what stands in the page; the rest travels as JSON in a
script element that no browser runs, with `<`, `>` and `&` written as escapes, and the page's own
script puts it in place as text. A content security policy allows that script and plotly's alone.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unweave.errors import UnweaveError
from unweave.experiments.compare import read_comparison
from unweave.experiments.files import write_text
from unweave.report.data import PageLimits, page_data
from unweave.report.folder import ShownRun, read_shown
from unweave.report.single_file import render_page

SCRIPTS = (
    "base.js",
    "state.js",
    "chart.js",
    "theme.js",
    "layout.js",
    "graph.js",
    "picture.js",
    "detail.js",
    "nodes.js",
    "paths.js",
    "heatmap.js",
    "panels.js",
    "verdict.js",
    "tests.js",
    "prompts.js",
    "words.js",
    "compare.js",
    "main.js",
)
LIMIT = 6_000_000  # bytes of a page
_SHARES = (1.0, 0.5, 0.2, 0.05, 0.0)  # of the limits for what can be large, until the page fits
_RUN_SECTIONS = (
    ("verdict", "Verdict"),
    ("circuit", "Circuit"),
    ("paths", "Paths"),
    ("nodes", "Nodes"),
    ("prompts", "Prompts"),
    ("faithfulness", "Faithfulness"),
    ("tests", "Tests"),
    ("random-circuits", "Random"),
    ("roc", "ROC"),
    ("runtime", "Runtime"),
    ("heatmap", "Heatmap"),
    ("words", "Words"),
    ("reproduce", "Reproduce"),
)
_COMPARE_SECTIONS = (
    ("overview", "Runs"),
    ("graphs", "Circuits"),
    ("nodes", "Nodes"),
    ("faithfulness", "Faithfulness"),
    ("options", "Options"),
    ("reproduce", "Reproduce"),
)


def write_report(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Writes the page of one run, or of several side by side.

    Args:
        folders: Run folders; one that `unweave compare` wrote adds its methods to the curves.
        out: By default report.html in the run's folder, or compare.html beside the first of
            several.

    Returns:
        Where it was written.

    Raises:
        UnweaveError: When a folder is not a run, or the page cannot be written.
    """
    compared = [folder for folder in folders if is_comparison(folder)]
    comparison = read_comparison(compared[-1] / "compare.json") if compared else None
    runs = [read_shown(folder, comparison) for folder in folders if folder not in compared]
    if not runs:
        raise UnweaveError("no run to show: name a folder that unweave discover wrote")
    if out is None:
        first = runs[0].folder
        out = first / "report.html" if len(runs) == 1 else first.resolve().parent / "compare.html"
    if os.path.isdir(out):  # Path.is_dir raises for a name that is too long
        out = out / "report.html"
    write_text(out, page(runs))
    return out


def is_comparison(folder: Path) -> bool:
    """Whether `unweave compare`, not `unweave discover`, wrote a folder."""
    return os.path.exists(folder / "compare.json") and not (folder / "circuit.json").exists()


def page(runs: Sequence[ShownRun]) -> str:
    """The page as text, with as much of the data as `LIMIT` allows."""
    text = ""
    for share in _SHARES:
        text = _page(runs, PageLimits().scaled(share))
        if len(text.encode("utf-8", errors="replace")) < LIMIT:
            break
    return text


def _page(runs: Sequence[ShownRun], limits: PageLimits) -> str:
    one = len(runs) == 1
    # Beside other runs, a circuit shows neither untested relevance nor attention.
    data = [page_data(run, limits if one else PageLimits(0, 0, 0)) for run in runs]
    names = list(dict.fromkeys(f"{run.about('task')} in {run.about('model')}" for run in runs))
    return render_page(
        "report.html.j2",
        SCRIPTS,
        {"runs": data},
        title=names[0] if one else f"{len(runs)} circuits: {', '.join(names)}",
        subtitle=_subtitle(runs),
        sections=_sections(data[0]) if one else _COMPARE_SECTIONS,
        runs=[_facts(run, found) for run, found in zip(runs, data, strict=True)],
    )


def _sections(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Paths have a section once they were asked for."""
    return [section for section in _RUN_SECTIONS if section[0] != "paths" or found["paths"]]


def _subtitle(runs: Sequence[ShownRun]) -> str:
    if len(runs) > 1:
        return f"{len(runs)} runs side by side"
    run = runs[0]
    created = str(run.record.get("created") or "")[:16].replace("T", " ")
    return f"circuit found by {run.about('method')}" + (f", {created}" if created else "")


def _facts(run: ShownRun, found: Mapping[str, Any]) -> dict[str, Any]:
    """What the page says without its script."""
    record = run.record
    versions = _flat(record.get("versions") or {})
    about = [(key, run.about(key)) for key in ("model", "task", "method")]
    verdict = record.get("verdict") or {}
    return {
        "name": run.name,
        **dict(about),
        "size": found["size"],
        "total": found["total"],
        "faithfulness": _number(found["faithfulness"]),
        "interval": _interval(found["interval"]),
        "held_out": found["held_out"] or "–",
        "sentence": str(verdict.get("sentence") or ""),
        "command": record.get("command") or "",
        "tiles": _tiles(record, found),
        "settings": _flat({"seed": record.get("seed"), **(record.get("options") or {})}),
        "provenance": [*about, ("created", _text(record.get("created"))), *versions],
        "left_out": found["left_out"],
        "paths": bool(found["paths"]),
        "paths_command": found["commands"]["paths"],
        "nodes": run.circuit.nodes,
    }


def _tiles(record: Mapping[str, Any], found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    metric, accuracy = record.get("metric") or {}, record.get("accuracy") or {}
    seconds = [s for s in (record.get("seconds") or {}).values() if isinstance(s, int | float)]
    held_out = f"{found['held_out'] or ''} held-out prompts".strip()
    discovery = f"{found['discovery'] or ''} discovery prompts".strip()
    counted = found["counted"]
    tiles = [
        (f"{counted['what']} in the circuit", str(counted["size"]), f"of {counted['total']}"),
        (
            f"faithfulness on {held_out}",
            _number(found["faithfulness"]),
            _interval(found["interval"]),
        ),
        (
            f"faithfulness on {discovery}",
            _number(found["faithfulness_on_discovery"]),
            "where it was found",
        ),
        (
            f"{metric.get('name') or 'metric'} of the model",
            _number(metric.get("full")),
            f"with every node ablated {_number(metric.get('empty'))}",
        ),
        ("model answers correctly", _percent(accuracy.get("correct")), f"of {discovery}"),
        ("time", f"{sum(seconds):.1f} s" if seconds else "–", ""),
    ]
    return [tile for tile in tiles if tile[1] != "–" or "held-out" in tile[0]]


def _interval(ends: Any) -> str:
    if not isinstance(ends, list | tuple) or len(ends) != 2:
        return ""
    low, high = map(_number, ends)
    return "" if "–" in (low, high) else f"95% interval {low} to {high}"


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) and value == value else "–"


def _percent(value: Any) -> str:
    return f"{value:.0%}" if isinstance(value, int | float) and value == value else "–"


def _flat(record: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in record.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", _text(value)))
    return rows


def _text(value: Any) -> str:
    """An option's value in words."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or "none"
    return str(value)
