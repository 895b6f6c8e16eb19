"""The task of the model `wired-suppression`."""

from random import Random

from unweave.behaviours.prompt import Prompt
from unweave.behaviours.synthetic import by_construction
from unweave.behaviours.synthetic.wired_induction import repeated_words
from unweave.behaviours.task import synthetic_tasks, task
from unweave.behaviours.words import Words
from unweave.metrics import LOGIT_DIFFERENCE
from unweave.model.synthetic import wired_suppression as model

KNOWN = {"wired-suppression": by_construction(model.WIRING, "wired in model/synthetic")}


@task("wired-suppression", metric=LOGIT_DIFFERENCE, known=KNOWN, registry=synthetic_tasks)
def wired_suppression(words: Words, n: int, rng: Random) -> list[Prompt]:
    """As in wired-induction, one head against it and one in favour (for the model of this name)."""
    return repeated_words(words, n, rng)
