"""Docstring: the next `:param` of a Python docstring names the function's next argument.

Heimersheim and Janiak, A circuit for Python docstrings in a 4-layer attention-only transformer
(2023). The prompt's words are our own.
"""

from random import Random

from unweave.behaviours.prompt import Prompt, fill
from unweave.behaviours.published import ATTN_ONLY_4L, published_roles
from unweave.behaviours.task import ONE_GROUP, KnownCircuit, heads, task
from unweave.behaviours.words import Words
from unweave.metrics import MARGIN

TEMPLATE = '''
def __init__(self, {p1}, {p2}, {A:A_def}, {B:B_def}, {C:C_def}, {s1}):
    """Set up the {w1} {w2}.

    :param {docA:A_doc}: the {w3} {w4}
    :param {docB:B_doc}: the {w5} {w6}
    :param'''
NAMES = """
    size load value image text data index item path mode level count start limit offset width
    height depth time event user group model target input output message token node table record
    code shape order speed weight mask filter type host port server cache frame button menu batch
    step layer format
"""
WORDS = """
    river garden winter music silver market forest window paper summer letter village bridge
    school doctor morning history animal kitchen station island mountain teacher castle
"""
ATTN_ONLY = KnownCircuit(
    heads("0.2 0.4 0.5 1.2 1.4 2.0 3.0 3.6"),
    "Heimersheim and Janiak 2023",
    added=heads("1.0 0.1 2.3"),
    aliases=("attn_only_4l512w_c4_code",),
    # The authors give 1.4 two functions at two positions, and call the rest less important.
    roles=published_roles(
        """
        argument mover: 3.0@end 3.6@end
        induction: 1.4@end
        previous token: 2.0@C_def
        supporting: 0.2 0.4 0.5 1.2
        """
    ),
    shape=ATTN_ONLY_4L,
)


@task(
    "docstring",
    metric=MARGIN,
    known={"attn-only-4l": ATTN_ONLY},
    only_correct=True,
    n_discover=64,
    per_group=ONE_GROUP,
)
def docstring(words: Words, n: int, rng: Random) -> list[Prompt]:
    """A docstring names arguments in their order.

    After A and B comes C. Corrupted ("random_random"): A, B and C are replaced in the definition,
    and A and B by yet other names in the docstring. The prompts are those that the model answers
    correctly.
    """
    names, nouns = words.single(NAMES, at_least=11), words.single(WORDS, at_least=6)
    prompts = []
    for _ in range(n):
        p1, p2, a, b, c, s1, *others = rng.sample(names, 11)
        frame = {"p1": p1, "p2": p2, "s1": s1}
        frame |= {f"w{i + 1}": word for i, word in enumerate(rng.sample(nouns, 6))}
        clean, spans = fill(TEMPLATE, **frame, A=a, B=b, C=c, docA=a, docB=b)
        fresh = dict(zip(("A", "B", "C", "docA", "docB"), others, strict=True))
        prompts.append(
            Prompt(
                clean,
                fill(TEMPLATE, **frame, **fresh)[0],
                answers=(f" {c}",),
                distractors=tuple(f" {name}" for name in (p1, p2, a, b, s1)),
                spans={name: span for name, span in spans.items() if name[1:] in ("_def", "_doc")},
            )
        )
    return prompts
