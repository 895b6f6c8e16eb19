"""The task of the model `wired-induction`."""

from random import Random

from unweave.behaviours.prompt import Prompt
from unweave.behaviours.synthetic import by_construction
from unweave.behaviours.task import synthetic_tasks, task
from unweave.behaviours.words import Words
from unweave.metrics import LOGIT_DIFFERENCE
from unweave.model.synthetic import wired_induction as model

LENGTH = 7  # words before the one that is said again
KNOWN = {"wired-induction": by_construction(model.WIRING, "wired in model/synthetic")}


def repeated_words(words: Words, n: int, rng: Random) -> list[Prompt]:
    """A word is said again; the corrupted prompt says other words and repeats another of them."""
    vocabulary = words.single(model.WORDS, at_least=LENGTH)
    prompts = []
    for _ in range(n):
        said, other = rng.sample(vocabulary, LENGTH), rng.sample(vocabulary, LENGTH)
        again = rng.randrange(LENGTH - 1)
        wrong = rng.choice([i for i in range(LENGTH) if i not in (again, again + 1)])
        clean = f"{' '.join(said)} {said[again]}"
        corrupted = f"{' '.join(other)} {other[rng.randrange(LENGTH - 1)]}"
        if clean != corrupted:
            answers, others = (f" {said[again + 1]}",), (f" {said[wrong]}",)
            prompts.append(Prompt(clean, corrupted, answers, others))
    return prompts


@task("wired-induction", metric=LOGIT_DIFFERENCE, known=KNOWN, registry=synthetic_tasks)
def wired_induction(words: Words, n: int, rng: Random) -> list[Prompt]:
    """A word is said again: what followed it follows again (for the model of this name)."""
    return repeated_words(words, n, rng)
