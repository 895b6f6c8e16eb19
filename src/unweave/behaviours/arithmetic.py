"""Arithmetic: "4 + 3 = 7, 1 + 5 = 6, 2 + 6 =" is followed by the sum.

Addition after three solved examples, in the manner of the arithmetic task of MIB (Mueller et al.,
MIB: a Mechanistic Interpretability Benchmark, 2025). The prompts are our own.
"""

from random import Random
from typing import NamedTuple

from unweave.behaviours.prompt import Prompt, Span, fill
from unweave.behaviours.task import task
from unweave.behaviours.words import Words
from unweave.errors import UnweaveError
from unweave.metrics import MARGIN

TEMPLATES = (
    "{a:A} + {b:B} =",
    "Sum: {a:A} + {b:B} =",
    "Add {a:A} + {b:B} =",
    "Question: {a:A} + {b:B} =",
)
NEW = ("3",)
SOLVED = 3  # examples before the question


@task("arithmetic", metric=MARGIN, new_templates=NEW)
def arithmetic(words: Words, n: int, rng: Random) -> list[Prompt]:
    """A sum is asked for after three solved ones.

    Numbers have two digits where the tokenizer gives those one token, else one digit. In the
    corrupted prompt other numbers, with another sum, are added last. The distractors are all other
    numbers with as many digits.
    """
    numbers, space = _numbers(words)
    pairs = [(a, b) for a in numbers for b in numbers if a + b in numbers]
    answer_space = "" if space else " "
    prompts = []
    for i in range(n):
        template = i % len(TEMPLATES)
        *solved, clean, corrupted = rng.sample(pairs, SOLVED + 2)
        if sum(clean) == sum(corrupted):
            continue
        before = "".join(f"{_ask(template, pair)[0]} {sum(pair)}\n" for pair in solved)
        text, spans = _ask(template, clean)
        prompts.append(
            Prompt(
                f"{before}{text}{space}",
                f"{before}{_ask(template, corrupted)[0]}{space}",
                answers=(f"{answer_space}{sum(clean)}",),
                distractors=tuple(f"{answer_space}{x}" for x in numbers if x != sum(clean)),
                template=str(template),
                spans={
                    name: (len(before) + start, len(before) + end)
                    for name, (start, end) in spans.items()
                },
                key=before,
            )
        )
    return prompts


def _ask(template: int, pair: tuple[int, int]) -> tuple[str, dict[str, Span]]:
    return fill(TEMPLATES[template], a=str(pair[0]), b=str(pair[1]))


class _Numbers(NamedTuple):
    """The numbers to add, and the space after a question where it is a token of its own."""

    numbers: range
    space: str


def _numbers(words: Words) -> _Numbers:
    """Numbers of two digits, or of one, that are a single token after a question."""
    for numbers in (range(10, 100), range(1, 10)):
        for space in ("", " "):
            context, lead = f"={space}", "" if space else " "
            texts = [f"{lead}{number}" for number in numbers]
            single = all(len(words.after(context, text)) == 1 for text in texts)
            if single and not any(words.merges(context, text) for text in texts):
                return _Numbers(numbers, space)
    raise UnweaveError(
        "arithmetic needs a token for each digit, or for each number of two digits: the tokenizer "
        f"of {words.model.name} has neither; choose another model"
    )
