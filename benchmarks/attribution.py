"""Attribution on the question classifier beside its peers: deletion, insertion and time.

    python benchmarks/attribution.py [--texts 100] [--rules]

Prints the areas of each method, times as ratios to ours, and in how many texts ours is at least as
good as integrated gradients. `--rules` measures rule sets and ablations instead: the choice of the
default. Integrated gradients need captum (pip install 'unweave[peers]').
"""

import argparse

import torch
from rich.console import Console

from unweave.attribution import attribute, compare_attributions
from unweave.attribution.deletion import areas
from unweave.attribution.peers import ranked
from unweave.attribution.target import find_targets
from unweave.attribution.texts import read_text
from unweave.behaviours.task import tasks
from unweave.model.loading import load
from unweave.model.model import Model

RULES = (
    "frozen",
    "frozen, activation=slope",
    "frozen, activation=ratio",
    "frozen, attention=removal",
    "paper, attention=frozen, clamp=none",
    "paper, attention=frozen",
    "paper, attention=frozen, clamp=everywhere",
    "paper, attention=removal, clamp=none",
    "paper",
    "removal, attention=frozen",
    "removal",
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=int, default=100)
    parser.add_argument("--rules", action="store_true")
    options = parser.parse_args()
    model = load("question-classifier")
    # Rules are chosen on other sentences than those on which the choice is then compared.
    part = "evaluate" if options.rules else "discover"
    prompts = tasks["question-type"].prompts(model, options.texts, part=part, templates="all")
    texts = [prompt.clean for prompt in prompts]
    if options.rules:
        measure_rules(model, texts)
        return
    found = compare_attributions(model, texts)
    Console().print(found)
    if not found.missing:
        wins(model, texts, found["unweave"].scores, found["integrated gradients"].scores)


def each(model: Model, texts: list[str], scores) -> torch.Tensor:
    """Deletion and insertion area of every text."""
    rows = []
    for text, row in zip(texts, scores, strict=True):
        encoded = read_text(model, text)
        (goal,) = find_targets(model, [encoded], None, None)
        rows.append(areas(model, encoded, goal, ranked(encoded, row)))
    return torch.tensor(rows, dtype=torch.double)


def wins(model: Model, texts: list[str], ours, theirs) -> None:
    one, other = each(model, texts, ours), each(model, texts, theirs)
    gain = torch.stack((other[:, 0] - one[:, 0], one[:, 1] - other[:, 1]), 1)
    gain = torch.cat((gain, gain.sum(1, keepdim=True)), 1)
    error = gain.std(0) / len(texts) ** 0.5
    for name, mean, sigma, share in zip(
        ("deletion", "insertion", "gap"),
        gain.mean(0).tolist(),
        error.tolist(),
        (gain >= -1e-6).double().mean(0).tolist(),
        strict=True,
    ):
        print(f"{name}: better than IG by {mean:+.3f} ± {sigma:.3f}, as good in {share:.0%}")


def measure_rules(model: Model, texts: list[str]) -> None:
    print("deletion  insertion  gap     ablation  rules")
    for ablation in ("padding", "zero"):
        for rules in RULES:
            found = attribute(model, texts, rules=rules, ablation=ablation)
            assert isinstance(found, list)
            one, other = each(model, texts, [a.scores for a in found]).mean(0).tolist()
            print(
                f"{one:+8.3f}  {other:+9.3f}  {other - one:+.3f}  {ablation:8}  {rules}", flush=True
            )


if __name__ == "__main__":
    main()
