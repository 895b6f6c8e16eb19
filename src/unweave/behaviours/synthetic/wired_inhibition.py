"""The task of the model `wired-inhibition`."""

from random import Random

from unweave.behaviours.prompt import Prompt
from unweave.behaviours.synthetic import by_construction
from unweave.behaviours.task import synthetic_tasks, task
from unweave.behaviours.words import Words
from unweave.metrics import LOGIT_DIFFERENCE
from unweave.model.synthetic import wired_inhibition as model

KNOWN = {"wired-inhibition": by_construction(model.WIRING, "wired in model/synthetic")}


@task("wired-inhibition", metric=LOGIT_DIFFERENCE, known=KNOWN, registry=synthetic_tasks)
def wired_inhibition(words: Words, n: int, rng: Random) -> list[Prompt]:
    """Of two names one is said twice: the other follows (for the model of this name).

    In the corrupted prompt three different names are said, so that none is to be inhibited.
    """
    names = words.single(model.NAMES, at_least=5)
    prompts = []
    for _ in range(n):
        first, second, *three = rng.sample(names, 5)
        subject, answer = rng.choice([(first, second), (second, first)])
        clean = f"{first} met {second} then {subject} gave it to"
        corrupted = f"{three[0]} met {three[1]} then {three[2]} gave it to"
        prompts.append(Prompt(clean, corrupted, (f" {answer}",), (f" {subject}",)))
    return prompts
