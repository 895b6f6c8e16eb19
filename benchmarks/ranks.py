"""Several processes on one discovery: the same scores and circuit, also when one of them is killed.

    python benchmarks/ranks.py --processes 2 4 --kills 20

Processes are forked from this one, which has torch and the model already, and find each other over
gloo as torchrun's do. The wired model and few prompts: what is tested is the machinery. A kill
(SIGKILL) hits a random process at a random moment; the others have to end by themselves with a
message, and the run goes on with --resume until it gets through.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

import torch

from unweave import cli
from unweave.circuits import Scores
from unweave.model.loading import load

TASK = "wired-induction"
TIMES = {"created", "seconds", "command", "forwards"}
LONGEST = 300  # seconds that a run may take


def arguments(folder: Path, method: str) -> list[str]:
    how = ["-n", "8", "--held-out", "8", "--ablation", "counterfactual", "--method", method]
    return ["discover", TASK, *how, "-q", "--resume", "--out", str(folder)]


def child(args: list[str], rank: int, count: int, port: int, said: Path) -> None:
    """One process of a run, as torchrun would have started it."""
    torch.set_num_threads(1)
    if count > 1:
        os.environ |= {
            "TORCHELASTIC_RUN_ID": "ranks",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    for number in (1, 2):
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    try:
        code = cli.main(args)
    except SystemExit as ended:
        code = int(ended.code or 0)
    os._exit(code)


def started(args: list[str], count: int, said: Path) -> list[Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    found = [fork.Process(target=child, args=(args, r, count, port, said)) for r in range(count)]
    for process in found:
        process.start()
    return found


def finished(processes: list[Any]) -> list[int | None]:
    for process in processes:
        process.join(LONGEST)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()  # one that hangs
    return codes


def content(folder: Path) -> dict[str, Any]:
    """What a run found, without times."""

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: timeless(v) for k, v in value.items() if k not in TIMES}
        return [timeless(item) for item in value] if isinstance(value, list) else value

    return {
        name: timeless(json.loads((folder / name).read_text()))
        for name in ("run.json", "circuit.json")
    }


def apart(ours: Path, theirs: Path) -> float:
    """Largest difference of two runs' scores and of their circuits' figures, relative."""
    a, b = (Scores.load(folder / "scores.safetensors") for folder in (ours, theirs))
    assert a.sources == b.sources
    return float((a.values - b.values).abs().max() / b.values.abs().max())


def whole(home: Path, method: str, count: int) -> tuple[Path, float]:
    folder, said = home / f"{method}-{count}", home / f"{method}-{count}.txt"
    began = time.monotonic()
    codes = finished(started(arguments(folder, method), count, said))
    assert codes == [0] * count, f"{codes}: {said.read_text()}"
    return folder, time.monotonic() - began


def kill_one(home: Path, method: str, count: int, seconds: float, rng: Random) -> dict[str, int]:
    """Kills one process at a random moment, then resumes; what happened."""
    folder, said = home / "killed", home / "killed.txt"
    said.write_text("")
    processes = started(arguments(folder, method), count, said)
    time.sleep(rng.uniform(0, seconds))
    victim = rng.choice(processes)
    hit = victim.exitcode is None
    victim.kill()
    codes = finished(processes)
    told = "another process of this run ended" in said.read_text()
    told |= "cannot reach the others" in said.read_text()
    hung = any(code is None for code in codes)
    # The victim may have been the last to leave: then the run was finished already.
    late = sum(code == 0 for code in codes) == count - 1
    again = finished(started(arguments(folder, method), count, said))
    assert again == [0] * count, f"{again}: {said.read_text()}"
    return {"hit": hit, "told": hit and (told or late), "hung": hung}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--methods", nargs="+", default=["cdt", "cdt-paper", "acdc", "eap-ig"])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    load(TASK)
    home, rng = Path(tempfile.mkdtemp(prefix="unweave-ranks-")), Random(given.seed)
    for method in given.methods:
        alone, _ = whole(home, method, 1)
        for count in given.processes:
            folder, seconds = whole(home, method, count)
            nodes = [json.loads((f / "circuit.json").read_text())["nodes"] for f in (alone, folder)]
            names = [[node["site"] for node in one] for one in nodes]
            same = "the same circuit" if names[0] == names[1] else f"other circuits {names}"
            off = apart(folder, alone)
            print(f"{method:10s} {count} processes: scores apart by {off:.1e}, {same}", flush=True)
    method, count = given.methods[0], given.processes[0]
    (home / "kills").mkdir()
    expected, seconds = whole(home / "kills", method, count)
    hits = told = hung = lost = 0
    while hits < given.kills:
        seen = kill_one(home, method, count, seconds, rng)
        hits, told, hung = hits + seen["hit"], told + seen["told"], hung + seen["hung"]
        lost += content(home / "killed") != content(expected)
        shutil.rmtree(home / "killed")
    print(
        f"{hits} kills of one of {count} processes: {told} told, {hung} hung, "
        f"{lost} resumed to another result"
    )
    shutil.rmtree(home)
    raise SystemExit(1 if hung or lost else 0)


if __name__ == "__main__":
    main()
