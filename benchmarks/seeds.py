"""Circuits of many seeds: do they hold on other prompts, and do they agree?

    python benchmarks/seeds.py --tasks ioi greater-than docstring induction sva \
        --seeds 110 111 112 113 114 115 116 117 118 119 --device cuda --workers 9 --out seeds.jsonl
    python benchmarks/seeds.py --tasks wired-inhibition --model wired-inhibition --seeds 0 1

Every seed draws its own prompts and runs the default discovery on them. Every circuit is then
measured on one common set of 400 held-out prompts, whose ablation has reference prompts of its own.
The table has, by task: sizes, |1 − f| on the 400 prompts, how often the printed 95% interval covers
that figure, and the mean pairwise Jaccard of circuits and of their core.

A result is a line of --out as soon as it is there; finished ones are not run again.
"""

import argparse
import json
import multiprocessing
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from unweave.cost import metered
from unweave.experiments.discover import discover
from unweave.experiments.methods import find_method, read_options
from unweave.experiments.phases import forward_tokens
from unweave.experiments.specification import Experiment, Specification
from unweave.model.loading import load
from unweave.model.model import Model
from unweave.progress import silent
from unweave.sites import parse

COMMON_SEED, COMMON = 987654, 400  # one set of held-out prompts for all seeds


def measured(model: Model, task: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """The default discovery of one seed, and its circuit on the common prompts."""
    how = Specification(task, given.model, given.method, options=given.options, seed=seed)
    began = time.perf_counter()
    with metered() as meter:
        circuit = discover(model, task, how, explain=False)
    seconds = time.perf_counter() - began
    experiment = Experiment.set_up(how, model)
    common = Specification(task, given.model, seed=COMMON_SEED, held_out=given.common)
    problem = Experiment.set_up(common, model).held_out
    elsewhere = problem.reference.estimate(
        problem.metric([tuple(parse(name) for name in circuit.nodes)])[0]
    )
    return {
        "task": task,
        "seed": seed,
        "nodes": list(circuit.nodes),
        "f": circuit.faithfulness,
        "interval": list(circuit.interval),
        "f_common": elsewhere.value,
        "half_common": elsewhere.half,
        "common": len(problem.batch),
        "evidence": {
            name: {
                "effect": one.effect,
                "interval": list(one.interval),
                "frequency": one.frequency,
                "group": one.group,
                "whole": one.whole,
            }
            for name, one in circuit.evidence.items()
        },
        "seconds": round(seconds, 1),
        "forwards": round(meter.tokens / forward_tokens(model, experiment.discovery_batch), 1),
    }


def jaccard(sets: Sequence[frozenset[str]]) -> float:
    """Mean over all pairs of |a ∩ b| / |a ∪ b|."""
    found = [len(a & b) / max(1, len(a | b)) for a, b in combinations(sets, 2)]
    return statistics.mean(found) if found else float("nan")


def row(found: Sequence[dict[str, Any]]) -> str:
    """One task's line of the table."""
    off = [abs(1 - one["f_common"]) for one in found]
    covers = sum(one["interval"][0] <= one["f_common"] <= one["interval"][1] for one in found)
    circuits = [frozenset(one["nodes"]) for one in found]
    cores = [
        frozenset(name for name, e in one["evidence"].items() if e["group"] == "core")
        for one in found
    ]
    within = sum(x <= 0.05 for x in off)
    return (
        f"{found[0]['task']:14s} {len(found):5d}  {statistics.mean(map(len, circuits)):5.1f} "
        f"{statistics.mean(off):8.3f} {max(off):8.3f} {within:7d} {covers:7d} "
        f"{jaccard(circuits):8.2f} {statistics.mean(map(len, cores)):5.1f} {jaccard(cores):8.2f} "
        f"{statistics.mean(one['forwards'] for one in found):7.0f} "
        f"{statistics.mean(one['seconds'] for one in found):7.1f}"
    )


def table(found: Iterable[dict[str, Any]]) -> None:
    by_task = defaultdict(list)
    for one in found:
        by_task[one["task"]].append(one)
    print(
        f"{'task':14s} seeds  heads  |1 - f|  largest  ≤ .05  covers  Jaccard  core  Jaccard "
        " passes seconds"
    )
    for rows in by_task.values():
        print(row(rows), flush=True)


def work(jobs: Any, given: argparse.Namespace) -> None:
    """One process: takes jobs until there are none."""
    torch.set_num_threads(given.threads)
    model = load(given.model, device=given.device)
    with silent():
        while (job := jobs.get()) is not None:
            try:
                line = json.dumps(measured(model, *job, given))
            except Exception as error:  # one that fails is named, and the others go on
                print(f"{job}: {type(error).__name__}: {error}", flush=True)
                continue
            with given.out.open("a") as file:
                file.write(line + "\n")
            print(" ".join(map(str, job)), "done", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tasks", nargs="+", default=["ioi"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[110, 111])
    parser.add_argument("--method")
    parser.add_argument("-o", dest="pairs", action="append", default=[], metavar="name=value")
    parser.add_argument("--common", type=int, default=COMMON)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("seeds.jsonl"))
    given = parser.parse_args()
    given.options = read_options(find_method(given.method), given.pairs)
    context = multiprocessing.get_context("spawn")
    jobs = context.Queue()
    done = {(one["task"], one["seed"]) for one in read(given.out)}
    for seed in given.seeds:
        for task in given.tasks:
            if (task, seed) not in done:
                jobs.put((task, seed))
    for _ in range(given.workers):
        jobs.put(None)
    processes = [context.Process(target=work, args=(jobs, given)) for _ in range(given.workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    table(one for one in read(given.out) if one["task"] in given.tasks)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    main()
