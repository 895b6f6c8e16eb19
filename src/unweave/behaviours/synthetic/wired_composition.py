"""The task of the model `wired-composition`."""

from random import Random

from unweave.behaviours.prompt import Prompt, fill
from unweave.behaviours.synthetic import by_construction
from unweave.behaviours.task import synthetic_tasks, task
from unweave.behaviours.words import Words
from unweave.metrics import LOGIT_DIFFERENCE
from unweave.model.synthetic import wired_composition as model

KNOWN = {"wired-composition": by_construction(model.WIRING, "wired in model/synthetic")}
PATTERN = "{a:first} {b} {c:third} {d} {e}"


@task("wired-composition", metric=LOGIT_DIFFERENCE, known=KNOWN, registry=synthetic_tasks)
def wired_composition(words: Words, n: int, rng: Random) -> list[Prompt]:
    """Five words: the first of them follows again (for the model of this name).

    The corrupted prompt says other words.
    """
    known = words.single(model.WORDS, at_least=6)
    prompts = []
    for _ in range(n):
        said, other = rng.sample(known, 5), rng.sample(known, 5)
        if said[0] != other[0]:
            clean, spans = fill(PATTERN, **dict(zip("abcde", said, strict=True)))
            corrupted = fill(PATTERN, **dict(zip("abcde", other, strict=True)))[0]
            named = {name: spans[name] for name in ("first", "third")}
            answer, distractor = (f" {said[0]}",), (f" {said[1]}",)
            prompts.append(Prompt(clean, corrupted, answer, distractor, spans=named))
    return prompts
