"""Code blocks of README and the documentation, as CONTRIBUTING.md describes them, and their runner.

A block is run unless a comment in the line before it says why it is only parsed:

    <!-- parsed: takes minutes -->
"""

import re
import shlex
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer.main

import unweave
from unweave import cli

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(
    r"""(?:<!--\ parsed:\ (?P<reason>[^>]+?)\ -->\n)?
        ^```(?P<language>[a-z]*)(?:\ title="(?P<title>[^"]+)")?\n
        (?P<text>.*?)^```$""",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
LANGUAGES = ("python", "sh", "json", "toml", "text", "bibtex")


class Block(NamedTuple):
    """A fenced block: what it is, where it stands, why it is not run."""

    language: str
    text: str
    line: int
    title: str | None
    reason: str | None


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    source = page.read_text(encoding="utf-8")
    return [
        Block(
            m["language"],
            m["text"],
            source.count("\n", 0, m.start("text")),
            m["title"],
            m["reason"],
        )
        for m in _BLOCK.finditer(source)
    ]


def commands(block: Block) -> list[list[str]]:
    """The commands of a shell block as words, comments and line continuations resolved."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def run_page(page: Path, folder: Path) -> None:
    """Runs the blocks of a page in one folder; Python blocks share names, as in a notebook."""
    names: dict[str, Any] = {"__name__": page.stem}
    for block in blocks(page):
        where = f"{page.name} line {block.line}"
        assert block.language in LANGUAGES, f"{where}: language {block.language!r}"
        if block.title is not None:
            (folder / block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            code = compile(block.text, where, "exec")
            if block.reason is None:
                exec(code, names)
            else:
                check_names(block.text, where)
        elif block.language == "sh":
            for words in commands(block):
                if block.reason is None:
                    run_command(words, folder, where)
                else:
                    check_command(words, where)


def run_command(words: Sequence[str], folder: Path, where: str) -> None:
    """Runs one command; `unweave` in this process, which has torch loaded already."""
    if words[0] == "unweave":
        check_command(words, where)
        assert cli.main(words[1:]) == 0, f"{where}: {shlex.join(words)}"
    else:
        subprocess.run(words, cwd=folder, check=True, timeout=60)


def check_names(source: str, where: str) -> None:
    """Checks that every `unweave.name` of a Python block exists."""
    for name in re.findall(r"\bunweave\.(\w+)", source):
        assert hasattr(unweave, name), f"{where}: unweave has no {name!r}"


def check_command(words: Sequence[str], where: str) -> None:
    """Checks that a command and its options exist, without running it."""
    program, *args = words
    if program == "unweave":
        _parse(args, where)
    elif program == "torchrun":
        _parse(args[args.index("unweave") + 1 :], where)
    elif program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        goals = [word for word in args if "=" not in word]
        assert set(goals) <= set(targets), f"{where}: no target {goals}"
    elif program == "python" and args[0] != "-m":
        source = (ROOT / args[0]).read_text(encoding="utf-8")
        unknown = [word for word in args if word.startswith("--") and f'"{word}"' not in source]
        assert not unknown, f"{where}: {args[0]} has no {unknown}"
    elif "pip" in words[:3]:
        extras = {e for word in words for e in re.findall(r"\[([\w,]+)\]", word)}
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        asked = {extra for group in extras for extra in group.split(",")}
        assert asked <= set(known["optional-dependencies"]), f"{where}: extras {asked}"
    else:
        assert program in ("git", "cd"), f"{where}: how is {program!r} checked?"


def _parse(args: Sequence[str], where: str) -> None:
    command: Any = typer.main.get_command(cli._build_app(cli.GlobalOptions()))
    rest = list(args)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        assert rest[0] in command.commands, f"{where}: unweave has no command {rest[0]!r}"
        command = command.commands[rest.pop(0)]
    if hasattr(command, "commands") or "--help" in rest:
        return
    try:
        command.make_context("unweave", rest)
    except typer.TyperException as error:
        raise AssertionError(f"{where}: {error.format_message()}") from error
