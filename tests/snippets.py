"""Code blocks of README and the documentation, as CONTRIBUTING.md describes them, and their runner.

A block is run, unless a comment in the line before it says why it is run on a small model instead,
or only parsed:

    <!-- small: takes minutes -->
    <!-- parsed: installs packages -->
"""

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer.main

import unweave
from unweave import cli

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(
    r"""(?:<!--\ (?P<how>parsed|small):\ (?P<reason>[^>]+?)\ -->\n)?
        ^```(?P<language>[a-z]*)(?:\ title="(?P<title>[^"]+)")?\n
        (?P<text>.*?)^```$""",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
# What stands for a task, a model and a device in a block that is run small: models of three layers
# whose circuit takes seconds. And what a command then gets besides.
SMALL = {
    "ioi": "wired-inhibition",
    "greater-than": "wired-induction",
    "docstring": "wired-relay",
    "induction": "wired-suppression",
    "prompts.jsonl": "wired-induction",
    "gpt2": "wired-induction",
    "gpt2-like": "wired-inhibition",
    "smollm2-135m": "wired-inhibition",
    "cuda": "cpu",
}
SMALL_OPTIONS = {
    "discover": "--held-out 20",
    "compare": "--prompts 12 --held-out 20",
    "reproduce": "wired-induction -n 8 --held-out 8 --draws 2",
    "benchmarks/attribution.py": "--texts 1",
    "benchmarks/constants.py": "--tasks wired-induction --granularity head",
    "benchmarks/gpt2_like.py": "--layers 1 --heads 2 --width 16 --batch 2 --steps 2",
    "benchmarks/mib.py": "--model wired-inhibition --tasks wired-inhibition --prompts 8 "
    "--held-out 8 --seeds 0",
    "benchmarks/rules.py": "--model wired-inhibition --tasks wired-inhibition --prompts 8 "
    "--held-out 8 --seeds 0",
}
LANGUAGES = ("python", "sh", "json", "toml", "text", "bibtex")


class Block(NamedTuple):
    """A fenced block: what it is, where it stands, and why it is not run as it stands."""

    language: str
    text: str
    line: int
    title: str | None
    reason: str | None
    how: str | None = None

    @property
    def parsed(self) -> bool:
        return self.how == "parsed"

    @property
    def small(self) -> bool:
        return self.how == "small"


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
            m["how"],
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
            code = compile(small_text(block.text) if block.small else block.text, where, "exec")
            if block.parsed:
                check_names(block.text, where)
            else:
                exec(code, names)
        elif block.language == "sh":
            for words in commands(block):
                if block.parsed:
                    check_command(words, where)
                else:
                    run_command(small_words(words) if block.small else words, folder, where)


def small_words(words: Sequence[str]) -> list[str]:
    """A command with a small model in place of its own; of several tasks, the first."""
    if words[0] == "torchrun":
        place = words.index("unweave")
        return [*words[:place], *small_words(words[place:])]
    if words[0] == "python":
        asked = ["cpu" if word == "cuda" else word for word in words]
        return [*asked, *SMALL_OPTIONS[words[1]].split()]  # the last of several values counts
    assert words[0] == "unweave", f"{words[0]} cannot be run small"
    tasks = set(SMALL.values()) - {"cpu"}
    found = [SMALL.get(word, word) for word in words]
    others = found[2:3] + [word for word in found[3:] if words[1] != "compare" or word not in tasks]
    return found[:2] + others + SMALL_OPTIONS.get(words[1], "").split()


def small_text(source: str) -> str:
    """Python code with a small model in place of its own: the names stand in quotes."""
    return re.sub(r'"([\w.-]+)"', lambda m: f'"{SMALL.get(m[1], m[1])}"', source)


def run_command(words: Sequence[str], folder: Path, where: str) -> None:
    """Runs one command; `unweave` in this process, which has torch loaded already."""
    if words[0] == "unweave":
        check_command(words, where)
        assert cli.main(words[1:]) == 0, f"{where}: {shlex.join(words)}"
    elif words[0] in ("python", "torchrun"):
        program = ["-m", "torch.distributed.run"] if words[0] == "torchrun" else [ROOT / words[1]]
        rest = words[1:] if words[0] == "torchrun" else words[2:]
        subprocess.run([sys.executable, *program, *rest], cwd=folder, check=True, timeout=300)
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
