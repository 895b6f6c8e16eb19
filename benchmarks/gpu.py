"""Every bar of a GPU in one run: sweeps, searches, memory, and fast against eager.

    PYTHONPATH=src python benchmarks/gpu.py --device cuda --out gpu.json [--model FOLDER_OR_GGUF]

Llama shapes have random weights, made on the device from transformers' configs. Without --model the
search runs on such a model too: its time counts, its circuit means nothing.
"""

import argparse
import cProfile
import gc
import json
import pstats
import statistics
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import transformers
from torch import Tensor

from unweave.ablation import counterfactual
from unweave.asked import Precision
from unweave.batch import Batch, Readout
from unweave.decomposition.api import relevance
from unweave.decomposition.fused import fusing
from unweave.experiments.discover import discover
from unweave.experiments.specification import Specification
from unweave.metrics import LOGIT_DIFFERENCE
from unweave.model.loading import from_transformers, load
from unweave.model.model import Model
from unweave.model.program import Inputs
from unweave.model.window import placement_of, windowed
from unweave.patching import graphs
from unweave.patching.circuits import run_circuits
from unweave.patching.flips import run_flips
from unweave.patching.graphs import capturing
from unweave.progress import silent
from unweave.scores.problem import Problem
from unweave.scores.score import scores
from unweave.search.descent import estimated_effects
from unweave.search.search import searches

SHAPES = {
    "smollm2": {"width": 576, "layers": 30, "heads": 9, "kv": 3, "hidden": 1536, "vocab": 49152},
    "1b": {"width": 2048, "layers": 16, "heads": 32, "kv": 8, "hidden": 8192, "vocab": 128256},
    "8b": {"width": 4096, "layers": 32, "heads": 32, "kv": 8, "hidden": 14336, "vocab": 128256},
    "tiny": {"width": 64, "layers": 4, "heads": 4, "kv": 2, "hidden": 128, "vocab": 256},
}
# Shape, dtype of the checkpoint, prompts, tokens, bar in seconds, bar of the peak in GiB.
SWEEPS = [
    ("smollm2", torch.float32, 32, 14, 0.12, None),
    ("1b", torch.float32, 32, 16, 1.0, None),
    ("8b", torch.bfloat16, 25, 16, 10.0, 30.0),
]
TINY = [("tiny", torch.float32, 4, 6, 1.0, None), ("tiny", torch.bfloat16, 4, 6, 1.0, None)]


class Report:
    """Lines on the terminal, figures in a file, both as they come."""

    def __init__(self, out: Path | None, seconds: float) -> None:
        self.out, self.figures, self.began = out, {}, time.monotonic()
        self.seconds = seconds

    @property
    def left(self) -> float:
        return self.seconds - (time.monotonic() - self.began)

    def add(self, name: str, text: str, **figures: object) -> None:
        self.figures[name] = figures
        print(f"[{time.monotonic() - self.began:5.0f} s] {name:34s} {text}", flush=True)
        if self.out is not None:
            self.out.write_text(json.dumps(self.figures, indent=1, default=str))


def make(shape: str, dtype: torch.dtype, device: str) -> Model:
    s = SHAPES[shape]
    config = transformers.LlamaConfig(
        hidden_size=s["width"],
        num_hidden_layers=s["layers"],
        num_attention_heads=s["heads"],
        num_key_value_heads=s["kv"],
        intermediate_size=s["hidden"],
        vocab_size=s["vocab"],
        tie_word_embeddings=shape != "8b",
    )
    # A generator of its own, and nothing drawn twice: transformers' own way takes longer.
    draw = torch.Generator(device).manual_seed(0)
    with torch.device("meta"):
        hf = transformers.LlamaForCausalLM(config).eval()
    hf = hf.to(dtype=dtype)
    hf.to_empty(device=device)
    with torch.no_grad():
        for name, weight in hf.named_parameters():
            if weight.ndim == 1:
                weight.fill_(1.0)
            else:
                weight.normal_(
                    0.0, 1.0 if "embed" in name else weight.shape[-1] ** -0.5, generator=draw
                )
    hf.tie_weights()
    return from_transformers(hf, name=f"{shape} shape", dtype=dtype)


