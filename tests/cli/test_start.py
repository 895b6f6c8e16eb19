"""The first things that the command line says: a start, brackets in help, completion."""

import os
import subprocess
import sys

import pytest

from unweave import cli


def test_unweave_alone_prints_a_start_of_three_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("unweave ") and len(line) <= 100 for line in lines)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--help"], "'unweave[plots]'"),
        (["plot", "--help"], "pip install 'unweave[plots]'"),
        (["tasks", "show", "--help"], "[default: 3]"),
    ],
)
def test_help_keeps_its_brackets(
    args: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(args) == 0
    # Lines are broken at the terminal's width, within frames.
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert text in shown


def test_the_shell_can_complete_commands() -> None:
    asked = {"_UNWEAVE_COMPLETE": "complete_bash", "COMP_WORDS": "unweave re", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "from unweave import cli; cli.main()"],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["report", "reproduce"]
