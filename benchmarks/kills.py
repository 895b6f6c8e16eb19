"""Random kills of `discover`, `compare` and `evaluate`: every resumed result has to be identical.

    python benchmarks/kills.py 1000

Each command runs in a process of its own on a small wired model and is killed (SIGKILL) after a
random time, again and again, until it gets through; then its files are compared with those of a
run that nobody disturbed. Processes are forked from this one, which has torch and the model
already: a kill takes a second, not ten.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from unweave import cli
from unweave.model.loading import load

TASK = "wired-induction"
FEW = ["-n", "6", "--held-out", "6"]
TIMES = {"created", "seconds", "command", "forwards", "spread"}
LONGEST = 600  # seconds that one command may take in all


def discover(folder: Path, method: str) -> list[str]:
    how = ["--method", method, "--ablation", "counterfactual", "-q", "--resume"]
    return ["discover", TASK, *FEW, *how, "--out", str(folder)]


def compare(folder: Path) -> list[str]:
    how = ["--methods", "unweave,eap,patching,acdc", "--seeds", "0,1", "--draws", "3", "-q"]
    return ["compare", TASK, *FEW, *how, "--out", str(folder)]


def evaluate(folder: Path) -> list[str]:
    return ["evaluate", str(folder), "-n", "8", "--draws", "5", "-q"]


def run(args: list[str]) -> None:
    """The command, in a process that ends with it."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os._exit(cli.main(args))


def started(args: list[str]) -> Any:
    process = multiprocessing.get_context("fork").Process(target=run, args=(args,))
    process.start()
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
    """The files of a whole run, and how long it took."""
    began = time.monotonic()
    process = started(make(folder))
    process.join(LONGEST)
    assert process.exitcode == 0, f"{make(folder)} ended with {process.exitcode}"
    return content(folder), time.monotonic() - began


def killed(make: Callable[[Path], list[str]], folder: Path, seconds: float, rng: Random) -> int:
    """Kills a command at random times until it gets through; how many kills it took."""
    kills, began = 0, time.monotonic()
    while time.monotonic() - began < LONGEST:
        process = started(make(folder))
        # Kills that come ever later: otherwise a slow phase would never get through.
        process.join(rng.uniform(0, seconds) * (1 + kills / 4))
        if process.exitcode is None:
            process.kill()
            process.join()
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
    rng, kills, runs, wrong = Random(given.seed), 0, 0, 0
    home = Path(tempfile.mkdtemp(prefix="unweave-kills-"))
    jobs: dict[str, Callable[[Path], list[str]]] = {
        f"discover {method}": lambda folder, method=method: discover(folder, method)
        for method in ("unweave", "cdt-paper", "acdc")
    }
    jobs |= {"compare": compare, "evaluate": evaluate}
    found = home / "found"
    undisturbed(lambda folder: discover(folder, "unweave"), found)
    expected = {}
    for name, make in jobs.items():
        folder = home / f"whole-{name}"
        if name == "evaluate":
            shutil.copytree(found, folder)
        expected[name] = undisturbed(make, folder)
    while kills < given.kills:
        for name, make in jobs.items():
            folder = home / "killed"
            if name == "evaluate":
                shutil.copytree(found, folder)
            whole, seconds = expected[name]
            kills += killed(make, folder, seconds, rng)
            runs += 1
            if content(folder) != whole:
                wrong += 1
                shutil.copytree(folder, home / f"wrong-{wrong}-{name}")
                print(f"{name}: another result, kept in {home / f'wrong-{wrong}-{name}'}")
            shutil.rmtree(folder)
    if not wrong:
        shutil.rmtree(home)
    print(f"{kills} kills in {runs} runs of {len(jobs)} commands: {runs - wrong} identical")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
