"""The page of `unweave reproduce`: one file, tables in its text, figures drawn by its script."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unweave.experiments.files import write_text
from unweave.experiments.reproduction.subjects import PAPER
from unweave.report.single_file import render_page

_PAPER_MODELS = {one.task: one.model for one in PAPER}
SCRIPTS = ("base.js", "chart.js", "theme.js", "reproduce.js")


def write_reproduction(record: Mapping[str, Any], out: Path) -> Path:
    """Writes the page of what `reproduce` returned.

    Raises:
        UnweaveError: When it cannot be written.
    """
    write_text(out, reproduction_page(record))
    return out


def reproduction_page(record: Mapping[str, Any]) -> str:
    """The page as text."""
    run = [one for one in record["subjects"] if one.get("parts")]
    missing = [
        {"title": _title(one), "error": one["error"]}
        for one in record["subjects"]
        if not one.get("parts")
    ]
    return render_page(
        "reproduce.html.j2",
        SCRIPTS,
        {"subjects": [_figures(one) for one in run]},
        missing=missing,
        origin=_origin(run),
        overview=[row for one in run for row in _overview(one)],
        subjects=[_subject(one, record) for one in run],
    )


def _title(subject: Mapping[str, Any]) -> str:
    task, model = subject["task"], subject["model"]
    return task if task == model else f"{task} on {model}"


def _origin(run: Sequence[Mapping[str, Any]]) -> str:
    """Which of the results are the paper's own experiments."""
    own = {(one.task, one.model) for one in PAPER}
    here = [one for one in run if (one["task"], one["model"]) in own]
    others = [one for one in run if one not in here]
    listed = ", ".join(map(_title, here)) or "none"
    text = f"The paper's own experiments on this page: {listed}. "
    if others:
        text += (
            f"Other models: {', '.join(map(_title, others))}. They show the same figures for "
            "another model, and say nothing about the paper's."
        )
    return text


def _overview(subject: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows, measured = [], (subject["parts"].get("table") or {}).get("rows", {})
    for name, one in subject["parts"].get("sweep", {}).get("methods", {}).items():
        roc, before = one.get("roc") or {}, one.get("roc_before_pruning") or {}
        cells = [
            _number(roc.get("auc")),
            _number(before.get("auc")),
            _number(one.get("rank_auc")),
            str(len(one["circuit"])),
            _number(measured.get(name, {}).get("faithfulness")),
            _number(one["seconds"]),
            _number(one["forwards"]),
        ]
        rows.append({"subject": _title(subject), "method": name, "cells": cells})
    return rows


def _subject(one: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    parts = one["parts"]
    table, roles = parts.get("table") or {}, parts.get("roles") or {}
    reference = one.get("reference")
    known = f"compared with {reference}" if reference else "no circuit of this model is published"
    return {
        "title": _title(one),
        "about": f"{_shape(one)}{one['prompts']} prompts to search on, {one['held_out']} others "
        f"to measure on, seed {record['seed']}, mean ablation; {known}.",
        "error": one.get("error", ""),
        "table_note": f"{table.get('metric', '')}, {table.get('prompts', 0)} held-out prompts",
        "printed": _PAPER_MODELS.get(one["task"]) if one.get("printed") else None,
        "rows": [
            _row(name, row, one.get("printed") or {}) for name, row in table.get("rows", {}).items()
        ],
        "stages": bool((parts.get("heatmaps") or {}).get("stages")),
        "roles": roles.get("nodes") or [],
        "roles_known": _published(roles),
        "roles_note": _roles_note(roles),
    }


def _shape(subject: Mapping[str, Any]) -> str:
    return f"{subject['shape']}; " if subject.get("shape") else ""


def _published(roles: Mapping[str, Any]) -> bool:
    return any(row["published"] for row in roles.get("nodes") or ())


def _roles_note(roles: Mapping[str, Any]) -> str:
    if not _published(roles):
        return "no roles of this model are published; these are the nodes that cdt found"
    return f"{roles['agree']} of {roles['tested']} nodes have the role that is known of them"


def _row(name: str, row: Mapping[str, Any], printed: Mapping[str, Any]) -> dict[str, Any]:
    low, high = row["interval"]
    half = None if low is None or high is None else (high - low) / 2
    metric, correct = printed.get(name) or (None, None)
    cells = [
        str(row["nodes"]),
        _number(row["metric"]),
        _percent(row["correct"]),
        _number(row["faithfulness"]) + (f" ± {_number(half)}" if half else ""),
    ]
    if printed:
        cells += [_number(metric), _percent(correct)]
    return {"name": name, "cells": cells}


def _figures(subject: Mapping[str, Any]) -> dict[str, Any]:
    """What the script draws."""
    parts = subject["parts"]
    methods = parts.get("sweep", {}).get("methods", {})
    kept = ("roc", "seconds", "forwards")
    return {
        "methods": {name: {key: one[key] for key in kept} for name, one in methods.items()},
        **{name: parts.get(name) or {} for name in ("curves", "random_circuits", "heatmaps")},
    }


def _number(value: Any) -> str:
    if not isinstance(value, int | float):
        return "–"
    return "0" if abs(value) < 5e-5 else f"{value:.3g}"  # below that it is rounding


def _percent(value: Any) -> str:
    return f"{value:.1%}" if isinstance(value, int | float) else "–"
