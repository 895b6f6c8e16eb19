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


def unweave(*args: str, stdout: int) -> tuple[int, str]:
    """Exit code and standard error of a command whose output goes there."""
    done = subprocess.run(
        [sys.executable, "-m", "unweave", *args], stdout=stdout, stderr=subprocess.PIPE, text=True
    )
    return done.returncode, done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's full device")
@pytest.mark.parametrize("args", [(), ("models",), ("models", "--json"), ("--version",)])
def test_output_that_a_full_disk_does_not_take_is_one_line(args: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        code, said = unweave(*args, stdout=full.fileno())
    assert code == 2
    assert said == "error: cannot write standard output: No space left on device; make room\n"


@pytest.mark.parametrize("args", [(), ("models", "--json")])
def test_output_that_nobody_reads_is_no_traceback(args: tuple[str, ...]) -> None:
    """As in `unweave models | head -1`."""
    reads, writes = os.pipe()
    os.close(reads)
    try:
        assert unweave(*args, stdout=writes) == (1, "")
    finally:
        os.close(writes)


@pytest.mark.parametrize("columns", ["0", "", "many"])
def test_a_terminal_of_any_width_shows_something(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert cli.main(["models"]) == 0
    assert "smollm2" in capsys.readouterr().out


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
