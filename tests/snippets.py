"""Code blocks of README and the documentation, as CONTRIBUTING.md describes them, and a runner.

Every block is run, in a copy of the repository. A comment in the line before says why a block is
run on a small model instead:

    <!-- small: takes minutes -->
"""

import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from unweave import cli
from unweave.model import sources

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(
    r"""(?:<!--\ (?P<small>small:\ [^>]+?)\ -->\n)?
        ^```(?P<language>[a-z]*)(?:\ title="(?P<title>[^"]+)")?\n
        (?P<text>.*?)^```$""",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
# What a clone of the repository holds, as far as a page uses it.
CLONE = (".ci", "src", "docs", "benchmarks", "Makefile", "pyproject.toml", "README.md", "LICENSE")
# What stands for a task, a model and a device in a block that is run small: models of three layers
# whose circuit takes seconds. And what a command then gets besides.
SMALL = {
    "ioi": "wired-inhibition",
    "greater-than": "wired-induction",
    "docstring": "wired-relay",
    "induction": "wired-suppression",
    "prompts.jsonl": "wired-induction",
    "gpt2": "wired-induction",
    "smollm2-135m": "wired-inhibition",
    "cuda": "cpu",
}
# A model that a block before has trained, small: it stays, with the task that seconds teach it.
TRAINED, LEARNT = "gpt2-like", "greater-than"
SMALL_OPTIONS = {
    "discover": "--held-out 20",
    "compare": "--prompts 12 --held-out 20",
    "docs/gallery.py": "wired-relay",
    "reproduce": "wired-induction -n 8 --held-out 8 --draws 2",
    "benchmarks/attribution.py": "--texts 1",
    "benchmarks/constants.py": "--model wired-induction --tasks wired-induction --studies top",
    "benchmarks/gpt2_like.py": "--layers 1 --heads 2 --width 16 --batch 8 --steps 150 "
    f"--tasks {LEARNT}",
    "benchmarks/mib.py": "--model wired-inhibition --tasks wired-inhibition --prompts 8 "
    "--held-out 8 --seeds 0",
    "benchmarks/rules.py": "--model wired-inhibition --tasks wired-inhibition --prompts 8 "
    "--held-out 8 --seeds 0",
    "benchmarks/seeds.py": "--model wired-inhibition --tasks wired-inhibition --seeds 0 1 "
    "--common 16 --workers 1",
}
LANGUAGES = ("python", "sh", "json", "toml", "text", "bibtex")


class Block(NamedTuple):
    """A fenced block: what it is, where it stands, and whether it is run on a small model."""

    language: str
    text: str
    line: int
    title: str | None = None
    small: bool = False


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    source = page.read_text(encoding="utf-8")
    return [
        Block(
            m["language"],
            m["text"],
            source.count("\n", 0, m.start("text")),
            m["title"],
            m["small"] is not None,
        )
        for m in _BLOCK.finditer(source)
    ]


def commands(block: Block) -> list[str]:
    """The commands of a shell block, continued lines joined."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line for line in lines if shlex.split(line, comments=True)]


def copy_clone(folder: Path) -> None:
    """Puts into a folder what a clone of the repository holds, as far as a page uses it."""
    for name in CLONE:
        if (ROOT / name).is_dir():
            leave = shutil.ignore_patterns("__pycache__", "gallery")
            shutil.copytree(ROOT / name, folder / name, ignore=leave)
        else:
            shutil.copy(ROOT / name, folder / name)


def run_page(page: Path, folder: Path) -> None:
    """Runs the blocks of a page in one folder; Python blocks share names, as in a notebook."""
    names: dict[str, Any] = {"__name__": page.stem}
    for block in blocks(page):
        where = f"{page.name} line {block.line}"
        assert block.language in LANGUAGES, f"{where}: language {block.language!r}"
        if block.title is not None:
            (folder / block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            text = small_text(block.text) if block.small else block.text
            exec(compile(text, where, "exec"), names)
        elif block.language == "sh":
            for line in commands(block):
                words = shlex.split(line, comments=True)
                if words[0] == "pip":
                    print(run_installed(line, folder))
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
    if TRAINED in words:
        return [LEARNT if word == "ioi" else word for word in words]
    tasks = set(SMALL.values()) - {"cpu"}
    found = [SMALL.get(word, word) for word in words]
    found = [f"{word},cluster=local" if word.startswith("slurm:") else word for word in found]
    others = found[2:3] + [word for word in found[3:] if words[1] != "compare" or word not in tasks]
    return found[:2] + others + SMALL_OPTIONS.get(words[1], "").split()


def small_text(source: str) -> str:
    """Python code with a small model in place of its own: the names stand in quotes."""
    return re.sub(r'"([\w.-]+)"', lambda m: f'"{SMALL.get(m[1], m[1])}"', source)


def run_command(words: Sequence[str], folder: Path, where: str) -> None:
    """Runs one command; `unweave` in this process, which has torch loaded already.

    `make` says what it would run, and does not: it would install torch, or run these tests.
    """
    if words[0] == "unweave":
        assert cli.main(words[1:]) == 0, f"{where}: {shlex.join(words)}"
    elif words[0] == "make":
        subprocess.run(["make", "-n", *words[1:]], cwd=folder, check=True, timeout=60)
    else:
        program = {"python": [], "torchrun": ["-m", "torch.distributed.run"]}[words[0]]
        command = [sys.executable, *program, *words[1:]]
        subprocess.run(command, cwd=folder, check=True, timeout=300)


def run_installed(line: str, folder: Path) -> str:
    """Runs a line of the shell in an environment of its own, and returns what it prints.

    Nothing is fetched: pip finds the packages of this environment there already, and the default
    model, which is unpacked in this one, as the wheel that it was.
    """
    environment, bin_ = folder / ".venv", folder / ".venv" / "bin"
    if not environment.exists():
        venv.create(environment, symlinks=True)
        (here,) = environment.glob("lib/python*/site-packages")
        (here / "here.pth").write_text("\n".join(site.getsitepackages()))
        (bin_ / "pip").write_text(f'#!/bin/sh\nexec {bin_ / "python"} -m pip "$@"\n')
        (bin_ / "pip").chmod(0o755)
        _pack(sources.BUNDLED[sources.DEFAULT], folder)
    usual = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON"))}
    asked = {
        "PATH": f"{bin_}:{usual['PATH']}",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": str(folder),
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # 0 is without, in pip's way of reading it
        "PIP_QUIET": "1",
    }
    done = subprocess.run(
        ["sh", "-c", line],
        cwd=folder,
        env=usual | asked,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{line}: {done.stderr}"  # a warning, too
    return done.stdout


def _pack(model: sources.Bundled, folder: Path) -> None:
    """A wheel of a model that is unpacked here."""
    name = model.wheel.replace("==", "-").replace("-", "_", 1)
    unpacked = sources.unpacked()
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as wheel:
        for part in (unpacked / model.package, unpacked / f"{name}.dist-info"):
            for path in part.rglob("*"):
                wheel.write(path, path.relative_to(unpacked))
