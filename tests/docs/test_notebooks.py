"""The notebooks run, and what they show in Jupyter is there."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from snippets import ROOT

from unweave.behaviours.task import tasks

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def code_cells(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Runs a cell as Jupyter does, and returns the value of its last line if it has one."""
    *statements, last = ast.parse(source).body
    if not isinstance(last, ast.Expr):
        statements, last = [*statements, last], None
    exec(compile(ast.Module(statements, []), "cell", "exec"), names)
    return (
        None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    )


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == ["discover", "explain", "own_task"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs_and_shows_what_is_stored(path: Path, monkeypatch: pytest.MonkeyPatch):
    assert list(tasks)
    monkeypatch.setattr(tasks, "_entries", dict(tasks._entries))  # a cell may register a task
    names: dict[str, Any] = {"__name__": path.stem}
    shown = 0
    for cell in code_cells(path):
        value = run_cell("".join(cell["source"]), names)
        stored = [out["data"] for out in cell["outputs"] if out["output_type"] == "execute_result"]
        assert (value is not None) == bool(stored), "run python docs/notebooks.py"
        if stored and hasattr(value, "_repr_html_"):
            assert "text/html" in stored[0]
            assert value._repr_html_()
            shown += 1
    assert shown
