"""Prompts of two classes: one word or phrase decides, and the corrupted prompt has its opposite."""

from functools import partial
from random import Random

from unweave.behaviours.prompt import Prompt, fill
from unweave.behaviours.task import task
from unweave.metrics import LOGIT_DIFFERENCE

# A task whose answers are the classes of a classifier: prompts on which it errs do not count.
class_task = partial(task, metric=LOGIT_DIFFERENCE, only_correct=True)


def opposite(
    pattern: str,
    template: int,
    classes: tuple[str, str],
    slot: str,
    pair: tuple[str, ...],
    rng: Random,
    **words: str,
) -> Prompt:
    """A prompt whose class is that of the word in its slot, drawn from a pair of opposites.

    Args:
        pattern: With the slot, and one for each of the other words.
        template: The pattern's number.
        pair: A word for the slot of each class.
    """
    right, wrong = rng.sample((0, 1), 2)
    clean, spans = fill(pattern, **{slot: pair[right]}, **words)
    corrupted, _ = fill(pattern, **{slot: pair[wrong]}, **words)
    return Prompt(
        clean,
        corrupted,
        answers=(classes[right],),
        distractors=(classes[wrong],),
        template=str(template),
        spans=spans,
        key=" ".join((str(template), pair[0], *words.values())),
    )
