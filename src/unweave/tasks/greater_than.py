"""Greater-than: "… lasted from the year 1734 to the year 17" is followed by more than 34.

Hanna et al., How does GPT-2 compute greater-than? (NeurIPS 2023). The nouns are our own.
"""

from random import Random

from unweave.errors import UnweaveError
from unweave.metrics import PROBABILITY_DIFFERENCE
from unweave.tasks.prompt import Prompt, fill
from unweave.tasks.task import KnownCircuit, heads, task
from unweave.tasks.words import Words

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
    heads("5.1 5.5 6.1 6.9 7.10 8.8 8.11 9.1"), "Hanna et al. 2023", aliases=("gpt2-small",)
)


@task("greater-than", metric=PROBABILITY_DIFFERENCE, known={"gpt2": GPT2}, per_group=32)
def greater_than(words: Words, n: int, rng: Random) -> list[Prompt]:
    """A span of years ends after it began; the corrupted one begins in the year XX01.

    Where the tokenizer gives two digits one token, the answers are the years of the century after
    YY. Where it gives each digit its own, YY ends in 9, so that the tens digit alone decides; the
    position YY is then that digit.
    """
    nouns, years = words.single(NOUNS, at_least=3), _years(words)
    prompts = []
    for _ in range(n):
        noun = rng.choice(nouns)
        century = rng.choice(list(years))
        year, width = rng.choice(years[century])
        clean, spans = fill(TEMPLATE, noun=noun, century=century, year=year)
        corrupted, _ = fill(TEMPLATE, noun=noun, century=century, year="01")
        every = [f"{y:0{width}}" for y in range(10**width)]
        every = [y for y in every if len(words.after(century, y)) == 1]
        decisive = (spans["YY"][0], spans["YY"][0] + width)
        prompts.append(
            Prompt(
                clean,
                corrupted,
                answers=tuple(y for y in every if y > year[:width]),
                distractors=tuple(y for y in every if y <= year[:width]),
                spans={"NOUN": spans["NOUN"], "XX": spans["XX"], "YY": decisive},
                key=f"{noun} {century}",
            )
        )
    return prompts


def _years(words: Words) -> dict[str, list[tuple[str, int]]]:
    """The years YY of each century that the tokenizer splits well, with the digits a token has."""
    found = {}
    for century in map(str, CENTURIES):
        width = _digits(words, century, "01")
        years = {1: range(19, 90, 10), 2: range(2, 99)}.get(width, range(0))
        kept = [(f"{y:02}", width) for y in years if _digits(words, century, f"{y:02}") == width]
        if kept:
            found[century] = kept
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
