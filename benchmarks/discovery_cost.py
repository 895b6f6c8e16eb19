"""The default discovery in this tree and in an older one: seconds and cost by phase, side by side.

    python benchmarks/discovery_cost.py                          # the demo against 904e722
    python benchmarks/discovery_cost.py --task wired-induction   # a few seconds, to try it

Both run in the same minutes on the same machine, each in a process of its own. The cost is what
`unweave.cost` counts, taken alike in both: tokens that pass a block, relevant parts too, three
times where a backward pass follows. It is told in prompt-passes: one is one prompt through all
blocks, so that other batch sizes and other numbers of prompts compare.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# A line that `discover` says, and the phase that begins there.
BEGINS = (
    ("Scoring the words", "words"),
    ("Scoring", "scores"),
    ("Searching", "search"),
    ("Choosing", "search"),
    ("Measuring", "evaluation"),
)


class Account:
    """Tokens and seconds by phase; the phases are known from what `discover` says."""

    def __init__(self) -> None:
        self.tokens: dict[str, float] = defaultdict(float)
        self.seconds: dict[str, float] = defaultdict(float)
        self.phase, self.began, self.positions, self.layers = "set-up", time.monotonic(), 0, 0

    def turn(self, phase: str) -> None:
        now = time.monotonic()
        self.seconds[self.phase] += now - self.began
        self.phase, self.began = phase, now

    def spend(self, x: Any, layer: int) -> None:
        import torch

        rel = getattr(x, "rel", x)
        if rel is None:
            return
        weight = 3 if torch.is_grad_enabled() else 1
        self.tokens[self.phase] += weight * rel.shape[:-1].numel()
        self.positions = max(self.positions, rel.shape[-2])
        self.layers = max(self.layers, layer + 1)


def measure(args: list[str], out: Path) -> None:
    """In a tree's own process: runs the command, counted."""
    account = Account()
    import torch
    import typer

    from unweave import cli
    from unweave.model import program

    torch.set_grad_enabled(False)  # where a gradient is wanted, it is switched on
    block, echo = program.block, typer.echo

    def counted(ops: Any, w: Any, stream: Any, context: Any, layer: int, *more: Any, **named: Any):
        account.spend(stream.x, layer)
        return block(ops, w, stream, context, layer, *more, **named)

    def said(message: Any = None, *more: Any, **named: Any) -> None:
        for line, phase in BEGINS:
            if str(message).startswith(line):
                account.turn(phase)
                break
        echo(message, *more, **named)

    program.block, typer.echo = counted, said
    code = cli.main(args)
    account.turn("end")
    record = {name: getattr(account, name) for name in ("tokens", "seconds", "positions", "layers")}
    out.write_text(json.dumps(record))
    sys.exit(code)


def run(tree: Path, args: list[str], home: Path, name: str) -> dict[str, Any]:
    """What a tree's discovery took, and what it found."""
    out, folder = home / f"{name}.json", home / name
    command = [sys.executable, __file__, "--measure", str(out), "--", *args, "--out", str(folder)]
    began = time.monotonic()
    env = {**os.environ, "PYTHONPATH": str(tree / "src"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=env, cwd=home, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    found = json.loads(out.read_text())
    circuit = json.loads((folder / "circuit.json").read_text())
    figures = {key: circuit.get(key) for key in ("size", "total", "faithfulness")}
    return {**found, **figures, "process": time.monotonic() - began}


def show(name: str, record: dict[str, Any], unit: float) -> None:
    value = record["faithfulness"]
    told = "" if not isinstance(value, float) else f", faithfulness {value:.3f} on held-out prompts"
    print(f"\n{name}: {record['size']} of {record['total']} nodes{told}")
    print(f"  {'phase':12s} {'seconds':>9s} {'prompt-passes':>14s}")
    for phase in dict.fromkeys((*record["seconds"], *record["tokens"])):
        passes = record["tokens"].get(phase, 0) / unit
        print(f"  {phase:12s} {record['seconds'].get(phase, 0):9.1f} {passes:14.0f}")
    total = sum(record["tokens"].values()) / unit
    print(f"  {'all':12s} {record['process']:9.1f} {total:14.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commit", default="904e722")
    parser.add_argument("--task", default="ioi")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs="*", help="more of `discover`, after --")
    given = parser.parse_args()
    if given.measure is not None:
        measure(given.arguments, given.measure)
    args = ["discover", given.task, *given.arguments]
    home = Path(tempfile.mkdtemp(prefix="unweave-cost-"))
    old = home / "old"
    subprocess.run(
        ["git", "worktree", "add", "-q", "--detach", old, given.commit], cwd=ROOT, check=True
    )
    try:
        for number in range(given.repeats):
            before = run(old, args, home, f"old-{number}")
            after = run(ROOT, args, home, f"new-{number}")
            # The same unit for both: a prompt of this tree's batch through all blocks.
            unit = after["positions"] * after["layers"]
            show(f"{given.commit}", before, unit)
            show("this tree", after, unit)
            cost = [sum(record["tokens"].values()) for record in (after, before)]
            print(
                f"\nthis tree / {given.commit}: cost {cost[0] / cost[1]:.2f} (bar .60), "
                f"seconds {after['process'] / before['process']:.2f} (bar 1.00)",
                flush=True,
            )
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", old], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
