"""Cost of the scores, as multiples of a plain transformers forward pass of the same batch.

    python benchmarks/methods.py

GPT-2-small shape with random weights, 4 prompts × 16 tokens, 2 CPU threads; counterfactual
ablation, its forward pass counted with each score. Everything is timed in turn in one run, a
forward pass before each, so that a busy machine slows all alike; figures are medians of ratios.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterable

import torch
import transformers

from unweave.ablation import counterfactual
from unweave.batch import Batch, Readout
from unweave.graph import graph_of, graph_points
from unweave.metrics import LOGIT_DIFFERENCE
from unweave.model.loading import from_transformers
from unweave.model.model import Model
from unweave.scores.problem import Problem
from unweave.scores.score import scores
from unweave.sites import Point

BATCH, LENGTH = 4, 16


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def random_batch(model: Model, vocab: int) -> Batch:
    draw = torch.Generator().manual_seed(0)
    clean, corrupted = torch.randint(0, vocab, (2, BATCH, LENGTH), generator=draw)
    ids = torch.randint(0, vocab, (2, BATCH, 1), generator=draw)
    read = torch.full((BATCH,), LENGTH - 1)
    return Batch(
        clean=model.inputs(clean),
        corrupted=model.inputs(corrupted),
        readout=Readout(LOGIT_DIFFERENCE, ids[0], ids[1], read),
        read_corrupted=read,
        positions={},
        groups=torch.zeros_like(read),
        aligned=True,
        texts=("",) * BATCH,
        corrupted_texts=("",) * BATCH,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    hf = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
    model = from_transformers(hf, "gpt2-small shape")
    batch, graph = random_batch(model, hf.config.vocab_size), graph_of(model)
    nodes = (*model.heads(), *model.mlps())

    def problem(points: Iterable[Point]) -> Problem:
        return Problem(model, batch, nodes, counterfactual(model, batch.corrupted, points))

    ready = problem(graph_points(model))
    calls: dict[str, tuple[Callable[[], object], float]] = {
        "EAP, 156 nodes": (lambda: scores["eap"].run(problem(ready.points)), 6),
        f"EAP, {len(graph.edges)} edges": (
            lambda: scores["eap"].run_edges(problem(graph_points(model))),
            10,
        ),
        "EAP-IG, 5 steps, nodes": (lambda: scores["eap-ig"].run(problem(ready.points)), 25),
        "EAP-IG, 5 steps, edges": (
            lambda: scores["eap-ig"].run_edges(problem(graph_points(model))),
            25,
        ),
        "RelP, nodes": (lambda: scores["relp"].run(problem(ready.points)), 6),
        "one circuit of 30 nodes": (lambda: ready.metric([nodes[:30]]), 1.5),
    }

    def forward() -> object:
        with torch.no_grad():
            return hf(batch.clean.tokens, use_cache=False).logits

    ratios: dict[str, list[float]] = {label: [] for label in calls}
    forward()
    for i in range(options.rounds + 1):
        for label, (call, _) in calls.items():
            base = timed(forward)
            seconds = timed(call)
            base = (base + timed(forward)) / 2
            if i:  # the first round warms up
                ratios[label].append(seconds / base)
    for label, (_, bar) in calls.items():
        low, *_, high = sorted(ratios[label])
        middle = statistics.median(ratios[label])
        print(f"{label:26s} {middle:6.2f} forward passes ({low:.1f}–{high:.1f}; bar {bar:g})")


if __name__ == "__main__":
    main()
