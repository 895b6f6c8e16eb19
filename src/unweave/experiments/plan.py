"""`plan`: what a discovery will take, before it is started.

1. Prompts and ablations are made as the run will make them. 2. The run is made once with a few
prompts, timed and metered: the calibration. Each phase is scaled to the prompts that it will have.
3. Memory is added up: weights, ablation, and the phase that takes most; the sweep's share is what
the engine would cut its chunks to.
"""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from unweave.behaviours.task import Task
from unweave.cost import metered
from unweave.decomposition.memory import footprint, free_memory
from unweave.experiments.discover import discover
from unweave.experiments.methods import Method
from unweave.experiments.phases import Ledger
from unweave.experiments.specification import Experiment, Specification
from unweave.model.model import Model
from unweave.model.weights import tensors
from unweave.patching.circuits import rows_at_once
from unweave.scores.gradients import metric_gradients
from unweave.scores.gradients import parts as gradient_parts
from unweave.scores.problem import Problem
from unweave.scores.score import scores

FEW = 4  # prompts of the calibration
_TESTS = (24, 32)  # held-out prompts of random circuits and of the curve


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes by what takes them; of the phases, the largest counts.

    Args:
        parts: "weights", "ablation", and each phase.
        least: The peak if the sweep is cut as small as it can be.
    """

    parts: Mapping[str, int]
    least: int

    @property
    def peak(self) -> int:
        return _peak(self.parts)


@dataclass(frozen=True)
class Plan:
    """What a discovery will take.

    Args:
        prompts: By phase, how many it runs on.
        passes: By phase, forward passes of the discovery prompts.
        seconds: By phase, on this machine.
        free: Bytes that are free, by device.
        remedies: By device that the peak does not fit, the options with which it would.
    """

    nodes: int
    prompts: Mapping[str, int]
    passes: Mapping[str, float]
    seconds: Mapping[str, float]
    memory: MemoryPlan
    free: Mapping[str, int] = field(default_factory=dict)
    remedies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "nodes": self.nodes,
            "prompts": dict(self.prompts),
            "forwards": dict(self.passes),
            "seconds": dict(self.seconds),
            "memory": {**self.memory.parts, "peak": self.memory.peak, "least": self.memory.least},
            "free": dict(self.free),
            "remedies": {device: list(options) for device, options in self.remedies.items()},
        }


def plan(model: Model, task: Task | str, specification: Specification) -> Plan:
    """Estimates forward passes, time and memory of `discover`, from a run on a few prompts.

    Raises:
        UnweaveError: As `discover`: when the model cannot do the task, for instance.
    """
    given = task if isinstance(task, Task) else None
    experiment = Experiment.set_up(specification, model, given)
    ledger, method = Ledger(), specification.resolved
    with ledger.phase("set-up"):
        experiment.prepare()
    problem, held_out = experiment.discovery, experiment.held_out
    prompts = _prompts(method, len(problem.batch), len(held_out.batch))
    pilot, gradients = _pilot(model, task, specification)
    # The pilot's forward passes are of its own prompts.
    unit = min(FEW, len(problem.batch)) / len(problem.batch)

    def scaled(name: str, value: float) -> float:
        return value * prompts.get(name, FEW) / min(FEW, prompts.get(name, FEW))

    passes = {n: scaled(n, v * unit) for n, v in pilot["forwards"].items()}
    seconds = {n: scaled(n, v) for n, v in pilot["seconds"].items()}
    free, memory = _free(model), memory_plan(problem, method, gradients)
    return Plan(
        len(problem.nodes),
        {"set-up": len(problem.batch), **prompts},
        {**passes, **ledger.forwards(problem)},
        {**seconds, **ledger.seconds},
        memory,
        free,
        {
            device: remedies(problem, method, gradients, device, free)
            for device, room in free.items()
            if memory.least > room
        },
    )


def _prompts(method: Method, own: int, held_out: int) -> dict[str, int]:
    """On how many prompts each phase runs; the evaluation's tests are on different numbers, so its
    is their mean."""
    score, search = method.filled_score(), method.filled_search()
    tests = [min(count, held_out) for count in (*_TESTS, own, held_out)]
    return {
        "scores": min(own, score.get("prompts", own)),
        "search": min(own, search.get("start", own)),
        "evaluation": round(sum(tests) / len(tests)),
    }


def _pilot(
    model: Model, task: Task | str, specification: Specification
) -> tuple[dict[str, Any], bool]:
    """run.json of a run on a few prompts, and whether it took gradients."""
    count = specification.prompts or FEW, specification.held_out or FEW
    few = replace(specification, prompts=min(FEW, count[0]), held_out=min(FEW, count[1]))
    with tempfile.TemporaryDirectory() as folder, metered() as meter:
        discover(model, task, few, Path(folder) / "pilot")
        record = json.loads((Path(folder) / "pilot" / "run.json").read_text("utf-8"))
    return record, meter.backward > 0


def memory_plan(problem: Problem, method: Method, gradients: bool) -> MemoryPlan:
    """What a method takes on a problem at its peak.

    Args:
        gradients: Whether the score or the search takes gradients.
    """
    network, batch = problem.model.network, problem.batch
    score, options = scores[method.score], method.filled_score()
    held = {tensor.data_ptr(): tensor.nbytes for tensor in tensors(network)}
    values = {v.data_ptr(): v.nbytes for v in problem.ablation.values.values()}
    parts = {"weights": sum(held.values()), "ablation": sum(values.values())}
    least = 0
    if score.memory is not None:
        needs = score.memory(problem, options)
        parts["scores"], least = needs.expected, needs.least
    one = footprint(network, batch.clean, 0, 1)
    rows = min(rows_at_once(problem.model, batch), 16 * len(batch))
    # A run holds one stage's temporaries and the stream, and at its end the logits that are read.
    parts["circuits"] = one.fixed + max(rows * one.positions * one.row, rows * one.head_row)
    if gradients:
        some = gradient_parts(len(batch), network.device)[0]
        parts["gradients"] = _graph_bytes(problem, len(range(len(batch))[some]))
    smallest = {**parts, "scores": least}
    return MemoryPlan(parts, _peak(smallest))


def remedies(
    problem: Problem, method: Method, gradients: bool, device: str, free: Mapping[str, int]
) -> tuple[str, ...]:
    """Options with which the peak would fit a device, each by itself."""
    found, room, count = [], free[device], len(problem.batch)
    whole = memory_plan(problem, method, gradients)
    weights = whole.parts["weights"]
    # Under --memory half of it holds weights, and the layers beyond that stay in CPU memory.
    streams = whole.least - weights <= room // 2 and weights - room // 2 <= free["cpu"]
    if device != "cpu" and streams:
        found.append(f"--memory {room // 10**6}MB (load(…, device_map='auto') in Python)")
    while count > 1:
        count //= 2
        few = memory_plan(problem.select(slice(0, count)), method, gradients)
        if few.least <= room:
            found.append(f"-n {count}")
            break
    return tuple(found)


def _graph_bytes(problem: Problem, prompts: int) -> int:
    """What a forward pass of some prompts keeps for its backward pass, seen on one prompt."""
    model, one = problem.model, problem.batch.select(slice(0, 1))
    own = {tensor.untyped_storage().data_ptr() for tensor in tensors(model.network)}
    kept: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return x

    with saved_tensors_hooks(keep, lambda x: x):
        gradients, _, _ = metric_gradients(model, one, problem.points)
    return prompts * (sum(kept.values()) + 2 * sum(x.nbytes for x in gradients.values()))


def _peak(parts: Mapping[str, int]) -> int:
    phases = [size for name, size in parts.items() if name not in ("weights", "ablation")]
    return parts["weights"] + parts["ablation"] + max(phases, default=0)


def _free(model: Model) -> dict[str, int]:
    """Bytes that are free on every device, beside what the loaded model has."""
    found = {"cpu": free_memory(torch.device("cpu"))}
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        found[f"cuda:{number}"] = free_memory(torch.device("cuda", number))
    own = str(model.network.device)
    if own in found:
        found[own] += sum(tensor.nbytes for tensor in tensors(model.network))
    return found
