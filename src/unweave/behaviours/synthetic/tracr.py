"""Tasks of the models `tracr:…`: letters in, a program's result at the last of them out.

The circuits are written down here as tests found them in the compiled weights, so that tasks are
known without tracr.
"""

from collections.abc import Callable, Sequence
from random import Random

from unweave.behaviours.prompt import Prompt
from unweave.behaviours.sampling import part_of
from unweave.behaviours.synthetic import by_construction
from unweave.behaviours.task import KnownCircuit, synthetic_tasks, task
from unweave.behaviours.words import Words
from unweave.metrics import LOGIT_DIFFERENCE
from unweave.model.synthetic import Wiring
from unweave.model.synthetic.tracr_compile import LENGTH, LETTERS
from unweave.model.synthetic.wiring import wirings

Letters = Sequence[str]


def _wirings(nodes: str, edges: str, zero_nodes: str, zero_edges: str) -> dict[str, Wiring]:
    return wirings(nodes, edges.split(", "), zero_nodes, zero_edges.split(", "))


WIRINGS = {
    "reverse": _wirings(
        "a3.h0",
        "embed a3.h0.v, a3.h0 logits",
        "a0.h0 m0 m1 m2 a3.h0",
        "embed a0.h0.q, embed a0.h0.k, embed a0.h0.v, embed m0, embed m1, embed a3.h0.q, "
        "embed a3.h0.k, embed a3.h0.v, a0.h0 m0, m0 m1, m1 m2, m2 a3.h0.q, a3.h0 logits",
    ),
    "proportion": _wirings(
        "m0 a1.h0",
        "embed m0, m0 a1.h0.v, a1.h0 logits",
        "m0 a1.h0",
        "embed m0, embed a1.h0.q, embed a1.h0.k, m0 a1.h0.v, a1.h0 logits",
    ),
    "hist": _wirings(
        "a0.h0 m0",
        "embed a0.h0.q, embed a0.h0.k, a0.h0 m0, m0 logits",
        "a0.h0 m0",
        "embed a0.h0.q, embed a0.h0.k, embed a0.h0.v, embed m0, a0.h0 m0, m0 logits",
    ),
    "balance": _wirings(
        "m0 a1.h0 a1.h1 m1",
        "embed m0, m0 a1.h0.v, m0 a1.h1.v, a1.h0 m1, a1.h1 m1, m1 logits",
        "m0 a1.h0 a1.h1 m1",
        "embed m0, embed a1.h0.q, embed a1.h0.k, embed a1.h1.q, embed a1.h1.k, m0 a1.h0.v, "
        "m0 a1.h1.v, a1.h0 m1, a1.h1 m1, m1 logits",
    ),
}


def _known(name: str) -> dict[str, KnownCircuit]:
    return {f"tracr:{name}": by_construction(WIRINGS[name], "Lindner et al., Tracr (2023)")}


def _prompts(
    n: int, rng: Random, fits: Callable[[Letters, Letters], bool], answer: Callable[[Letters], str]
) -> list[Prompt]:
    """Pairs of letters of one length, clean and corrupted, that fit together."""
    prompts = []
    while len(prompts) < n:
        length = rng.randint(5, LENGTH)
        clean, corrupted = (rng.choices(LETTERS, k=length) for _ in range(2))
        if not fits(clean, corrupted):
            continue
        right, wrong = answer(clean), answer(corrupted)
        if right == wrong:  # the result is a number: it is compared with zero
            right, wrong = "value", "zero"
        one = Prompt(" ".join(clean), " ".join(corrupted), (right,), (wrong,))
        other = Prompt(" ".join(corrupted), " ".join(clean), (wrong,), (right,))
        if part_of(one) == part_of(other):  # no text in two parts
            prompts.append(one)
    return prompts


def _number(letters: Letters) -> str:
    return "value"


@task("tracr:reverse", metric=LOGIT_DIFFERENCE, known=_known("reverse"), registry=synthetic_tasks)
def reverse(words: Words, n: int, rng: Random) -> list[Prompt]:
    """The letters in reverse: at the end, the first (for the model of this name)."""
    return _prompts(n, rng, lambda one, two: one[0] != two[0], lambda letters: letters[0])


@task(
    "tracr:proportion",
    metric=LOGIT_DIFFERENCE,
    known=_known("proportion"),
    registry=synthetic_tasks,
)
def proportion(words: Words, n: int, rng: Random) -> list[Prompt]:
    """The share of letters so far that are a (for the model of this name)."""
    return _prompts(n, rng, lambda one, two: one.count("a") > two.count("a"), _number)


@task("tracr:hist", metric=LOGIT_DIFFERENCE, known=_known("hist"), registry=synthetic_tasks)
def hist(words: Words, n: int, rng: Random) -> list[Prompt]:
    """How often the last letter is there (for the model of this name)."""

    def count(letters: Letters) -> str:
        return str(letters.count(letters[-1]))

    return _prompts(n, rng, lambda one, two: count(one) != count(two), count)


@task("tracr:balance", metric=LOGIT_DIFFERENCE, known=_known("balance"), registry=synthetic_tasks)
def balance(words: Words, n: int, rng: Random) -> list[Prompt]:
    """The share of a less the share of b (for the model of this name)."""

    def surplus(letters: Letters) -> int:
        return letters.count("a") - letters.count("b")

    return _prompts(n, rng, lambda one, two: surplus(one) > max(0, surplus(two)), _number)
