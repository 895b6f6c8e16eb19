"""Trains a small GPT-2 on the tasks' prompts: what it does it has learnt, unlike random weights.

    python benchmarks/gpt2_like.py --out gpt2-like           # 40 minutes on half a CPU core
    python benchmarks/gpt2_like.py --out gpt2-like --layers 6 --heads 8 --width 256 \
        --batch 48 --device cuda                             # minutes on a GPU
    unweave reproduce --model gpt2-like

Weights of GPT-2 itself need the hub. This has its shape (LayerNorm, GELU, biases, learned
positions) and SmolLM2's tokenizer. It sees prompts of the part "reference" only: those of
discovery and evaluation are new to it. It also sees random tokens of the whole vocabulary that
are said twice, as any text repeats itself; 5,000 steps are too few to learn to repeat those.

The prompts use some 450 of 49,152 tokens. Only the embeddings of those are trained; the others
keep their random directions. A step's softmax is over the tokens of the tasks and the others
that the step drew, which stand for all others: each counts as often as it must for that.
"""

import argparse
import math
import time
from itertools import islice
from pathlib import Path
from random import Random

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_
from transformers import GPT2Config, GPT2LMHeadModel

from unweave.behaviours.accuracy import task_accuracy
from unweave.behaviours.task import tasks
from unweave.behaviours.words import Words
from unweave.model.loading import load
from unweave.model.model import Model, pad

PROMPTS = 8000  # of each task
TASKS = ("ioi", "greater-than", "docstring", "induction")
SAID_TWICE = (6, 24)  # random tokens in a row before they repeat


def texts(model: Model, name: str, count: int, rng: Random) -> list[list[int]]:
    """Prompts of a task as tokens, each with a right answer at its end."""
    words, rows = Words(model), []
    for prompt in islice(tasks[name].sampler(words, 0, "reference"), count):
        answer = words.after(prompt.clean, rng.choice(prompt.answers))
        rows.append([*model.encode(prompt.clean)[0], answer[0]])
    return rows


def untrained(vocabulary: int, options: argparse.Namespace) -> GPT2LMHeadModel:
    """A network whose tokens have random directions of length one."""
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=128,
        n_embd=options.width,
        n_layer=options.layers,
        n_head=options.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    network = GPT2LMHeadModel(config)
    torch.nn.init.normal_(network.transformer.wte.weight, std=options.width**-0.5)
    return network.to(options.device)


class Vocabulary:
    """The tokens of the tasks, which are trained, and a few others at each step.

    Attributes:
        used: Tokens that the tasks' prompts use.
        trained: Their embeddings.
        others: All other tokens.
        table: Embeddings of this step: those of the tasks, then those drawn.
        weight: Logarithm of how many tokens each of the table stands for.
    """

    def __init__(self, embedding: Float[Tensor, "vocabulary d"], used: list[int]):
        self.embedding = embedding.detach()
        self.used = torch.tensor(used, device=embedding.device)
        self.trained = self.embedding[self.used].clone().requires_grad_()
        known = set(used)
        self.others = torch.tensor([i for i in range(len(embedding)) if i not in known])
        self.draw(1)

    def draw(self, count: int) -> None:
        drawn = self.others[torch.randint(len(self.others), (count,))].to(self.used.device)
        self.table = torch.cat([self.trained, self.embedding[drawn]])
        self.weight = torch.zeros(len(self.table), device=self.used.device)
        self.weight[len(self.used) :] = math.log(len(self.others) / count)

    def losses(
        self, network: GPT2LMHeadModel, rows: Int[Tensor, "row position"]
    ) -> Float[Tensor, "row position-1"]:
        """Of every next token; rows are places in the table."""
        after = network.transformer(inputs_embeds=self.table[rows[:, :-1]]).last_hidden_state
        logits = after @ self.table.T + self.weight
        return functional.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none")

    def save(self) -> None:
        """Puts what was trained into the network."""
        self.embedding[self.used] = self.trained.detach()


def said_twice(vocabulary: Vocabulary, count: int, rng: Random) -> Int[Tensor, "row position"]:
    """Rows of the step's other tokens, each twice in the same order."""
    length = rng.randint(*SAID_TWICE)
    vocabulary.draw(count * length)
    first = len(vocabulary.used) + torch.arange(count * length, device=vocabulary.used.device)
    return first.reshape(count, length).repeat(1, 2)


def train(rows: dict[str, list[list[int]]], network: GPT2LMHeadModel, options: argparse.Namespace):
    """Next-token training; the answer weighs as much as all that comes before it."""
    used = sorted({token for some in rows.values() for row in some for token in row})
    vocabulary = Vocabulary(network.transformer.wte.weight, used)
    place = {token: i for i, token in enumerate(used)}
    placed = {name: [[place[t] for t in row] for row in some] for name, some in rows.items()}
    network.transformer.wte.requires_grad_(False)
    for block in network.transformer.h:  # the same function as GPT-2's own, in one kernel
        block.mlp.act = torch.nn.GELU(approximate="tanh")
    trained = [p for p in network.parameters() if p.requires_grad] + [vocabulary.trained]
    optimiser = torch.optim.AdamW(trained, lr=options.rate, weight_decay=0.01)
    warm = options.steps // 20 + 1
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda i: min(1, (i + 1) / warm) * (1 - i / options.steps)
    )
    rng, began = Random(1), time.perf_counter()
    for step in range(options.steps):
        repeated = said_twice(vocabulary, options.batch, rng)
        second = vocabulary.losses(network, repeated)[:, repeated.shape[1] // 2 :].mean()
        total, parts = second, {"random tokens": second.item()}
        for name, some in placed.items():
            inputs = pad(rng.choices(some, k=options.batch), options.device)
            tokens, mask = inputs.tokens, inputs.mask[:, 1:]
            loss = vocabulary.losses(network, tokens)
            last = torch.arange(loss.shape[1], device=loss.device) == mask.sum(1, keepdim=True) - 1
            answer, text = loss[last].mean(), loss[mask & ~last].mean()
            total = total + answer + text
            parts[name] = answer.item()
        total.backward()
        clip_grad_norm_(trained, 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
        if step % 200 == 0 or step == options.steps - 1:
            listed = "  ".join(f"{name} {x:.2f}" for name, x in parts.items())
            print(f"{step:5d} {time.perf_counter() - began:5.0f} s  loss at {listed}", flush=True)
            vocabulary.save()
            network.save_pretrained(options.out)  # a run that is cut short leaves its last model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=16, help="rows of each task in a step")
    parser.add_argument("--rate", type=float, default=2e-3, help="highest learning rate")
    parser.add_argument("--tasks", nargs="*", default=TASKS)
    parser.add_argument("--out", type=Path, default=Path("gpt2-like"))
    options = parser.parse_args()
    torch.manual_seed(0)
    source, rng = load("smollm2-135m"), Random(0)
    rows = {name: texts(source, name, PROMPTS, rng) for name in options.tasks}
    print({name: len(some) for name, some in rows.items()}, flush=True)
    network = untrained(len(source.network.body.embedding.tokens), options)
    source.tokenizer.save_pretrained(options.out)
    train(rows, network, options)
    model = load(str(options.out))
    for name in options.tasks:
        batch = tasks[name].batch(model, 64, seed=1, part="evaluate", only_correct=False)
        print(f"{name}: {task_accuracy(model, batch).correct:.0%} right of 64 held-out prompts")


if __name__ == "__main__":
    main()
