"""Memory of a sweep under a budget: peak beyond the loaded model, and the same scores without it.

    python benchmarks/memory.py                    # two sweeps of SmolLM2: ten minutes on two cores
    python benchmarks/memory.py --device cuda

All heads of the model against a logit difference and all pairs, 32 prompts × 37 tokens.
"""

import argparse
import ctypes
import gc
import re
import time
from pathlib import Path

import torch

from unweave.batch import Readout
from unweave.circuits import Scores
from unweave.decomposition.api import relevance
from unweave.metrics import LOGIT_DIFFERENCE
from unweave.model.loading import load
from unweave.model.model import Model


def status(field: str) -> int:
    """A size from Linux's account of this process, in bytes."""
    match = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def sweep(model: Model, tokens: torch.Tensor, readout: Readout, rules: str, memory: str | None):
    """Scores, seconds, and the bytes that the sweep took at its peak."""
    device = model.network.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    else:
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # what was freed before is not this sweep's
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to what is used now
        before = status("VmRSS")
    began = time.perf_counter()
    scores = relevance(
        model, tokens, "heads", readout, rules=rules, ablation="zero", pairs="heads", memory=memory
    )
    seconds = time.perf_counter() - began
    gpu = device.type == "cuda"
    peak = torch.cuda.max_memory_allocated(device) if gpu else status("VmHWM")
    return scores, seconds, peak - before


def apart(ours: Scores, theirs: Scores) -> float:
    """Largest difference of two runs' scores and pairs, relative to the largest value."""
    found = [(ours.values, theirs.values), *((ours.pairs[k], theirs.pairs[k]) for k in ours.pairs)]
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=37)
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--rules", default="paper")
    options = parser.parse_args()
    model = load(options.model, device=options.device)
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 10_000, (options.prompts, options.tokens), generator=draw)
    ids = torch.randint(0, 10_000, (2, options.prompts, 1), generator=draw).to(options.device)
    read = torch.full((options.prompts,), options.tokens - 1, device=options.device)
    readout = Readout(LOGIT_DIFFERENCE, ids[0], ids[1], read)
    tokens = tokens.to(options.device)
    found = []
    for memory in (options.memory, None):
        scores, seconds, peak = sweep(model, tokens, readout, options.rules, memory)
        found.append(scores)
        label, gigabytes = memory or "no budget", peak / 1e9
        print(
            f"{label:10s} peak {gigabytes:6.2f} GB beyond the model, {seconds:5.0f} s", flush=True
        )
    print(f"largest difference of scores and pairs: {apart(*found):.1e}")


if __name__ == "__main__":
    main()
