"""The notebooks run, and what they show in Jupyter is there."""

import ast
import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from snippets import ROOT

from unweave.behaviours.task import tasks

NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
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


def assert_shows(found: str, stored: str) -> None:
    """The same words; numbers, which other machines round differently, to 2%."""
    words, numbers = zip(*(_cut(text) for text in (found, stored)), strict=True)
    assert words[0] == words[1], "run python docs/notebooks.py"
    assert numbers[0] == pytest.approx(numbers[1], rel=0.02, abs=0.002)


def _cut(text: str) -> tuple[str, list[float]]:
    """What a text says with # for each number, and the numbers. Markup is left out."""
    shown = " ".join(re.sub(r"<[^>]*>", " ", text).split())
    return NUMBER.sub("#", shown), [float(number) for number in NUMBER.findall(shown)]


@pytest.mark.parametrize(
    ("found", "fits"),
    [
        ("f 1.004 of a1.h2", True),
        ("<b>f</b> 1.01   of a1.h2", True),
        ("f 1.2 of a1.h2", False),
        ("f 1.004 of a1.h3", False),
        ("g 1.004 of a1.h2", False),
    ],
)
def test_outputs_are_compared(found: str, fits: bool):
    with nullcontext() if fits else pytest.raises(AssertionError):
        assert_shows(found, "f 1.004 of a1.h2")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs_and_shows_what_is_stored(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert list(tasks)
    monkeypatch.setattr(tasks, "_entries", dict(tasks._entries))  # a cell may register a task
    names: dict[str, Any] = {"__name__": path.stem}
    shown = 0
    for cell in code_cells(path):
        capsys.readouterr()
        value = run_cell("".join(cell["source"]), names)
        printed = [out for out in cell["outputs"] if out["output_type"] == "stream"]
        assert_shows(capsys.readouterr().out, "".join("".join(out["text"]) for out in printed))
        stored = [out["data"] for out in cell["outputs"] if out["output_type"] == "execute_result"]
        assert (value is not None) == bool(stored), "run python docs/notebooks.py"
        if not stored:
            continue
        assert_shows(repr(value), "".join(stored[0]["text/plain"]))
        if hasattr(value, "_repr_html_"):
            assert_shows(value._repr_html_(), "".join(stored[0]["text/html"]))
            shown += 1
    assert shown
