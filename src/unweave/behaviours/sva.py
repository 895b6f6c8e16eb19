"""Subject–verb agreement: "The keys near the cabinet" is followed by "are", not "is".

Linzen et al., Assessing the Ability of LSTMs to Learn Syntax-Sensitive Dependencies (TACL 2016).
The templates and word lists are our own.
"""

from random import Random

from unweave.behaviours.prompt import Prompt, fill
from unweave.behaviours.task import task
from unweave.behaviours.words import Words
from unweave.metrics import LOGIT_DIFFERENCE

TEMPLATES = (
    "The {subject} near the {other:attractor}",
    "I remember that the {subject} from the {other:attractor}",
    "Everyone says that the {subject} beside the {other:attractor}",
    "Today the {subject} next to the {other:attractor}",
    "They told us that the {subject} behind the {other:attractor}",
    "Last year the {subject} with the {other:attractor}",
)
NEW = ("2", "5")
NOUNS = """
    author banker boat book boy brother bus car chair child/children clock cloud coach cousin
    dancer doctor dog door driver engine farmer father flower friend girl guard horse house
    key king lamp lawyer letter machine man/men manager mirror mother nurse painting pilot plant
    player poet river sailor scientist sister soldier student table teacher tower tree truck
    uncle window woman/women worker writer
"""
VERBS = {"singular": ("is", "was"), "plural": ("are", "were")}


@task("sva", metric=LOGIT_DIFFERENCE, new_templates=NEW)
def sva(words: Words, n: int, rng: Random) -> list[Prompt]:
    """A verb agrees with its subject, whatever noun stands in between.

    In the corrupted prompt the subject has the other number.
    """
    nouns = _nouns(words)
    verbs = {number: words.single(VERBS[number]) for number in VERBS}
    prompts = []
    for i in range(n):
        template = i % len(TEMPLATES)
        subject, other = rng.sample(nouns, 2)
        attractor = rng.choice(other)
        right, wrong = rng.sample((0, 1), 2)
        numbers = ("singular", "plural")
        clean, spans = fill(TEMPLATES[template], subject=subject[right], other=attractor)
        corrupted, _ = fill(TEMPLATES[template], subject=subject[wrong], other=attractor)
        prompts.append(
            Prompt(
                clean,
                corrupted,
                answers=tuple(f" {verb}" for verb in verbs[numbers[right]]),
                distractors=tuple(f" {verb}" for verb in verbs[numbers[wrong]]),
                template=str(template),
                spans=spans,
                key=f"{template} {subject[0]} {attractor}",
            )
        )
    return prompts


def _nouns(words: Words) -> list[tuple[str, str]]:
    """Nouns whose singular and plural are one token each."""
    pairs = [(one, many or f"{one}s") for one, _, many in (n.partition("/") for n in NOUNS.split())]
    single = set(words.single([word for pair in pairs for word in pair]))
    return [pair for pair in pairs if single.issuperset(pair)]
