"""Trains a small GPT-2 on the tasks' prompts, for the study of rule sets (docs/rules.md).

    python benchmarks/gpt2_like.py --device cuda --out gpt2-like       # minutes on a GPU
    python benchmarks/rules.py --model gpt2-like

Weights of GPT-2 itself need the hub. This has its shape (LayerNorm, GELU, biases, learned
positions), and what it does it has learnt, unlike random weights. It sees prompts of the part
"reference" only: those of discovery and evaluation are new to it.
"""

import argparse
import time
from itertools import islice
from pathlib import Path
from random import Random

import torch
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

from unweave.behaviours.accuracy import task_accuracy
from unweave.behaviours.task import tasks
from unweave.behaviours.words import Words
from unweave.model.loading import load
from unweave.model.model import Model, pad

LAYERS, HEADS, WIDTH = 6, 8, 256
PROMPTS, BATCH = 8000, 48  # of each task, in all and in a step
TASKS = ("ioi", "greater-than", "docstring", "induction")


def texts(model: Model, name: str, count: int, rng: Random) -> list[list[int]]:
    """Prompts of a task as tokens, each with a right answer at its end."""
    words, rows = Words(model), []
    for prompt in islice(tasks[name].sampler(words, 0, "reference"), count):
        answer = words.after(prompt.clean, rng.choice(prompt.answers))
        rows.append([*model.encode(prompt.clean)[0], answer[0]])
    return rows


def train(rows: dict[str, list[list[int]]], vocabulary: int, options: argparse.Namespace):
    """Next-token training; the answer weighs as much as all that comes before it."""
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=128,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    network = GPT2LMHeadModel(config).to(options.device)
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.01)
    warm = options.steps // 20 + 1
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda i: min(1, (i + 1) / warm) * (1 - i / options.steps)
    )
    rng, began = Random(1), time.perf_counter()
    for step in range(options.steps):
        drawn = [row for some in rows.values() for row in rng.choices(some, k=BATCH)]
        inputs = pad(drawn, options.device)
        tokens, mask = inputs.tokens, inputs.mask[:, 1:]
        with torch.autocast(torch.device(options.device).type, torch.bfloat16):
            logits = network(input_ids=tokens[:, :-1]).logits
        loss = functional.cross_entropy(
            logits.float().transpose(1, 2), tokens[:, 1:], reduction="none"
        )
        last = torch.arange(loss.shape[1], device=loss.device) == mask.sum(1, keepdim=True) - 1
        answer, text = loss[last].mean(), loss[mask & ~last].mean()
        (answer + text).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
        if step % 200 == 0 or step == options.steps - 1:
            parts = loss[last].reshape(len(rows), -1).mean(1).tolist()
            listed = "  ".join(f"{n} {x:.2f}" for n, x in zip(rows, parts, strict=True))
            print(f"{step:5d} {time.perf_counter() - began:5.0f} s  loss at {listed}", flush=True)
    return network.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--out", type=Path, default=Path("gpt2-like"))
    options = parser.parse_args()
    torch.manual_seed(0)
    source, rng = load("smollm2-135m"), Random(0)
    rows = {name: texts(source, name, PROMPTS, rng) for name in TASKS}
    print({name: len(some) for name, some in rows.items()}, flush=True)
    vocabulary = len(source.network.body.embedding.tokens)
    train(rows, vocabulary, options).save_pretrained(options.out)
    source.tokenizer.save_pretrained(options.out)
    model = load(str(options.out))
    for name in TASKS:
        batch = tasks[name].batch(model, 64, 1, "evaluate", only_correct=False)
        print(f"{name}: {task_accuracy(model, batch).correct:.0%} right of 64 held-out prompts")


if __name__ == "__main__":
    main()
