"""`unweave plan` against what happens: peak memory of six configurations, and forward passes.

    python benchmarks/plan.py                    # a few minutes on two cores
    python benchmarks/plan.py --device cuda

Memory: each configuration runs in a process of its own on a model with random weights: the score
of a method, then circuits and gradients as its search runs them. On a CPU the peak is what the
process grew by since before the model was built (VmHWM); on a GPU, torch's own account. Forward
passes: the estimate for a wired model, and what run.json of the real run counts.
"""

import argparse
import ctypes
import gc
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from unweave.ablation import ZERO, Ablation, activations
from unweave.batch import Batch, Readout
from unweave.experiments.discover import discover
from unweave.experiments.methods import find_method
from unweave.experiments.plan import memory_plan, plan
from unweave.experiments.specification import Specification
from unweave.metrics import LOGIT_DIFFERENCE
from unweave.model.loading import from_transformers, load
from unweave.nodes.node import find_nodes
from unweave.scores.problem import Problem
from unweave.scores.score import scores
from unweave.search.descent import estimated_effects


@dataclass(frozen=True)
class Configuration:
    """A shape, a number of prompts and their length, and a method."""

    shape: str
    prompts: int
    tokens: int
    method: str = "cdt"
    pairs: bool = False

    def __str__(self) -> str:
        pairs = ", pairs" if self.pairs else ""
        return f"{self.shape}, {self.prompts} × {self.tokens} tokens, {self.method}{pairs}"


SHAPES = {
    "gpt2, 12 layers × 768": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config()),
    "gpt2, 8 layers × 512": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=8, n_embd=512, n_head=8, vocab_size=20_000)
    ),
    "llama, 8 layers × 512": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=512,
            intermediate_size=1536,
            num_hidden_layers=8,
            num_attention_heads=8,
            num_key_value_heads=4,
            vocab_size=32_000,
        )
    ),
}
SIX = (
    Configuration("gpt2, 12 layers × 768", 4, 16),
    Configuration("gpt2, 8 layers × 512", 12, 32),
    Configuration("gpt2, 8 layers × 512", 12, 32, pairs=True),
    Configuration("gpt2, 8 layers × 512", 4, 128),
    Configuration("llama, 8 layers × 512", 12, 48),
    Configuration("llama, 8 layers × 512", 32, 24, method="eap"),
)


def status(field: str) -> int:
    """A size from Linux's account of this process, in bytes."""
    match = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def _tiny(how: Configuration) -> Any:
    """The smallest model of a configuration's family."""
    if how.shape.startswith("gpt2"):
        few = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=9)
        return transformers.GPT2LMHeadModel(few).eval()
    few = transformers.LlamaConfig(
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=9,
    )
    return transformers.LlamaForCausalLM(few).eval()


def problem_of(how: Configuration, device: str) -> Problem:
    """Random prompts for a random model, ablated to their means."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = from_transformers(SHAPES[how.shape]().eval().requires_grad_(False)).to(device)
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 20_000, (how.prompts, how.tokens), generator=draw).to(device)
    ids = torch.randint(0, 20_000, (2, how.prompts, 1), generator=draw).to(device)
    read = torch.full((how.prompts,), how.tokens - 1, device=device)
    inputs, groups = model.inputs(tokens), torch.zeros(how.prompts, dtype=torch.long)
    readout, texts = Readout(LOGIT_DIFFERENCE, ids[0], ids[1], read), ("",) * how.prompts
    batch = Batch(inputs, inputs, readout, read, {}, groups.to(device), True, texts, texts)
    nodes = find_nodes(model, "head", False, batch.clean, batch.positions)
    bare = Problem(model, batch, nodes, ZERO)
    one = activations(model, inputs.select(slice(0, 1)), set(bare.points))
    rows = torch.zeros(how.prompts, dtype=torch.long, device=device)
    return Problem(model, batch, nodes, Ablation("mean", one, rows))


def measure(how: Configuration, device: str) -> dict[str, Any]:
    """In a process of its own: the plan, then the peak of the real thing."""
    gpu = device != "cpu"
    small = from_transformers(_tiny(how))  # what imports and first calls allocate is not the job's
    small.logits(torch.zeros(1, 2, dtype=torch.long))
    before = 0 if gpu else status("VmRSS")
    problem = problem_of(how, device)
    method = find_method(how.method)
    if how.pairs:
        method = method.with_options({"pairs": True})
    expected = memory_plan(problem, method, gradients=True)
    if not gpu:
        # Building the model is not the job either; what it freed goes back to the system.
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    loaded = 0 if gpu else status("VmRSS") - before
    scores[method.score].run(problem, method.filled_score())
    half = tuple(problem.nodes[: len(problem.nodes) // 2])
    problem.metric([half] * 16)
    problem.flipped(half, list(problem.nodes[:16]))
    estimated_effects(problem, half, half)
    peak = torch.cuda.max_memory_allocated() if gpu else status("VmHWM") - before
    return {"parts": expected.parts, "estimate": expected.peak, "peak": peak, "loaded": loaded}


def passes() -> None:
    """The estimate of forward passes, and what a real run counts."""
    model = load("wired-induction")
    for task, name in (("wired-induction", "cdt"), ("wired-induction", "eap-ig")):
        how = Specification(task, task, method=name, ablation="counterfactual")
        estimate = plan(model, task, how)
        with tempfile.TemporaryDirectory() as folder:
            discover(model, task, how, Path(folder) / "run")
            counted = json.loads((Path(folder) / "run" / "run.json").read_text())["forwards"]
        told = ", ".join(f"{k} {estimate.passes[k]:.0f} / {v:.0f}" for k, v in counted.items())
        print(f"{task}, {name}: forward passes, estimate / counted: {told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only is not None:
        print(json.dumps(measure(SIX[given.only], given.device)))
        return
    for number, how in enumerate(SIX):
        command = [sys.executable, __file__, "--device", given.device, "--only", str(number)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr[-2000:])
        found = json.loads(done.stdout.splitlines()[-1])
        off = found["estimate"] / found["peak"] - 1
        parts = ", ".join(f"{name} {size / 1e6:.0f}" for name, size in found["parts"].items())
        print(
            f"{how!s:58s} estimate {found['estimate'] / 1e6:6.0f} MB, peak "
            f"{found['peak'] / 1e6:6.0f} MB ({off:+.0%})  [{parts}]",
            flush=True,
        )
    passes()


if __name__ == "__main__":
    main()
