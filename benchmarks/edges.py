"""Cost of scoring every edge, as multiples of a plain transformers forward pass of the same batch.

    python benchmarks/edges.py                       # GPT-2 small's shape, 32,491 edges
    python benchmarks/edges.py --model smollm2-135m  # real weights: heads and MLPs
    python benchmarks/edges.py --exact 200           # also time that many edges, each pushed

CPU seconds of the process, so that a busy machine does not matter; forward passes are timed before
and after each run. `--exact` scores a sample of edges spread over the graph and states what all of
them would take.
"""

import argparse
import ctypes
import functools
import gc
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from sweep import prompts

from unweave.ablation import Ablation, counterfactual
from unweave.batch import Batch
from unweave.decomposition.edges import edge_relevance
from unweave.graph import graph_of, graph_points
from unweave.model.loading import from_transformers, load
from unweave.model.model import Model


def timed(call: Callable[[], object], repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return times


def setting(model: Model, examples: int, length: int, vocab: int) -> tuple[Batch, Ablation]:
    """Random prompts, their counterfactuals, and the counterfactuals' activations."""
    clean, corrupted, readout = prompts(examples, length, vocab)
    groups = torch.zeros(examples, dtype=torch.long)
    texts = ("",) * examples
    inputs = (model.inputs(clean), model.inputs(corrupted))
    batch = Batch(*inputs, readout, readout.read, {}, groups, True, texts, texts)
    return batch, counterfactual(model, inputs[1], graph_points(model))


def plain(hf: torch.nn.Module, tokens: torch.Tensor) -> object:
    with torch.no_grad():
        return hf(tokens, use_cache=False).logits


def peak_of(call: Callable[[], float]) -> tuple[float, int]:
    """What a call returns, and the bytes that it takes at its peak by Linux's account."""

    def status(name: str) -> int:
        found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
        assert found is not None
        return int(found[1]) * 1024

    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    found = call()
    return found, status("VmHWM") - before


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of edge scores in forward passes.")
    parser.add_argument("--model", help="a checkpoint; by default GPT-2 small's shape")
    parser.add_argument("--examples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rules", default="removal")
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--exact", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    if options.model:
        model, vocab = load(options.model), 10_000
        forward: Callable[[torch.Tensor], object] = model.logits
    else:
        hf = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
        model, vocab = from_transformers(hf, name="gpt2-small shape"), 50_257
        forward = functools.partial(plain, hf)
    batch, ablation = setting(model, options.examples, options.tokens, vocab)
    tokens, graph = batch.clean.tokens, graph_of(model)
    assert tokens is not None
    forward(tokens)

    scored = functools.partial(
        edge_relevance, model, batch, ablation, options.rules, memory=options.memory
    )

    def show(label: str, edges: list[str] | None, times: float, **how: Any) -> None:
        def score() -> object:
            return scored(edges=edges, **how)

        found = []
        before, used = timed(lambda: forward(tokens), 5), 0
        for _ in range(options.repeats if edges is None else 1):
            seconds, taken = peak_of(lambda: timed(score, 1)[0])
            used = max(used, taken)
            after = timed(lambda: forward(tokens), 5)
            found.append(seconds / statistics.median(before + after))
            before = after
        cost = statistics.median(found) * times
        print(f"{label:48s} {cost:9.1f} forward passes, peak {used / 1e9:.2f} GB", flush=True)

    count = len(graph.edges)
    show(f"{options.rules}, local, direct: {count} edges", None, 1.0)
    show(f"{options.rules}, local, total: {count} edges", None, 1.0, paths="total")
    if options.exact:
        some = list(graph.edges[:: max(1, count // options.exact)])
        times = count / len(some)
        show(f"exact, from {len(some)} of {count} edges", some, times, variant="exact")


if __name__ == "__main__":
    main()
