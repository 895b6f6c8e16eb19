"""Our plain forward pass against transformers' own (sdpa), as a ratio of medians.

    python benchmarks/forward.py

SmolLM2-135M, 8 prompts × 32 tokens, 2 threads; both are timed in turn in one run, so that a busy
machine slows both.
"""

import statistics
import time
from collections.abc import Callable

import torch

from unweave.model.loading import from_transformers, oracle

ROUNDS = 25
BATCH, LENGTH = 8, 32


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main() -> None:
    torch.set_num_threads(2)
    reference = oracle("smollm2-135m")
    reference.set_attn_implementation("sdpa")
    model = from_transformers(reference)
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(reference.config.vocab_size, (BATCH, LENGTH), generator=draw)
    inputs = model.inputs(tokens)

    def ours() -> torch.Tensor:
        return model.logits(inputs)

    def theirs() -> torch.Tensor:
        with torch.no_grad():
            return reference(input_ids=tokens, use_cache=False).logits

    apart = (ours() - theirs()).abs().max().item()
    times = [(timed(ours), timed(theirs)) for _ in range(ROUNDS)]
    mine, other = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"ours {mine * 1e3:.0f} ms, transformers {other * 1e3:.0f} ms, max |Δlogit| {apart:.1e}")
    print(f"forward: {mine / other:.2f}x transformers' own")


if __name__ == "__main__":
    main()
