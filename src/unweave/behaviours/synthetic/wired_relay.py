"""The task of the model `wired-relay`."""

from random import Random

from unweave.behaviours.prompt import Prompt
from unweave.behaviours.synthetic import by_construction
from unweave.behaviours.task import synthetic_tasks, task
from unweave.behaviours.words import Words
from unweave.metrics import LOGIT_DIFFERENCE
from unweave.model.synthetic import wired_relay as model

KNOWN = {"wired-relay": by_construction(model.WIRING, "wired in model/synthetic")}


@task("wired-relay", metric=LOGIT_DIFFERENCE, known=KNOWN, registry=synthetic_tasks)
def wired_relay(words: Words, n: int, rng: Random) -> list[Prompt]:
    """Two words are said in turn: the first of them follows (for the model of this name).

    The corrupted prompt says other words. Four more words make prompts differ.
    """
    known = words.single(model.WORDS, at_least=6)
    prompts = []
    for _ in range(n):
        said, other = rng.sample(known, 6), rng.sample(known, 6)
        if said != other:
            answer, distractor = (f" {said[0]}",), (f" {said[1]}",)
            prompts.append(Prompt(_text(said), _text(other), answer, distractor))
    return prompts


def _text(words: list[str]) -> str:
    first, second, *others = words
    return " ".join((*(first, second) * 3, *others))
