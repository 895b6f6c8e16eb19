"""Every code block and command of README and the documentation runs, some on a small model.

What installs packages, needs a cluster, a GPU or the hub, or trains a model is parsed: its commands
and options are checked without running them.
"""

from pathlib import Path

import pytest
from snippets import (
    ROOT,
    Block,
    blocks,
    check_command,
    commands,
    run_page,
    small_text,
    small_words,
)

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
    assert (python.text, python.reason, python.parsed) == ("x = 1\n", "slow", True)
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


def test_a_block_runs_small(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text('<!-- small: slow -->\n```python\nassert "ioi" == "wired-inhibition"\n```\n')
    run_page(page, tmp_path)
    assert small_text('f(model, "ioi", rules="paper")') == (
        'f(model, "wired-inhibition", rules="paper")'
    )
    found = small_words(["unweave", "compare", "ioi", "docstring", "--device", "cuda"])
    assert found[:5] == ["unweave", "compare", "wired-inhibition", "--device", "cpu"]
    found = small_words(["unweave", "discover", "prompts.jsonl", "-m", "gpt2"])
    assert found[2:5] == ["wired-induction", "-m", "wired-induction"]


def test_what_takes_minutes_is_run_small_and_not_only_parsed():
    """What is only parsed installs something, or needs what is not here."""
    for page in PAGES:
        for block in blocks(page):
            shell = commands(block) if block.language == "sh" else []
            if block.parsed and any(words[0] == "unweave" for words in shell):
                assert str(block.reason).startswith(("needs", "trains")), f"{page}: {block.line}"


def test_a_failing_block_fails(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("```python\nassert False\n```\n")
    with pytest.raises(AssertionError):
        run_page(page, tmp_path)