def prompts(model: Model, count: int, length: int, vocab: int, seed: int = 0) -> Batch:
    """Random tokens; the answer is what the model says, the distractor what it says otherwise."""
    device, draw = model.network.device, torch.Generator().manual_seed(seed)
    clean, corrupted = torch.randint(0, vocab, (2, count, length), generator=draw).to(device)
    clean[:, 0] = corrupted[:, 0] = 0
    mask = torch.ones(count, length, dtype=torch.bool, device=device)
    ids = torch.randint(0, vocab, (2, count, 1), generator=draw).to(device)
    read = torch.full((count,), length - 1, device=device)
    texts = tuple(f"prompt {i}" for i in range(count))
    return Batch(
        Inputs(mask, clean),
        Inputs(mask, corrupted),
        Readout(LOGIT_DIFFERENCE, ids[0], ids[1], read),
        read,
        {"end": read},
        torch.zeros_like(read),
        True,
        texts,
        texts,
    )


def sync(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def timed(call: Callable[[], object], repeats: int, device: str) -> list[float]:
    times = []
    for _ in range(repeats):
        sync(device)
        began = time.perf_counter()
        call()
        sync(device)
        times.append(time.perf_counter() - began)
    return times


def peak(device: str, reset: bool = False) -> float:
    if not device.startswith("cuda"):
        return 0.0
    if reset:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return torch.cuda.max_memory_allocated() / 2**30


def apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


def spearman(a: Tensor, b: Tensor) -> float:
    ranks = [x.flatten().argsort().argsort().double() for x in (a, b)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


def eagerly() -> ExitStack:
    stack = ExitStack()
    stack.enter_context(fusing(False))
    stack.enter_context(capturing(False))
    return stack


def sweep(report: Report, device: str, case: tuple, options: argparse.Namespace) -> None:
    shape, dtype, count, length, bar, most = case
    model = make(shape, dtype, device)
    batch = prompts(model, count, length, SHAPES[shape]["vocab"])
    large = shape == "8b"

    def call(precision: Precision | None = None) -> Tensor:
        return relevance(
            model,
            batch.clean,
            "heads",
            batch.readout,
            ablation=batch.corrupted,
            pairs=(),
            precision=precision,
        ).values

    base = peak(device, reset=True)
    first = timed(call, 1, device)[0]
    fast = timed(call, 1 if large else 5, device)
    reached, values = peak(device), call() if not large else None
    name = f"sweep {shape} {str(dtype).removeprefix('torch.')}"
    seconds = statistics.median(fast)
    verdict = "ok" if seconds <= bar and (most is None or reached <= most) else "OVER"
    report.add(
        name,
        f"{seconds:.3f} s (first {first:.2f}; bar {bar} s) peak {reached:.1f} GiB, "
        f"model {base:.1f} GiB {'' if most is None else f'(bar {most})'} {verdict}",
        seconds=fast,
        first=first,
        peak=reached,
        base=base,
    )
    if options.profile and shape == "smollm2":
        profile(call, Path(options.profile) / f"sweep_{shape}.txt")
    if values is not None:
        with eagerly():
            slow = timed(call, 2, device)[1:]
            plain, exact = call(), call("float32")
        full = call("float32")
        report.add(
            f"{name} eager",
            f"{slow[0]:.3f} s; fast − eager {apart(values, plain):.1e}, "
            f"ρ {spearman(values, plain):.5f}; fast − float32 {apart(values, exact):.1e}, "
            f"ρ {spearman(values, exact):.5f}; both in float32 {apart(full, exact):.1e}",
            seconds=slow,
        )
    if large:
        streamed(report, device, model, batch, seconds)


def streamed(report: Report, device: str, model: Model, batch: Batch, resident: float) -> None:
    """The same sweep with its weights in CPU memory, brought by layer, under 20 GB."""
    if report.left < 25:
        report.add("streamed 8b", "skipped: no time left")
        return
    began = time.perf_counter()
    network = model.network
    where = placement_of(network, {"": "cpu"}, torch.device(device), lambda d: 0)
    away = replace(model, network=windowed(network, torch.float32, where))
    ready = time.perf_counter() - began

    def call() -> Tensor:
        return relevance(
            away,
            batch.clean,
            "heads",
            batch.readout,
            ablation=batch.corrupted,
            pairs=(),
            memory="20GB",
        ).values

    held = peak(device, reset=True)
    seconds = timed(call, 1, device)[0]
    report.add(
        "streamed 8b",
        f"{seconds:.2f} s = {seconds / resident:.2f} × resident (bar 1.5), peak "
        f"{peak(device):.1f} GiB with {held:.1f} GiB of the resident copy; placed in {ready:.1f} s",
        seconds=seconds,
        times=seconds / resident,
    )


def profile(call: Callable[[], object], to: Path) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as watch

    with watch(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    averages = seen.key_averages()
    text = averages.table(sort_by="self_cuda_time_total", row_limit=30, max_name_column_width=70)
    text += averages.table(sort_by="self_cpu_time_total", row_limit=30, max_name_column_width=70)
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(text)


def random_problem(model: Model, count: int, length: int, seed: int = 0) -> Problem:
    table = model.network.body.embedding.tokens
    assert table is not None
    batch = prompts(model, count, length, len(table), seed)
    nodes = tuple(model.heads())
    base = counterfactual(model, batch.corrupted, {node.point for node in nodes})
    found = Problem(model, batch, nodes, base)
    # Signed so that the model is above the empty circuit on every prompt.
    gap = found.reference.full - found.reference.empty
    flip = (gap < 0)[:, None]
    own, other = batch.readout.answers, batch.readout.distractors
    answers, others = torch.where(flip, other, own), torch.where(flip, own, other)
    readout = replace(batch.readout, answers=answers, distractors=others)
    return replace(found, batch=replace(batch, readout=readout))


def circuits_agree(report: Report, device: str, model: Model) -> None:
    """Captured and eager runs of the same circuits, one size after the other."""
    problem, worst = random_problem(model, 24, 14), 0.0
    nodes, draw = problem.nodes, torch.Generator().manual_seed(0)
    for count in (1, 3, 4, 1, 3, 4, 7, 7, 4):
        chosen = [
            [nodes[i] for i in (torch.rand(len(nodes), generator=draw) < 0.5).nonzero().flatten()]
            for _ in range(count)
        ]
        fast = run_circuits(model, problem.batch, chosen, problem.points, problem.ablation)
        with eagerly():
            slow = run_circuits(model, problem.batch, chosen, problem.points, problem.ablation)
        worst = max(worst, apart(fast, slow))
    tried = nodes[:: max(1, len(nodes) // 12)]
    args = (model, problem.batch, nodes[::3], tried, problem.points, problem.ablation)
    fast = run_flips(*args)
    with eagerly():
        slow = run_flips(*args)
    report.add(
        "graphs − eager",
        f"circuits {worst:.1e}, flips {apart(fast, slow):.1e}",
        circuits=worst,
        flips=apart(fast, slow),
    )


def search_random(report: Report, device: str, model: Model, count: int, eager: bool) -> None:
    def call() -> list[str]:
        problem = random_problem(model, count, 14)
        found = scores["decomposition"].run(problem)
        finding = searches["eliminate"].run(problem, found, {"rounds": 1})
        return list(finding.circuit)

    fast, circuit = _searched(call, device)
    text = f"{fast:.2f} s, {len(circuit)} nodes"
    if eager:
        with eagerly():
            slow, other = _searched(call, device)
        same = len(set(circuit) & set(other)) / max(1, len(set(circuit) | set(other)))
        text += f"; eager {slow:.2f} s, same circuit: {circuit == other} (Jaccard {same:.2f})"
    report.add(f"score + search, random, {count} prompts", text, seconds=fast, circuit=circuit)


def _searched(call: Callable[[], list[str]], device: str) -> tuple[float, list[str]]:
    sync(device)
    began = time.perf_counter()
    circuit = call()
    sync(device)
    return time.perf_counter() - began, circuit


def discover_task(
    report: Report,
    options: argparse.Namespace,
    small: Callable[[], Model],
    task: str,
    count: int,
    bar: float,
) -> None:
    device, model = options.device, small()
    how, phases = Specification(task, model.name, prompts=count), []
    began = time.perf_counter()

    def say(text: str) -> None:
        phases.append(f"{time.perf_counter() - began:.1f}:{text.split()[0]}")

    def call() -> list[str]:
        return list(discover(model, task, how, say=say).nodes)

    fast, circuit = _searched(call, device)
    first = fast
    if count == 24:
        phases.clear()
        began = time.perf_counter()
        fast, circuit = _searched(call, device)
    text = f"{fast:.2f} s (first {first:.2f}; bar {bar}) {len(circuit)} nodes [{' '.join(phases)}]"
    if count == 24 and report.left > 20:
        with eagerly():
            slow, other = _searched(call, device)
        text += f"; eager {slow:.2f} s, same circuit: {sorted(circuit) == sorted(other)}"
    made = graphs._met[model.network].graphs if model.network in graphs._met else {}
    text += f"; {len(made)} graphs, {len(graphs._failed)} failed"
    report.add(f"discover {task}, {count} prompts", text, seconds=fast, circuit=circuit)
    if options.profile and count == 24 and report.left > 75:
        watch = cProfile.Profile()
        watch.runcall(call)
        Path(options.profile).mkdir(parents=True, exist_ok=True)
        with open(Path(options.profile) / "discover.txt", "w") as file:
            pstats.Stats(watch, stream=file).sort_stats("tottime").print_stats(40)


def some_steps(model: Model) -> Callable[[], None]:
    """Five steps as a search has them, their runs captured already."""
    problem = random_problem(model, 24, 14)
    circuit, tried = problem.nodes[::3], problem.nodes[::16]

    def steps() -> None:
        for _ in range(5):
            estimated_effects(problem, circuit, circuit)
            problem.metric([circuit])
            problem.flipped(circuit, tried)

    steps()
    return steps


def guarded(report: Report, name: str, call: Callable[[], None]) -> None:
    """One part that fails does not take the others with it."""
    try:
        call()
    except Exception:
        report.add(name, "FAILED", error=traceback.format_exc())
        traceback.print_exc()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--model", help="SmolLM2, for discover")
    parser.add_argument("--seconds", type=float, default=100.0, help="parts past them are skipped")
    parser.add_argument("--tasks", nargs="+", default=["ioi", "greater-than", "induction"])
    parser.add_argument("--profile", help="folder for torch.profiler's tables")
    parser.add_argument("--skip", nargs="*", default=[], help="sweeps, search, discover, streamed")
    options = parser.parse_args()
    report, device = Report(options.out, options.seconds), options.device
    cuda = device.startswith("cuda")
    name = torch.cuda.get_device_name() if cuda else "CPU"
    report.add("device", f"{name}, torch {torch.__version__}")
    warnings.simplefilter("default")
    with silent():
        cases = {case[0]: case for case in (SWEEPS if cuda else TINY)}
        parts: list[tuple[str, float, Callable[[], None]]] = []
        for shape, seconds in (("smollm2", 15.0), ("tiny", 15.0)):
            if shape in cases:
                call = partial(sweep, report, device, cases.pop(shape), options)
                parts.append(("sweeps", seconds, call))
        small, sizes = partial(load, options.model, device=device), ((24, 4.0), (192, 6.0))
        tasks = [(task, *size) for task in options.tasks for size in sizes]
        if options.model:
            for task, count, bar in tasks[:2]:
                call = partial(discover_task, report, options, small, task, count, bar)
                parts.append(("discover", 20.0, call))
        for case in cases.values():
            call = partial(sweep, report, device, case, options)
            parts.append(("sweeps", 12.0 if case[0] == "1b" else 30.0, call))
        if not options.model or options.seconds > 200:
            parts.append(("search", 25.0, partial(search_parts, report, device, options)))
        if options.model:
            for task, count, bar in tasks[2:]:
                call = partial(discover_task, report, options, small, task, count, bar)
                parts.append(("discover", 20.0, call))
        for kind, seconds, call in parts:
            if kind in options.skip:
                continue
            if report.left < seconds:
                report.add(f"{kind} {getattr(call, 'args', ())[2:4]}", "skipped: no time left")
                continue
            guarded(report, kind, call)
    report.add("done", "")


def search_parts(report: Report, device: str, options: argparse.Namespace) -> None:
    model = make("smollm2" if device.startswith("cuda") else "tiny", torch.float32, device)
    circuits_agree(report, device, model)
    for count in (24, 192):
        search_random(report, device, model, count, count == 24)
    if options.profile:
        profile(some_steps(model), Path(options.profile) / "search.txt")


if __name__ == "__main__":
    main()
