"""Every code block and command of README and the documentation runs, or is parsed with a reason."""

from pathlib import Path

import pytest
from snippets import ROOT, Block, blocks, check_command, commands, run_page

from unweave.behaviours.task import tasks

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if not blocks(page):
        pytest.skip("no code")
    monkeypatch.chdir(tmp_path)
    assert list(tasks)
    monkeypatch.setattr(tasks, "_entries", dict(tasks._entries))  # a page may register a task
    run_page(page, tmp_path)


def test_a_page_is_cut_into_its_blocks(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\n```sh\nmake demo   # note\nunweave x \\\n    --y 'a b'\n```\n\n"
        "<!-- parsed: slow -->\n```python\nx = 1\n```\n"
        '```json title="a.jsonl"\n{}\n```\n'
    )
    shell, python, file = blocks(page)
    assert commands(shell) == [["make", "demo"], ["unweave", "x", "--y", "a b"]]
    assert (python.text, python.reason) == ("x = 1\n", "slow")
    assert (file.title, file.text) == ("a.jsonl", "{}\n")


@pytest.mark.parametrize(
    "command",
    [
        "unweave discover ioi --nonsense",
        "unweave nonsense",
        "unweave tasks nonsense",
        "make nonsense",
        "python benchmarks/rules.py --nonsense",
        "pip install .[nonsense]",
        "nonsense",
    ],
)
def test_a_command_that_does_not_exist_is_found(command: str):
    (words,) = commands(Block("sh", command, 1, None, "not run"))
    with pytest.raises((AssertionError, FileNotFoundError)):
        check_command(words, "here")


def test_a_failing_block_fails(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("```python\nassert False\n```\n")
    with pytest.raises(AssertionError):
        run_page(page, tmp_path)
