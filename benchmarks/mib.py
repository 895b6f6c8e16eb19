"""MIB's table: CPR and CMD of our score and its peers, by MIB's own protocol (docs/mib.md).

    python benchmarks/mib.py --device cuda --out mib.json
    python benchmarks/mib.py --model wired-relay --tasks wired-relay --prompts 16 --held-out 16
    python benchmarks/mib.py --level edge --methods decomposition,eap,eap-ig:steps=5,masks

Items are scored on `--prompts` prompts of a task and kept by share on `--held-out` others, with the
counterfactual prompt's activations in place of the rest. A method is a score with options, or a
method of `unweave methods`. A line for each result; at the end a table for each task,
with means over seeds; with `--out`, every result with its curves as JSON, written after each.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from unweave.behaviours.file import find_task
from unweave.errors import UnweaveError
from unweave.experiments.mib import (
    PEERS,
    mib_means,
    mib_method,
    mib_problem,
    mib_result,
    read_level,
)
from unweave.model.loading import load


def shown(value: float | None, spec: str) -> str:
    return "failed" if value is None else format(value, spec)


def table(records: list[dict[str, Any]]) -> str:
    """A block a task and level, a row a method."""
    rows, lines = mib_means(records), []
    for task, level in dict.fromkeys((row["task"], row["level"]) for row in rows):
        lines += ["", f"| {task}, {level}s | CPR | CMD | log accuracy | forward passes | s |"]
        lines.append("|---|---|---|---|---|---|")
        for row in rows:
            if (row["task"], row["level"]) == (task, level):
                names = ("cpr", "cmd", "log_accuracy", "forwards", "seconds")
                specs = (".3f", ".3f", ".3f", ".1f", ".1f")
                figures = [shown(row[n], s) for n, s in zip(names, specs, strict=True)]
                lines.append(f"| {row['method']} | {' | '.join(figures)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="CPR and CMD by MIB's protocol.")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tasks", default="ioi,greater-than,docstring")
    parser.add_argument("--methods", default=",".join(PEERS))
    parser.add_argument("--level", default="node", help="node, edge or neuron")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--prompts", type=int, default=64, help="to score on")
    parser.add_argument("--held-out", type=int, default=100, help="to measure on")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="", help="float64 for exact figures on a CPU")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    level = read_level(options.level)
    methods = [mib_method(text) for text in options.methods.split(",")]
    model = load(options.model).to(options.device)
    model = model.to(getattr(torch, options.dtype)) if options.dtype else model
    records: list[dict[str, Any]] = []
    for name in options.tasks.split(","):
        task = find_task(name)
        for seed in map(int, options.seeds.split(",")):
            about = {"task": name, "model": options.model, "seed": seed}
            discovery = mib_problem(task, model, "discover", options.prompts, seed)
            held_out = mib_problem(task, model, "evaluate", options.held_out, seed)
            for method in methods:
                try:
                    record = dict(mib_result(discovery, held_out, method, level, about).record)
                    told = f"CPR {record['cpr']:.3f}  CMD {record['cmd']:.3f}"
                    told += f"  {record['forwards']:.1f} forwards  {record['seconds']:.1f} s"
                except UnweaveError as error:
                    key = {**about, "level": level, "method": method.name}
                    record, told = {**key, "error": str(error)}, str(error)
                records.append(record)
                print(f"{name:14s} seed {seed}  {method.name:22s} {told}", flush=True)
                if options.out is not None:
                    options.out.write_text(json.dumps(records, indent=1))
    print(table(records))


if __name__ == "__main__":
    main()
