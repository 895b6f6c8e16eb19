"""Multiple choice: four lettered answers, the letter of the right one follows.

In the manner of the multiple-choice task of MIB (Mueller et al., MIB: a Mechanistic
Interpretability Benchmark, 2025): what is asked has just been said, so that the letter is all that
has to be found. The sentences and word lists are our own.
"""

from random import Random

from unweave.behaviours.prompt import Prompt, fill
from unweave.behaviours.task import task
from unweave.behaviours.words import Words
from unweave.metrics import MARGIN

TEMPLATES = (
    "The {thing} is {colour}. What colour is the {thing:thing2}?",
    "Here is a {colour} {thing}. Which colour does the {thing:thing2} have?",
    "Yesterday a {colour} {thing} was sold. What was the colour of the {thing:thing2}?",
)
NEW = ("2",)
LETTERS = ("A", "B", "C", "D")
THINGS = """
    box ball car cup hat book door chair table flower bird dress shirt wall boat bag bottle bike
    house truck lamp pen coat ring horse tent
"""
COLOURS = "red blue green black white yellow brown pink grey purple gold silver"


@task("multiple-choice", metric=MARGIN, new_templates=NEW)
def multiple_choice(words: Words, n: int, rng: Random) -> list[Prompt]:
    """The letter of the right one of four choices follows.

    Small models fail: SmolLM2-135M is right in 21% of prompts, no better than a random letter.
    In the corrupted prompt the same choices are rotated, so that another letter is right. The
    distractors are the other three letters.
    """
    things, colours = words.single(THINGS), words.single(COLOURS, at_least=4)
    words.single(LETTERS, at_least=4)
    prompts = []
    for i in range(n):
        template = i % len(TEMPLATES)
        thing, listed = rng.choice(things), rng.sample(colours, 4)
        right, step = rng.randrange(4), rng.randrange(1, 4)
        question, spans = fill(TEMPLATES[template], thing=thing, colour=listed[right])
        start = len(question) + len("\n") + sum(len(f"A. {c}\n") for c in listed[:right])
        prompts.append(
            Prompt(
                question + _choices(listed),
                question + _choices(listed[step:] + listed[:step]),
                answers=(f" {LETTERS[right]}",),
                distractors=tuple(f" {x}" for x in LETTERS if x != LETTERS[right]),
                template=str(template),
                spans={
                    "colour": spans["colour"],
                    "letter": (start, start + 1),
                    "choice": (start + 3, start + 3 + len(listed[right])),
                },
                # Every order of the same choices, since one may be another's corrupted prompt.
                key=f"{question} {sorted(listed)}",
            )
        )
    return prompts


def _choices(listed: list[str]) -> str:
    lines = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, listed, strict=True)]
    return "\n" + "\n".join(lines) + "\nAnswer:"
