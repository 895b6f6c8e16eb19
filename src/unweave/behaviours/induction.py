"""Induction: [A][B] … [A] is followed by [B], for words in a random order.

Olsson et al., In-context Learning and Induction Heads (2022).
"""

from random import Random

from unweave.behaviours.prompt import Prompt
from unweave.behaviours.task import ONE_GROUP, task
from unweave.behaviours.words import Words
from unweave.metrics import LOGIT_DIFFERENCE

LENGTH = 12  # words before the repetition
REPEATED = 4  # words of it that are repeated
WORDS = """
    apple river stone window music doctor yellow seven paper mountain coffee winter garden engine
    letter silver kitchen tiger bridge cotton summer castle orange finger doctor butter market
    horse pencil island planet ticket dragon forest mirror hammer village ocean camera button
    salmon wheel thunder basket ladder lemon pocket rabbit shadow rocket sugar table tower valley
    bottle cloud desert eagle flower glass honey jacket knife lamp metal needle onion piano queen
    rope spoon train uncle violin wagon chair bread circle farmer guitar hotel insect jungle king
"""


@task("induction", metric=LOGIT_DIFFERENCE, per_group=ONE_GROUP)
def induction(words: Words, n: int, rng: Random) -> list[Prompt]:
    """Random words begin to repeat.

    Some words of a random list are said again, in order; the answer is the one that came next,
    the distractor one that followed another word. In the corrupted prompt other words stand
    before the repetition, which then repeats nothing.
    """
    vocabulary = words.single(WORDS, at_least=2 * LENGTH)
    prompts = []
    for _ in range(n):
        sample = rng.sample(vocabulary, 2 * LENGTH)
        before, other = sample[:LENGTH], sample[LENGTH:]
        start = rng.randrange(LENGTH - REPEATED)
        last = start + REPEATED - 1
        said_again = " ".join(before[start : last + 1])
        distractor = rng.choice([i for i in range(1, LENGTH) if not start <= i <= last + 1])
        prompts.append(
            Prompt(
                f"Words: {' '.join(before)} {said_again}",
                f"Words: {' '.join(other)} {said_again}",
                answers=(f" {before[last + 1]}",),
                distractors=(f" {before[distractor]}",),
                spans={"A1": _span(before, last), "B1": _span(before, last + 1)},
            )
        )
    return prompts


def _span(said: list[str], index: int) -> tuple[int, int]:
    start = len("Words: ") + sum(len(word) + 1 for word in said[:index])
    return start, start + len(said[index])
