"""Greater-than: "… lasted from the year 1734 to the year 17" is followed by more than 34.

Hanna et al., How does GPT-2 compute greater-than? (NeurIPS 2023). The nouns are our own.
"""

from random import Random
from typing import NamedTuple

from unweave.behaviours.prompt import Prompt, fill
from unweave.behaviours.published import GPT2_SMALL, published_roles
from unweave.behaviours.task import ONE_GROUP, KnownCircuit, heads, task
from unweave.behaviours.words import Words
from unweave.errors import UnweaveError
from unweave.metrics import PROBABILITY_DIFFERENCE

TEMPLATE = "The {noun:NOUN} lasted from the year {century:XX}{year:YY} to the year {century:XX2}"
CENTURIES = range(11, 19)
NOUNS = """
    war battle siege conflict famine plague strike dispute campaign empire reign alliance treaty
    trial project program journey voyage mission expedition rebellion revolution revolt occupation
    crisis recession depression drought construction restoration investigation negotiations
    marriage friendship partnership career contract feud rivalry movement reform tradition
    experiment study debate boycott blockade truce regime dynasty era migration exile
    collaboration competition tournament festival exhibition tour ban boom
"""
GPT2 = KnownCircuit(
    heads("5.1 5.5 6.1 6.9 7.10 8.8 8.11 9.1"),
    "Hanna et al. 2023",
    aliases=("gpt2-small",),
    roles=published_roles(
        "attends to YY: 5.1@end 5.5@end 6.1@end 6.9@end 7.10@end 8.8@end 8.11@end 9.1@end"
    ),
    shape=GPT2_SMALL,
)


@task("greater-than", metric=PROBABILITY_DIFFERENCE, known={"gpt2": GPT2}, per_group=ONE_GROUP)
def greater_than(words: Words, n: int, rng: Random) -> list[Prompt]:
    """A span of years ends after it began.

    In the corrupted prompt it begins in the year XX01. Where the tokenizer gives two digits one
    token, the answers are the years of the century after YY. Where it gives each digit its own, YY
    ends in 9, so that the tens digit alone decides; the position YY is then that digit.
    """
    nouns, centuries = words.single(NOUNS, at_least=3), _centuries(words)
    prompts = []
    for _ in range(n):
        noun, century = rng.choice(nouns), rng.choice(centuries)
        year, width = rng.choice(century.years), century.width
        clean, spans = fill(TEMPLATE, noun=noun, century=century.name, year=year)
        corrupted, _ = fill(TEMPLATE, noun=noun, century=century.name, year="01")
        decisive = (spans["YY"][0], spans["YY"][0] + width)
        prompts.append(
            Prompt(
                clean,
                corrupted,
                answers=tuple(y for y in century.answers if y > year[:width]),
                distractors=tuple(y for y in century.answers if y <= year[:width]),
                spans={"NOUN": spans["NOUN"], "XX": spans["XX"], "YY": decisive},
                key=f"{noun} {century.name}",
            )
        )
    return prompts


class _Century(NamedTuple):
    """A century as a tokenizer sees it: a token of its years has `width` digits.

    `years` are those that it splits well, `answers` the tokens that may follow XX.
    """

    name: str
    width: int
    years: list[str]
    answers: list[str]


def _centuries(words: Words) -> list[_Century]:
    found = []
    for name in map(str, CENTURIES):
        width = _digits(words, name, "01")
        numbers = {1: range(19, 90, 10), 2: range(2, 99)}.get(width, range(0))
        years = [y for y in map("{:02}".format, numbers) if _digits(words, name, y) == width]
        tokens = [f"{y:0{width}}" for y in range(10**width)]
        answers = [y for y in tokens if len(words.after(name, y)) == 1]
        # Both sides need an answer, whatever the tokenizer lacks.
        years = [y for y in years if answers and answers[0] <= y[:width] < answers[-1]]
        if years:
            found.append(_Century(name, width, years, answers))
    if not found:
        text = "in 1734"
        pieces = [text[start:end].strip() for start, end in words.pieces(text)[1:]]
        raise UnweaveError(
            f"greater-than needs tokens of two digits or of one, and the tokenizer of "
            f"{words.model.name} splits 1734 as {'|'.join(filter(None, pieces))}: choose another "
            "model"
        )
    return found


def _digits(words: Words, century: str, year: str) -> int:
    """How many digits a token of this year has: 2 for XX|YY, 1 for X|X|Y|Y, else 0."""
    begin = len("year ") + len(century)
    ends = [end - begin for _, end in words.pieces(f"year {century}{year}")]
    return {(0, 2): 2, (0, 1, 2): 1}.get(tuple(end for end in ends if end >= 0), 0)
