"""Every code block and command of README and the documentation runs, some on a small model."""

import subprocess
from pathlib import Path

import pytest
import typer
from mib_data import wired_rows, write
from snippets import (
    ROOT,
    blocks,
    commands,
    copy_clone,
    run_command,
    run_installed,
    run_page,
    small_text,
    small_words,
)

from unweave import cli
from unweave.behaviours.task import tasks

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the repository, to work in. No browser opens; a task that is added is forgotten.
    A dataset of the hub lies beside it."""
    copy_clone(tmp_path)
    write(tmp_path / "mib-bench" / "ioi", train=wired_rows(12, 0), validation=wired_rows(12, 1))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(typer, "launch", lambda page: print("opened:", page))
    assert list(tasks)
    monkeypatch.setattr(tasks, "_entries", dict(tasks._entries))
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page: Path, clone: Path):
    if not blocks(page):
        pytest.skip("no code")
    run_page(page, clone)
    if (clone / ".venv").exists():
        installed = clone / ".venv" / "lib"
        where = run_installed("python -c 'import unweave; print(unweave.__file__)'", clone)
        assert Path(where).is_relative_to(installed)
        assert run_installed("unweave", clone) == f"{cli.START}\n"
        find = "from unweave.model import sources; print(sources.find(sources.DEFAULT))"
        assert Path(run_installed(f"python -c '{find}'", clone)).is_relative_to(installed)


def test_nothing_is_left_out_but_what_sets_up_everything():
    """`make` is not run: `demo` installs torch, the others run this very suite."""
    shell = [b for page in PAGES for b in blocks(page) if b.language == "sh"]
    made = {
        line.partition("#")[0].strip()
        for block in shell
        for line in commands(block)
        if line.startswith("make")
    }
    assert made == {"make demo", "make test", "make test-oldest PYTHON=python3.11", "make docs"}


def test_the_command_of_the_demo_runs_small(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """What `make demo` runs last, as it says itself, where there is a screen."""
    monkeypatch.setenv("DISPLAY", ":0")
    done = subprocess.run(
        ["make", "-n", "--no-print-directory", "demo"], capture_output=True, text=True, check=True
    )
    program, *words = done.stdout.splitlines()[-1].split()
    assert program.endswith("bin/unweave")
    run_command(small_words(["unweave", *words]), clone, "make demo")
    (report,) = (clone / "runs").rglob("report.html")
    opened = f"opened: {report.relative_to(clone)}"
    assert opened in capsys.readouterr().out.splitlines()


def test_a_page_is_cut_into_its_blocks(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\n```sh\nmake demo   # note\n# alone\nunweave x \\\n    --y 'a b'\n```\n\n"
        "<!-- small: slow -->\n```python\nx = 1\n```\n"
        '```json title="a.jsonl"\n{}\n```\n'
    )
    shell, python, file = blocks(page)
    assert commands(shell) == ["make demo   # note", "unweave x      --y 'a b'"]
    assert [block.small for block in (shell, python, file)] == [False, True, False]
    assert python.text == "x = 1\n"
    assert (file.title, file.text) == ("a.jsonl", "{}\n")


@pytest.mark.parametrize(
    "line",
    [
        "unweave discover ioi --nonsense",
        "unweave nonsense",
        "make nonsense",
        "python nonsense.py",
        "pip install '.[nonsense]'",
        "pip install nonsense",
        "nonsense",
    ],
)
def test_a_command_that_does_not_exist_is_found(line: str, clone: Path):
    page = clone / "page.md"
    page.write_text(f"```sh\n{line}\n```\n")
    with pytest.raises((AssertionError, KeyError, subprocess.CalledProcessError)):
        run_page(page, clone)


def test_a_block_runs_small(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text('<!-- small: slow -->\n```python\nassert "ioi" == "wired-inhibition"\n```\n')
    run_page(page, tmp_path)
    assert small_text('f(model, "ioi", rules="paper")') == (
        'f(model, "wired-inhibition", rules="paper")'
    )
    found = small_words(["unweave", "compare", "ioi", "docstring", "--device", "cuda"])
    assert found[:5] == ["unweave", "compare", "wired-inhibition", "--device", "cpu"]
    found = small_words(["unweave", "compare", "ioi", "--executor", "slurm:timeout_min=9"])
    assert found[3:5] == ["--executor", "slurm:timeout_min=9,cluster=local"]
    found = small_words(["unweave", "discover", "prompts.jsonl", "-m", "gpt2"])
    assert found[2:5] == ["wired-induction", "-m", "wired-induction"]
    found = small_words(["unweave", "discover", "ioi", "-m", "gpt2-like"])
    assert found[2:] == ["greater-than", "-m", "gpt2-like"], "the page itself has trained it"


def test_a_failing_block_fails(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("```python\nassert False\n```\n")
    with pytest.raises(AssertionError):
        run_page(page, tmp_path)
