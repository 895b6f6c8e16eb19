"""Random kills of `discover`, `compare` and `evaluate`: every resumed result has to be identical.

    python benchmarks/kills.py 1000

Each command runs in a process of its own on a small wired model and is killed, again and again,
until it gets through; then its files are compared with those of a run that nobody disturbed.
One kill comes after a random time, the next at a random moment among the file operations of the
command, where a half-written file would be left. Processes are forked from this one, which has
the model and every module that the commands import, but has run none of them: a kill takes a
fraction of a second.
"""

import argparse
import importlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import Any

from unweave import cli
from unweave.model.loading import load

TASK = "wired-induction"
FEW = ["-n", "6", "--held-out", "6"]
TIMES = {"created", "seconds", "command", "forwards", "spread"}
LONGEST = 600  # seconds that one command may take in all
OPERATIONS = 8  # the first of a command's file operations, among which it is killed


def discover(folder: Path, method: str) -> list[str]:
    how = ["--method", method, "--ablation", "counterfactual", "-q", "--resume"]
    return ["discover", TASK, *FEW, *how, "--out", str(folder)]


def compare(folder: Path) -> list[str]:
    how = ["--methods", "cdt,eap,patching,acdc", "--seeds", "0,1", "--draws", "3", "-q"]
    return ["compare", TASK, *FEW, *how, "--out", str(folder)]


def evaluate(folder: Path) -> list[str]:
    return ["evaluate", str(folder), "-n", "8", "--draws", "5", "-q"]


def run(
    args: list[str], seconds: float | None, operation: int | None, modules: Path | None
) -> None:
    """The command, in a process that ends with it, after a time or at a file operation."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    if seconds is not None:
        # No handler: the kernel ends the process at once, as SIGKILL does. Seconds of its own
        # time, so that a busy machine changes nothing.
        signal.setitimer(signal.ITIMER_PROF, seconds)
    if operation is not None:
        kill_at(operation)
    code = cli.main(args)
    if modules is not None:
        modules.write_text(json.dumps(sorted(sys.modules)))
    os._exit(code)


def kill_at(operation: int) -> None:
    """Kills this process just before its nth write, renaming or removal of a file."""
    count = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal count
        flags = args[2] if event == "open" and isinstance(args[2], int) else 0
        writes = flags & (os.O_WRONLY | os.O_RDWR)
        if writes or event in ("os.rename", "os.remove", "os.mkdir", "os.truncate"):
            count += 1
            if count == operation:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def ended(
    args: list[str],
    seconds: float | None = None,
    operation: int | None = None,
    modules: Path | None = None,
) -> BaseProcess:
    """A process that was waited for."""
    process = multiprocessing.get_context("fork").Process(
        target=run, args=(args, seconds, operation, modules)
    )
    process.start()
    process.join(LONGEST)
    return process


def content(folder: Path) -> dict[str, Any]:
    """Every file of a folder, without times; the page is made from the others."""
    found: dict[str, Any] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".json":
            found[path.name] = _without_times(json.loads(path.read_text()))
        elif path.name != "report.html":
            found[path.name] = path.read_bytes()
    return found


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_times(v) for k, v in value.items() if k not in TIMES}
    return [_without_times(item) for item in value] if isinstance(value, list) else value


def undisturbed(make: Callable[[Path], list[str]], folder: Path) -> tuple[dict[str, Any], float]:
    """The files of a whole run, and its processor time; its modules are imported here."""
    modules, before = folder.with_name("modules.json"), os.times().children_user
    process = ended(make(folder), modules=modules)
    assert process.exitcode == 0, f"{make(folder)} ended with {process.exitcode}"
    seconds = os.times().children_user - before
    for name in json.loads(modules.read_text()):
        try:
            importlib.import_module(name)
        except ImportError:  # an entry that a library made itself, such as six.moves
            continue
    return content(folder), seconds


def killed(make: Callable[[Path], list[str]], folder: Path, seconds: float, rng: Random) -> int:
    """Kills a command at random moments until it gets through; how many kills it took."""
    kills, began = 0, time.monotonic()
    while time.monotonic() - began < LONGEST:
        # Kills that come ever later: otherwise a slow phase would never get through.
        patience = 1 + kills / 8
        if rng.random() < 0.5:
            process = ended(make(folder), seconds=rng.uniform(0.001, seconds / 3) * patience)
        else:
            operation = int(rng.uniform(1, OPERATIONS) * patience)
            process = ended(make(folder), operation=operation)
        if process.exitcode in (-signal.SIGKILL, -signal.SIGPROF):
            kills += 1
        elif process.exitcode == 0:
            return kills
        else:
            raise SystemExit(f"{make(folder)} ended with {process.exitcode} after {kills} kills")
    raise SystemExit(f"{make(folder)} did not get through in {LONGEST} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kills", type=int, nargs="?", default=40)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    load(TASK)
    rng, wrong = Random(given.seed), 0
    kills, runs = Counter[str](), Counter[str]()
    home = Path(tempfile.mkdtemp(prefix="unweave-kills-"))
    jobs: dict[str, Callable[[Path], list[str]]] = {
        f"discover {method}": lambda folder, method=method: discover(folder, method)
        for method in ("eap+eliminate", "cdt", "cdt-paper", "acdc")
    }
    jobs |= {"compare": compare, "evaluate": evaluate}
    found = home / "found"
    undisturbed(lambda folder: discover(folder, "cdt"), found)
    expected = {}
    for name, make in jobs.items():
        for attempt in ("first", "again"):  # the first also imports modules
            folder = home / f"whole-{name}-{attempt}"
            if name == "evaluate":
                shutil.copytree(found, folder)
            expected[name] = undisturbed(make, folder)
    while kills.total() < given.kills:
        for name, make in jobs.items():
            folder = home / "killed"
            if name == "evaluate":
                shutil.copytree(found, folder)
            whole, seconds = expected[name]
            kills[name] += killed(make, folder, seconds, rng)
            runs[name] += 1
            if content(folder) != whole:
                wrong += 1
                shutil.copytree(folder, home / f"wrong-{wrong}-{name}")
                print(f"{name}: another result, kept in {home / f'wrong-{wrong}-{name}'}")
            shutil.rmtree(folder)
        print(f"{kills.total()} kills in {runs.total()} runs so far, {wrong} differ", flush=True)
    if not wrong:
        shutil.rmtree(home)
    for name in jobs:
        print(f"{name}: {kills[name]} kills in {runs[name]} runs")
    print(f"{kills.total()} kills in {runs.total()} runs: {runs.total() - wrong} identical")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
