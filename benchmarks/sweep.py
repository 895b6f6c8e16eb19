"""Cost of a sweep, as multiples of a plain transformers forward pass of the same batch.

    python benchmarks/sweep.py

GPT-2-small shape with random weights, 8 prompts × 16 tokens, 2 CPU threads. Forward passes are
timed before and after each sweep in the same run.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import transformers

from unweave.batch import Readout
from unweave.decomposition.api import relevance
from unweave.metrics import LOGIT_DIFFERENCE
from unweave.model.loading import from_transformers
from unweave.model.model import Model


def timed(call: Callable[[], object], repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return times


def prompts(batch: int, length: int, vocab: int) -> tuple[torch.Tensor, torch.Tensor, Readout]:
    draw = torch.Generator().manual_seed(0)
    clean = torch.randint(0, vocab, (batch, length), generator=draw)
    corrupted = torch.randint(0, vocab, (batch, length), generator=draw)
    ids = torch.randint(0, vocab, (2, batch, 1), generator=draw)
    read = torch.full((batch,), length - 1)
    return clean, corrupted, Readout(LOGIT_DIFFERENCE, ids[0], ids[1], read)


def ratio(
    model: Model,
    reference: Callable[[torch.Tensor], object],
    batch: int,
    length: int,
    sources: list[str],
    rules: str,
    repeats: int,
) -> float:
    """Sweep time over that of the forward passes just before and after it, median of repeats."""
    clean, corrupted, readout = prompts(batch, length, 50257)

    def sweep() -> object:
        return relevance(
            model, clean, sources, readout, rules=rules, ablation=corrupted, pairs="heads"
        )

    reference(clean)
    ratios = []
    before = timed(lambda: reference(clean), 9)
    for _ in range(repeats):
        seconds = timed(sweep, 1)[0]
        after = timed(lambda: reference(clean), 9)
        ratios.append(seconds / statistics.median(before + after))
        before = after
    return statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rules", nargs="+", default=["paper", "removal"])
    parser.add_argument("--skip-positions", action="store_true", help="leave out heads@positions")
    parser.add_argument("--skip-growth", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    hf = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
    model = from_transformers(hf, name="gpt2-small shape")

    def reference(tokens: torch.Tensor) -> object:
        with torch.no_grad():
            return hf(tokens, use_cache=False).logits

    def show(label: str, *args: object) -> None:
        print(f"{label:58s} {ratio(model, reference, *args):8.1f} forward passes", flush=True)

    for rules in options.rules:
        show(f"{rules}: 144 heads → metric, all pairs", 8, 16, ["heads"], rules, options.repeats)
    if not options.skip_positions:
        every = [f"heads@{i}" for i in range(16)]
        show(
            f"{options.rules[0]}: 2304 heads@positions, all pairs",
            8,
            16,
            every,
            options.rules[0],
            1,
        )
    if options.skip_growth:
        return
    base = prompts(8, 16, 50257)[0]
    forward = statistics.median(timed(lambda: reference(base), 5))
    print("growth (forward passes of the 8-prompt batch; linear growth doubles the figure)")
    for times in (1, 2, 4):
        heads = [f"a{layer}.h{head}" for head in range(3 * times) for layer in range(12)]
        print(f"  {times}× prompts  {cost(model, 2 * times, ['heads']) / forward:8.1f}")
        print(f"  {times}× sources  {cost(model, 2, heads) / forward:8.1f}", flush=True)


def cost(model: Model, batch: int, sources: list[str]) -> float:
    """Seconds of one sweep."""
    clean, corrupted, readout = prompts(batch, 16, 50257)

    def sweep() -> object:
        return relevance(model, clean, sources, readout, rules="paper", ablation=corrupted)

    return statistics.median(timed(sweep, 3))


if __name__ == "__main__":
    main()
